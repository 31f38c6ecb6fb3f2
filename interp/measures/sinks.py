"""How much weight rests on the first token: by weight, by largest weight, by majority, and by Gu et al.'s column importance.

`weights` is [layer, head, query, key], `visible` [layer, query, key]. A sink is a key that draws weight whatever the query; key 0
unless said otherwise. Rows are left out, and counted, where key 0 cannot be seen, where a single key is seen, and where the model itself is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InterpError
from interp.shapes import Square, Visible

FROM_QUERY = 3
EPSILON = 0.3
MANY = 16  # rows that must see a key for its importance to say something of the key, not of few rows


@dataclass(frozen=True)
class Exclusions:
    """Rows left out of the first-token measures, (layer, head, query) triples each counted under its first reason."""

    before_from_query: int
    key_0_not_visible: int
    single_key: int
    not_finite: int

    @property
    def total(self) -> int:
        """Rows left out for a reason other than standing before `from_query`."""
        return self.key_0_not_visible + self.single_key + self.not_finite


def counted_rows(
    weights: Square, visible: Visible, from_query: int = FROM_QUERY
) -> tuple[Bool[Tensor, "layer head query"], Exclusions]:
    """Which rows the first-token measures count, and how many were left out for what.

    Raises InterpError for negative weights: they are no attention weights (C14).
    """
    if bool((weights < 0).any()):
        raise InterpError("weights below 0 are no attention weights; pass weights, not scores")
    shape = weights.shape[:3]
    late = (torch.arange(shape[2]) >= from_query).expand(shape)
    sees_first = visible[:, None, :, 0].expand(shape)
    several = (visible.sum(-1) > 1)[:, None].expand(shape)
    finite = torch.isfinite(weights).all(-1)
    left = late & ~sees_first, late & sees_first & ~several, late & sees_first & several & ~finite
    counts = [int(part.sum()) for part in (~late, *left)]
    return late & sees_first & several & finite, Exclusions(*counts)


def over_rows(values: Float[Tensor, "layer head query"], rows: Bool[Tensor, "layer head query"]) -> Float[Tensor, "layer head"]:
    """Mean of a row measure over the counted rows, in float64; NaN for a head with none."""
    kept = torch.where(rows, values.double(), 0.0)
    return kept.sum(-1) / rows.sum(-1).double()


def first_weight(weights: Square) -> Float[Tensor, "layer head query"]:
    """A[i, 0]: the weight of each row on the first token. In [0, 1]; `over_rows` of it is DESIGN's first_weight."""
    return weights[..., 0].double()


def first_argmax(weights: Square) -> Float[Tensor, "layer head query"]:
    """1 where the row's largest weight is on key 0, ties to the lower index; else 0."""
    return (weights[..., 0] >= weights.amax(-1)).double()


def first_majority(weights: Square) -> Float[Tensor, "layer head query"]:
    """1 where A[i, 0] > ½ ("most of its attention"); else 0."""
    return (weights[..., 0] > 0.5).double()


def uniform_first_weight(visible: Visible) -> Float[Tensor, "layer query"]:
    """1 / (keys the row sees): its first weight if it spread evenly. 1/(i+1) under a plain causal mask."""
    return 1 / visible.sum(-1).double().clamp_min(1)


def importance(weights: Square, visible: Visible, key: int = 0) -> Float[Tensor, "layer head"]:
    """Mean weight that key k draws from the rows that see it: Σ_{i≥k} A[i,k] / (T − k), the diagonal included. In [0, 1].

    Gu et al., arXiv 2410.10781, §3. Rows that cannot see the key (window, padding) or are not finite are left out of sum and count.

    >>> A = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]])[None, None]
    >>> [round(float(importance(A, torch.ones(1, 3, 3).tril().bool(), k)), 4) for k in range(3)]
    [0.5667, 0.4, 0.5]
    """
    rows = visible[:, None, :, key] & torch.isfinite(weights).all(-1)
    return over_rows(weights[..., key], rows)


def uniform_importance(visible: Visible, key: int = 0) -> Float[Tensor, " layer"]:
    """Importance of a key if every row spread evenly over what it sees: H_T / T for key 0 under a plain causal mask.

    Above ε = 0.3 for every T ≤ 9: so short a text calls uniform attention a sink.
    """
    rows = visible[..., key]
    return torch.where(rows, uniform_first_weight(visible), 0.0).sum(-1) / rows.sum(-1)


def is_sink(importance: Float[Tensor, "*any"], epsilon: float = EPSILON) -> Bool[Tensor, "*any"]:
    """Strictly above ε. `sink_rate` is the mean of this over texts, layers and heads, the indicator taken per text first."""
    return importance > epsilon


def top_keys(weights: Square, visible: Visible, count: int = 5) -> tuple[Int[Tensor, " count"], Float[Tensor, " count"]]:
    """The keys that draw most weight over all layers, heads and rows that see them (C16: sinks need not be on key 0)."""
    rows = visible[:, None] & torch.isfinite(weights).all(-1, keepdim=True)
    drawn = torch.where(rows, weights.double(), 0.0).sum((0, 1, 2)) / rows.expand(weights.shape).sum((0, 1, 2)).clamp_min(1)
    values, keys = drawn.topk(min(count, len(drawn)))
    return keys, values
