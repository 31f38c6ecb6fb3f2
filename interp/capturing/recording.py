"""One forward of a model, recorded by one of the three routes: Parts and the logits that came with them. Nothing is judged here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from interp.capturing import bridge, operations, registry
from interp.capturing.parts import Part
from interp.errors import InterpError
from interp.models.model import Model, evaluating

ROUTES = ("registry", "operations", "hooks")


def chosen_layers(model: Model, layers: Iterable[int] | None) -> tuple[int, ...]:
    """Layer numbers in the model's order; each must exist, none counts from the end."""
    wanted = range(model.n_layers) if layers is None else sorted(set(layers))
    if wrong := [layer for layer in wanted if not 0 <= layer < model.n_layers]:
        raise InterpError(f"no layer {wrong[0]} in {model.name}: its layers run from 0 to {model.n_layers - 1}")
    if not wanted:
        raise InterpError(f"no layers were asked for; {model.name} has 0 to {model.n_layers - 1}")
    return tuple(wanted)


def record(model: Model, ids: Tensor, layers: tuple[int, ...], route: str) -> tuple[list[Part], Tensor, str]:
    """(one Part a layer that attends, logits [pos, vocab], the route taken) of one text."""
    if route not in ("auto", *ROUTES):
        raise InterpError(f"route={route!r}; give auto, {', '.join(ROUTES)}")
    if model.is_transformers and getattr(model.module.config, "is_encoder_decoder", False):
        raise InterpError(
            f"{model.name} is an encoder-decoder ({model.module.config.model_type}); interp captures causal language models"
        )
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


def record_padded(
    model: Model, ids: Tensor, mask: Tensor, real: Sequence[slice], layers: tuple[int, ...]
) -> list[tuple[list[Part], Tensor]]:
    """(Parts, logits) of each text of a padded batch [text, pos], its `real` columns alone. Positions count from each first real token."""
    import inspect

    if not model.is_transformers:
        raise InterpError(f"{model.name} takes one text at a time (it knows no padding); capture each text by itself")
    parts: list[list[Part]] = [[] for _ in real]

    def keep(call: registry.Call) -> None:
        if call.layer in layers:
            for text, columns in enumerate(real):
                parts[text].append(_part(model, call, text, columns))

    options: dict[str, Any] = {"attention_mask": mask.to(model.device), "use_cache": False}
    if "position_ids" in inspect.signature(model.module.forward).parameters:
        options["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0).to(model.device)
    elif not bool(mask[:, 0].all()):
        raise InterpError(f"{model.name} takes no position ids, so padding on the left would move its texts; use padding='right'")
    with torch.no_grad(), evaluating(model.module), registry.observed(model.module, keep):
        logits = model.module(ids.to(model.device), **options).logits
    if not parts[0]:
        raise InterpError(f"{model.name} does not go through transformers' attention registry; capture each text by itself")
    return [(sorted(parts[text], key=lambda part: part.layer), logits[text, columns]) for text, columns in enumerate(real)]


def attending(model: Model, parts: list[Part], layers: tuple[int, ...], all_asked: bool) -> dict[str, Any]:
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
            parts.append(_part(model, call, 0, slice(None)))

    with evaluating(model.module), registry.observed(model.module, keep):
        logits = model.module(ids[None].to(model.device), use_cache=False).logits[0]
    return sorted(parts, key=lambda part: part.layer), logits


def _part(model: Model, call: registry.Call, text: int, real: slice) -> Part:
    """One text of an attention call, its real rows and columns alone."""

    def of(square: Tensor) -> Tensor:
        return square[text if len(square) > 1 else 0][:, real, real]

    rows = [one[text][:, real] for one in (call.q, call.k, call.v, call.z)]
    bias = None if call.bias is None else of(call.bias)
    seen = of(call.visible).expand(call.q.shape[1], -1, -1)
    if not bool((seen == seen[:1]).all()):
        raise InterpError(f"{model.name}: heads of layer {call.layer} see different keys; a capture has one mask a layer")
    q, k, v, z = rows
    alone = replace(call, q=q[None], k=k[None], bias=None if bias is None else bias[None])
    return Part(call.layer, q, k, v, alone.scores()[0], seen[0], of(call.weights), z, call.scale, call.softcap, call.sinks, bias)
