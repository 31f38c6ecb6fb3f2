"""audit(): is what is captured what the model computed? Every check on every route that the model has, with its worst figure.

The checks of each capture, the routes against one another, a repeat of the same bits, and the model as it was afterwards, also after
an error. Limit: it speaks of the texts it was given; a window is tested only by texts longer than the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from interp.capturing import memory, state
from interp.capturing.audited import Audit, Line, worst_lines
from interp.capturing.captured import TENSORS, Capture
from interp.capturing.checks import TOLERANCE, Check, checks, left_out, logits_check, not_finite, ratio_rule
from interp.capturing.parts import Part, assemble
from interp.capturing.recording import ROUTES, attending, record
from interp.corpus import Source, passages
from interp.corpus import texts as corpus_texts
from interp.errors import InterpError
from interp.models import Model, Tokens, load
from interp.models.pretrained import first_line

TOKENS = 64
_COMPARED = ("q", "k", "v", "scores", "weights", "z")


def audit(
    model: Model | str,
    texts: Source = None,
    *,
    bos: str = "keep",
    max_tokens: int | None = None,
    limit: int | None = None,
    dtype: str = "float32",
    device: str = "auto",
) -> Audit:
    """Every check on `texts` (None: a built-in passage cut to 64 tokens, and its first token alone; ids where the model reads no words).

    Raises InterpError where the model cannot be captured at all; a check that fails is a line of the table, not an error.
    """
    model = load(model, dtype=dtype, device=device)
    rows = list(_rows(model, texts, bos, max_tokens, limit))
    layers = tuple(range(model.n_layers))
    longest = max((tokens for _, tokens in rows), key=len).ids
    memory.guard(model, 3 * len(layers), len(longest), None)
    before, training = state.snapshot(model), state.training_parts(model)
    lines = [Line(*(training[0], "", "", training[1]))]
    if (own := state.settings(model)) is not None:
        lines.append(Line(own[0], note=own[1]))
    if len(longest) > 1:
        lines.append(Line(state.later_tokens(model, longest)))
    plain = [model.logits(tokens.ids) for _, tokens in rows]
    with state.visited(model.module) as calls:
        taken, found, notes, lost = _routes(model, rows, plain, layers)
    lines += found
    same = _equal(plain[0], model.logits(rows[0][1].ids))
    lines.append(Line(Check("plain logits before and after, same bits", 0.0 if same else 1.0, 0.0), text=rows[0][0]))
    lines.append(Line(Check("a person's own hook stays and fires", 0.0 if calls else 1.0, 0.0)))
    check, note = state.restored("hooks, mode and weights as before", before, state.snapshot(model))
    lines.append(Line(check, note=note))
    for route in taken:
        before = state.snapshot(model)
        raised = state.interrupted(model, longest, layers, route)
        check, note = state.restored("the same after an error inside", before, state.snapshot(model))
        lines.append(Line(check if raised else Check(check.name, 1.0, 0.0), route, note=note if raised else "no error came out"))
    notes.append(f"rows left out, not finite in the model itself: {lost}")
    sizes = tuple((name, len(tokens)) for name, tokens in rows)
    return Audit(model.provenance(), worst_lines(lines), taken, sizes, tuple(notes))


def _routes(
    model: Model, rows: Sequence[tuple[str, Tokens]], plain: Sequence[Tensor], layers: tuple[int, ...]
) -> tuple[tuple[str, ...], list[Line], list[str], str]:
    """(routes that work, lines of all of them, why others do not, rows left out by count and name)."""
    first, lines, lost = _examined(model, rows, plain, layers, "auto")
    taken, notes = [next(iter(first)).provenance["route"]], []
    for route in ROUTES:
        if route in taken:
            continue
        try:
            others, more, _ = _examined(model, rows, plain, layers, route, first)
            if (
                route == "hooks"
                and any(not line.check.passed for line in more)
                and _bridge_differs(model, rows[0][1].ids, layers)
            ):
                failed = next(line for line in worst_lines(more) if not line.check.passed)
                notes.append(f"hooks: TransformerLens' own form of this model computes something else: {failed.check}")
                continue
        except InterpError as reason:
            notes.append(f"{route}: {reason}")
            continue
        except Exception as crash:  # TransformerLens and families fail in their own ways where they do not fit
            notes.append(f"{route}: {type(crash).__name__}: {first_line(crash)}")
            continue
        taken.append(route)
        lines += more
    if len(taken) == 1:
        notes.append(f"one route only, {taken[0]}: no second one to agree with")
    return tuple(taken), lines, notes, lost


def _examined(
    model: Model,
    rows: Sequence[tuple[str, Tokens]],
    plain: Sequence[Tensor],
    layers: tuple[int, ...],
    route: str,
    others: Sequence[Capture] = (),
) -> tuple[list[Capture], list[Line], str]:
    """(captures of all texts, lines, rows left out) of one route; compared with `others`, the captures of another route."""
    made: list[Capture] = []
    lines: list[Line] = []
    lost, named = 0, ""
    for number, (name, tokens) in enumerate(rows):
        parts, logits, taken = record(model, tokens.ids, layers, route)
        noted = attending(model, parts, layers, True)
        captures = _captures(model, parts, tokens, {"route": taken, **noted})
        lost_rows = torch.stack([not_finite(capture).any(0).any(0) for capture in captures]).any(0)
        found = [logits_check(logits, plain[number], model.dtype, lost_rows), _seen_later(noted)]
        for capture in captures:
            found += [*checks(capture), *filter(None, [ratio_rule(capture)])]
            out = left_out(capture)
            lost, named = lost + out.get("not_finite", 0), named or ", ".join(out.get("first", ()))
        if number == 0:
            again, second, _ = record(model, tokens.ids, layers, route)
            found.append(_same_bits(captures, _captures(model, again, tokens, {}), logits, second))
        if others:
            pairs = zip(captures, others[len(made) :], strict=False)
            found += [agreement(one, other, TOLERANCE[model.dtype]) for one, other in pairs]
        made += captures
        lines += [Line(check, taken, name) for check in found]
    return made, lines, f"{lost} ({named})" if lost else "0"


def _captures(model: Model, parts: Sequence[Part], tokens: Tokens, noted: dict[str, Any]) -> list[Capture]:
    """One capture for each kind of layer: layers of different shapes stand apart."""
    kinds: dict[Any, list[Part]] = {}
    for part in parts:
        kinds.setdefault((part.q.shape, part.k.shape, part.z.shape), []).append(part)
    return [assemble(kind, tokens, {**model.provenance(), **noted}) for kind in kinds.values()]


def agreement(one: Capture, other: Capture, tolerance: float) -> Check:
    """Largest difference between two routes' q, k, v, visible scores, weights and z, each relative to its layer's size."""
    found = Check("routes agree", 0.0, tolerance)
    if one.layers != other.layers or not _equal(one.visible, other.visible):
        return Check(found.name, math.inf, tolerance)
    for name in _COMPARED:
        left, right = getattr(one, name), getattr(other, name)
        if left.shape[1] != right.shape[1] and name in "kv":
            wide = max(left.shape[1], right.shape[1])
            left, right = (side.repeat_interleave(wide // side.shape[1], 1) for side in (left, right))
        for i, layer in enumerate(one.layers):
            assert one.visible is not None
            apart = (left[i] - right[i]).abs()
            apart = torch.where(torch.isfinite(left[i]) | torch.isfinite(right[i]), apart, 0.0).nan_to_num(nan=math.inf)
            if name == "scores":
                apart = torch.where(one.visible[i], apart, 0.0)
            rows = (apart / torch.nan_to_num(left[i], posinf=0.0, neginf=0.0).abs().max().clamp_min(1.0)).amax(-1)
            if (figure := float(rows.max())) > found.worst:
                head, row = divmod(int(rows.argmax()), rows.shape[1])
                found = Check(found.name, figure, tolerance, layer, head, row)
    return found


def _same_bits(first: Sequence[Capture], again: Sequence[Capture], logits: Tensor, second: Tensor) -> Check:
    name = "a repeat gives the same bits"
    for one, other in zip(first, again, strict=True):
        for tensor in TENSORS:
            left, right = getattr(one, tensor), getattr(other, tensor)
            for i, layer in enumerate(one.layers):
                if not _equal(left[i], right[i]):
                    return Check(name, 1.0, 0.0, layer)
    return Check(name, 0.0 if _equal(logits, second) else 1.0, 0.0)


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    """The same shape and values; NaN equals NaN."""
    assert one is not None
    assert other is not None
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _seen_later(noted: dict[str, Any]) -> Check:
    return Check("the mask shows no later token", float(noted.get("causal") is False), 0.0)


def _bridge_differs(model: Model, ids: Tensor, layers: tuple[int, ...]) -> bool:
    """Whether a bridge built anew fails as well: then the fault is TransformerLens' form of the model, not a person's change to it."""
    if not model.is_transformers:
        return False
    parts, logits, _ = record(replace(model), ids, layers, "hooks")
    captures = _captures(model, parts, model.tokens(ids), {})
    found = [logits_check(logits, model.logits(ids), model.dtype), *(check for one in captures for check in checks(one))]
    return any(not check.passed for check in found)


def _rows(model: Model, source: Source, bos: str, max_tokens: int | None, limit: int | None) -> Iterator[tuple[str, Tokens]]:
    if source is not None:
        given = [(text.name, model.fits(model.tokens(text.text, bos), max_tokens)) for text in corpus_texts(source, limit)]
        if not given:
            raise InterpError("no texts to audit with; give at least one")
        yield from given
        return
    most = min(max_tokens or TOKENS, model.n_positions or TOKENS)
    rows = _built_in(model, bos, most)
    yield from rows[:limit]
    yield "its first token", rows[0][1].cut(1)


def _built_in(model: Model, bos: str, most: int) -> list[tuple[str, Tokens]]:
    """A passage where the model reads words, else a row of ids drawn from its vocabulary."""
    try:
        return [(text.name, model.tokens(text.text, bos).cut(most)) for text in passages()[:1]]
    except InterpError:
        ids = torch.randint(model.d_vocab, (most,), generator=torch.Generator().manual_seed(0))
        return [("random ids", model.tokens(ids))]
