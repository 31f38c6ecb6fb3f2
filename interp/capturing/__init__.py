"""capture(): Q, K, V, scores and weights of one forward in one object that proves itself or refuses.

Two routes to the same Capture: `registry` (transformers' attention registry: what enters softmax) and `hooks` (TransformerLens' hook
points). `auto` takes the registry where the model goes through it, else the hooks; both where an audit compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from interp.capturing import bridge, memory, registry
from interp.capturing.capture import TENSORS, Capture
from interp.capturing.checks import Check, checks, logits_check, prove
from interp.capturing.files import read, save
from interp.capturing.parts import Part, assemble
from interp.errors import InterpError
from interp.models import Model, Tokens, load
from interp.models.model import evaluating

__all__ = ["TENSORS", "Capture", "Check", "Route", "capture", "checks", "read", "save"]

Route = Literal["auto", "registry", "hooks"]


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
    made = assemble(parts, tokens, {**model.provenance(), "route": taken})
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
    if route not in ("auto", "registry", "hooks"):
        raise InterpError(f"route={route!r}; give auto, registry or hooks")
    if route != "hooks" and model.is_transformers:
        parts, logits = _from_registry(model, ids, layers)
        if parts:
            return parts, logits, "registry"
    if route == "registry":
        raise InterpError(f"{model.name} does not go through transformers' attention registry; use route='hooks'")
    parts, logits = bridge.record(model, ids, layers)
    return parts, logits, "hooks"


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
                    call.scale, call.softcap, call.sinks, call.bias is not None,
                )
            )  # fmt: skip

    with evaluating(model.module), registry.observed(model.module, keep):
        logits = model.module(ids[None].to(model.device), use_cache=False).logits[0]
    return sorted(parts, key=lambda part: part.layer), logits
