"""The fused attention kernels with the log-sum-exp they keep: a row's first weight at the price of one dot product.

Why nothing else is needed. Row i's weights are A[i,j] = exp(s_ij) / Σ_{j'} exp(s_ij') over its visible keys, with s_ij = scale · q_i·k_j. The
kernel walks over the keys once, keeps lse_i = ln Σ_j exp(s_ij) (its own backward pass needs it) and returns it. Hence, whatever the other keys are,

    A[i,0] = exp(s_i0 − lse_i) = exp(scale · q_i·k_0 − lse_i),

exactly: one score a row, T numbers a head, no square. Plainly causal rows only: no window, soft cap, learned sink or bias,
whose rows `interp.rows.blocks` takes.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float
from torch import Tensor

_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention


def attend(
    q: Float[Tensor, "text head pos d"],
    k: Float[Tensor, "text kv_head pos d"],
    v: Float[Tensor, "text kv_head pos d_v"],
    scale: float,
) -> tuple[Float[Tensor, "text pos head d_v"], Float[Tensor, "text head pos"]] | None:
    """The context rows as a model expects them, and each row's weight on key 0 (float32). None where no kernel applies here."""
    wide_v = v.shape[-1] > q.shape[-1]
    if wide_v or not _applies(q.device.type, q.dtype, q.shape[-1], q.shape[1] // k.shape[1]):
        return None
    out, lse = _kernel(q, k, _as_wide(v, q.shape[-1]), scale)
    return out[..., : v.shape[-1]].transpose(1, 2), first_weight(q, k, lse, scale)


def first_weight(
    q: Float[Tensor, "text head pos d"], k: Float[Tensor, "text kv_head pos d"], lse: Float[Tensor, "text head pos"], scale: float
) -> Float[Tensor, "text head pos"]:
    """exp(scale · q_i·k_0 − lse_i), in [0, 1] to rounding: see the proof above."""
    shared = q.shape[1] // k.shape[1]
    first_key = k[:, :, 0].float().repeat_interleave(shared, 1)
    score = torch.einsum("thid,thd->thi", q.float(), first_key) * scale
    return torch.exp(score - lse).clamp_max_(1.0)


def _as_wide(v: Tensor, width: int) -> Tensor:
    """Values padded with zeros to the width of the keys, as the kernels want them (DeepSeek's are narrower)."""
    return v if v.shape[-1] == width else torch.nn.functional.pad(v, (0, width - v.shape[-1]))


def _kernel(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """(out [text, head, pos, d], lse [text, head, pos]) of causal attention; keys and values with their own count of heads."""
    texts, heads, length, width = q.shape
    if heads != k.shape[1] and not _groups_natively(q.device.type):
        # One text-and-key-head a batch entry, its query heads beside it: the key is a view that is read again, never a copy.
        grouped = q.unflatten(1, (k.shape[1], -1)).flatten(0, 1)
        keys, values = (x.flatten(0, 1)[:, None].expand(-1, grouped.shape[1], -1, -1) for x in (k, v))
        out, lse = _call(grouped, keys, values, scale)
        return out.reshape(texts, heads, length, -1), lse.reshape(texts, heads, length)
    return _call(q, k, v, scale)


def _call(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    if q.device.type == "cpu":
        return _CPU(q, k, v, 0.0, True, scale=scale)
    if q.dtype in (torch.float16, torch.bfloat16):
        out, lse = _FLASH(q, k, v, 0.0, True, False, scale=scale)[:2]
    else:
        out, lse = _EFFICIENT(q, k, v, None, True, 0.0, True, scale=scale)[:2]
    return out, lse[..., : q.shape[2]]  # the efficient kernel rounds the length of lse up


@functools.cache
def _groups_natively(device: str) -> bool:
    """Whether the kernel reads query head h's key from head h // shared by itself: tried once on a small case, since releases differ."""
    if device != "cpu":
        return False
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 5, 8, generator=draw) for heads in (6, 3, 3))
    try:
        out, lse = _CPU(q, k, v, 0.0, True, scale=1.0)
        wide, wide_lse = _CPU(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), 0.0, True, scale=1.0)
    except RuntimeError:
        return False
    return lse.shape == wide_lse.shape and torch.allclose(out, wide, atol=1e-6) and torch.allclose(lse, wide_lse, atol=1e-6)


@functools.cache
def _applies(device: str, dtype: torch.dtype, width: int, shared: int) -> bool:
    """Whether a kernel for this device, dtype and width exists and is right: tried once on a small case against the definition."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 5, width, generator=draw).to(device, dtype) for heads in (shared, 1, 1))
    try:
        out, lse = _kernel(q, k, v, 0.1)
    except (RuntimeError, NotImplementedError):
        return False
    scores = (q.float() @ k.float().transpose(-1, -2)) * 0.1
    scores = scores.masked_fill(torch.ones(5, 5, device=device).triu(1).bool(), -torch.inf)
    near = 1e-5 if dtype in (torch.float32, torch.float64) else 2e-2
    expected = scores.softmax(-1) @ v.float()
    return torch.allclose(lse.float(), scores.logsumexp(-1), atol=near) and torch.allclose(out.float(), expected, atol=near)
