"""Massive activations beside sinks: where residuals spike, whether sinks stand on the same tokens, and what cutting the spikes does."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses._resting import OTHER, SECONDARY, SPIKE, Seen, importance, importances, observe
from interp import hooks
from interp import interventions as change
from interp.measures import pruning, sinks
from interp.models import Model

LATE = 8  # keys with fewer later rows than this are left out: their importance is that of a few rows, their own among them


def after_layers(model: Model) -> list[str]:
    """Hook points of the residual stream after each layer; empty where a model has none (the toy)."""
    names = [f"blocks.{layer}.hook_resid_post" for layer in range(model.n_layers)]
    return names if all(name in hooks.points(model) for name in names) else []


def spikes(model: Model, ids: Tensor, plain: Seen) -> tuple[pd.DataFrame, Tensor]:
    """By layer: the largest |residual| after it, where, how it compares with the median; spike tokens against sink tokens.

    Also which tokens spike, [layer, text, pos], without the last `LATE`.
    """
    names = after_layers(model)
    with hooks.trace(model, names) as seen:
        change.logits(model, ids)
    keys = max(1, ids.shape[1] - LATE)
    drawn = importances(plain)[..., :keys]
    lines, every = [], []
    for layer, name in enumerate(names):
        size = seen[name].float().abs().cpu()
        place = int(size.argmax())
        text, pos, dimension = (int(part) for part in torch.unravel_index(torch.tensor(place), size.shape))
        median, largest = float(size.median()), float(size.flatten()[place])
        spiked = size.amax(-1)[:, :keys] > SPIKE * median
        every.append(spiked)
        # The layer above reads this residual: its sinks are the ones to compare with.
        above = drawn[:, min(layer + 1, model.n_layers - 1)]
        sunk = above > sinks.EPSILON
        both, either = int((spiked & sunk).sum()), int((spiked | sunk).sum())
        lines.append(
            {
                "layer": layer,
                "largest": largest,
                "median": median,
                "times_median": largest / max(median, 1e-12),
                "text": text,
                "position": pos,
                "token_id": int(ids[text, pos]),
                "dimension": dimension,
                "spike_tokens": int(spiked.sum()),
                "sink_tokens": int(sunk.sum()),
                "both": both,
                "overlap": both / either if either else float("nan"),
                "drawn_by_spikes": float(above[spiked].mean()),
                "drawn_by_others": float(above[~spiked].mean()),
            }
        )
    return pd.DataFrame(lines), torch.stack(every)


def cut(model: Model, ids: Tensor, plain: Seen) -> pd.DataFrame:
    """Spikes cut after every layer (each set to its dimension's mean over the text's other tokens), beside the same at another token."""

    def at_spikes(residual: Tensor) -> Tensor:
        size = residual.abs()
        spiked = size > SPIKE * size.float().median()
        rest = residual.masked_fill(spiked, 0).sum(1, keepdim=True) / (~spiked).sum(1, keepdim=True).clamp_min(1)
        return torch.where(spiked, rest.expand_as(residual), residual)

    def elsewhere(residual: Tensor) -> Tensor:
        size = residual.abs()
        dimensions = (size > SPIKE * size.float().median()).any(1)  # [text, d]: where there is a spike anywhere
        residual[:, OTHER] = torch.where(dimensions, residual[:, OTHER + 1 :].mean(1), residual[:, OTHER])
        return residual

    conditions: dict[str, Callable[[Tensor], Tensor] | None] = {
        "nothing changed": None,
        "spikes cut": at_spikes,
        f"same dimensions cut at token {OTHER}": elsewhere,
    }
    lines = []
    for name, function in conditions.items():
        edits: dict[str, Any] = {} if function is None else dict.fromkeys(after_layers(model), function)
        seen = plain if function is None else observe(model, ids, edits)
        low, high = pruning.interval(seen.loss - plain.loss)
        rise = float((seen.loss - plain.loss).mean())
        rate = float(sinks.is_sink(importance(seen)).double().mean())
        lines.append(
            {"condition": name, "loss": float(seen.loss.mean()), "rise": rise, "low": low, "high": high,
             "first_weight": float(seen.on(0).mean()), "sink_rate": rate}
        )  # fmt: skip
    return pd.DataFrame(lines)


def secondary(
    model: Model, ids: Tensor, pieces: Sequence[Sequence[str]], plain: Seen, spiked: Tensor
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Later tokens that draw weight in some layers, and what they have in common beside all later tokens.

    Shares of both: marks and blanks, tokens seen before in their text, and tokens whose residual spikes after some layer.
    """
    drawn = importances(plain)
    common: dict[str, dict[str, list[bool]]] = {kind: {"secondary": [], "all": []} for kind in ("marks", "seen_before", "spiked")}
    lines: list[dict[str, Any]] = []
    for text, tokens in enumerate(pieces):
        for key in range(1, spiked.shape[-1]):
            layers = (drawn[text, :, key] > SECONDARY).nonzero().flatten().tolist()
            own = {
                "marks": not tokens[key].strip() or all(one in string.punctuation for one in tokens[key].strip()),
                "seen_before": bool((ids[text, :key] == ids[text, key]).any()),
                "spiked": bool(spiked[:, text, key].any()),
            }
            for kind, value in own.items():
                common[kind]["all"].append(value)
                if layers:
                    common[kind]["secondary"].append(value)
            if layers:
                line = {"text": text, "position": key, "token_id": int(ids[text, key]), "token": tokens[key]}
                line |= {"first_layer": layers[0], "last_layer": layers[-1], "layers": len(layers), "spiked": own["spiked"]}
                lines.append(line | {"importance": float(drawn[text, :, key].max())})
    columns = ["text", "position", "token_id", "token", "first_layer", "last_layer", "layers", "spiked", "importance"]
    frame = pd.DataFrame(lines, columns=columns).sort_values("importance", ascending=False, kind="stable")
    shares = {
        f"{kind}_among_{among}": sum(found) / len(found) if found else float("nan")
        for kind, by in common.items()
        for among, found in by.items()
    }
    return frame, shares
