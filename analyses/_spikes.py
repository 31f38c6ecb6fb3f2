"""Massive activations beside sinks: where residuals spike, whether sinks stand on the same tokens, and what cutting the spikes does."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from analyses._resting import OTHER, SECONDARY, SPIKE, Seen, importance, observe
from interp import hooks
from interp import interventions as change
from interp.measures import pruning, sinks
from interp.models import Model


def after_layers(model: Model) -> list[str]:
    """Hook points of the residual stream after each layer; empty where a model has none (the toy)."""
    names = [f"blocks.{layer}.hook_resid_post" for layer in range(model.n_layers)]
    return names if all(name in hooks.points(model) for name in names) else []


def spikes(model: Model, ids: Tensor, plain: Seen) -> pd.DataFrame:
    """By layer: the largest |residual| after it, where, how it compares with the median; spike tokens against sink tokens."""
    names = after_layers(model)
    with hooks.trace(model, names) as seen:
        change.logits(model, ids)
    stood = (
        torch.stack([importance(plain, key).mean(2) for key in range(ids.shape[1] - 1)], -1) > sinks.EPSILON
    )  # [text, layer, pos]
    lines = []
    for layer, name in enumerate(names):
        size = seen[name].float().abs().cpu()
        place = int(size.argmax())
        text, pos, dimension = (int(part) for part in torch.unravel_index(torch.tensor(place), size.shape))
        median = float(size.median())
        spiked = size.amax(-1)[:, :-1] > SPIKE * median
        # The layer above reads this residual: its sinks are the ones to compare with.
        sunk = stood[:, min(layer + 1, model.n_layers - 1)]
        both, either = int((spiked & sunk).sum()), int((spiked | sunk).sum())
        lines.append(
            {
                "layer": layer,
                "largest": float(size.flatten()[place]),
                "median": median,
                "times_median": float(size.flatten()[place]) / max(median, 1e-12),
                "text": text,
                "position": pos,
                "token_id": int(ids[text, pos]),
                "dimension": dimension,
                "spike_tokens": int(spiked.sum()),
                "sink_tokens": int(sunk.sum()),
                "both": both,
                "overlap": both / either if either else float("nan"),
            }
        )
    return pd.DataFrame(lines)


def cut(model: Model, ids: Tensor, plain: Seen) -> pd.DataFrame:
    """Spikes cut after every layer (each set to its dimension's mean over the text), beside the same cut at another token."""

    def at_spikes(residual: Tensor) -> Tensor:
        size = residual.abs()
        return torch.where(size > SPIKE * size.float().median(), residual.mean(1, keepdim=True).expand_as(residual), residual)

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


def secondary(model: Model, ids: Tensor, pieces: Sequence[Sequence[str]], plain: Seen) -> tuple[pd.DataFrame, dict[str, float]]:
    """Later tokens that draw weight in some layers, and how often they are marks or line ends beside all tokens.

    The last rows of a text are too few to tell: keys with fewer than eight later rows are left out.
    """
    lines: list[dict[str, Any]] = []
    marks: dict[str, list[bool]] = {"secondary": [], "all": []}
    last = ids.shape[1] - 8
    drawn = torch.stack([importance(plain, key).mean(2) for key in range(1, max(1, last))], -1) if last > 1 else None
    for text, tokens in enumerate(pieces):
        for key in range(1, max(1, last)):
            assert drawn is not None
            layers = (drawn[text, :, key - 1] > SECONDARY).nonzero().flatten().tolist()
            mark = not tokens[key].strip() or all(one in string.punctuation for one in tokens[key].strip())
            marks["all"].append(mark)
            if layers:
                marks["secondary"].append(mark)
                line = {"text": text, "position": key, "token_id": int(ids[text, key]), "token": tokens[key]}
                largest = float(drawn[text, :, key - 1].max())
                lines.append(
                    line | {"first_layer": layers[0], "last_layer": layers[-1], "layers": len(layers), "importance": largest}
                )
    columns = ["text", "position", "token_id", "token", "first_layer", "last_layer", "layers", "importance"]
    frame = pd.DataFrame(lines, columns=columns).sort_values("importance", ascending=False, kind="stable")
    return frame, {name: sum(found) / len(found) if found else float("nan") for name, found in marks.items()}
