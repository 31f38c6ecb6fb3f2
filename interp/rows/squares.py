"""Short texts: all heads of some texts in one square a head, read and dropped. The same readings as `blocks`, and as a capture's square.

A block costs some fifty small operations a key-value head, which for a text of 64 tokens is more than its arithmetic. Here a
whole batch costs as many. The squares of one call stay within the memory budget, and live no longer than the call.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp import attention
from interp.rows.blocks import HIDDEN, LOG2E, MEMORY
from interp.rows.readings import Masking, Readings


def attend(
    q: Float[Tensor, "text head pos d"],
    k: Float[Tensor, "text kv_head pos d"],
    v: Float[Tensor, "text kv_head pos d_v"],
    scale: float,
    real: Bool[Tensor, "text pos"],
    masking: Masking | None = None,
    *,
    full: bool = True,
    memory: int | None = None,
) -> tuple[Float[Tensor, "text pos head d_v"], Readings]:
    """The context rows as a model expects them, and the readings. Rows of padding (`real` False) add no column mass."""
    texts, heads, length, _ = q.shape
    masking = masking or Masking()
    some = max(1, (memory or 2 * MEMORY) // (4 * 4 * heads * length * length))
    parts = [
        _some(q[at], k[at], v[at], scale, real[at], _cut(masking, at), full)
        for at in (slice(start, start + some) for start in range(0, texts, some))
    ]
    names = [name for name in Readings.__dataclass_fields__ if getattr(parts[0][1], name) is not None]
    return torch.cat([out for out, _ in parts]), Readings(
        **{name: torch.cat([getattr(readings, name) for _, readings in parts]) for name in names}
    )


def _cut(masking: Masking, at: slice) -> Masking:
    def some(tensor: Tensor | None) -> Tensor | None:
        return tensor if tensor is None or tensor.shape[0] == 1 else tensor[at]

    return Masking(some(masking.visible), some(masking.bias), masking.softcap, masking.sinks)


def _some(q: Tensor, k: Tensor, v: Tensor, scale: float, real: Tensor, masking: Masking, full: bool) -> tuple[Tensor, Readings]:
    texts, heads, length, _ = q.shape
    shared = heads // k.shape[1]
    # Rows of the heads that share keys lie below one another: one product, no key copied out. In units of ln 2, as in `blocks`: exp2 is
    # several times as fast as exp, above all where its result is 0.
    rows = q.float().unflatten(1, (-1, shared)).flatten(2, 3)
    keys = k.float() * (scale if masking.softcap else scale * LOG2E)
    scores = torch.matmul(rows, keys.transpose(-1, -2)).view(texts, heads, length, length)
    if masking.softcap:
        scores.div_(masking.softcap).tanh_().mul_(masking.softcap * LOG2E)
    if masking.bias is not None:
        scores += masking.bias * LOG2E
    seen = attention.visible(length, device=q.device)[None, None] if masking.visible is None else masking.visible
    torch.minimum(scores, torch.where(seen, math.inf, HIDDEN), out=scores)
    best = scores.amax(-1, keepdim=True)
    if bool(torch.isnan(best).any()):
        best = scores.masked_fill_(~seen, HIDDEN).amax(-1, keepdim=True)  # a NaN that is hidden breaks no row
    sink = None if masking.sinks is None else masking.sinks.float().view(1, heads, 1, 1) * LOG2E
    top = best if sink is None else torch.maximum(best, sink)
    weights = torch.exp2(scores - top)
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total += torch.exp2(sink - top)
    weights /= total
    z = torch.matmul(weights.view(texts, k.shape[1], shared * length, length), v.float()).to(q.dtype)
    out = z.view(texts, heads, length, -1).transpose(1, 2)
    lse = (total.log2() + top)[..., 0] / LOG2E if sink is None else None
    return out, readings_of(scores, weights, real, lse, unit=LOG2E, full=full)


def readings_of(
    scores: Float[Tensor, "text head query key"],
    weights: Float[Tensor, "text head query key"],
    real: Bool[Tensor, "text query"],
    lse: Float[Tensor, "text head query"] | None = None,
    *,
    unit: float = 1.0,
    full: bool = True,
) -> Readings:
    """What rows say whose scores, in multiples of 1/`unit` and far down where unseen, and weights lie there; `lse` spares a logarithm a weight."""
    first = weights[..., 0].clone()
    broken = ~torch.isfinite(weights.sum(-1))
    if not full:
        return Readings(first, broken)
    length = weights.shape[-1]
    two, places = scores.topk(min(2, length), -1)
    highest = weights.gather(-1, places)
    if length == 1:
        two, highest = (torch.nn.functional.pad(x, (0, 1), value=fill) for x, fill in ((two, HIDDEN), (highest, 0.0)))
    # −Σ w ln w = lse − Σ w s, as w = e^(s − lse) sums to 1.
    entropy = torch.special.entr(weights).sum(-1) if lse is None else lse - (weights * scores).sum(-1) / unit
    return Readings(
        first=first,
        broken=broken,
        first_is_top=scores[..., 0] >= two[..., 0],
        largest=highest[..., 0].clone(),
        entropy=entropy,
        lead=torch.where(two[..., 1] < HIDDEN / 2, math.nan, (two[..., 0] - two[..., 1]) / unit),
        second=highest[..., 1].clone(),
        mass=torch.matmul(real[:, None, None].to(weights.dtype), weights)[:, :, 0].double(),
    )
