"""Results as values: Table, Grid, Curve, Claim. Frozen, labelled, with a unit, checking themselves; nothing here knows a model.

Pages, CSVs and notebooks are made from these and never look at anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat

import numpy as np
import pandas as pd

from interp.errors import InterpError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

Verdict = Literal["holds", "fails", "not measured here"]
_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


def _named(value: object, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InterpError(f"{type(value).__name__} name {name!r} becomes a file name: use a-z, 0-9 and _")


@dataclass(frozen=True, eq=False)
class Table:
    """One tidy table, one CSV: `name`.csv. `meanings` says for each column what it is and in which unit."""

    name: str
    caption: str
    frame: pd.DataFrame
    meanings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _named(self, self.name)
        if not len(self.frame.columns) or not self.frame.columns.is_unique:
            raise InterpError(f"table {self.name!r} needs columns, each once; got {list(self.frame.columns)}")
        if unknown := [name for name in self.meanings if name not in self.frame.columns]:
            raise InterpError(f"table {self.name!r} explains columns it does not have: {unknown}")

    @classmethod
    def of(cls, name: str, caption: str, rows: Iterable[Mapping[str, Any]], **meanings: str) -> Table:
        """A table from one mapping a row; the first row sets the order of the columns."""
        lines = list(rows)
        try:
            frame = pd.DataFrame(lines)
        except UnicodeEncodeError:  # a lone surrogate: pandas' own text type cannot hold it
            frame = _framed({column: [line.get(column) for line in lines] for column in lines[0]})
        return cls(name, caption, frame, meanings)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The CSV, as reports hold it (text quoted, formulas guarded); also written to `path` where one is given."""
        return _csv(self.frame, path)

    def _repr_html_(self) -> str:
        from interp.report import page

        return page.embedded(page.table_html(self, _id(self.name, self.caption, self.frame)))


@dataclass(frozen=True, eq=False)
class Grid:
    """One number for each pair of labels: layers × heads, queries × keys. NaN = not there, drawn as unseen.

    `limits` fixes the colour scale; `signed` asks for a diverging one around 0. Values become float64, labels text; both are copied.
    """

    name: str
    caption: str
    unit: str
    values: np.ndarray | Any
    rows: Sequence[Any]
    columns: Sequence[Any]
    row_axis: str = "layer"
    column_axis: str = "head"
    limits: tuple[int | float, int | float] | None = None
    signed: bool = False

    def __post_init__(self) -> None:
        _named(self, self.name)
        object.__setattr__(self, "values", np.array(self.values, dtype=np.float64))
        object.__setattr__(self, "rows", tuple(map(str, self.rows)))
        object.__setattr__(self, "columns", tuple(map(str, self.columns)))
        if self.values.shape != (len(self.rows), len(self.columns)):
            raise InterpError(
                f"grid {self.name!r} has values {self.values.shape} but {len(self.rows)} row and {len(self.columns)} column labels"
            )
        if self.limits is not None:
            low, high = self.limits
            seen = self.values[np.isfinite(self.values)]
            slack = 1e-6 * max(abs(low), abs(high), 1.0)
            if seen.size and (seen.min() < low - slack or seen.max() > high + slack):
                raise InterpError(
                    f"grid {self.name!r} holds {seen.min():g}..{seen.max():g}, outside its limits {low:g}..{high:g}"
                )
        self.values.setflags(write=False)

    def frame(self) -> pd.DataFrame:
        """Tidy: one line a cell, columns `row_axis`, `column_axis`, `name`; whole-number labels as numbers.

        Labels that repeat (tokens) get their position beside them, `row_axis`_position, so that no two lines look the same.
        """
        down, across = len(self.rows), len(self.columns)
        tidy: dict[str, Any] = {}
        for axis, labels, places in (
            (self.row_axis, self.rows, np.repeat(np.arange(down), across)),
            (self.column_axis, self.columns, np.tile(np.arange(across), down)),
        ):
            if len(set(labels)) < len(labels):
                tidy[f"{axis}_position"] = places
            tidy[axis] = _numbers(labels)[places]
        return _framed({**tidy, self.name: self.values.ravel()})

    def to_csv(self, path: str | Path | None = None) -> str:
        """The tidy frame as CSV; also written to `path` where one is given."""
        return _csv(self.frame(), path)

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draws the heat map on `ax` (the current axes unless given) and returns them; `options` go to `seaborn.heatmap`."""
        from interp.report import figures

        ax = _axes(ax)
        figures.draw_grid(self, ax, **options)
        return ax

    def _repr_html_(self) -> str:
        return _figure_html(self)


@dataclass(frozen=True, eq=False)
class Curve:
    """A figure over the rows of a table: `y` columns against `x`, with an optional dashed `baseline` and a band low..high.

    `band` names two columns around the first y, or such a pair for each y in turn. `kind`: "line", "points" (scatter) or "bars".
    `group` splits y by a column.
    """

    name: str
    caption: str
    table: Table
    x: str
    y: Sequence[str]
    baseline: str | None = None
    band: tuple[str, str] | Sequence[tuple[str, str]] | None = None
    kind: Literal["line", "points", "bars"] = "line"
    group: str | None = None
    x_label: str | None = None
    y_label: str | None = None
    log_x: bool = False
    log_y: bool = False
    y_limits: tuple[int | float, int | float] | None = None

    def __post_init__(self) -> None:
        _named(self, self.name)
        object.__setattr__(self, "y", (self.y,) if isinstance(self.y, str) else tuple(self.y))
        ends = [end for pair in self.bands.values() for end in pair]
        used = (self.x, *self.y, *filter(None, (self.baseline, self.group)), *ends)
        if missing := [column for column in used if column not in self.table.frame.columns]:
            raise InterpError(f"curve {self.name!r} draws columns that table {self.table.name!r} lacks: {missing}")

    @property
    def bands(self) -> dict[str, tuple[str, str]]:
        """The columns of each y's band, low and high, for those that have one."""
        if not self.band:
            return {}
        pairs: Any = [self.band] if isinstance(self.band[0], str) else self.band
        return {column: (low, high) for column, (low, high) in zip(self.y, pairs, strict=False)}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draws the curve on `ax` (the current axes unless given) and returns them."""
        from interp.report import figures

        ax = _axes(ax)
        figures.draw_curve(self, ax)
        return ax

    def _repr_html_(self) -> str:
        return _figure_html(self)


@dataclass(frozen=True)
class Claim:
    """A sentence that was tested: what it says, what was expected, what was measured, and whether it holds.

    `source` names the chapter and section; `claim` is in our own words. Numbers are compared within `tolerance`; a claim
    without a number carries `measured` as words and its verdict from `Claim.judged`.
    """

    id: str
    source: str
    claim: str
    expected: str
    measured: str
    tolerance: str
    model: str
    verdict: Verdict
    why: str = ""

    @classmethod
    def number(
        cls,
        id: str,
        source: str,
        claim: str,
        *,
        expected: SupportsFloat,
        measured: SupportsFloat,
        tolerance: SupportsFloat,
        model: str,
        why: str = "",
    ) -> Claim:
        """Holds where |measured − expected| ≤ tolerance; NaN never holds."""
        wanted, found, within = float(expected), float(measured), float(tolerance)
        verdict: Verdict = "holds" if abs(found - wanted) <= within else "fails"
        return cls(id, source, claim, f"{wanted:.6g}", f"{found:.6g}", f"{within:.6g}", model, verdict, why)

    @classmethod
    def judged(
        cls, id: str, source: str, claim: str, *, expected: str, measured: str, holds: bool, model: str, why: str = ""
    ) -> Claim:
        """A claim of another kind (an order, an equality, a share above a bound), judged by the caller's own comparison."""
        return cls(id, source, claim, expected, measured, "", model, "holds" if holds else "fails", why)

    @classmethod
    def unmeasured(cls, id: str, source: str, claim: str, *, expected: str, model: str, why: str) -> Claim:
        """Not measured in this run; `why` says what would make it measurable."""
        return cls(id, source, claim, expected, "", "", model, "not measured here", why)


