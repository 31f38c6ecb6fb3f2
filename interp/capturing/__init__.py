"""capture(): Q, K, V, scores and weights of one forward in one object that proves itself or refuses.

Three routes to the same Capture: `registry` (transformers' attention registry: what enters softmax), `operations` (the products and
the softmax that a family writes out itself) and `hooks` (TransformerLens' hook points). `auto` takes the first of them that the model
goes through; an audit compares those that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.capturing import memory
from interp.capturing.captured import TENSORS, Capture
from interp.capturing.checks import Check, checks, left_out, logits_check, not_finite, prove
from interp.capturing.files import read, save
from interp.capturing.parts import Part, assemble
from interp.capturing.recording import ROUTES, attending, chosen_layers, record, record_padded
from interp.errors import InterpError
from interp.models import Model, Tokens, load

__all__ = ["ROUTES", "TENSORS", "Capture", "Check", "capture", "captures", "checks", "chosen_layers", "read", "save"]


def capture(
    model: Model | str,
    text: str | Sequence[int] | Tensor | Tokens,
    layers: Iterable[int] | None = None,
    bos: str = "keep",
    *,
    route: str = "auto",
    max_tokens: int | None = None,
    limit: int | None = None,
) -> Capture:
    """What the attention of `model` computes on one text: see Capture for the shapes. Everything on the CPU, float32 at least.

    `layers` keeps their original numbers. `limit` bounds the bytes kept (half of what is free, unless given). The model's mode, its
    hooks and its weights are as they were afterwards. Raises InterpError for input that cannot be captured, and NotFaithful where
    the capture fails its own proof: weights not negative, nothing on unseen keys, row sums, scale · q·k = scores,
    softmax(scores) = weights, weights · v = z, logits those of a plain forward. Rows that are not finite in the model itself are
    kept as they are, left out of the proof, and named and counted in `provenance["left_out"]`.
    """
    model = load(model)
    tokens = model.fits(model.tokens(text, bos), max_tokens)
    wanted = chosen_layers(model, layers)
    memory.guard(model, len(wanted), len(tokens), limit)
    parts, logits, taken = record(model, tokens.ids, wanted, route)
    noted = attending(model, parts, wanted, layers is None)
    return _proved(model, parts, logits, tokens, {"route": taken, **noted})


def captures(
    model: Model | str,
    texts: Sequence[str | Sequence[int] | Tensor | Tokens],
    layers: Iterable[int] | None = None,
    bos: str = "keep",
    *,
    padding: str = "right",
    max_tokens: int | None = None,
    limit: int | None = None,
) -> list[Capture]:
    """One Capture a text, from one padded forward: each holds its text's real tokens alone, so its first token is key 0.

    Each is proved as `capture` proves it, its logits against a plain forward of that text alone. For models that go through
    transformers' attention registry; others are refused by name.
    """
    model = load(model)
    if padding not in ("right", "left"):
        raise InterpError(f"padding={padding!r}; give right or left")
    rows = [model.fits(model.tokens(text, bos), max_tokens) for text in texts]
    if not rows:
        raise InterpError("no texts to capture; give at least one")
    wanted = chosen_layers(model, layers)
    longest = max(map(len, rows))
    memory.guard(model, len(wanted) * len(rows), longest, limit)
    ids = pad_sequence([row.ids for row in rows], batch_first=True, padding_side=padding)
    mask = pad_sequence([row.ids.new_ones(len(row)) for row in rows], batch_first=True, padding_side=padding)
    real = [slice(0, len(row)) if padding == "right" else slice(longest - len(row), longest) for row in rows]
    made = []
    for tokens, (parts, logits) in zip(rows, record_padded(model, ids, mask, real, wanted), strict=True):
        noted = attending(model, parts, wanted, layers is None)
        made.append(_proved(model, parts, logits, tokens, {"route": "registry", "padding": padding, **noted}))
    return made


def _proved(model: Model, parts: list[Part], logits: Tensor, tokens: Tokens, noted: dict[str, Any]) -> Capture:
    made = assemble(parts, tokens, {**model.provenance(), **noted})
    lost = not_finite(made).any(0).any(0)
    prove(made, logits_check(logits, model.logits(tokens.ids), model.dtype, lost))
    return replace(made, provenance={**made.provenance, "left_out": out}) if (out := left_out(made)) else made
