"""`python -m interp.families [TYPE …]`: the sweep over all causal LM types; one row each in reports/families/, minutes on two cores.

`--save` also renews the table shipped with the package. A sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import Any

import pandas as pd

from interp.families import SHIPPED
from interp.families.examine import COLUMNS
from interp.families.sweep import sweep, types
from interp.progress import track
from interp.report import Report
from interp.results import Table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m interp.families", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("types", nargs="*", help="model types; all unless given")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60, help="time limit of one type")
    parser.add_argument("--out", type=Path, default=Path("reports/families"))
    parser.add_argument("--save", action="store_true", help=f"also write {SHIPPED.name} into the package (all types only)")
    chosen = parser.parse_args(arguments)
    names = chosen.types or types()
    kept = chosen.out.with_name(f".{chosen.out.name}.rows.jsonl")
    found = sweep(names, kept, processes=chosen.processes, seconds=chosen.seconds)
    rows = sorted(track(found, "families", total=len(names)), key=lambda row: row["model_type"])
    made = report(rows)
    place = made.write(chosen.out)
    if chosen.save and not chosen.types:
        made.tables[0].to_csv(SHIPPED)
    kept.unlink(missing_ok=True)
    print(made.answer)
    print(place)


def report(rows: list[dict[str, Any]]) -> Report:
    """The table of families as a page: how many are certified, by which routes, and the words of every refusal."""
    import torch
    import transformers

    frame = pd.DataFrame(rows, columns=list(COLUMNS)).assign(transformers=transformers.__version__)
    counts = frame["status"].value_counts()
    certified = frame[frame["status"] == "certified"]
    two = int(certified["routes"].str.contains(" ").sum())
    by_route = ", ".join(f"{number} by {route}" for route, number in certified["route"].value_counts().items())
    numbers = {
        "certified": len(certified),
        "refused": int(counts.get("refused", 0)),
        "not_buildable": int(counts.get("not buildable", 0)),
        "certified_by_two_routes": two,
        "worst_error": float(certified["error"].max()),
        "worst_agreement": float(certified["agreement"].astype(float).max()),
        "worst_difference_to_eager": float(certified["eager_error"].astype(float).max()),
    }
    return Report(
        analysis="families",
        model=f"transformers {transformers.__version__}",
        question="Of which causal language models is what is captured what the model computed?",
        answer=(
            f"{len(certified)} of {len(frame)} types are certified ({by_route}), {two} of them by two routes or more that agree to "
            f"{numbers['worst_agreement']:.1e}. {numbers['refused']} are refused by name, and of {numbers['not_buildable']} no tiny model ran."
        ),
        numbers=numbers,
        tables=[
            Table(
                "families",
                "One row for each type for which transformers lists a causal language model.",
                frame,
                {**COLUMNS, "transformers": "version examined"},
            )
        ],
        notes=[
            "Each type is a tiny model with random weights, shrunk from its default configuration, on 11 tokens in float32; "
            "a checkpoint with other settings of the same type is proved again by each capture.",
            "A capture is certified where every check holds; the eager column compares with the weights the family itself returns.",
        ],
        provenance={"torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version()},
        command="python -m interp.families",
    )


if __name__ == "__main__":
    main()
