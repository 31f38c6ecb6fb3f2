"""capture(): Q, K, V, scores and weights of one forward in one object that proves itself or refuses.

Three routes to the same Capture: `registry` (transformers' attention registry: what enters softmax), `operations` (the products and
the softmax that a family writes out itself) and `hooks` (TransformerLens' hook points). `auto` takes the first of them that the model
goes through; an audit compares those that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from interp.capturing import bridge, memory, operations, registry
from interp.capturing.captured import TENSORS, Capture
from interp.capturing.checks import Check, checks, logits_check, prove
from interp.capturing.files import read, save
from interp.capturing.parts import Part, assemble
from interp.errors import InterpError
from interp.models import Model, Tokens, load
from interp.models.model import evaluating

__all__ = ["TENSORS", "Capture", "Check", "Route", "capture", "checks", "read", "save"]

ROUTES = ("registry", "operations", "hooks")
Route = Literal["auto", "registry", "operations", "hooks"]


def capture(
    model: Model | str,
    text: str | Sequence[int] | Tensor | Tokens,
    layers: Iterable[int] | None = None,
    bos: str = "keep",
    *,
    route: Route = "auto",
    max_tokens: int | None = None,
    limit: int | None = None,
) -> Capture:
    """What the attention of `model` computes on one text: see Capture for the shapes. Everything on the CPU, float32 at least.

    `layers` keeps their original numbers. `limit` bounds the bytes kept (half of what is free, unless given). The model's mode, its
    hooks and its weights are as they were afterwards. Raises InterpError for input that cannot be captured, and NotFaithful where
    the capture fails its own proof: weights not negative, nothing on unseen keys, row sums, scale · q·k = scores,
    softmax(scores) = weights, weights · v = z, logits those of a plain forward.
    """
    model = load(model)
    tokens = model.fits(model.tokens(text, bos), max_tokens)
    wanted = chosen_layers(model, layers)
    memory.guard(model, len(wanted), len(tokens), limit)
    parts, logits, taken = _record(model, tokens.ids, wanted, route)
    noted = _attending(model, parts, wanted, layers is None)
    made = assemble(parts, tokens, {**model.provenance(), "route": taken, **noted})
    prove(made, logits_check(logits, model.logits(tokens.ids), model.dtype))
    return made


def chosen_layers(model: Model, layers: Iterable[int] | None) -> tuple[int, ...]:
    """Layer numbers in the model's order; each must exist, none counts from the end."""
    wanted = range(model.n_layers) if layers is None else sorted(set(layers))
    if wrong := [layer for layer in wanted if not 0 <= layer < model.n_layers]:
        raise InterpError(f"no layer {wrong[0]} in {model.name}: its layers run from 0 to {model.n_layers - 1}")
    if not wanted:
        raise InterpError(f"no layers were asked for; {model.name} has 0 to {model.n_layers - 1}")
    return tuple(wanted)


def _record(model: Model, ids: Tensor, layers: tuple[int, ...], route: Route) -> tuple[list[Part], Tensor, str]:
    if route not in ("auto", *ROUTES):
        raise InterpError(f"route={route!r}; give auto, {', '.join(ROUTES)}")
    if route == "hooks" or not model.is_transformers:
        if route in ("registry", "operations"):
            raise InterpError(f"{model.name} is no transformers model; use route='hooks'")
        parts, logits = bridge.record(model, ids, layers)
        return parts, logits, "hooks"
    if route != "operations":
        parts, logits = _from_registry(model, ids, layers)
        if parts or route == "registry":
            if not parts:
                raise InterpError(f"{model.name} does not go through transformers' attention registry; use route='operations'")
            return parts, logits, "registry"
    parts, logits = operations.record(model, ids, layers)
    return parts, logits, "operations"


def _attending(model: Model, parts: list[Part], layers: tuple[int, ...], all_asked: bool) -> dict[str, Any]:
    """What the provenance says of the layers' attention. Refuses layers that attend twice, and layers asked for that do not attend."""
    found = [part.layer for part in parts]
    if twice := sorted({layer for layer in found if found.count(layer) > 1}):
        raise InterpError(
            f"{model.name}: layer {twice[0]} attends {found.count(twice[0])} times in one forward; a capture holds one attention a layer"
        )
    without = [layer for layer in layers if layer not in found]
    if without and (not found or not all_asked):
        others = [layer for layer in found if layer not in without]
        raise InterpError(
            f"{model.name}: no softmax attention was seen in layer{'s' * (len(without) > 1)} {', '.join(map(str, without))}"
            + (f"; ask for layers {', '.join(map(str, others))}" if others else "")
        )
    later = any(bool(part.visible.triu(1).any()) for part in parts)
    return {**({"layers_without_attention": without} if without else {}), **({"causal": False} if later else {})}


@torch.no_grad()
def _from_registry(model: Model, ids: Tensor, layers: tuple[int, ...]) -> tuple[list[Part], Tensor]:
    """(one Part a layer, logits [pos, vocab]) of one text; no parts where the model does not use the registry."""
    parts: list[Part] = []

    def keep(call: registry.Call) -> None:
        if call.layer in layers:
            seen = call.visible[0].expand(call.q.shape[1], -1, -1)
            if not bool((seen == seen[:1]).all()):
                raise InterpError(f"{model.name}: heads of layer {call.layer} see different keys; a capture has one mask a layer")
            parts.append(
                Part(
                    call.layer, call.q[0], call.k[0], call.v[0], call.scores()[0], seen[0], call.weights[0], call.z[0],
                    call.scale, call.softcap, call.sinks, None if call.bias is None else call.bias[0],
                )
            )  # fmt: skip

    with evaluating(model.module), registry.observed(model.module, keep):
        logits = model.module(ids[None].to(model.device), use_cache=False).logits[0]
    return sorted(parts, key=lambda part: part.layer), logits
