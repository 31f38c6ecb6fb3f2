"""One type examined: a tiny model built, captured by each route, compared with itself and with the family's own eager weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from interp.capturing import ROUTES, Capture, capture, checks
from interp.capturing.registry import implementation
from interp.errors import InterpError
from interp.families.tiny import IDS, TOKENS, Sizes, attempts
from interp.models import Model
from interp.models.pretrained import first_line, quiet

COLUMNS = {
    "model_type": "as transformers lists it",
    "architecture": "its class",
    "status": "certified: captured and proved; refused: capture raises the reason; not buildable: no tiny model ran",
    "route": "the route that capture takes",
    "routes": "all routes that gave a proved capture",
    "error": "worst figure over the checks of the capture; each is below its tolerance (1e-5 in float32, relative to the scores' size)",
    "agreement": "largest difference between routes in q, k, v, visible scores, weights, z, relative to the tensor's size; empty where one works",
    "eager_error": "largest difference to the weights that the family's own eager forward returns; empty where it returns none",
    "layers": "layers of the tiny model",
    "without_attention": "layers without softmax attention (state space, convolution, linear attention)",
    "bias": "a bias is added to scale · q·k",
    "sinks": "learned sinks: rows sum to less than 1",
    "causal": "no query sees a later token; measured on the logits as well",
    "heads": "query heads / key-value heads of the tiny model",
    "score_spread": "standard deviation of the visible scores: far from 0, so a wrong scale would show",
    "reason": "why it is refused or could not be built, or what the other routes say",
}


def examine(model_type: str) -> dict[str, Any]:
    """The row of one type. Never raises for what a family does; the words of a refusal are `capture`'s own."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    row: dict[str, Any] = {**dict.fromkeys(COLUMNS), "model_type": model_type, "architecture": NAMES[model_type]}
    errors: list[str] = []
    refusal: dict[str, Any] | None = None
    for model, sizes, error in attempts(model_type):
        if model is None:
            errors.append(error)
            continue
        try:
            with quiet():
                made = _verdict(model, sizes)
        except InterpError as reason:
            refusal = refusal or {"status": "refused", "reason": str(reason), "layers": model.n_layers, "heads": _heads(model)}
            if "no softmax attention" in str(reason) and sizes.layers < 8:
                continue  # a hybrid may have it in a later layer
            break
        except Exception as crash:  # the families' own code may fail under a mask or an implementation it does not know
            refusal = {"status": "refused", "reason": f"{type(crash).__name__}: {first_line(crash)}", "layers": model.n_layers}
            break
        return {**row, **made}
    return {**row, **(refusal or {"status": "not buildable", "reason": errors[0] if errors else "no attempt"})}


def _verdict(model: Model, sizes: Sizes) -> dict[str, Any]:
    captures, note = _captured(model, "auto")
    taken = str(captures[0].provenance["route"])
    routes, worst, reasons = [taken], None, [note] if note else []
    for route in ROUTES:
        if route == taken:
            continue
        try:
            others, _ = _captured(model, route)
        except InterpError as reason:
            reasons.append(f"{route}: {reason}")
            continue
        except Exception as crash:
            reasons.append(f"{route}: {type(crash).__name__}: {first_line(crash)}")
            continue
        if len(others) != len(captures):
            captures, others = (_by_layer(model, some, way) for some, way in ((captures, taken), (others, route)))
        apart = max(difference(one, other) for one, other in zip(captures, others, strict=True))
        if apart > 1e-5:
            raise InterpError(f"{model.name}: the routes {taken} and {route} differ by {apart:.3g}")
        routes.append(route)
        worst = max(apart, worst or 0.0)
    without = captures[0].provenance.get("layers_without_attention", [])
    causal = not any(bool(_there(one.visible).triu(1).any()) for one in captures)
    if causal == _later_seen(model):
        reasons.append(
            "earlier logits " + ("change" if causal else "do not change") + " with a later token, whatever attention sees"
        )
    return {
        "status": "certified",
        "route": taken,
        "routes": " ".join(routes),
        "error": max(check.worst for one in captures for check in checks(one)),
        "agreement": worst,
        "eager_error": _eager(model, captures),
        "layers": model.n_layers,
        "without_attention": " ".join(map(str, without)),
        "bias": any(one.bias is not None for one in captures),
        "sinks": any(one.sinks is not None for one in captures),
        "causal": causal,
        "heads": _heads(model),
        "score_spread": max(float(_there(one.scores).std()) for one in captures),
        "reason": "; ".join(reasons),
    }


def _captured(model: Model, route: str) -> tuple[list[Capture], str]:
    """One capture of all layers, or one a layer where layers differ in shape."""
    try:
        return [capture(model, list(IDS), route=route)], ""  # type: ignore[arg-type]
    except InterpError as reason:
        if "differ in shape" not in str(reason):
            raise
        return [capture(model, list(IDS), [layer], route=route) for layer in range(model.n_layers)], str(reason)  # type: ignore[arg-type]


def _by_layer(model: Model, captures: list[Capture], route: str) -> list[Capture]:
    if len(captures) > 1:
        return captures
    return [capture(model, list(IDS), [layer], route=route) for layer in captures[0].layers]  # type: ignore[arg-type]


def difference(one: Capture, other: Capture) -> float:
    """Largest difference over q, k, v, visible scores, weights and z, each relative to its size; infinite where shapes differ."""
    worst = 0.0
    if one.layers != other.layers or not torch.equal(_there(one.visible), _there(other.visible)):
        return float("inf")
    for name in ("q", "k", "v", "scores", "weights", "z"):
        left, right = _there(getattr(one, name)), _there(getattr(other, name))
        if name in ("k", "v") and left.shape[1] != right.shape[1]:
            wide = max(left.shape[1], right.shape[1])
            left, right = (part.repeat_interleave(wide // part.shape[1], 1) for part in (left, right))
        if left.shape != right.shape:
            return float("inf")
        apart = (left - right).abs()
        if name == "scores":
            apart = apart * _there(one.visible)[:, None]
        worst = max(worst, float(apart.max() / left.abs().max().clamp_min(1.0)))
    return worst


def _there(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


@torch.no_grad()
def _later_seen(model: Model) -> bool:
    """Whether a change of the last token moves an earlier logit."""
    ids = torch.tensor(IDS)
    other = ids.clone()
    other[-1] = 7
    before, after = model.logits(ids)[: TOKENS - 1], model.logits(other)[: TOKENS - 1]
    return float((before - after).abs().max() / before.abs().max().clamp_min(1.0)) > 1e-4


@torch.no_grad()
def _eager(model: Model, captures: list[Capture]) -> float | None:
    """Largest difference to the attentions of the family's own eager forward; None where it gives none for these layers."""
    try:
        with implementation(model.module, "eager"):
            out = model.module(torch.tensor(IDS)[None], use_cache=False, output_attentions=True)
    except Exception:  # some families have no eager attention, or no such option
        return None
    given = [one[0].float() for one in getattr(out, "attentions", None) or () if isinstance(one, Tensor) and one.ndim == 4]
    ours = [part for one in captures for part in _there(one.weights)]
    if len(given) != len(ours) or any(one.shape != other.shape for one, other in zip(given, ours, strict=True)):
        return None
    return max(float((one - other).abs().max()) for one, other in zip(given, ours, strict=True))


def _heads(model: Model) -> str:
    return f"{model.n_heads}/{model.n_kv_heads}"
