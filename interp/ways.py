"""Ways to compute causal attention: the full square, row blocks, torch's fused kernel; and ways to approximate it.

All take q, k, v [head, pos, d] of one text and give z [head, pos, d_v], scaled by 1/√d. The first three are equal to rounding; a window
and random features are not, and save by it. `work` counts the multiply-adds that each needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode

from interp import attention
from interp.errors import InterpError

Heads = Float[Tensor, "head pos d"]
Contexts = Float[Tensor, "head pos d_v"]


def full(q: Heads, k: Heads, v: Float[Tensor, "head pos d_v"]) -> Contexts:
    """The whole square of scores at once: memory and time grow as n²."""
    return attention.attend(attention.weights(attention.scores(q, k), attention.visible(q.shape[1], device=q.device)), v)


def row_blocks(q: Heads, k: Heads, v: Float[Tensor, "head pos d_v"], block: int = 128) -> Contexts:
    """`block` rows at a time, each against the keys up to its last row: memory grows as n, half of the square is never computed."""
    return _in_blocks(q, k, v, block, lambda start, end: torch.arange(end, device=q.device), None)


def fused(q: Heads, k: Heads, v: Float[Tensor, "head pos d_v"]) -> Contexts:
    """torch's scaled_dot_product_attention: exact, blocks in fast memory, the square never written out."""
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]


def window(q: Heads, k: Heads, v: Float[Tensor, "head pos d_v"], width: int, first: int = 0, block: int = 128) -> Contexts:
    """Each query sees its `width` latest keys, its own included, and the `first` keys of the text: work grows as n·(width + first)."""
    if width < 1 or first < 0:
        raise InterpError(f"a window needs 1 key or more and 0 first keys or more; got {width} and {first}")

    def keys(start: int, end: int) -> Tensor:
        low = max(0, start - width + 1)
        return torch.cat([torch.arange(min(first, low)), torch.arange(low, end)]).to(q.device)

    return _in_blocks(q, k, v, block, keys, (width, first))


def _in_blocks(
    q: Tensor, k: Tensor, v: Tensor, block: int, keys: Callable[[int, int], Tensor], sparse: tuple[int, int] | None
) -> Tensor:
    parts = []
    for start in range(0, q.shape[1], block):
        end = min(start + block, q.shape[1])
        columns, rows = keys(start, end), torch.arange(start, end, device=q.device)[:, None]
        seen = columns[None] <= rows
        if sparse is not None:
            seen = seen & ((rows - columns[None] < sparse[0]) | (columns[None] < sparse[1]))
        weights = attention.weights(attention.scores(q[:, start:end], k[:, columns]), seen)
        parts.append(attention.attend(weights, v[:, columns]))
    return torch.cat(parts, dim=1)


def random_features(
    q: Heads, k: Heads, v: Float[Tensor, "head pos d_v"], features: int, seed: int = 0, block: int = 128
) -> Contexts:
    """exp(q·k) replaced by φ(q)·φ(k), φ(x) = exp(ωx − ½‖x‖²)/√m with m random ω: no square, work grows as n·m (Choromanski et al. 2020).

    E[exp(ωq − ½‖q‖²)·exp(ωk − ½‖k‖²)] = exp(q·k) for standard normal ω, so it is right on average; the spread grows as e^(‖q + k‖²).
    Sums over earlier blocks are kept in one m × d_v matrix, so the causal order costs nothing more. ω comes in orthogonal sets.
    """
    if features < 1:
        raise InterpError(f"at least 1 random feature is needed; got {features}")
    width = q.shape[-1]
    omega = _orthogonal(features, width, seed).to(q)
    root = width**-0.25
    phi_q, phi_k = (_features(x * root, omega, per_row) for x, per_row in ((q, True), (k, False)))
    state = phi_k.new_zeros(len(k), features, v.shape[-1])
    total = phi_k.new_zeros(len(k), features)
    parts = []
    for start in range(0, q.shape[1], block):
        here = slice(start, start + block)
        near = (phi_q[:, here] @ phi_k[:, here].transpose(-1, -2)).tril()
        above = near @ v[:, here] + phi_q[:, here] @ state
        below = near.sum(-1) + (phi_q[:, here] @ total[..., None])[..., 0]
        parts.append(above / below[..., None])
        state = state + phi_k[:, here].transpose(-1, -2) @ v[:, here]
        total = total + phi_k[:, here].sum(1)
    return torch.cat(parts, dim=1)


def _features(x: Tensor, omega: Tensor, per_row: bool) -> Tensor:
    """φ up to a factor that cancels in the quotient: one per query, one for all keys. A little is added so that no sum is 0."""
    exponent = x @ omega.T - x.square().sum(-1, keepdim=True) / 2
    top = exponent.amax(-1, keepdim=True) if per_row else exponent.amax((-1, -2), keepdim=True)
    return torch.exp(exponent - top) + 1e-6


def _orthogonal(features: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    sets = [torch.linalg.qr(torch.randn(width, width, generator=generator))[0].T for _ in range(math.ceil(features / width))]
    return torch.cat(sets)[:features] * torch.randn(features, width, generator=generator).norm(dim=-1, keepdim=True)


def work(n: int, d: int, way: str = "full", width: int = 0, first: int = 0) -> int:
    """Multiply-adds a head of width d needs for scores and contexts on n tokens, softmax left out.

    `full` n²·2d; `row_blocks` and `fused` the visible half; `window` each row's own pairs; `random_features` (width = m) 4·n·m·d.

    >>> work(1024, 64), work(1024, 64, "fused"), work(1024, 64, "window", 128)
    (134217728, 67174400, 15736832)
    """
    pairs = {
        "full": n * n,
        "row_blocks": n * (n + 1) // 2,
        "fused": n * (n + 1) // 2,
        "window": sum(min(i + 1, width) + min(first, max(0, i + 1 - width)) for i in range(n)),
        "random_features": 2 * n * width,
    }
    return pairs[way] * 2 * d


def head_parameters(d_model: int, heads: int) -> int:
    """Numbers learned by W_Q, W_K, W_V and W_O of one layer cut into `heads`: 4·d_model², however it is cut."""
    width = d_model // heads
    return heads * 3 * d_model * width + heads * width * d_model


class _Counted(TorchFunctionMode):
    """Counts the multiply-adds of every matrix product that runs inside."""

    multiply_adds = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__):
            self.multiply_adds += out.numel() * args[0].shape[-1]
        return out


def counted_work(d_model: int, heads: int, n: int) -> int:
    """Multiply-adds of one layer of `heads` on n tokens, counted by torch while it runs: projections, scores, contexts, output."""
    width = d_model // heads
    x, w, w_o = torch.zeros(n, d_model), torch.zeros(3, heads, d_model, width), torch.zeros(heads * width, d_model)
    with _Counted() as counted:
        q, k, v = (x @ part for part in w)
        z = attention.attend(torch.softmax(attention.scores(q, k), -1), v)
        z.transpose(0, 1).reshape(n, heads * width) @ w_o
    return counted.multiply_adds
