"""Causal self-attention in blocks of rows: the context rows and, on the way, everything a row's weights can tell. Exact, no square kept.

A block takes the place of the fused kernel, not a place beside it: scores, exp and weights·v are computed once and the statistics are
read off while they lie in cache. Any mask, soft cap, learned sinks and additive bias; float32 inside whatever the model's dtype is.

The scores of a block lie transposed, [key, row]: reductions over keys are then vectorised across rows, a column's mass is one
matrix-vector product, and the matrix products get the shape that a CPU is fastest at. The rows of all query heads that share a
key-value head stand side by side, so no key or value is ever copied out. Each thread takes whole blocks, not a part of every operation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.rows.readings import Masking, Readings

LOG2E = math.log2(math.e)
HIDDEN = -1e30  # far below any score; exp2 of it is exactly 0, and 0 · HIDDEN is 0, where −inf would give NaN
NEAR = 32.0  # scores, in units of ln 2, whose powers need no common factor taken out
GROUP = 32  # keys whose maximum is taken together, so that the two largest scores are found in 1/32 of the row
CHUNK = 4  # blocks a thread takes at once; fixed, so that column mass is added in one order on any number of threads
Buffers = tuple[Tensor, ...]
Task = Callable[[Buffers], None]

MEMORY = 24 * 2**20  # bytes of working buffers over all threads: what a CPU's outer cache holds


@dataclass(frozen=True)
class _Layer:
    """One layer's call, laid out for blocks. `rows` collects raw numbers [field, text, kv_head, shared, query]."""

    q: Tensor  # [text, kv_head, shared, pos, d]
    k: Tensor  # [text, kv_head, pos rounded up to GROUP, d], float32, times scale (and 1/ln 2 where no soft cap comes between)
    v: Tensor
    real: Tensor
    masking: Masking
    full: bool
    step: int
    out: Tensor  # [text, pos, kv_head, shared, d_v]
    rows: Tensor

    @property
    def length(self) -> int:
        return self.q.shape[3]


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
    kv_heads = k.shape[1]
    shared = heads // kv_heads
    masking = masking or Masking()
    layer = _Layer(
        q=q.unflatten(1, (kv_heads, shared)),
        k=_padded(k, scale if masking.softcap else scale * LOG2E),
        v=_padded(v),
        real=real,
        masking=masking,
        full=full,
        step=_rows_per_block(shared, length, q.device, memory),
        out=q.new_empty(texts, length, kv_heads, shared, v.shape[-1]),
        rows=torch.empty(8 if full else 3, texts, kv_heads, shared, length, dtype=torch.float32, device=q.device),
    )
    starts = range(0, length, layer.step)
    chunks = [starts[i : i + CHUNK] for i in range(0, len(starts), CHUNK)]
    parts = torch.zeros(len(chunks) if full else 0, texts, kv_heads, shared, length, dtype=torch.float64, device=q.device)

    def work(chunk: int, text: int, kv_head: int) -> Task:
        def run(buffers: Buffers) -> None:
            mass = parts[chunk, text, kv_head] if full else None
            for start in chunks[chunk]:
                _block(layer, buffers, text, kv_head, start, min(start + layer.step, length), mass)

        return run

    # Long blocks first: what is left over at the end is short.
    places = [(chunk, text, kv) for chunk in reversed(range(len(chunks))) for text in range(texts) for kv in range(kv_heads)]
    _spread([work(*place) for place in places], 2 * (length + GROUP) * layer.step * shared, q.device)
    return layer.out.flatten(2, 3), _readings(layer, parts)


def _padded(x: Tensor, factor: float = 1.0) -> Tensor:
    """Float32 times `factor`, with zero keys up to a multiple of GROUP: they lie in every row's future and are never seen."""
    whole = x.new_zeros(*x.shape[:2], x.shape[2] + -x.shape[2] % GROUP, x.shape[3], dtype=torch.float32)
    torch.mul(x, factor, out=whole[:, :, : x.shape[2]])
    return whole


