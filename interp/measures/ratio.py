"""The ratio rule: two scores of one row that differ by Δ get weights in the ratio e^Δ, whatever the rest of the row holds.

Measured in log space: for each visible pair of a row the residual log(w_j / w_r) − (s_j − s_r), with r the row's largest weight. The
rule alone misses a constant per row, missing mass and a wrong mask; those are checks of a capture's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.shapes import Square, Visible

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True)
class Residuals:
    """Per head: the largest and the root-mean-square residual over its tested pairs, and how many pairs were and were not testable."""

    max: Float[Tensor, "layer head"]
    rms: Float[Tensor, "layer head"]
    pairs: Int[Tensor, "layer head"]
    underflow: Int[Tensor, "layer head"]
    single_key_rows: Int[Tensor, "layer head"]
    not_finite_rows: Int[Tensor, "layer head"]


def residuals(scores: Square, weights: Square, visible: Visible, dtype: torch.dtype = torch.float32) -> Residuals:
    """Residuals of the ratio rule, in nats: 0 where the rule holds, log 2 where one weight was doubled.

    `dtype` is what the model computed in: weights below its smallest normal number have lost their digits and are excluded, counted
    as underflow. Rows with one visible key have no pair; rows that are not finite are counted.
    """
    return _summary(*_pairs(scores, weights, visible, dtype))


def _pairs(
    scores: Square, weights: Square, visible: Visible, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(residual, tested, underflow) [layer, head, query, key] and (single-key, not finite) [layer, head, query]."""
    seen = visible[:, None].expand(weights.shape)
    finite = torch.isfinite(weights).all(-1) & torch.isfinite(torch.where(seen, scores, 0.0)).all(-1)
    w = torch.where(seen, torch.nan_to_num(weights), 0.0).double()
    s = torch.where(seen, torch.nan_to_num(scores), 0.0).double()
    reference = w.argmax(-1, keepdim=True)
    other = seen & finite[..., None]
    other = other & (torch.arange(w.shape[-1]) != reference)
    smallest = torch.finfo(dtype).tiny
    testable = (w >= smallest) & (w.gather(-1, reference) >= smallest)
    tested, underflow = other & testable, other & ~testable
    safe = torch.where(tested, w, 1.0)
    residual = torch.log(safe) - torch.log(w.gather(-1, reference).clamp_min(smallest)) - (s - s.gather(-1, reference))
    single = finite & (seen.sum(-1) == 1)
    return torch.where(tested, residual, 0.0), tested, underflow, single, ~finite & (seen.sum(-1) > 0)


def _summary(residual: Tensor, tested: Tensor, underflow: Tensor, single: Tensor, not_finite: Tensor) -> Residuals:
    pairs = tested.sum((-1, -2))
    rms = (residual.square().sum((-1, -2)) / pairs.clamp_min(1)).sqrt()
    return Residuals(
        max=residual.abs().amax((-1, -2)),
        rms=rms,
        pairs=pairs,
        underflow=underflow.sum((-1, -2)),
        single_key_rows=single.sum(-1),
        not_finite_rows=not_finite.sum(-1),
    )


def tolerance(scores: Square, visible: Visible, dtype: torch.dtype = torch.float32) -> float:
    """What the residual may be: 1e-5 float32, 1e-3 float16, 8e-3 bfloat16, or 4 · eps · max |score| where that is more.

    The second is the rounding of the scores themselves: two scores of size S, each rounded once as a dot product and once as it is
    scaled, differ from the exact by up to 4 · (eps/2) · S, and as much again comes from taking the dot product in another order.
    """
    size = float(torch.where(visible[:, None], torch.nan_to_num(scores), 0.0).abs().max())
    return max(TOLERANCE[dtype], 4 * torch.finfo(dtype).eps * size)


def leads(scores: Square, visible: Visible) -> tuple[Float[Tensor, "layer head query"], Bool[Tensor, "layer head query"]]:
    """Δ between the two largest visible scores of each row, in nats (≥ 0), and which rows have two keys to compare."""
    seen = visible[:, None].expand(scores.shape)
    if scores.shape[-1] < 2:
        return torch.zeros(scores.shape[:3], dtype=scores.dtype), torch.zeros(scores.shape[:3], dtype=torch.bool)
    top = torch.where(seen, scores, -torch.inf).topk(2, dim=-1).values
    has_two = (seen.sum(-1) > 1) & torch.isfinite(top).all(-1)
    return torch.where(has_two, top[..., 0] - top[..., 1], 0.0), has_two


def shifted(
    weight: Float[Tensor, "*any"], delta: Float[Tensor, "*any"] | float, rest: Float[Tensor, "*any"] | None = None
) -> Float[Tensor, "*any"]:
    """The weight of a key after its score is raised by δ: w·e^δ / (1 + w·(e^δ − 1)). In [0, 1]; the rule as an intervention.

    `rest`: the sum of the row's other weights, which is 1 − w without the rounding of a w near 1.

    >>> round(float(shifted(torch.tensor(0.5), 2.0)), 4)
    0.8808
    """
    delta = torch.as_tensor(delta, dtype=weight.dtype)
    # In the form 1 / (1 + (1/w − 1)·e^−δ) nothing overflows for large δ.
    odds = 1 / weight - 1 if rest is None else rest / weight
    return 1 / (1 + odds * torch.exp(-delta))
