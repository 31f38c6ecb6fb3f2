"""RowStatistics: what the rows of a corpus said, as sums that add up; every measure is a ratio of two of them. No text is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InterpError
from interp.measures.first_token import BY_PLACE
from interp.measures.sinks import EPSILON, FROM_QUERY
from interp.measures.spread import interval
from interp.rows.sums import AXES, EPSILONS, FULL_AXES, merged

if TYPE_CHECKING:
    import pandas as pd

PerHead = Float[Tensor, "layer head"]
BY_QUERY = ("first_weight", "first_argmax", "first_majority", "entropy", "largest", "lead")


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Exact row statistics of the texts in `per_text`, by one model. `a + b` adds those of other texts; `save`, `read` keep them.

    | field | what |
    |---|---|
    | model, detail | name as asked for; "first" (first-token measures) or "full" (all of `sums.FULL_AXES` too) |
    | layers, n_heads | the measured layers by their own numbers; heads of each |
    | options | how the texts were cut (bos, max_tokens, overlap) and whatever the caller recorded: must agree where two are added |
    | provenance | of the model: revision, dtype, weights (a digest of samples of every parameter), library versions |
    | sums | float64 tensors by name; `interp.rows.sums` names each one's axes |
    | per_text | a row a text, by index: length, first_token_id, digest of its ids, and over its layers and heads, from query 3 on: rows,
      first_weight, first_argmax, first_majority (sums), sinks (heads with importance_0 above 0.3), heads (heads that have one) |
    | names | of the texts, in the same order |
    | broken | up to 20 rows that are not finite, (text index, layer, head, query): in no sum, and counted by `left_out` |

    Measures are [layer, head], NaN where a head has no row: `first_weight(from_query)` and its like, `importance()`, `sink_rate(epsilon)`.
    `overall`, `heads` and `queries` give the figures of the analysis `sinks` under its names; `text_table` one line a text.
    """

    model: str
    detail: str
    layers: tuple[int, ...]
    n_heads: int
    options: Mapping[str, Any]
    provenance: Mapping[str, Any]
    sums: Mapping[str, Tensor]
    per_text: Mapping[str, Tensor]
    names: tuple[str, ...] = ()
    broken: tuple[tuple[int, int, int, int], ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    # ---- size

    @property
    def texts(self) -> int:
        return len(self.per_text["index"])

    @property
    def tokens(self) -> int:
        """Tokens of all texts, without padding."""
        return int(self.per_text["length"].sum())

    @property
    def length(self) -> int:
        """Tokens of the longest text."""
        return len(self.sums["texts"])

    # ---- measures by head

    def rows(self, from_query: int = FROM_QUERY) -> PerHead:
        """Rows that the first-token measures run over: from `from_query` on, with two keys to choose from, key 0 seen, all finite."""
        return self._over(self.sums["rows"], from_query)

    def first_weight(self, from_query: int = FROM_QUERY) -> PerHead:
        """Mean weight of a row on key 0."""
        return self._mean("first_weight", "rows", from_query)

    def first_majority(self, from_query: int = FROM_QUERY) -> PerHead:
        """Share of rows with more than half of their weight on key 0."""
        return self._mean("first_majority", "rows", from_query)

    def first_argmax(self, from_query: int = FROM_QUERY) -> PerHead:
        """Share of rows whose largest weight is on key 0, ties to the lower index. Needs detail "full"."""
        return self._mean("first_argmax", "rows", from_query)

    def entropy(self, from_query: int = FROM_QUERY) -> PerHead:
        """Mean of −Σ w ln w over finite rows, in nats. Needs detail "full"."""
        return self._mean("entropy", "finite", from_query)

    def largest(self, from_query: int = FROM_QUERY) -> PerHead:
        """Mean of a row's largest weight, over finite rows. Needs detail "full"."""
        return self._mean("largest", "finite", from_query)

    def lead(self, from_query: int = FROM_QUERY) -> PerHead:
        """Mean gap Δ between a row's two largest scores, over rows that see two keys or more. Needs detail "full"."""
        return self._mean("lead", "lead_rows", from_query)

    def uniform_first_weight(self, from_query: int = FROM_QUERY) -> PerHead:
        """Mean of 1 / (i + 1) over the same rows: their first weight if each spread evenly over the keys it sees."""
        even = 1 / torch.arange(1, self.length + 1, dtype=torch.float64)
        return self._over(self.sums["rows"] * even, from_query) / self.rows(from_query)

    def importance(self) -> PerHead:
        """Mean over texts of importance_0 (Gu et al.): Σ_i A[i,0] / T, the diagonal included."""
        return self.sums["importance"] / self.sums["importance_texts"]

    def sink_rate(self, epsilon: float = EPSILON) -> PerHead:
        """Share of texts in which importance_0 is above ε, the indicator taken per text. ε in whole hundredths."""
        place = round(epsilon * 100)
        if not 0 <= place < len(EPSILONS) or abs(place / 100 - epsilon) > 1e-9:
            raise InterpError(f"epsilon {epsilon} is not kept; the sink rate is kept for 0, 0.01, … 1")
        return self.sums["above"][..., place] / self.sums["importance_texts"]

    def key_importance(self) -> Float[Tensor, "layer head key"]:
        """Mean weight that the key at each place draws from the rows that see it, over all texts. Needs detail "full"."""
        return self.need("mass") / self.sums["mass_rows"]

    # ---- by query, by text, in all

    def by_query(self, name: str) -> Float[Tensor, "layer head query"]:
        """Mean of a measure at each query position: first_weight, first_argmax, first_majority, entropy, largest or lead."""
        if name not in BY_QUERY:
            raise InterpError(f"no measure {name!r} by query; there are {', '.join(BY_QUERY)}")
        count = {"entropy": "finite", "largest": "finite", "lead": "lead_rows"}.get(name, "rows")
        return self.need(name) / self.sums[count]

    def queries(self) -> dict[str, Tensor]:
        """By query position, all layers and heads together: texts, rows and the means over them, with `NAME_low`, `NAME_high`, their 95 %
        interval over texts (measures.spread), for first_weight and first_argmax; query 0 sees one key and has none."""
        several = torch.arange(self.length) > 0
        rows = torch.where(several, self.sums["rows"].sum((0, 1)), 0.0)
        found = [name for name in ("first_weight", "first_argmax", "first_majority") if name in self.sums]
        made = {name: torch.where(several, self.sums[name].sum((0, 1)), 0.0) / rows for name in found}
        for name in BY_PLACE:
            if name in made:
                square, product = self.sums[f"{name}_square"], self.sums[f"{name}_rows"]
                total = self.sums[name].sum((0, 1))
                ends = interval(total, rows, square, product, self.sums["rows_square"], self.sums["texts"])
                made[f"{name}_low"], made[f"{name}_high"] = ends
        even = torch.where(rows > 0, 1 / torch.arange(1, self.length + 1, dtype=torch.float64), torch.nan)
        return {"texts": torch.where(rows > 0, self.sums["texts"], 0.0), "rows": rows, **made, "uniform_first_weight": even}

    def heads(self, from_query: int = FROM_QUERY) -> dict[str, PerHead]:
        """By head: rows and the means over them, importance and sink_rate over the texts."""
        names = [name for name in ("first_weight", "first_argmax", "first_majority") if name in self.sums]
        return {
            "rows": self.rows(from_query),
            **{name: self._mean(name, "rows", from_query) for name in names},
            "uniform_first_weight": self.uniform_first_weight(from_query),
            "importance": self.importance(),
            "sink_rate": self.sink_rate(),
        }

    def overall(self, from_query: int = FROM_QUERY, epsilon: float = EPSILON) -> dict[str, float]:
        """Headline figures: every row of every head and text counts once; sink_rate by text, layer and head."""
        rows = float(self.rows(from_query).sum())
        names = [name for name in ("first_weight", "first_argmax", "first_majority") if name in self.sums]
        even = self.uniform_first_weight(from_query).nan_to_num() * self.rows(from_query)
        texts = self.sums["importance_texts"]
        return {
            **{name: _ratio(self._over(self.sums[name], from_query).sum(), rows) for name in names},
            "sink_rate": _ratio((self.sink_rate(epsilon).nan_to_num() * texts).sum(), texts.sum()),
            "importance": _ratio(self.sums["importance"].sum(), texts.sum()),
            "uniform_first_weight": _ratio(even.sum(), rows),
            "uniform_importance": _ratio(self.sums["uniform_importance"].mean(), float(self.texts)),
            "rows": rows,
        }

    def left_out(self, from_query: int = FROM_QUERY) -> dict[str, int]:
        """Rows (layer, head, query) from `from_query` on that are in no first-token measure, each under its first reason."""
        start = max(from_query, 0)
        reached = self.sums["texts"][start:].sum() * len(self.layers) * self.n_heads
        hidden = self.sums["hidden"][:, start:].sum() * self.n_heads
        seen = self.sums["rows"][..., start:].sum()
        single = self.sums["rows"][..., :1].sum() if start == 0 else torch.zeros(())
        return {"key_0_not_visible": int(hidden), "single_key": int(single), "not_finite": round(float(reached - hidden - seen))}

    def text_table(self) -> pd.DataFrame:
        """One line a text: see `tables.of_texts`."""
        return self._tables().of_texts(self)

    def token_table(self, count: int = 20) -> pd.DataFrame:
        """Where sinks are by token: see `tables.of_tokens`. Needs detail "full", like the next two."""
        return self._tables().of_tokens(self, count)

    def position_table(self, count: int = 20) -> pd.DataFrame:
        """Where sinks are by place: see `tables.of_positions`."""
        return self._tables().of_positions(self, count)

    def lead_table(self) -> pd.DataFrame:
        """Rows by lead, over all heads: see `tables.of_leads`."""
        return self._tables().of_leads(self)

    # ---- adding, keeping

    def __add__(self, other: RowStatistics) -> RowStatistics:
        """Those of both corpora together; the order does not matter but for the last bits (1e-12). Refuses a text counted twice."""
        if difference := differences(self.about(), other.about()):
            raise InterpError(f"statistics of unlike runs cannot be added: {difference}")
        kept = {name: torch.cat([values, other.per_text[name]]) for name, values in self.per_text.items()}
        names = (*self.names, *other.names)
        keys = list(zip(kept["index"].tolist(), kept["digest"].tolist(), strict=True))
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InterpError(f"text {twice[0]} ({names[keys.index(twice)]}) is in both; each text counts once")
        order = sorted(range(len(keys)), key=keys.__getitem__)
        return RowStatistics(
            self.model, self.detail, self.layers, self.n_heads, self.options, self.provenance,
            sums=merged(self.sums, other.sums),
            per_text={name: values[order] for name, values in kept.items()},
            names=tuple(names[place] for place in order),
            broken=tuple(sorted({*self.broken, *other.broken})[:20]),
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
        )  # fmt: skip

    def about(self) -> dict[str, Any]:
        """What must agree for two to be added, or one to be resumed: the model and its weights, the detail, the layers, the options."""
        of_model = {name: self.provenance.get(name) for name in ("revision", "weights", "dtype")}
        return {"model": self.model, **of_model, "detail": self.detail, "layers": list(self.layers), **dict(self.options)}

    def save(self, path: str | Path) -> Path:
        """Write to one file, whole or not at all; `RowStatistics.read` gives it back bit for bit."""
        from interp.rows import files

        return files.save(self, path)

    @staticmethod
    def read(path: str | Path) -> RowStatistics:
        """The statistics in a file written by `save`."""
        from interp.rows import files

        return files.read(path)

    def __repr__(self) -> str:
        return (
            f"RowStatistics({self.model}: {self.texts} texts, {self.tokens} tokens, {len(self.layers)} layers × {self.n_heads} heads, {self.detail}; "
            f"first weight {self.overall()['first_weight']:.4f})"
        )

    def _repr_html_(self) -> str:
        from interp.report import text as shown
        from interp.results import Table

        rows = [{"figure": name, "value": value} for name, value in self.overall().items()]
        return f"<p>{shown.html(repr(self))}</p>{Table.of('row_statistics', 'Over all layers, heads and texts.', rows)._repr_html_()}"

    def _tables(self) -> Any:
        from interp.rows import tables  # pandas is imported when a table is asked for

        return tables

    def need(self, name: str) -> Tensor:
        """A sum by name; refused where the detail that was measured has none."""
        if name not in self.sums:
            raise InterpError(f"{name} needs detail='full'; these statistics were measured with detail={self.detail!r}")
        return self.sums[name]

    def _over(self, values: Tensor, from_query: int) -> PerHead:
        return values[..., max(from_query, 1) :].sum(-1)

    def _mean(self, name: str, rows: str, from_query: int) -> PerHead:
        return self._over(self.need(name), from_query) / self._over(self.sums[rows], from_query)


def _ratio(total: Tensor | float, count: Tensor | float) -> float:
    return float(total) / float(count) if float(count) else float("nan")


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What two descriptions disagree on, in words; "" where they agree."""
    names = [*one, *(name for name in other if name not in one)]
    return "; ".join(
        f"{name} {one.get(name)!r} against {other.get(name)!r}" for name in names if one.get(name) != other.get(name)
    )


def check(statistics: RowStatistics) -> None:
    """Refuse sums whose names or axes are not those of their detail."""
    axes: dict[str, Sequence[str]] = {**AXES, **(FULL_AXES if statistics.detail == "full" else {})}
    wrong = [name for name in axes if name not in statistics.sums or statistics.sums[name].ndim != len(axes[name])]
    if wrong or set(statistics.sums) - set(axes):
        raise InterpError(
            f"row statistics of detail {statistics.detail!r} lack {wrong or sorted(set(statistics.sums) - set(axes))}"
        )
