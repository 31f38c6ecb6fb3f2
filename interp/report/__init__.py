"""Report: results of one analysis as one folder, `index.html`, a CSV for each table, `summary.json`. A pure function of results.

Same input, same bytes: no clock, no absolute path, no random id. The page needs no network and reads with scripts off.
Knows nothing of attention but its viewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.errors import InterpError
from interp.report.definitions import definitions, explained
from interp.report.table_file import from_csv
from interp.report.text import model_name, plain, slug
from interp.results import Claim, Curve, Grid, Table, claims_table

if TYPE_CHECKING:
    from interp.capturing import Capture

__all__ = ["Report", "definitions", "from_csv", "view"]


@dataclass(frozen=True, eq=False)
class Report:
    """What an analysis found: a question, an answer of at most three sentences made from the numbers, and the results behind it.

    `numbers` become tiles and go into summary.json; `definitions` are keys of `interp.report.definitions` or own texts
    "term: meaning"; `notes` are honest limits; `captures` open in the viewer; `command` reproduces the page.
    """

    analysis: str
    model: str
    question: str
    answer: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    grids: Sequence[Grid] = ()
    curves: Sequence[Curve] = ()
    claims: Sequence[Claim] = ()
    definitions: Sequence[str] = ()
    notes: Sequence[str] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    captures: Sequence[Capture] = ()
    command: str = ""

    def __post_init__(self) -> None:
        if not slug(self.analysis) or not self.question.strip():
            raise InterpError(f"a report needs an analysis and a question; got {self.analysis!r} and {self.question!r}")
        for kind in ("tables", "grids", "curves"):
            names = [value.name for value in getattr(self, kind)]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise InterpError(
                    f"report {self.analysis!r} has {kind} of one name: {', '.join(twice)}; each becomes a file or an id"
                )
        explained(self.definitions)
        plain(dict(self.numbers)), plain(dict(self.provenance))
        self.files()

    def files(self) -> dict[str, Table]:
        """Every CSV of the report by its file name: tables, then curves' and claims', then grids that no table holds already."""
        tables: dict[str, Table] = {}
        claims = [claims_table(self.claims)] if self.claims else []
        for table in [*self.tables, *(curve.table for curve in self.curves), *claims]:
            other = tables.setdefault(f"{table.name}.csv", table)
            if other is not table and not other.frame.equals(table.frame):
                raise InterpError(f"report {self.analysis!r} has two different tables named {table.name!r}; each becomes a file")
        for grid in self.grids:
            if f"{grid.name}.csv" not in tables:
                tables[f"{grid.name}.csv"] = Table(grid.name, grid.caption, grid.frame(), {grid.name: grid.unit})
        return tables

    @property
    def folder(self) -> str:
        """Name of its folder below reports/: the analysis and the model."""
        return f"{slug(self.analysis)}-{slug(self.model)}"

    def summary(self) -> dict[str, Any]:
        """What summary.json holds: {analysis, model, question, answer, numbers, provenance}, null where a number is not finite."""
        return {
            "analysis": self.analysis,
            "model": model_name(self.model),
            "question": self.question,
            "answer": self.answer,
            "numbers": plain(self.numbers),
            "provenance": plain(self.provenance),
        }

    def html(self) -> str:
        """The page, as `write` puts it into index.html."""
        from interp.report.page import page

        return page(self)

    def write(self, out: str | Path | None = None) -> Path:
        """Writes the folder `out` (reports/<analysis>-<model>/ unless given), in place of an older report; returns its index.html.

        Everything is written under a temporary name beside it, then renamed: a failure leaves the older report as it was.
        Refuses a folder that holds something else than a report.
        """
        from interp.report.folder import write

        return write(self, None if out is None else Path(out))

    def _repr_html_(self) -> str:
        from interp.report.page import fragment

        return fragment(self)


def view(capture: Capture, title: str = "") -> str:
    """One self-contained HTML page that shows a capture in the interactive viewer."""
    from interp.report.viewer import page

    return page(capture, title)
