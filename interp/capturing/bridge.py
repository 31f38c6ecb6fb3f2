"""The hook route: q, k, v, scores, weights and z from TransformerLens' hook points. Serves the toy and every bridged model.

TransformerLens' `hook_attn_scores` is after the mask, and on several families after softmax: the first is undone by recomputing
the unseen pairs from q and k, the second is refused. Rotary q and k come from `hook_rot_q`/`hook_rot_k` where they fire.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from interp import attention
from interp.capturing.parts import Part
from interp.errors import InterpError
from interp.hooks import placed, points
from interp.models.model import Model, evaluating
from interp.models.pretrained import first_line

_WANTED = ("hook_q", "hook_k", "hook_v", "hook_rot_q", "hook_rot_k", "hook_attn_scores", "hook_pattern", "hook_z")


@torch.no_grad()
def record(model: Model, ids: Tensor, layers: tuple[int, ...]) -> tuple[list[Part], Tensor]:
    """(one Part a layer, logits [pos, vocab]) of one text, from hooks alone."""
    known = points(model)
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def store(tensor: Tensor, hook: Any) -> None:
            seen[name] = tensor[0].detach()

        return store

    wanted = [(f"blocks.{layer}.attn.{name}") for layer in layers for name in _WANTED]
    with placed([(known[name], keep(name)) for name in wanted if name in known]), evaluating(model.bridge):
        try:
            out = model.bridge(ids[None].to(model.device))
        except (RuntimeError, TypeError, AttributeError, KeyError) as error:
            raise InterpError(f"{model.name}: its TransformerLens bridge does not run: {first_line(error)}") from error
    logits = (out if isinstance(out, Tensor) else out.logits)[0]
    return [_part(model, seen, layer) for layer in layers], logits


def _part(model: Model, seen: dict[str, Tensor], layer: int) -> Part:
    def hook(*names: str) -> Tensor:
        for name in names:
            if (found := seen.get(f"blocks.{layer}.attn.{name}")) is not None:
                return found
        raise InterpError(f"{model.name}: hook {names[-1]} of layer {layer} did not fire; this model needs another route")

    scores, weights = hook("hook_attn_scores"), hook("hook_pattern")
    n_heads, n = weights.shape[:2]
    q = _heads_first(hook("hook_rot_q", "hook_q"), n)
    k, v, z = _heads_first(hook("hook_rot_k", "hook_k"), n), _heads_first(hook("hook_v"), n), _heads_first(hook("hook_z"), n)
    fits = q.shape[-1] == k.shape[-1] and len(v) == len(k) and z.shape == (n_heads, n, v.shape[-1]) and q.shape[:2] == z.shape[:2]
    if not fits:
        shapes = ", ".join(f"{name} {tuple(one.shape)}" for name, one in (("q", q), ("k", k), ("v", v), ("z", z)))
        raise InterpError(
            f"{model.name}: what the hooks of layer {layer} give does not fit together ({shapes}); use route='registry'"
        )
    scale, softcap, window = _settings(model, layer, q)
    causal = model.is_transformers or getattr(model.module.cfg, "causal", True)
    seen_keys = attention.visible(n, causal=causal, window=window, device=q.device)
    if bool((scores.float() - weights.float()).abs().masked_fill(~seen_keys, 0).max() == 0) and n > 1:
        raise InterpError(
            f"{model.name}: hook_attn_scores of layer {layer} is taken after softmax on this architecture; no scores can be had here"
        )
    made = attention.scores(q.float(), k.float().repeat_interleave(n_heads // k.shape[0], 0), scale, softcap)
    return Part(layer, q, k, v, torch.where(seen_keys, scores.float(), made), seen_keys, weights, z, scale, softcap)


def _heads_first(tensor: Tensor, n: int) -> Tensor:
    """[pos, head, d] → [head, pos, d]; a tensor that already has its heads first is left (some norm hooks)."""
    return tensor.transpose(0, 1) if tensor.shape[0] == n else tensor


def _settings(model: Model, layer: int, q: Tensor) -> tuple[float, float | None, int | None]:
    """Scale, soft cap and window of a layer, read from the attention module itself where it is transformers'."""
    attn = model.bridge.blocks[layer].attn
    origin = getattr(attn, "original_component", attn)
    scale = getattr(origin, "scaling", None) or q.shape[-1] ** -0.5
    config = getattr(origin, "config", None)
    # Where no layer has a window of its own (Mistral), the configuration's holds for all.
    common = None if getattr(config, "layer_types", None) else getattr(config, "sliding_window", None)
    window = getattr(origin, "sliding_window", common)
    return float(scale), getattr(origin, "attn_logit_softcapping", None), window
