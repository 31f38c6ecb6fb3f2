"""Sums of the first-token measures over one text, by head and by query position, so that texts add up without being kept.

A mean over texts is the ratio of two sums, each row counted once; nothing here divides but for a text's own figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from interp.errors import InterpError
from interp.measures import sinks
from interp.measures.spread import interval
from interp.shapes import Square, Visible

SHARES = ("first_weight", "first_argmax", "first_majority")
BY_PLACE = ("first_weight", "first_argmax")  # measures with an interval over texts at each query position
ROW_MEASURES = ("rows", *SHARES, "uniform_first_weight")


@dataclass(frozen=True)
class Tally:
    """Sums in float64 over one text's counted rows. `by_head` values are [layer, head], `by_query` values [query].

    `by_query` counts every row with something to choose, those before `from_query` too: the curve shows why they are left out.
    `importance` [layer, head] and `uniform_importance` [layer] are of key 0, NaN where no row sees it.
    """

    by_head: dict[str, Tensor]
    by_query: dict[str, Tensor]
    importance: Float[Tensor, "layer head"]
    uniform_importance: Float[Tensor, " layer"]
    left_out: sinks.Exclusions

    @property
    def own(self) -> dict[str, float]:
        """The text's own first_weight, first_argmax and first_majority over all its heads, and its share of heads that are sinks."""
        sums = {name: float(values.sum()) for name, values in self.by_head.items()}
        means = {name: _over(sums[name], sums["rows"]) for name in SHARES}
        drawn = self.importance[torch.isfinite(self.importance)]
        return {**means, "sink_rate": _over(float(sinks.is_sink(drawn).sum()), len(drawn))}


class Totals:
    """The same sums over many texts of one model: `by_head` [layer, head], `by_query` [query] as long as the longest text.

    `by_head` also holds importance, sinks (texts where it is above ε) and texts (where it could be had).
    """

    def __init__(self) -> None:
        self.by_head: dict[str, Tensor] = {}
        self.by_query: dict[str, Tensor] = {}
        self.left_out: dict[str, int] = {}
        self.uniform_importance = 0.0
        self.texts = 0

    def add(self, one: Tally) -> None:
        """Add one text. Raises InterpError where its layers or heads are of another number."""
        drawn = torch.isfinite(one.importance)
        by_head = {
            **one.by_head,
            "importance": one.importance.nan_to_num(),
            "sinks": sinks.is_sink(one.importance).double(),
            "texts": drawn.double(),
        }
        if self.texts and (had := tuple(self.by_head["rows"].shape)) != (now := tuple(drawn.shape)):
            raise InterpError(
                f"a text of {now[0]} layers × {now[1]} heads after {had[0]} × {had[1]}; add texts of one model only"
            )
        for name, values in by_head.items():
            self.by_head[name] = self.by_head.get(name, torch.zeros_like(values)) + values
        rows = one.by_query["rows"]
        squares = {"texts": (rows > 0).double(), "rows_square": rows.square()}
        for name in BY_PLACE:
            squares |= {f"{name}_square": one.by_query[name].square(), f"{name}_rows": one.by_query[name] * rows}
        for name, values in {**one.by_query, **squares}.items():
            self.by_query[name] = _longest_sum(self.by_query.get(name, values[:0]), values)
        for reason in ("key_0_not_visible", "single_key", "not_finite"):
            self.left_out[reason] = self.left_out.get(reason, 0) + getattr(one.left_out, reason)
        self.uniform_importance += float(one.uniform_importance.nanmean())
        self.texts += 1

    def heads(self) -> dict[str, Tensor]:
        """Per head [layer, head]: rows, and the means over them; importance and sink_rate over the texts. NaN where there is none."""
        rows, texts = self.by_head["rows"], self.by_head["texts"]
        means = {name: self.by_head[name] / rows for name in (*SHARES, "uniform_first_weight")}
        return {
            "rows": rows,
            **means,
            "importance": self.by_head["importance"] / texts,
            "sink_rate": self.by_head["sinks"] / texts,
        }

    def queries(self) -> dict[str, Tensor]:
        """Per query position [query]: texts, rows, and the means over them, all heads and texts together, with their intervals."""
        sums = self.by_query
        made = {name: sums[name] / sums["rows"] for name in ("first_weight", "first_argmax", "uniform_first_weight")}
        for name in BY_PLACE:
            made[f"{name}_low"], made[f"{name}_high"] = interval(
                sums[name], sums["rows"], sums[f"{name}_square"], sums[f"{name}_rows"], sums["rows_square"], sums["texts"]
            )
        return {"texts": sums["texts"], "rows": sums["rows"], **made}

    def overall(self) -> dict[str, float]:
        """The headline figures: every row of every head and text counts once; sink_rate by text, layer and head."""
        sums = {name: float(values.sum()) for name, values in self.by_head.items()}
        return {
            **{name: _over(sums[name], sums["rows"]) for name in SHARES},
            "sink_rate": _over(sums["sinks"], sums["texts"]),
            "uniform_first_weight": _over(sums["uniform_first_weight"], sums["rows"]),
            "uniform_importance": _over(self.uniform_importance, self.texts),
            "rows": sums["rows"],
        }


def tally(weights: Square, visible: Visible, from_query: int = sinks.FROM_QUERY) -> Tally:
    """The sums of one text. Rows are left out and counted as `sinks.counted_rows` says.

    >>> even = torch.ones(1, 4, 4).tril() / torch.arange(1, 5)[:, None]
    >>> one = tally(even[None], even > 0)
    >>> [float(one.by_head[name]) for name in ("rows", "first_weight", "first_argmax")]
    [1.0, 0.25, 1.0]
    """
    late, left_out = sinks.counted_rows(weights, visible, from_query)
    every, _ = sinks.counted_rows(weights, visible, 0)
    uniform = sinks.uniform_first_weight(visible)[:, None].expand(weights.shape[:3])
    measured = dict(
        zip(
            ROW_MEASURES,
            (
                torch.ones_like(uniform),
                sinks.first_weight(weights),
                sinks.first_argmax(weights),
                sinks.first_majority(weights),
                uniform,
            ),
            strict=True,
        )
    )
    return Tally(
        by_head={name: _kept(values, late).sum(-1) for name, values in measured.items()},
        by_query={name: _kept(values, every).sum((0, 1)) for name, values in measured.items()},
        importance=sinks.importance(weights, visible),
        uniform_importance=sinks.uniform_importance(visible),
        left_out=left_out,
    )


def _over(total: float, count: float) -> float:
    return total / count if count else math.nan


def _longest_sum(one: Tensor, other: Tensor) -> Tensor:
    length = max(len(one), len(other))
    return pad(one, (0, length - len(one))) + pad(other, (0, length - len(other)))


def _kept(values: Tensor, rows: Tensor) -> Tensor:
    return torch.where(rows, values, 0.0)
