"""The experiments of `resting_spot`: each changes one thing in a running model, beside a control, and reads weights and loss.

`ids` are texts of one length, [text, pos]. Weights lie [text, layer, head, query, key] on the CPU; losses are nats per token.
What lies below the lowest layer that an experiment changes is taken from the plain run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from interp import hooks
from interp import interventions as change
from interp.measures import heads, pruning, sinks
from interp.models import Model

FROM = sinks.FROM_QUERY
OTHER = 5  # the later place whose key, value or token is changed as a control
SPIKE = 100.0  # a residual is massive where its size is above this many times the layer's median size
SECONDARY = 0.1  # a later key is a secondary sink of a layer where its importance, mean over heads, is above this


@dataclass(frozen=True)
class Seen:
    """One condition's forward: weights [text, layer, head, query, key], loss [text], the residual stream entering each layer."""

    weights: Tensor
    loss: Tensor
    below: Mapping[int, Tensor]

    def on(self, key: int, rows_from: int = FROM) -> Tensor:
        """Mean weight on `key`, [layer, head], over rows from `rows_from` on that come after it."""
        return self.weights[..., max(rows_from, key + 1) :, key].double().mean((0, 3))


@torch.no_grad()
def observe(model: Model, ids: Tensor, edits: Mapping[str, Any] | None = None, plain: Seen | None = None) -> Seen:
    """Weights and loss under `edits`; with the `plain` run of the same ids only from the lowest edited layer up."""
    lowest = 0 if plain is None else min((lowest_layer(model, name) for name in edits or {}), default=0)
    sites = [f"blocks.{layer}.attn.hook_pattern" for layer in range(lowest, model.n_layers)]
    entries = change.entries(model) if plain is None else {}
    with (
        hooks.trace(model, [*sites, *entries.values()]) as seen,
        change.above(model, lowest, plain.below[lowest] if plain is not None and lowest else None),
    ):
        loss = change.loss(model, ids, edits)
    made = torch.stack([seen[site].float().cpu() for site in sites], 1)
    weights = made if plain is None or not lowest else torch.cat((plain.weights[:, :lowest], made), 1)
    return Seen(weights, loss, {layer: seen[name] for layer, name in entries.items()})


def lowest_layer(model: Model, name: str) -> int:
    """The lowest layer whose attention or output a name or glob of `hooks.edit` stands for; 0 for what lies before the blocks."""
    if ":" in name or name.count(".") == 1 and name.replace(".", "").isdigit():
        return hooks.head(model, name.partition(":")[0])[0]
    found = [re.match(r"blocks\.(\d+)\.", one) for one in hooks.resolve(model, name)]
    return min(int(one[1]) if one else 0 for one in found)


def importance(seen: Seen, key: int = 0) -> Tensor:
    """Gu et al.'s importance of `key`, [text, layer, head]."""
    return seen.weights[..., key:, key].double().mean(-1)


def importances(seen: Seen) -> Tensor:
    """Importance of every key, mean over the heads of a layer, [text, layer, key]; the last keys have few rows that tell."""
    rows = torch.arange(seen.weights.shape[-1], 0, -1)
    return seen.weights.double().mean(2).sum(-2) / rows


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
    """An edit of values [text, pos, kv_head, d]: the value of `key` is zero in all heads, for its own row too."""

    def edit(values: Tensor) -> Tensor:
        values[:, key] = 0
        return values

    return edit


def withhold(model: Model, key: int) -> dict[str, Any]:
    """Edits that take A[i, key]·v_key out of z for all later rows i: the weight stays, what it fetches does not; row `key` is as it was."""
    edits: dict[str, Any] = {}
    shared = model.n_heads // model.n_kv_heads
    for layer in range(model.n_layers):
        seen: dict[str, Tensor] = {}

        def keep(name: str, seen: dict[str, Tensor] = seen) -> Callable[[Tensor], Tensor]:
            def store(tensor: Tensor) -> Tensor:
                seen[name] = tensor
                return tensor

            return store

        def take(z: Tensor, seen: dict[str, Tensor] = seen) -> Tensor:
            value = seen["v"][:, key].repeat_interleave(shared, 1)  # [text, head, d]
            z[:, key + 1 :] -= torch.einsum("thq,thd->tqhd", seen["weights"][:, :, key + 1 :, key], value)
            return z

        at = f"blocks.{layer}.attn"
        edits |= {f"{at}.hook_v": keep("v"), f"{at}.hook_pattern": keep("weights"), f"{at}.hook_z": take}
    return edits


def masked(model: Model, ids: Tensor, plain: Seen, sinking: Tensor) -> pd.DataFrame:
    """The first key hidden, or its value taken away, beside the same done to another key: loss, and where the weight went."""
    by_layer = {layer: sinking[layer].nonzero().flatten().tolist() for layer in range(model.n_layers)}
    rest = {layer: (~sinking[layer]).nonzero().flatten().tolist() for layer in range(model.n_layers)}
    every, values = "blocks.*.attn.hook_attn_scores", "blocks.*.attn.hook_v"
    conditions: dict[str, Any] = {
        "nothing changed": {},
        "key 0 hidden from all heads": {every: hide(0)},
        f"key {OTHER} hidden from all heads": {every: hide(OTHER)},
        "key 0 hidden from the sinking heads": hide_in(by_layer, 0),
        f"key {OTHER} hidden from the sinking heads": hide_in(by_layer, OTHER),
        "key 0 hidden from the other heads": hide_in(rest, 0),
        "value 0 set to zero": {values: silence_value(0)},
        f"value {OTHER} set to zero": {values: silence_value(OTHER)},
        "value 0 withheld from later rows": withhold(model, 0),
        f"value {OTHER} withheld from later rows": withhold(model, OTHER),
    }
    lines = []
    for name, edits in conditions.items():
        seen = plain if not edits else observe(model, ids, edits, plain)
        low, high = pruning.interval(seen.loss - plain.loss)
        later = seen.weights[..., FROM:, :].double()
        before, self = (
            seen.weights.diagonal(-back, -2, -1)[..., FROM - back :].double().mean() for back in (1, 0)
        )  # rows from FROM on
        lines.append(
            {
                "condition": name,
                "loss": float(seen.loss.mean()),
                "rise": float((seen.loss - plain.loss).mean()),
                "low": low,
                "high": high,
                "on_key_0": float(later[..., 0].mean()),
                "on_key_1": float(later[..., 1].mean()),
                "on_previous": float(before),
                "on_itself": float(self),
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
        seen = plain if given is ids and not edits else observe(model, given, edits, plain if given is ids else None)
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
