"""Where rows are read: our function in transformers' attention registry, in place for the length of a block, then put back.

Texts stand at the left edge of their batch and no attention mask is passed: a causal row never sees the padding after its text,
so a missing mask means plainly causal, and the mask of a window is the window's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interp.capturing.registry import implementation, split_mask
from interp.errors import InterpError
from interp.models.pretrained import quiet
from interp.rows import blocks, fused, squares
from interp.rows.readings import Masking, Readings

NAME = "interp_rows"
SHORT = 320  # tokens; below it all heads of a text are one product, above it blocks pay


@dataclass(frozen=True)
class Watch:
    """What a forward reports to: `found(layer, readings, visible)` for each attention call; `real` marks tokens, not padding."""

    found: Callable[[int, Readings, Tensor | None], None]
    real: Tensor
    full: bool
    layers: frozenset[int] | None = None
    memory: int | None = None


_WATCH: ContextVar[Watch | None] = ContextVar("interp_rows_watch", default=None)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *args: Any, **options: Any
) -> tuple[Tensor, None]:
    watch = _WATCH.get()
    if watch is None:
        raise InterpError(f"attention implementation {NAME!r} works inside interp.rows.measure alone")
    scale = options.get("scaling", args[0] if args else None)
    if scale is None:
        scale = getattr(module, "scaling", None) or query.shape[-1] ** -0.5
    masking = _masking(module, query, key, attention_mask, options)
    layer = getattr(module, "layer_idx", None)
    layer = -1 if layer is None else layer
    wanted = watch.layers is None or layer in watch.layers
    out, readings = attend(query, key, value, float(scale), masking, watch, full=watch.full and wanted)
    if wanted:
        watch.found(layer, readings, masking.visible)
    return out, None


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, masking: Masking, watch: Watch, *, full: bool
) -> tuple[Tensor, Readings]:
    """The context rows [text, pos, head, d_v] and the readings, by whatever gives them soonest."""
    if masking.plain and not full and (done := fused.attend(q, k, v, scale)) is not None:
        out, first = done
        return out, Readings(first, ~torch.isfinite(first))
    way = squares.attend if q.shape[2] <= SHORT else blocks.attend
    return way(q, k, v, scale, watch.real, masking, full=full, memory=watch.memory)


def _masking(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Masking:
    if query.shape[2] != key.shape[2]:
        raise InterpError(f"{query.shape[2]} queries and {key.shape[2]} keys: rows are measured in one forward, without a cache")
    causal = options.get("is_causal")
    if mask is None and not (getattr(module, "is_causal", True) if causal is None else causal):
        raise InterpError(f"{type(module).__name__} looks at later tokens; rows are measured where attention is causal")
    extra = options.get("position_bias")
    visible, bias = (None, None) if mask is None else split_mask(module, query, key, mask)
    if extra is not None:
        bias = extra if bias is None else bias + extra
    if visible is not None and visible.shape[1] > 1:
        raise InterpError(f"heads of {type(module).__name__} see different keys; rows have one mask a layer")
    sinks = options.get("s_aux", getattr(module, "sinks", None))
    return Masking(visible, bias, options.get("softcap"), None if sinks is None else sinks.detach().reshape(-1))


@contextmanager
def watched(module: nn.Module, watch: Watch) -> Iterator[None]:
    """Forwards of `module` inside the block go through our function and report to `watch`; the module is put back after it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    token = _WATCH.set(watch)
    try:
        # Quiet: transformers warns of a first token that looks like padding; no row here can see any.
        with quiet(), implementation(module, NAME):
            yield
    finally:
        _WATCH.reset(token)
