"""The ratio rule a person can check by hand: the lead of each row beside its weight ratio, and a few pairs chosen to be worked through."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InterpError
from interp.measures import ratio
from interp.shapes import Square, Visible

BIN = 0.5
BINS = 40


class Pair(NamedTuple):
    """Two visible keys of one row; `layer` is the index along the first axis."""

    layer: int
    head: int
    query: int
    key_a: int
    key_b: int


def leads_and_ratios(
    scores: Square, weights: Square, visible: Visible
) -> tuple[Float[Tensor, "layer head query"], Float[Tensor, "layer head query"], Bool[Tensor, "layer head query"]]:
    """Of each row: Δ between its two largest scores, log of the ratio of the same two keys' weights, and whether both could be had.

    The two are measured apart, one on scores and one on weights; the rule says that they are equal. In nats.
    """
    delta, tested = ratio.leads(scores, visible)
    if scores.shape[-1] < 2:
        return delta, torch.zeros_like(delta), tested
    keys = torch.where(visible[:, None], scores, -torch.inf).topk(2, dim=-1).indices
    pair = weights.double().gather(-1, keys)
    tested = tested & (pair > 0).all(-1) & torch.isfinite(pair).all(-1)
    return delta, torch.log(torch.where(tested[..., None], pair, 1.0)) @ torch.tensor([1.0, -1.0], dtype=torch.float64), tested


def binned(
    delta: Float[Tensor, "layer head query"],
    log_ratio: Float[Tensor, "layer head query"],
    tested: Bool[Tensor, "layer head query"],
) -> tuple[Int[Tensor, " bin"], Float[Tensor, " bin"], Float[Tensor, " bin"]]:
    """Rows, Σ Δ and Σ log ratio in bins of half a nat from 0; the last bin holds all from 20 nats on."""
    place = (delta[tested].double() / BIN).floor().long().clamp(0, BINS)
    count = torch.bincount(place, minlength=BINS + 1)
    sums = [torch.bincount(place, weights=values[tested].double(), minlength=BINS + 1).double() for values in (delta, log_ratio)]
    return count, sums[0], sums[1]


class Totals:
    """Residuals and leads of the ratio rule over many captures of one model: [layer, head] sums, the largest, and bins of leads."""

    def __init__(self) -> None:
        self.pairs = self.excluded = self.max = self.squares = torch.zeros(0, 0)
        self.underflow = self.single = self.not_finite = 0
        self.tolerance, self.holds = 0.0, True
        self._bins = [torch.zeros(BINS + 1, dtype=torch.float64) for _ in range(3)]
        self._any = False

    def add(self, scores: Square, weights: Square, visible: Visible, dtype: torch.dtype) -> None:
        """Add one capture; it holds by its own tolerance. Raises InterpError where layers or heads are of another number."""
        one, allowed = ratio.residuals(scores, weights, visible, dtype), ratio.tolerance(scores, visible, dtype)
        if not self._any:
            self.pairs, self.excluded = torch.zeros_like(one.pairs), torch.zeros_like(one.pairs)
            self.max, self.squares = torch.zeros_like(one.max), torch.zeros_like(one.max)
            self._any = True
        elif (had := tuple(self.pairs.shape)) != (now := tuple(one.pairs.shape)):
            raise InterpError(
                f"a capture of {now[0]} layers × {now[1]} heads after {had[0]} × {had[1]}; add captures of one model only"
            )
        self.pairs = self.pairs + one.pairs
        self.excluded = self.excluded + one.underflow + one.single_key_rows + one.not_finite_rows
        self.max = torch.maximum(self.max, one.max)
        self.squares = self.squares + one.rms.square() * one.pairs
        self.underflow += int(one.underflow.sum())
        self.single += int(one.single_key_rows.sum())
        self.not_finite += int(one.not_finite_rows.sum())
        self.tolerance = max(self.tolerance, allowed)
        self.holds = self.holds and float(one.max.max()) <= allowed
        for kept, more in zip(self._bins, binned(*leads_and_ratios(scores, weights, visible)), strict=True):
            kept += more

    @property
    def rms(self) -> Float[Tensor, "layer head"]:
        """Root mean square of the residual of each head; NaN for a head without a tested pair."""
        return (self.squares / self.pairs).sqrt()

    def leads(self) -> list[dict[str, float]]:
        """One line for each step of leads that has rows: how many, their mean lead, e^lead, and the geometric mean of the weight ratios."""
        count, lead, log_ratio = self._bins
        lines = []
        for place in count.nonzero()[:, 0].tolist():
            mean = float(lead[place] / count[place])
            last = place == BINS
            lines.append(
                {
                    "lead_from": place * BIN,
                    "lead_to": math.inf if last else (place + 1) * BIN,
                    "rows": int(count[place]),
                    "share": float(count[place] / count.sum()),
                    "mean_lead": mean,
                    "exp_lead": math.exp(mean) if mean < 700 else math.inf,
                    "weight_ratio": float(torch.exp(log_ratio[place] / count[place])),
                }
            )
        return lines


def pairs_to_work(scores: Square, weights: Square, visible: Visible, heads: int = 4, least: float = 0.01) -> list[Pair]:
    """Pairs that show the rule at sight: a row's two largest scores, and the largest beside key 0 where that is another.

    From the last row of `heads` heads with the largest lead whose second weight is still at least `least`, and of `heads` whose lead
    is nearest 1, a lead that looks small and gives e times the weight. Where the last row has none, from the rows before it.
    """
    delta, _, tested = leads_and_ratios(scores, weights, visible)
    if not bool(tested.any()):
        return []
    keys = torch.where(visible[:, None], scores, -torch.inf).topk(2, dim=-1).indices
    second = weights.gather(-1, keys)[..., 1]
    last = torch.arange(weights.shape[2]) == weights.shape[2] - 1
    readable = tested & (second >= least)
    usable = next(rows for rows in (readable & last, readable, tested) if bool(rows.any()))
    lead, most = delta.double(), min(heads, int(usable.sum()))
    widest = torch.where(usable, lead, -torch.inf).flatten().argsort(descending=True, stable=True)[:most]
    nearest = torch.where(usable, (lead - 1).abs(), torch.inf).flatten().argsort(stable=True)[:most]
    found = []
    for place in dict.fromkeys([*widest.tolist(), *nearest.tolist()]):
        row, query = divmod(place, weights.shape[2])
        layer, head = divmod(row, weights.shape[1])
        top, other = keys[layer, head, query].tolist()
        found.append(Pair(layer, head, query, top, other))
        if 0 not in (top, other) and bool(visible[layer, query, 0]) and float(weights[layer, head, query, 0]) > 0:
            found.append(Pair(layer, head, query, top, 0))
    return found
