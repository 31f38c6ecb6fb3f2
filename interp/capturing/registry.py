"""The registry route: what enters softmax under every transformers architecture whose attention goes through the registry.

Registered under one name as attention function and as mask function (without the second the mask is None and the model would see
the future). The weights are those of the family's own eager function; the scores are recomputed here from q, k and the scale,
so that softmax(scores) = weights is a test of two computations and not a tautology.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interp import attention
from interp.errors import InterpError

NAME = "interp_capture"


@dataclass
class Call:
    """One attention call of a batch: q [batch, head, n, d], k, v [batch, kv_head, m, d], mask [batch, 1 or head, n, m] True = visible."""

    module: nn.Module
    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    visible: Tensor
    scale: float
    softcap: float | None
    bias: Tensor | None
    sinks: Tensor | None
    weights: Tensor
    z: Tensor

    def scores(self) -> Tensor:
        """[batch, head, n, m] in float32: scale · q·k, capped, plus bias; before the mask."""
        groups = self.q.shape[1] // self.k.shape[1]
        keys = self.k.repeat_interleave(groups, 1)
        made = attention.scores(_wide(self.q), _wide(keys), self.scale, self.softcap)
        return made if self.bias is None else made + self.bias


_OBSERVER: ContextVar[Callable[[Call], None] | None] = ContextVar("interp_capture_observer", default=None)
# Layers by module, for the families whose attention does not know its own number.
_PATHS: ContextVar[dict[int, str] | None] = ContextVar("interp_capture_paths", default=None)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _mask(*args: Any, **options: Any) -> Tensor | None:
    from transformers.masking_utils import sdpa_mask

    # Never the shortcut of a None mask: visible must be known for every pair.
    return sdpa_mask(*args, **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *args: Any, **options: Any
) -> tuple[Tensor, Tensor]:
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise InterpError(f"{type(module).__name__} has no eager attention of its own to compare with")
    seen, bias = split_mask(module, query, key, attention_mask)
    extra = options.get("position_bias")
    if extra is not None:
        bias = extra if bias is None else bias + extra
    additive = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill(~seen, torch.finfo(query.dtype).min)
    if bias is not None and extra is None:
        additive = torch.where(seen, bias.to(query.dtype), additive)
    z, weights = eager(module, query, key, value, additive, *args, **options)
    observer = _OBSERVER.get()
    if observer is not None:
        scale = options.get("scaling", args[0] if args else None)
        if scale is None:
            scale = getattr(module, "scaling", None) or query.shape[-1] ** -0.5
        sinks = options.get("s_aux", getattr(module, "sinks", None))
        layer = layer_of((_PATHS.get() or {}).get(id(module), ""))
        if layer is None:
            layer = getattr(module, "layer_idx", None)
        observer(
            Call(
                module, -1 if layer is None else layer, query, key, value, seen, float(scale),
                options.get("softcap"), bias, sinks, weights, z.transpose(1, 2),
            )
        )  # fmt: skip
    return z, weights


def split_mask(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(visible, bias): a Boolean mask as it is; a missing one from `is_causal`; a float one split into what it hides and what it adds."""
    n, m = query.shape[2], key.shape[2]
    if mask is None:
        causal = getattr(module, "is_causal", True) and n > 1
        return attention.visible(n, m, causal=causal, device=query.device)[None, None], None
    mask = mask[..., :m]
    if mask.dtype == torch.bool:
        return mask, None
    # A float mask was folded by the model itself: what is at or below half of its dtype's minimum hides, the rest is bias.
    seen = mask > torch.finfo(mask.dtype).min / 2
    bias = torch.where(seen, mask, 0.0)
    return seen, (bias if bool(bias.any()) else None)


def layer_of(path: str) -> int | None:
    """The number of the layer in a module's path, counted from the outside: `transformer.h.3.attn` → 3; None where there is none."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
    return int(found[1]) if found else None


def register() -> None:
    """Put our attention and mask functions into transformers' registries; idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _mask)


@contextmanager
def implementation(module: nn.Module, name: str) -> Iterator[None]:
    """The attention implementation of `module` and all its parts set to `name` inside the block, each put back after it."""
    configs: dict[int, Any] = {
        id(part.config): part.config
        for part in module.modules()
        if hasattr(getattr(part, "config", None), "_attn_implementation")
    }
    for config in list(configs.values()):
        for key in getattr(config, "sub_configs", {}):
            if (sub := getattr(config, key, None)) is not None and hasattr(sub, "_attn_implementation"):
                configs[id(sub)] = sub
    before = {number: config._attn_implementation_internal for number, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation_internal = name
        yield
    finally:
        for number, config in configs.items():
            config._attn_implementation_internal = before[number]


@contextmanager
def observed(module: nn.Module, observer: Callable[[Call], None]) -> Iterator[None]:
    """Forwards of `module` inside the block go through our function, and `observer` gets each attention call."""
    register()
    token = _OBSERVER.set(observer)
    paths = _PATHS.set({id(part): path for path, part in module.named_modules()})
    try:
        with implementation(module, NAME):
            yield
    finally:
        _OBSERVER.reset(token)
        _PATHS.reset(paths)