def _rows_per_block(shared: int, length: int, device: torch.device, memory: int | None) -> int:
    """Rows that balance the cost of starting a block against the hidden half of its last square, within the memory budget."""
    on_cpu = device.type == "cpu"
    best = int((256 if on_cpu else 2048) / math.sqrt(shared))
    fit = (memory or (MEMORY if on_cpu else 32 * MEMORY)) // (_threads(device) * 2 * 4 * (length + GROUP) * shared)
    step = min(best, fit, length + -length % GROUP)
    return max(GROUP, step - step % GROUP)


def _threads(device: torch.device) -> int:
    return torch.get_num_threads() if device.type == "cpu" else 1


def _spread(tasks: list[Task], numbers: int, device: torch.device) -> None:
    """Run all tasks, each with buffers of `numbers`; on a CPU every thread takes the next whole task and works on it alone."""
    threads = min(_threads(device), len(tasks))
    waiting = iter(tasks)  # taking the next of a list is atomic: each task is run once

    def worker() -> None:
        room = torch.empty(numbers, dtype=torch.float32, device=device)
        for task in waiting:
            task(room.tensor_split(2))

    if threads == 1:
        return worker()

    def alone() -> None:
        torch.set_num_threads(1)  # of the calling thread
        with torch.no_grad():
            worker()

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads - 1) as pool:
            others = [pool.submit(alone) for _ in range(threads - 1)]
            alone()
            for other in others:
                other.result()
    finally:
        torch.set_num_threads(before)
    return None


def _block(layer: _Layer, buffers: Buffers, text: int, kv_head: int, start: int, end: int, mass: Tensor | None) -> None:
    """Rows start..end of the heads that read one key-value head. All is [key, head and row], or one number a head and row."""
    masking, shared, rows = layer.masking, layer.q.shape[2], end - start
    width, last_key = shared * rows, end + -end % GROUP
    first_key, hidden = _hidden(layer, text, start, end)
    keys = last_key - first_key
    s, p = (room[: keys * width].view(keys, width) for room in buffers)

    # Scores in units of ln 2, so that exp2, which takes half the time of exp, gives the weights.
    q = layer.q[text, kv_head, :, start:end].float().reshape(width, -1)
    torch.mm(layer.k[text, kv_head, first_key:last_key], q.T, out=s)
    if masking.softcap:
        s.div_(masking.softcap).tanh_().mul_(masking.softcap * LOG2E)
    if masking.bias is not None:
        s.view(keys, shared, rows).add_(_bias(layer, text, kv_head, start, end, first_key))
    tail = s[keys - hidden.shape[0] :]
    # The mask as an upper bound: +inf where seen, HIDDEN where not.
    torch.minimum(tail, hidden, out=tail)

    groups = s.view(-1, GROUP, width)
    tops = groups.amax(1)
    best, place = tops.max(0)
    if masking.sinks is None and bool((best.abs() <= NEAR).all()):
        gap, sink = best, None  # 2^s as it is neither overflows nor loses a weight that counts: one walk over the block less
    else:
        if bool(torch.isnan(best).any()):
            tail.masked_fill_(hidden == HIDDEN, HIDDEN)  # a NaN that is hidden breaks no row
            tops = groups.amax(1)
            best, place = tops.max(0)
        top, sink = best, None
        if masking.sinks is not None:
            sink = (masking.sinks.float() * LOG2E).view(-1, shared)[kv_head].repeat_interleave(rows)
            top = torch.maximum(best, sink)
            sink = torch.exp2(sink - top)
        s.sub_(top)
        tops.sub_(top)
        gap = best - top
    torch.exp2(s, out=p)
    kept = p.sum(0)
    total = kept if sink is None else kept + sink
    share = total.reciprocal()
    z = p.T @ layer.v[text, kv_head, first_key:last_key]
    torch.mul(
        z.view(shared, rows, -1).transpose(0, 1), share.view(shared, rows).T[..., None], out=layer.out[text, start:end, kv_head]
    )
    found = [p[0] if first_key == 0 else torch.zeros_like(share), total, gap]
    if layer.full:
        assert mass is not None
        counted = torch.where(layer.real[text, start:end], share.view(shared, rows), 0.0)
        drawn = p.new_empty(shared, keys)
        for head, columns in enumerate(p.view(keys, shared, rows).unbind(1)):
            torch.mv(columns, counted[head], out=drawn[head])
        stop = min(last_key, layer.length)
        mass[:, first_key:stop] += drawn[:, : stop - first_key]
        first_is_top = s[0] >= gap if first_key == 0 else torch.zeros_like(gap)
        second = _second(groups, tops, place, gap)
        found += [first_is_top.float(), gap - second, second.exp2(), kept, _self_product(s, p)]
    layer.rows[:, text, kv_head, :, start:end] = torch.stack(found).view(-1, shared, rows)


