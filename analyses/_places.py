"""A model's own places: taken away by an edit, put back, moved along the window, and compared with the formula. For `positions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import interp
from interp import positions
from interp.errors import InterpError
from interp.interventions import logits
from interp.models import Model, Tokens
from interp.models.names import small_model
from interp.models.small import Sizes, Transformer
from interp.results import Table

SENTENCES = ("The dog chased the cat.", "The cat chased the dog.")
# An edit of these hook points takes the places away: no turn (cos 1, sin 0), or a position vector of zeros.
OFF = {
    "rotary": {"blocks.*.attn.hook_cos": torch.ones_like, "blocks.*.attn.hook_sin": torch.zeros_like},
    "learned": {"hook_pos_embed": torch.zeros_like},
    "none": {},
}


def kind_of(model: Model) -> str:
    """How a model is told places, by the hook points it has: rotary, learned, or none."""
    known = interp.hooks.points(model)
    if "blocks.0.attn.hook_cos" in known:
        return "rotary"
    return "learned" if "hook_pos_embed" in known else "none"


def pair_of(model: Model, sentences: Sequence[str], bos: str) -> tuple[Tokens, Tokens]:
    if model.tokenizer is None and tuple(sentences) == SENTENCES:
        sentences = ("0 1 2 0 1", "1 0 2 0 1") if model.d_vocab > 2 else ("0 1 1", "1 0 1")
    elif model.name == "toy" and tuple(sentences) == SENTENCES:
        sentences = (
            "The team colour is red. The players are on court. So the players wear",
            "The players are on court. The team colour is red. So the players wear",
        )
    if len(sentences) != 2:
        raise InterpError(f"two sentences are compared; got {len(sentences)}")
    first, second = (model.fits(model.tokens(text, bos)) for text in sentences)
    if sorted(first.ids.tolist()) != sorted(second.ids.tolist()) or first.ids[-1] != second.ids[-1]:
        raise InterpError(
            f"the two sentences must hold the same tokens in another order, with the same last one; "
            f"got {' | '.join(first.pieces)} and {' | '.join(second.pieces)}"
        )
    return first, second


def _last_rows(model: Model, pair: Sequence[Tokens], edits: dict[str, Any]) -> list[dict[str, Tensor]]:
    """Of each sentence, the last row of layer 0: weights [head, key] and z [head, d]; and the logits after the whole model."""
    found = []
    for tokens in pair:
        with interp.edit(model, edits), interp.trace(model, ["blocks.0.attn.hook_pattern", "blocks.0.attn.hook_z"]) as seen:
            out = logits(model, tokens.ids[None])
        end = out[0] if out.ndim == 2 else out[0, -1]
        found.append(
            {
                "weights": seen["blocks.0.attn.hook_pattern"][0, :, -1].float().cpu(),
                "z": seen["blocks.0.attn.hook_z"][0, -1].float().cpu(),
                "logits": end.float().cpu(),
            }
        )
    return found


def blends(model: Model, pair: Sequence[Tokens], kind: str) -> tuple[Table, dict[str, float]]:
    known = interp.hooks.points(model)
    edits = OFF[kind] if model.n_layers > 1 else {name.replace("*", "0"): edit for name, edit in OFF[kind].items()}
    assert all("*" in name or name in known for name in edits)
    with_places, without = _last_rows(model, pair, {}), _last_rows(model, pair, edits)
    rows = []
    for number, tokens in enumerate(pair):
        for place, piece in enumerate(tokens.pieces):
            rows.append(
                {
                    "sentence": number + 1,
                    "position": place,
                    "id": int(tokens.ids[place]),
                    "token": piece,
                    "weight_without_places": float(without[number]["weights"][:, place].mean()),
                    "weight_with_places": float(with_places[number]["weights"][:, place].mean()),
                }
            )
    table = Table.of(
        "last_row",
        "The last row of layer 0, mean over heads: which tokens it blends, with the model's places taken away and with them.",
        rows,
        weight_without_places="mean weight, places taken away: the same token gets the same weight in both sentences",
    )
    size = float(with_places[0]["z"].norm())
    numbers = {
        "blend_difference_without_places": float((without[0]["z"] - without[1]["z"]).norm()) / size,
        "blend_difference_with_places": float((with_places[0]["z"] - with_places[1]["z"]).norm()) / size,
        "logit_difference_without_places": float((without[0]["logits"] - without[1]["logits"]).abs().max()),
        "logit_difference_with_places": float((with_places[0]["logits"] - with_places[1]["logits"]).abs().max()),
    }
    return table, numbers


def model_frequencies(model: Model) -> tuple[Tensor, Tensor] | None:
    """The angles of a model's rotary part and those of the formula for its width and base; None where it has none of the plain kind."""
    config = getattr(model.module, "config", None)
    rope = getattr(config, "rope_parameters", None) or {}
    own = next((buffer for name, buffer in model.module.named_buffers() if name.endswith("inv_freq")), None)
    if own is None or rope.get("rope_type") != "default":
        return None
    return own.double().cpu(), positions.frequencies(2 * len(own), float(rope["rope_theta"]))


@torch.no_grad()
def shifted(model: Model, tokens: Tokens, kind: str) -> Table:
    """The whole model on one sentence placed further on in the window: largest change of any logit."""
    ids = tokens.ids[None].to(model.device)
    rows = []
    for shift in (0, 1, 10, 100, 1000):
        change = float("nan")
        if model.is_transformers and kind != "none" and shift + len(tokens) <= (model.n_positions or 0):
            places = torch.arange(len(tokens), device=model.device)[None]
            plain, moved = (model.module(ids, position_ids=places + s, use_cache=False).logits for s in (0, shift))
            change = float((moved - plain).abs().max())
        rows.append({"shift": shift, "logit_change": change})
    return Table.of(
        "shifted_model",
        f"{model.name}, the first sentence at places {0} and on, moved by `shift`: the largest change of any logit. "
        + {
            "rotary": "Rotary: rounding alone.",
            "learned": "Learned places: another vector at each place.",
            "none": "It has no places.",
        }[kind],
        rows,
    )


def learned_substitute(seed: int = 0) -> float:
    """Relative difference of the last row's blend of two orders in a small untrained layer with a learned table of places."""
    made = small_model("untrained", Transformer(Sizes(1, 2, 16, 8, 8, 6, n_ctx=6), seed, spread=0.5), None, f"seed-{seed}")
    one, other = _last_rows(made, [made.tokens([0, 1, 2, 3, 4, 5]), made.tokens([0, 4, 2, 3, 1, 5])], {})
    return float((one["z"] - other["z"]).norm() / one["z"].norm())
