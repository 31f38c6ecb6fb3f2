"""What an audit found: its lines, as a table for a terminal and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from interp.capturing.checks import Check


@dataclass(frozen=True)
class Line:
    """One check on one route and one text; `note` says more where a figure does not."""

    check: Check
    route: str = ""
    text: str = ""
    note: str = ""

    @property
    def severity(self) -> tuple[bool, float]:
        """Failed first, then by the share of what is allowed."""
        share = self.check.worst / self.check.tolerance if self.check.tolerance else math.inf if self.check.worst else 0.0
        return not self.check.passed, share


@dataclass(frozen=True)
class Audit:
    """The worst line of each check, over all routes and texts, with what was audited and what was not."""

    model: dict[str, Any]
    lines: tuple[Line, ...]
    routes: tuple[str, ...]
    texts: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(line.check.passed for line in self.lines)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(line.check.name for line in self.lines if not line.check.passed)

    def table(self) -> str:
        """For a terminal: one line a check with its worst figure and where it stands."""
        heads = ("", "check", "worst", "allowed", "layer", "head", "row", "route", "text")
        rows = [heads, *(_row(line) for line in self.lines)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        listed = "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
        about = ", ".join(str(self.model.get(key, "?")) for key in ("model", "model_type", "revision", "dtype", "device"))
        what = "; ".join(f"{name} ({count} tokens)" for name, count in self.texts)
        bad = f"FAILED: {', '.join(self.failed)}" if self.failed else f"all {len(self.lines)} checks hold"
        return "\n".join([about, f"routes: {', '.join(self.routes)}", f"texts: {what}", "", listed, "", *self.notes, bad])

    def json(self) -> str:
        """The same as JSON; a figure that is no finite number is null."""
        made = [
            {
                "check": line.check.name, "passed": line.check.passed, "worst": _finite(line.check.worst),
                "tolerance": line.check.tolerance, "layer": line.check.layer, "head": line.check.head, "row": line.check.row,
                "route": line.route or None, "text": line.text or None, "note": line.note or None,
            }
            for line in self.lines
        ]  # fmt: skip
        texts = [{"name": name, "tokens": count} for name, count in self.texts]
        whole = {
            "model": self.model,
            "passed": self.passed,
            "checks": made,
            "routes": self.routes,
            "texts": texts,
            "notes": self.notes,
        }
        return json.dumps(whole, allow_nan=False, ensure_ascii=False, indent=1)


def worst_lines(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The worst line of each check, checks in the order of their first appearance."""
    kept: dict[str, Line] = {}
    for line in lines:
        other = kept.get(line.check.name)
        kept[line.check.name] = line if other is None or line.severity > other.severity else other
    return tuple(kept.values())


def _row(line: Line) -> tuple[str, ...]:
    check = line.check
    place = ("" if axis is None else str(axis) for axis in (check.layer, check.head, check.row))
    held = "ok" if check.passed else "FAILED"
    return (
        held,
        check.name,
        f"{check.worst:.3g}",
        f"{check.tolerance:.3g}",
        *place,
        line.route,
        line.text + (f" ({line.note})" if line.note else ""),
    )


def _finite(figure: float) -> float | None:
    return figure if math.isfinite(figure) else None
