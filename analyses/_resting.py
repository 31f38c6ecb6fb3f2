"""The experiments of `resting_spot`: each changes one thing in a running model, beside a control, and reads weights and loss.

`ids` are texts of one length, [text, pos]. Weights lie [text, layer, head, query, key] on the CPU; losses are nats per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from interp import hooks
from interp import interventions as change
from interp.errors import InterpError
from interp.losses import of_forward
from interp.measures import heads, pruning, sinks
from interp.models import Model
from interp.models.model import evaluating

FROM = sinks.FROM_QUERY
OTHER = 5  # the later place whose key, value or token is changed as a control
SPIKE = 100.0  # a residual is massive where its size is above this many times the layer's median size
SECONDARY = 0.1  # a later key is a secondary sink of a layer where its importance, mean over heads, is above this


@dataclass(frozen=True)
class Seen:
    """One condition's forward: weights [text, layer, head, query, key], loss [text]."""

    weights: Tensor
    loss: Tensor

    def on(self, key: int, rows_from: int = FROM) -> Tensor:
        """Mean weight on `key`, [layer, head], over rows from `rows_from` on that come after it."""
        return self.weights[..., max(rows_from, key + 1) :, key].double().mean((0, 3))


@torch.no_grad()
def observe(model: Model, ids: Tensor, edits: Mapping[str, Any] | None = None) -> Seen:
    """Weights and loss under `edits`."""
    sites = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.n_layers)]
    with hooks.trace(model, sites) as seen:
        loss = change.loss(model, ids, edits)
    return Seen(torch.stack([seen[site].float().cpu() for site in sites], 1), loss)


def importance(seen: Seen, key: int = 0) -> Tensor:
    """Gu et al.'s importance of `key`, [text, layer, head]."""
    return seen.weights[..., key:, key].double().mean(-1)


