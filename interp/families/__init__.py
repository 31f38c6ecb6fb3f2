"""Every causal LM type that transformers lists, each as a tiny model: what `capture` certifies, by which route, and what it refuses.

`table()` reads the verdicts shipped with the package; `python -m interp.families` makes them anew. A verdict holds for the
architecture as the installed transformers writes it, not for any one checkpoint: `capture` proves each forward itself.
"""

from __future__ import annotations

import csv
from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[1] / "families.csv"


def table() -> list[dict[str, str]]:
    """One row a type, as shipped: model_type, status (certified, refused, not buildable), routes, error, reason and more."""
    with SHIPPED.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def by_status() -> dict[str, list[str]]:
    """Types by status, certified first."""
    found: dict[str, list[str]] = {"certified": [], "refused": [], "not buildable": []}
    for row in table():
        found[row["status"]].append(row["model_type"])
    return found
