"""What a head does, as scores between 0 and 1: previous token, duplicate, induction, itself, the first token, and how it spreads.

The three position scores follow TransformerLens' protocol: repeated random tokens, the mean of A over all entries of one diagonal.
A label is given only where a stated threshold is passed; most heads get none, and that share is a finding of its own.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InterpError
from interp.shapes import Square, Visible

# A head is named after a job where its score passes this: half of its weight, on average over the diagonal, does that job.
THRESHOLD = 0.5


def repeated_random(
    d_vocab: int, rows: int = 2, period: int = 100, seed: int = 0, low: int = 100, high: int = 20000
) -> Int[Tensor, "rows two_periods"]:
    """Random ids, each row repeated once: `manual_seed(seed)`, `randint(low, high)`; a smaller vocabulary lowers both bounds.

    Source: TransformerLens' executed notebook, quoted with its figures in the tests marked gpt2.
    """
    if d_vocab < high:
        low, high = min(low, d_vocab // 10), d_vocab
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(low, high, (rows, period), generator=generator)
    return torch.cat((half, half), dim=1)


def diagonal(weights: Square, offset: int) -> Float[Tensor, "layer head"]:
    """Mean of A on the diagonal key = query − offset, over all its entries. In [0, 1], float64."""
    length = weights.shape[-1]
    if not 0 <= offset < length:
        raise InterpError(f"diagonal key = query − {offset} does not exist in {length} tokens")
    return weights.diagonal(-offset, -2, -1).double().mean(-1)


def previous_token(weights: Square) -> Float[Tensor, "layer head"]:
    """Mean weight on the token just before: key = query − 1."""
    return diagonal(weights, 1)


def duplicate_token(weights: Square, period: int) -> Float[Tensor, "layer head"]:
    """Mean weight on the earlier occurrence of the same token, on ids that repeat with `period`: key = query − period."""
    return diagonal(weights, period)


def induction(weights: Square, period: int) -> Float[Tensor, "layer head"]:
    """Mean weight on the token after the earlier occurrence: key = query − (period − 1)."""
    return diagonal(weights, period - 1)


def self_weight(weights: Square) -> Float[Tensor, "layer head"]:
    """Mean weight of a query on its own position; row 0, which sees nothing else, included."""
    return diagonal(weights, 0)


def entropy(weights: Square) -> Float[Tensor, "layer head query"]:
    """Entropy of each row in nats: 0 for one key, log n for n keys alike."""
    wide = weights.double()
    return -torch.xlogy(wide, wide).sum(-1)


def distance(weights: Square) -> Float[Tensor, "layer head query"]:
    """Mean distance query − key of each row, in tokens, weighted by attention."""
    places = torch.arange(weights.shape[-1], dtype=torch.float64, device=weights.device)
    return places - (weights.double() @ places)


def mass_on(weights: Square, keys: Bool[Tensor, " key"]) -> Float[Tensor, "layer head query"]:
    """Weight of each row on a set of keys (newlines, punctuation, the first token). In [0, 1]."""
    return torch.where(keys, weights.double(), 0.0).sum(-1)


def mean_rows(values: Float[Tensor, "layer head query"], visible: Visible, from_query: int = 1) -> Float[Tensor, "layer head"]:
    """Mean over the rows from `from_query` on that see more than one key; NaN where there is none."""
    rows = (visible.sum(-1) > 1)[:, None] & (torch.arange(visible.shape[1]) >= from_query)
    return torch.where(rows, values, 0.0).sum(-1) / rows.expand(values.shape).sum(-1)


def label(scores: dict[str, float], threshold: float = THRESHOLD) -> str:
    """The job whose score is largest and passes the threshold; "" where none does.

    >>> label({"previous token": 0.9, "induction": 0.2}), label({"previous token": 0.3})
    ('previous token', '')
    """
    job = max(scores, key=lambda name: scores[name])
    return job if scores[job] > threshold else ""
