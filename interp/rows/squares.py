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
from interp.rows.blocks import MEMORY
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
    # Rows of the heads that share keys lie below one another: one product, no key copied out.
    rows = q.float().unflatten(1, (-1, shared)).flatten(2, 3)
    scores = torch.matmul(rows, k.float().transpose(-1, -2)).mul_(scale).view(texts, heads, length, length)
    if masking.softcap:
        scores.div_(masking.softcap).tanh_().mul_(masking.softcap)
    if masking.bias is not None:
        scores += masking.bias
    seen = attention.visible(length, device=q.device)[None, None] if masking.visible is None else masking.visible
    scores.masked_fill_(~seen, -torch.inf)
    best = scores.amax(-1, keepdim=True)
    sink = None if masking.sinks is None else masking.sinks.float().view(1, heads, 1, 1)
    top = best if sink is None else torch.maximum(best, sink)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total += torch.exp(sink - top)
    weights /= total
    z = torch.matmul(weights.view(texts, k.shape[1], shared * length, length), v.float()).to(q.dtype)
    out = z.view(texts, heads, length, -1).transpose(1, 2)
    readings = readings_of(scores, weights, seen, real, total.log() + top if sink is None else None, full=full)
    return out, readings


def readings_of(
    scores: Float[Tensor, "text head query key"],
    weights: Float[Tensor, "text head query key"],
    visible: Bool[Tensor, "text2 one query key"],
    real: Bool[Tensor, "text query"],
    lse: Float[Tensor, "text head query one"] | None = None,
    *,
    full: bool = True,
) -> Readings:
    """What rows say whose scores (−inf where unseen) and weights lie there; `lse` spares the entropy a logarithm a weight."""
    first = weights[..., 0].clone()
    broken = ~torch.isfinite(weights.sum(-1))
    if not full:
        return Readings(first, broken)
    length = weights.shape[-1]
    two, places = scores.topk(min(2, length), -1)
    highest = weights.gather(-1, places)
    if length == 1:
        two, highest = (torch.cat([x, torch.full_like(x, fill)], -1) for x, fill in ((two, -torch.inf), (highest, 0.0)))
    lead = two[..., 0] - two[..., 1]
    # −Σ w ln w = lse − Σ w s, as w = e^(s − lse) sums to 1.
    seen = scores.masked_fill(~visible, 0.0)
    entropy = torch.special.entr(weights).sum(-1) if lse is None else lse[..., 0] - (weights * seen).sum(-1)
    return Readings(
        first=first,
        broken=broken,
        first_is_top=scores[..., 0] >= two[..., 0],
        largest=highest[..., 0].clone(),
        entropy=entropy,
        lead=torch.where(torch.isfinite(two[..., 1]) | broken, lead, math.nan),
        second=highest[..., 1].clone(),
        mass=torch.matmul(real[:, None, None].to(weights.dtype), weights)[:, :, 0].double(),
    )