def _hidden(layer: _Layer, text: int, start: int, end: int) -> tuple[int, Tensor]:
    """The first key that any of the rows sees, and an upper bound for the scores of the last keys, [key, head and row]: +inf where seen."""
    visible, over, shared = layer.masking.visible, -end % GROUP, layer.q.shape[2]
    if visible is None:
        return 0, _future(end - start, over, shared, layer.q.device)
    seen = visible[text if visible.shape[0] > 1 else 0, 0, start:end, :end]
    first_key = int(seen.any(0).to(torch.uint8).argmax()) // GROUP * GROUP
    bound = torch.where(seen[:, first_key:].T, math.inf, HIDDEN)
    return first_key, torch.nn.functional.pad(bound, (0, 0, 0, over), value=HIDDEN).repeat(1, shared)


@functools.lru_cache(maxsize=16)
def _future(rows: int, over: int, shared: int, device: torch.device) -> Tensor:
    """The bound of a plainly causal block on its own `rows` keys and `over` keys of padding."""
    key = torch.arange(rows + over, device=device)
    return torch.where(key[:, None] > torch.arange(rows, device=device), HIDDEN, math.inf).repeat(1, shared)


def _bias(layer: _Layer, text: int, kv_head: int, start: int, end: int, first_key: int) -> Tensor:
    """The additive bias of the rows, [key, shared or 1, row], in units of ln 2."""
    bias, shared = layer.masking.bias, layer.q.shape[2]
    assert bias is not None
    here = bias[text if bias.shape[0] > 1 else 0, :, start:end, first_key:end].float() * LOG2E
    if here.shape[0] > 1:
        here = here[kv_head * shared : (kv_head + 1) * shared]
    return torch.nn.functional.pad(here.clamp_min(HIDDEN), (0, -end % GROUP)).permute(2, 0, 1)


def _second(groups: Tensor, tops: Tensor, place: Tensor, best: Tensor) -> Tensor:
    """Each row's second largest score, by a tournament of groups of keys: the largest is `best`, in group `place`. Uses up `tops`.

    The largest lies in the group with the largest maximum. The second is the second of that group or the largest of the other
    groups' maxima: one group of a row is looked into, whatever its length.
    """
    inside = groups[place, :, _columns(len(best), best.device)]
    is_best = inside == best[:, None]
    inner = inside.masked_fill_(is_best, -math.inf).amax(1)
    inner = torch.where(is_best.sum(1) > 1, best, inner)
    return torch.maximum(inner, tops.scatter_(0, place[None], -math.inf).amax(0))


@functools.lru_cache(maxsize=16)
def _columns(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


def _self_product(s: Tensor, p: Tensor) -> Tensor:
    """Σ p·s down each column; `s` is used up. Hidden keys have p = 0 and a finite s."""
    return s.mul_(p).sum(0)


def _readings(layer: _Layer, parts: Tensor) -> Readings:
    """Raw numbers into readings. With total = Σ 2^s over the row and s relative to its top, w = 2^s / total, so

    the entropy −Σ w ln w = ln 2 · (log₂ total · Σ2^s − Σ 2^s·s) / total.
    """
    first, total, gap, *more = layer.rows.flatten(2, 3)
    broken = ~(torch.isfinite(first) & torch.isfinite(total))
    if not more:
        return Readings(first / total, broken)
    first_is_top, lead, second, kept, product = more
    return Readings(
        first=first / total,
        broken=broken,
        first_is_top=first_is_top > 0.5,
        largest=torch.exp2(gap) / total,
        entropy=(total.log2() * kept - product) / total / LOG2E,
        lead=torch.where(lead > -HIDDEN / 2, math.nan, lead / LOG2E),
        second=second / total,
        mass=parts.sum(0).flatten(1, 2),
    )