def claims_table(claims: Iterable[Claim]) -> Table:
    """All claims as one table, `claims.csv`."""
    columns = ("id", "source", "claim", "expected", "measured", "tolerance", "model", "verdict", "why")
    frame = pd.DataFrame([{name: getattr(claim, name) for name in columns} for claim in claims], columns=list(columns))
    return Table("claims", "Each claim, what was expected, what was measured in this run, and the verdict.", frame)


def _framed(columns: Mapping[str, Any]) -> pd.DataFrame:
    """A frame whose text is plain Python text, which holds any token; numbers as pandas takes them."""
    made = {}
    for name, values in columns.items():
        text = any(isinstance(value, str) for value in values)
        made[name] = pd.Series(values, dtype=object) if text else pd.Series(values)
    return pd.DataFrame(made)


def _numbers(labels: Sequence[str]) -> np.ndarray:
    """Labels of one axis as whole numbers where all of them are, else as text."""
    whole = all(re.fullmatch(r"0|[1-9][0-9]{0,17}", label) for label in labels)
    return np.array([int(label) for label in labels]) if whole and labels else np.array(labels, dtype=object)


def _csv(frame: pd.DataFrame, path: str | Path | None) -> str:
    from interp.report import table_file

    text = table_file.to_csv(frame)
    if path is not None:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    return text


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot

    return matplotlib.pyplot.gca()


def _figure_html(value: Grid | Curve) -> str:
    from interp.report import page

    frame = value.frame() if isinstance(value, Grid) else value.table.frame
    return page.embedded(page.grid_html(value, _id(value.name, value.caption, frame)))


def _id(name: str, caption: str, frame: pd.DataFrame) -> str:
    """An id from what is shown: many values in one notebook do not clash."""
    import hashlib

    return "f" + hashlib.sha256(repr((name, caption, _csv(frame, None))).encode()).hexdigest()[:8]