def norms(model: Model, ids: Tensor, plain: Seen) -> pd.DataFrame:
    """By head: norms of the first key and value beside the later ones', and of what the sink and the rest add to z."""
    sites = [f"blocks.{layer}.attn.{name}" for layer in range(model.n_layers) for name in ("hook_k", "hook_v")]
    with hooks.trace(model, sites) as seen:
        change.logits(model, ids)
    shared = model.n_heads // model.n_kv_heads
    lines = []
    for layer in range(model.n_layers):
        key, value = (
            seen[f"blocks.{layer}.attn.{name}"].float().cpu().norm(dim=-1) for name in ("hook_k", "hook_v")
        )  # [text, pos, kv]
        for head in range(model.n_heads):
            weights, v = plain.weights[:, layer, head, FROM:].double(), value[:, :, head // shared].double()
            k = key[:, :, head // shared].double()
            lines.append(
                {
                    "layer": layer,
                    "head": head,
                    "first_weight": float(weights[..., 0].mean()),
                    "k_first": float(k[:, 0].mean()),
                    "k_others": float(k[:, 1:].mean()),
                    "v_first": float(v[:, 0].mean()),
                    "v_others": float(v[:, 1:].mean()),
                    "z_from_first": float((weights[..., 0] * v[:, :1]).mean()),
                    "z_from_others": float((weights[..., 1:] @ v[:, 1:, None]).mean()),
                }
            )
    return pd.DataFrame(lines)


def hide(key: int, chosen: Iterable[int] | None = None) -> Callable[[Tensor], Tensor]:
    """An edit of scores [text, head, query, key]: no later row of the `chosen` heads (None: of all) sees `key`."""

    def edit(scores: Tensor) -> Tensor:
        lowest = torch.finfo(scores.dtype).min
        for head in range(scores.shape[1]) if chosen is None else chosen:
            scores[:, head, key + 1 :, key] = lowest
        return scores

    return edit


def hide_in(heads_by_layer: Mapping[int, list[int]], key: int) -> dict[str, Any]:
    return {f"blocks.{layer}.attn.hook_attn_scores": hide(key, chosen) for layer, chosen in heads_by_layer.items() if chosen}


def silence_value(key: int) -> Callable[[Tensor], Tensor]:
    """An edit of values [text, pos, kv_head, d]: the value of `key` is zero in all heads."""

    def edit(values: Tensor) -> Tensor:
        values[:, key] = 0
        return values

    return edit


def masked(model: Model, ids: Tensor, plain: Seen, sinking: Tensor) -> pd.DataFrame:
    """The first key hidden, or its value zeroed, beside the same done to another key: loss, and where the weight went."""
    by_layer = {layer: sinking[layer].nonzero().flatten().tolist() for layer in range(model.n_layers)}
    rest = {layer: (~sinking[layer]).nonzero().flatten().tolist() for layer in range(model.n_layers)}
    every, values = "blocks.*.attn.hook_attn_scores", "blocks.*.attn.hook_v"
    conditions: dict[str, Any] = {
        "nothing changed": {},
        "key 0 hidden from all heads": {every: hide(0)},
        "key 0 hidden from the sinking heads": hide_in(by_layer, 0),
        "key 0 hidden from the other heads": hide_in(rest, 0),
        f"key {OTHER} hidden from all heads": {every: hide(OTHER)},
        "value 0 set to zero": {values: silence_value(0)},
        f"value {OTHER} set to zero": {values: silence_value(OTHER)},
    }
    lines = []
    for name, edits in conditions.items():
        seen = plain if not edits else observe(model, ids, edits)
        low, high = pruning.interval(seen.loss - plain.loss)
        later = seen.weights[..., FROM:, :].double()
        before = seen.weights.diagonal(-1, -2, -1)[..., FROM - 1 :].double()
        lines.append(
            {
                "condition": name,
                "loss": float(seen.loss.mean()),
                "rise": float((seen.loss - plain.loss).mean()),
                "low": low,
                "high": high,
                "on_key_0": float(later[..., 0].mean()),
                "on_key_1": float(later[..., 1].mean()),
                "on_previous": float(before.mean()),
                "largest_weight": float(later.amax(-1).mean()),
                "entropy": float(torch.special.entr(later).sum(-1).mean()),
            }
        )
    return pd.DataFrame(lines)


def place_or_token(model: Model, ids: Tensor, plain: Seen) -> pd.DataFrame:
    """Does the sink follow the first place or the token that stands there? Mean weight over all heads on the places concerned."""
    swapped = ids.clone()
    swapped[:, [0, OTHER]] = ids[:, [OTHER, 0]]
    replaced = ids.clone()
    replaced[:, 0] = ids.roll(1, 0)[:, OTHER] if len(ids) > 1 else ids[:, OTHER]
    conditions: list[tuple[str, Tensor, dict[str, Any], int]] = [
        ("nothing changed", ids, {}, OTHER),
        (f"tokens 0 and {OTHER} exchanged", swapped, {}, OTHER),
        ("first token replaced by another text's", replaced, {}, OTHER),
    ]
    if model.bos_id is not None and not bool((ids[:, 0] == model.bos_id).any()):
        added = torch.cat((torch.full_like(ids[:, :1], model.bos_id), ids[:, :-1]), 1)
        conditions.append(("BOS put before the text", added, {}, 1))
    if "pos_embed.hook_out" in hooks.points(model):

        def exchange(places: Tensor) -> Tensor:
            places[:, [0, OTHER]] = places[:, [OTHER, 0]]
            return places

        conditions.append((f"position rows 0 and {OTHER} exchanged", ids, {"pos_embed.hook_out": exchange}, OTHER))
    lines = []
    for name, given, edits, second in conditions:
        seen = plain if given is ids and not edits else observe(model, given, edits)
        first, other = (float(seen.on(key, OTHER + 1).mean()) for key in (0, second))
        lines.append({"condition": name, "on_first_place": first, "other_place": second, "on_other_place": other})
    return pd.DataFrame(lines)


@torch.no_grad()
def own_pattern(model: Model, period: int, seed: int) -> pd.DataFrame:
    """By head, on repeated random ids and on fresh ones: first weight over the same rows, where an induction pattern can fire or not."""
    repeated = heads.repeated_random(model.d_vocab, 2, period, seed)
    fresh = torch.cat((repeated[:, :period], heads.repeated_random(model.d_vocab, 2, period, seed + 1)[:, :period]), 1)
    fires, idle = observe(model, repeated), observe(model, fresh)
    score = torch.stack([heads.induction(weights, period) for weights in fires.weights]).mean(0)
    with_pattern, without = (seen.on(0, period) for seen in (fires, idle))
    return pd.DataFrame(
        [
            {
                "layer": layer,
                "head": head,
                "induction": float(score[layer, head]),
                "first_weight_fires": float(with_pattern[layer, head]),
                "first_weight_idle": float(without[layer, head]),
                "fall": float(without[layer, head] - with_pattern[layer, head]),
            }
            for layer in range(model.n_layers)
            for head in range(model.n_heads)
        ]
    )


@torch.no_grad()
def evicted(model: Model, ids: Tensor, window: Iterable[int], kept: Iterable[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Loss where a row sees the last `window` keys and the first `kept` ones alone, beside full attention; and by place of the query.

    StreamingLLM's experiment (Xiao et al., arXiv 2309.17453), by a mask: places keep their numbers, evicted keys stay evicted for all.
    """
    length = ids.shape[1]
    row, column = torch.arange(length)[:, None], torch.arange(length)
    causal = column <= row

    def losses(visible: Tensor) -> Tensor:
        mask = torch.zeros(length, length, dtype=model.dtype).masked_fill(~visible, torch.finfo(model.dtype).min)
        mask = mask[None, None].to(model.device)

        def of_text(one: Tensor) -> Tensor:
            here = one[None].to(model.device)
            return of_forward(model, model.module, here, lambda: model.module(here, attention_mask=mask, use_cache=False).logits)

        with evaluating(model.module):
            return torch.cat([of_text(one) for one in ids]).double().cpu()

    full = losses(causal)
    if not torch.allclose(full.mean(-1), change.loss(model, ids), atol=1e-3):
        raise InterpError(f"{model.name} does not take a mask of its own: full attention by mask gives another loss")
    lines, places = [], []
    for size in window:
        conditions = {"full": full} | {
            f"{first}": losses(causal & ((row - column < size) | (column < first))) for first in kept
        }  # the window's rows are those after it was filled
        for name, loss in conditions.items():
            late = loss[:, size:].mean(-1)
            low, high = pruning.interval(late)
            mean = float(late.mean())
            lines.append(
                {"window": size, "kept": name, "loss": mean, "low": low, "high": high, "perplexity": float(late.mean().exp())}
            )
            bins = loss.mean(0).split(max(1, length // 16))
            start = 0
            for part in bins:
                places.append({"window": size, "kept": name, "query": start, "loss": float(part.mean())})
                start += len(part)
    return pd.DataFrame(lines), pd.DataFrame(places)
