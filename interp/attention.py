"""Attention as pure functions on tensors: scores, visible, weights, attend. Reads no model and writes into no argument.

Softmax is taken over the visible scores alone, in float32 at least; a mask is a Boolean, never a large negative number, so
no score however small can be mistaken for a masked one, and no masked key can come back when a whole row is very negative.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import InterpError


def scores(
    q: Float[Tensor, "*lead n d"],
    k: Float[Tensor, "*lead m d"],
    scale: float | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "*lead n m"]:
    """Scores of every query against every key: S = scale · q kᵀ, then softcap · tanh(S / softcap) where a cap is given.

    `scale` is 1/√d unless given (Vaswani et al. 2017): with independent components of unit variance q·k has variance d,
    and S variance 1. Any real number; later keys are scored too, the mask comes afterwards.

    >>> scores(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), scale=1.0)
    tensor([[ 1., -1.]])
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    raw = (q @ k.transpose(-1, -2)) * scale
    return raw if softcap is None else softcap * torch.tanh(raw / softcap)


def visible(
    queries: int,
    keys: int | None = None,
    *,
    causal: bool = True,
    window: int | None = None,
    real: Bool[Tensor, " m"] | None = None,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "n m"]:
    """Which keys each query may see: True = may see.

    The queries are the last `queries` of `keys` positions, as in a cached step. `causal`: key ≤ query. `window` = W: the W
    latest keys, the query's own included (|query − key| < W where not causal). `real`: False on padding, which nobody sees.

    >>> visible(3, window=2).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    keys = queries if keys is None else keys
    if window is not None and window < 1:
        raise InterpError(f"a window of {window} keys shows nothing; give 1 or more, or None for no window")
    row = torch.arange(keys - queries, keys, device=device)[:, None]
    column = torch.arange(keys, device=device)[None, :]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if causal:
        seen = seen & (column <= row)
    if window is not None:
        seen = seen & ((row - column).abs() < window)
    return seen if real is None else seen & real[None, :].to(seen.device)


def weights(
    scores: Float[Tensor, "*lead n m"],
    visible: Bool[Tensor, "*#lead n m"] | None = None,
    *,
    sink: Float[Tensor, "*#lead n"] | None = None,
    empty: Literal["refuse", "zero"] = "refuse",
) -> Float[Tensor, "*lead n m"]:
    """Attention weights: softmax over the visible scores of each row. In [0, 1]; a row sums to 1, exactly 0 where unseen.

    `sink` is a learned logit that joins the row's total but gets no column (gpt-oss): rows then sum to less than 1.
    A row with no visible key has no weights: refused, or with `empty="zero"` returned as zeros, which means "no row".
    Float32 at least inside; the result has float32, or float64 where the scores have it.

    >>> weights(torch.tensor([[0.0, 0.0, 2.0]]))
    tensor([[0.1065, 0.1065, 0.7870]])
    >>> weights(torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[True, True, False]]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    wide = scores if scores.dtype == torch.float64 else scores.float()
    seen = torch.ones_like(wide, dtype=torch.bool) if visible is None else visible.expand(wide.shape)
    no_row = ~seen.any(-1, keepdim=True)
    if empty == "refuse" and bool(no_row.any()):
        raise InterpError(f"{int(no_row.sum())} of {no_row.numel()} rows see no key; pass empty='zero' to get them as zeros")
    # Only visible scores enter: a hidden NaN or infinity must not reach the row's maximum.
    masked = torch.where(seen, wide, -torch.inf)
    top = torch.where(no_row, torch.zeros_like(wide[..., :1]), masked.amax(-1, keepdim=True))
    if sink is not None:
        top = torch.maximum(top, sink[..., None].to(wide.dtype))
    raised = torch.exp(masked - top)
    total = raised.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink[..., None].to(wide.dtype) - top)
    return torch.where(no_row, torch.zeros_like(raised), raised / torch.where(no_row, torch.ones_like(total), total))


def attend(weights: Float[Tensor, "*lead n m"], v: Float[Tensor, "*lead m d_v"]) -> Float[Tensor, "*lead n d_v"]:
    """Context rows z = weights · v: each query's weighted average of the values, in the values' units."""
    return weights.to(v.dtype) @ v if weights.dtype != v.dtype else weights @ v


def soft_lookup(
    query: Float[Tensor, " d"],
    keys: Float[Tensor, "m d"],
    values: Float[Tensor, "m d_v"],
    scale: float = 1.0,
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"], Float[Tensor, " d_v"]]:
    """One query against a table of keys and values: its scores, its weights and z, unscaled unless `scale` is given.

    >>> table = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 4.0]])
    >>> soft_lookup(torch.tensor([1.0, 0.0]), *table)
    (tensor([ 1., -1.]), tensor([0.8808, 0.1192]), tensor([1.7616, 0.4768]))
    """
    row = scores(query[None], keys, scale)
    share = weights(row)
    return row[0], share[0], attend(share, values)[0]


def gaussian_weights(query: Float[Tensor, " d"], keys: Float[Tensor, "m d"], width: float = 1.0) -> Float[Tensor, " m"]:
    """Weights of a Gaussian kernel smoother: exp(−‖q − k‖² / 2w²), normalised over the keys.

    −½‖q − k‖² = q·k − ½‖k‖² − ½‖q‖²: the last term is common to the row and cancels, so for keys of equal length
    these are exactly the softmax weights of q·k (Zhang et al. 2023, §11.3.1).
    """
    return weights(-((query[None] - keys) ** 2).sum(-1)[None] / (2 * width**2))[0]
