"""The route through the operations: attention that a family writes out itself, followed from q·k to weights · v while it runs.

Every tensor between the product of q and k and the softmax has a shadow: the same operations but for the mask, so scores are known
for later tokens too, and the mask is what was masked by an operation, never a guess from a value. Limits: one row of ids; an
operation between q·k and weights · v that is not known here (a clamp, a second softmax) ends the trail, and the layer is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from interp import attention
from interp.capturing.parts import Part
from interp.capturing.registry import implementation, layer_of
from interp.errors import InterpError
from interp.models.model import Model, evaluating

# At or below this a masked score cannot be told from a hidden one; families write -1e4, float's minimum or -inf.
_HIDES = -1e3
_CASTS = {"to", "float", "half", "double", "type", "type_as", "dropout", "clone", "detach", "contiguous"}
_SHAPES = {"view", "reshape", "unsqueeze", "squeeze", "expand", "flatten", "transpose", "permute"}
_PRODUCTS = {"matmul", "bmm"}
_SUMS = {"add", "radd", "sub"}
_FACTORS = {"mul", "rmul", "div", "truediv", "true_divide"}


@dataclass
class Shadow:
    """What stands behind one tensor of scores: unmasked scores, visible and bias, all shaped like it, with q [.., n, d], k, scale, softcap."""

    q: Tensor
    k: Tensor
    scores: Tensor
    visible: Tensor
    bias: Tensor
    scale: float = 1.0
    softcap: float | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> Shadow:
        return replace(self, scores=change(self.scores), visible=change(self.visible), bias=change(self.bias))


@dataclass
class Weighed:
    """Weights that a softmax returned, with the shadow of the scores that went in."""

    shadow: Shadow
    weights: Tensor


class _Follow(TorchFunctionMode):
    """Follows scores and weights of rows of `n` tokens; `found(shadow, weights, v, z)` is called at each product weights · v."""

    def __init__(self, n: int, found: Callable[[Weighed, Tensor, Tensor], None]) -> None:
        super().__init__()
        self._n, self._found = n, found
        self._trails: dict[int, tuple[Tensor, Shadow | Weighed]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        options = kwargs or {}
        name = _plain_name(func)
        before = {id(one): self._trails[id(one)][1] for one in args if id(one) in self._trails}
        out = func(*args, **options)
        if not isinstance(out, Tensor) or name in ("get", "size", "dim"):
            return out
        if before:
            # A tensor that was written into carries on only if the operation is one we know.
            self._trails.pop(id(out), None)
            made = self._follow(name, args, options, out, before)
        else:
            made = self._product(name, args, options, out)
        if made is not None:
            self._trails[id(out)] = (out, made)
        return out

    def clear(self) -> None:
        self._trails.clear()

    def _product(self, name: str, args: tuple[Any, ...], options: dict[str, Any], out: Tensor) -> Shadow | None:
        n = self._n
        if out.ndim < 3 or tuple(out.shape[-2:]) != (n, n):
            return None
        if name in _PRODUCTS and len(args) == 2:
            left, right, scale, bias = args[0], args[1], 1.0, torch.zeros_like(out)
        elif name == "baddbmm":
            start, left, right = (
                args[i] if i < len(args) else options[key] for i, key in enumerate(("input", "batch1", "batch2"))
            )
            scale = float(options.get("alpha", 1.0))
            beta = float(options.get("beta", 1.0))
            bias = start.expand_as(out) * beta if beta else torch.zeros_like(out)
        else:
            return None
        if left.shape[-2] != n or right.shape[-1] != n:
            return None
        return Shadow(
            left, right.transpose(-1, -2), _wide(out).clone(), torch.ones_like(out, dtype=torch.bool), _wide(bias), scale
        )

    def _follow(
        self, name: str, args: tuple[Any, ...], options: dict[str, Any], out: Tensor, before: dict[int, Shadow | Weighed]
    ) -> Shadow | Weighed | None:
        trail = next(iter(before.values()))
        if isinstance(trail, Weighed):
            if name in _CASTS or name in _SHAPES:
                return Weighed(trail.shadow, out)
            if name in _PRODUCTS and id(args[0]) in before:
                self._found(Weighed(trail.shadow, args[0]), args[1], out)
            return None
        if name in _CASTS:
            return trail
        if name in _SHAPES:
            return trail.each(lambda part: getattr(part.contiguous(), name)(*args[1:], **options))
        if name == "softmax":
            axis = options.get("dim", args[1] if len(args) > 1 else None)
            return Weighed(trail, out) if axis in (-1, out.ndim - 1) else None
        return _changed(name, args, trail, [id(one) in before for one in args])


def _changed(name: str, args: tuple[Any, ...], shadow: Shadow, tracked: list[bool]) -> Shadow | None:
    """The shadow after one arithmetic operation; None where the operation is not one that scores go through."""
    if name == "tanh":
        # tanh(s) = c · tanh(s / c) with c = 1, and what multiplies it from here on multiplies c. Once, and before any bias or mask.
        plain = shadow.softcap is None and not bool(shadow.bias.any()) and bool(shadow.visible.all())
        return replace(shadow, scores=shadow.scores.tanh(), softcap=1.0) if plain else None
    if len(args) < 2:
        return None
    if name == "masked_fill":
        return replace(shadow, visible=shadow.visible & ~args[1]) if float(args[2]) <= _HIDES else None
    if name == "where":
        other = args[2]
        hides = float(other.max() if isinstance(other, Tensor) else other) <= _HIDES
        return replace(shadow, visible=shadow.visible & args[0]) if tracked[1] and hides else None
    other = args[0] if not tracked[0] else args[1]
    if name in ("max", "maximum", "clamp"):
        floor = float(other.max()) if isinstance(other, Tensor) else math.inf
        return shadow if floor <= torch.finfo(torch.float16).min else None
    if name in _SUMS and (name != "sub" or tracked[0]):
        return _added(shadow, other, -1.0 if name == "sub" else 1.0)
    if name in _FACTORS:
        if isinstance(other, Tensor) and other.numel() > 1:
            # w · m with m of zeros and ones is a mask, if what is taken away is pushed down afterwards.
            return replace(shadow, visible=shadow.visible & (other != 0)) if bool(((other == 0) | (other == 1)).all()) else None
        factor = float(other) if name in ("mul", "rmul") else 1 / float(other)
        cap = None if shadow.softcap is None else shadow.softcap * factor
        return replace(shadow, scores=shadow.scores * factor, bias=shadow.bias * factor, scale=shadow.scale * factor, softcap=cap)
    return None


def _added(shadow: Shadow, other: Tensor | float, sign: float) -> Shadow:
    """A sum takes apart into what hides (float's minimum, -inf, or one large negative number beside zeros) and what is bias."""
    if not isinstance(other, Tensor):
        return replace(shadow, scores=shadow.scores + sign * other, bias=shadow.bias + sign * other)
    least = torch.finfo(other.dtype).min / 2 if other.is_floating_point() else _HIDES
    other = _wide(other) * sign
    low = float(other.min())
    two_valued = low <= _HIDES and bool(((other == 0) | (other == low)).all())
    hidden = other == low if two_valued else other <= least
    bias = other.masked_fill(hidden, 0)
    return replace(shadow, scores=shadow.scores + bias, bias=shadow.bias + bias, visible=shadow.visible & ~hidden)


def _plain_name(func: Any) -> str:
    """`Tensor.__itruediv__`, `mul_`, `torch.mul` → truediv, mul, mul."""
    name = getattr(func, "__name__", "").strip("_")
    return re.sub(r"^i(?=(add|sub|mul|truediv)$)", "", name)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@torch.no_grad()
def record(model: Model, ids: Tensor, layers: tuple[int, ...]) -> tuple[list[Part], Tensor]:
    """(one Part a layer that attends by softmax, logits [pos, vocab]) of one text, from the operations of the family's own attention."""
    if sinks := [path for path, part in model.module.named_modules() if isinstance(getattr(part, "sinks", None), Tensor)]:
        raise InterpError(f"{model.name}: {sinks[0]} has learned sinks, which enter beside the softmax; use route='registry'")
    parts: list[Part] = []
    where: list[str] = []

    def found(weighed: Weighed, v: Tensor, z: Tensor) -> None:
        layer = layer_of(where[-1] if where else "")
        if layer is None:
            raise InterpError(f"{model.name}: attention outside a numbered layer ({where[-1] if where else 'top'})")
        if layer in layers:
            parts.append(_part(model, layer, weighed, v, z))

    follow = _Follow(len(ids), found)
    with evaluating(model.module), implementation(model.module, "eager"), _located(model.module, where, follow.clear), follow:
        out = model.module(ids[None].to(model.device), use_cache=False)
    return sorted(parts, key=lambda part: part.layer), out.logits[0]


@contextmanager
def _located(module: nn.Module, where: list[str], left: Callable[[], None]) -> Iterator[None]:
    """While the block runs, `where` holds the paths of the modules whose forward is running; `left` is called as a layer ends."""
    with ExitStack() as stack:
        for path, part in module.named_modules():

            def enter(part: nn.Module, args: Any, path: str = path) -> None:
                where.append(path)

            def leave(part: nn.Module, args: Any, out: Any, path: str = path) -> None:
                where.pop()
                if path.rpartition(".")[2].isdigit():
                    left()

            stack.callback(part.register_forward_pre_hook(enter).remove)
            stack.callback(part.register_forward_hook(leave, always_call=True).remove)
        yield


def _part(model: Model, layer: int, weighed: Weighed, v: Tensor, z: Tensor) -> Part:
    shadow = weighed.shadow
    n = z.shape[-2]
    square = [_heads(one, n, n) for one in (shadow.scores, shadow.visible, shadow.bias, weighed.weights)]
    scores, seen, bias, weights = square
    if not bool((seen == seen[:1]).all()):
        raise InterpError(f"{model.name}: heads of layer {layer} see different keys; a capture has one mask a layer")
    q, k, v, z = (_heads(one, n, one.shape[-1]) for one in (shadow.q, shadow.k, v, z))
    k, v = (_grouped(one, model.n_kv_heads) for one in (k, v))
    made = attention.scores(_wide(q), _wide(k).repeat_interleave(len(q) // len(k), 0), shadow.scale, shadow.softcap) + bias
    size = made.abs().amax(-1, keepdim=True).clamp_min(1.0)
    off = float(((made - scores).abs() / size).max())
    if not off <= {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(weights.dtype, 1e-5):
        raise InterpError(f"{model.name}: scores of layer {layer} are not scale · q·k + bias: {off:.3g} apart")
    return Part(
        layer, q, k, v, scores, seen[0], weights, z, shadow.scale, shadow.softcap, bias=bias if bool((bias != 0).any()) else None
    )


def _heads(tensor: Tensor, n: int, width: int) -> Tensor:
    """[1, head, n, width] or [head, n, width] → [head, n, width]."""
    return tensor.reshape(-1, n, width)


def _grouped(tensor: Tensor, kv_heads: int) -> Tensor:
    """Keys or values that the family repeated for its query heads, one for each of its own heads again."""
    group = len(tensor) // kv_heads if kv_heads and len(tensor) % kv_heads == 0 else 1
    if group <= 1:
        return tensor
    apart = tensor.reshape(kv_heads, group, *tensor.shape[1:])
    return apart[:, 0] if bool((apart == apart[:, :1]).all()) else tensor
