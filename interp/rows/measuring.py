"""measure(): a corpus through a model, its rows read on the way, kept on disk every few batches and taken up again after a kill.

Models whose attention goes through transformers' registry are read there, at about the price of the plain forward. Any other (the toy; gpt_neo, bloom)
is captured text by text, which costs a square a head, and says so in `notes`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import interp
from interp.batches import Batch, batches
from interp.capturing import chosen_layers
from interp.errors import InterpError
from interp.models import Model, load
from interp.models.model import evaluating
from interp.progress import track
from interp.rows import squares
from interp.rows.statistics import RowStatistics, differences
from interp.rows.sums import PER_TEXT, OneBatch, Sums
from interp.rows.tap import Watch, watched

EVERY = 16


def measure(
    model: Model | str,
    texts: Iterable[Any],
    detail: str = "first",
    *,
    bos: str = "keep",
    max_tokens: int | None = None,
    overlap: int | None = None,
    layers: Iterable[int] | None = None,
    options: Mapping[str, Any] | None = None,
    save: str | Path | None = None,
    every: int = EVERY,
    resume: bool = False,
    memory: int | None = None,
    total: int | None = None,
) -> RowStatistics:
    """Row statistics of all `texts`: strings, ids, anything with a `.text`, or ready Batches. `detail`: "first" | "full".

    Texts are batched here by `bos`, `max_tokens` and `overlap` (see interp.batches.batches); with ready batches these three say how they
    were cut. `options` are recorded beside them: whatever else two runs must agree on. `save`: a file written after every `every` batches
    and at the end, whole or not at all; `resume` takes up what it holds, and refuses another model, option or corpus with the difference
    named. `memory`: bytes of working room for blocks. `total`: how many texts there are, for the time left.

    Sums are of float64; equal to a capture's figures to float32 rounding. The module's mode and attention are as they were afterwards.
    """
    cutting = {"bos": bos, "max_tokens": max_tokens, "overlap": overlap}
    run = begun(model, detail, {**cutting, **(options or {})}, layers, save, every, resume, memory)
    model = run.model
    total = len(texts) if total is None and isinstance(texts, Sequence) else total
    stream = _batches(model, texts, bos, max_tokens, overlap)
    since = 0
    for batch in track(stream, f"{model.name}: texts", total, lambda batch: len(batch.index)):
        if (todo := run.undone(batch)) is None:
            continue
        run.forward(todo)
        since += 1
        if save is not None and since % every == 0:
            run.statistics().save(save)
    run.all_met()
    if not run.texts:
        raise InterpError("no texts to measure; give at least one")
    made = run.statistics()
    if save is not None:
        made.save(save)
    return made


def begun(
    model: Model | str,
    detail: str,
    options: Mapping[str, Any],
    layers: Iterable[int] | None = None,
    save: str | Path | None = None,
    every: int = EVERY,
    resume: bool = False,
    memory: int | None = None,
) -> Run:
    """The run that `measure` goes on with, its arguments checked: empty, or with what the file holds. Whatever engine then measures."""
    if detail not in ("first", "full"):
        raise InterpError(f"detail={detail!r}; give first or full")
    if every < 1:
        raise InterpError(f"every={every}; statistics are saved after 1 batch or more")
    model = load(model)
    run = Run(model, detail == "full", chosen_layers(model, layers), json.loads(json.dumps(dict(options))), memory)
    if resume:
        if save is None:
            raise InterpError("resume needs the file to take up: give save=PATH")
        run.take_up(Path(save))
    elif save is not None and Path(save).exists():
        raise InterpError(f"{save} is there already; resume it, or give another file")
    return run


def _batches(model: Model, texts: Iterable[Any], bos: str, max_tokens: int | None, overlap: int | None) -> Iterator[Batch]:
    if isinstance(texts, (str, bytes)):
        raise InterpError(f"texts is one string ({texts[:30]!r}); give a list of texts")
    stream = iter(texts)
    first = next(stream, None)
    if first is None:
        return iter(())
    whole = chain([first], stream)
    return whole if isinstance(first, Batch) else batches(model, whole, bos=bos, max_tokens=max_tokens, overlap=overlap)


@dataclass(eq=False)
class Run:
    """What is measured so far. `texts` maps each text's (index) to the digest of its ids."""

    model: Model
    full: bool
    layers: tuple[int, ...]
    options: dict[str, Any]
    memory: int | None
    texts: dict[int, int] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    lines: list[dict[str, Tensor]] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        there = _registry_layers(self.model)
        self.captured = not there
        if self.captured:
            self.notes = (
                f"{self.model.name} does not go through transformers' attention registry: each text was captured by itself.",
            )
        elif missing := [layer for layer in self.layers if layer not in there]:
            self.layers = tuple(layer for layer in self.layers if layer in there)
            self.notes = (f"Layers without attention weights, left out: {', '.join(map(str, missing))}.",)
            if not self.layers:
                raise InterpError(
                    f"layers {missing} of {self.model.name} have no attention weights; those that have: {sorted(there)}"
                )
        device = torch.device("cpu") if self.captured else self.model.device
        self.sums = Sums(self.layers, self.model.n_heads, self.model.d_vocab, self.full, device)
        self.provenance = {**self.model.provenance(), "weights": fingerprint(self.model)}

    def take_up(self, path: Path) -> None:
        """Go on from the file, where there is one; a run that was killed before its first save starts anew."""
        if not path.exists():
            return
        kept = RowStatistics.read(path)
        if difference := differences(kept.about(), self.statistics().about()):
            raise InterpError(f"{path} cannot be resumed: it has {difference} now; start anew with another file")
        tensors = {name: values.to(self.sums.device) for name, values in kept.sums.items()}
        self.sums = Sums(
            self.layers, self.model.n_heads, self.model.d_vocab, self.full, self.sums.device, tensors, list(kept.broken)
        )
        self.lines, self.names = [dict(kept.per_text)], list(kept.names)
        self.texts = dict(zip(kept.per_text["index"].tolist(), kept.per_text["digest"].tolist(), strict=True))

    def undone(self, batch: Batch) -> Batch | None:
        """The texts of a batch that are still to be measured; refuses a text that is not the one measured under its number."""
        names = batch.names or tuple(f"text {number}" for number in batch.index)
        todo = []
        for row, (number, length) in enumerate(zip(batch.index, batch.lengths, strict=True)):
            if number in self.met:
                raise InterpError(f"text number {number} comes twice; each text of a corpus has a number of its own")
            self.met.add(number)
            if number not in self.texts:
                todo.append(row)
            elif self.texts[number] != _digest(batch.ids[row, :length]):
                raise InterpError(f"another corpus: text {number} ({names[row]}) is not the text that was measured before")
        if not todo:
            return None
        return Batch.of(
            [batch.ids[row, : batch.lengths[row]] for row in todo],
            [batch.index[row] for row in todo],
            [names[row] for row in todo],
        )

    def all_met(self) -> None:
        """Refuse a corpus that lacks a text which was measured before."""
        if missing := sorted(set(self.texts) - self.met):
            raise InterpError(f"another corpus: it lacks text {missing[0]}, which was measured before ({len(missing)} such)")

    def forward(self, batch: Batch) -> None:
        """Measure one batch: all of it or, where something raises, nothing that is saved."""
        for part in _singly(batch) if self.captured else [batch]:
            one = self.sums.open(part)
            if self.captured:
                self._capture(one, part.ids[0])
            else:
                watch = Watch(one.add, one.real, self.full, frozenset(self.layers), self.memory)
                with torch.no_grad(), evaluating(self.model.module), watched(self.model.module, watch):
                    # Without logits: a row needs none, and they cost a vocabulary a token.
                    self.model.module.base_model(one.ids, use_cache=False)
            one.close()
            self._line(one)

    def _line(self, one: OneBatch) -> None:
        batch = one.batch
        digests = [_digest(batch.ids[row, :length]) for row, length in enumerate(batch.lengths)]
        line = {
            "index": torch.tensor(batch.index),
            "digest": torch.tensor(digests),
            "length": torch.tensor(batch.lengths),
            "first_token_id": batch.ids[:, 0].to("cpu", torch.int64),
        }
        self.lines.append(line | {name: one.per_text[name].cpu() for name in PER_TEXT})
        self.names += batch.names
        self.texts.update(zip(batch.index, digests, strict=True))

    def statistics(self) -> RowStatistics:
        """What is measured so far, texts in the order of their numbers."""
        if len(self.lines) > 1:
            self.lines = [{name: torch.cat([line[name] for line in self.lines]) for name in self.lines[0]}]
        whole = ("index", "digest", "length", "first_token_id")
        empty = {name: torch.zeros(0, dtype=torch.int64 if name in whole else torch.float64) for name in (*whole, *PER_TEXT)}
        line = self.lines[0] if self.lines else empty
        order = line["index"].argsort()
        return RowStatistics(
            model=self.model.name,
            detail="full" if self.full else "first",
            layers=self.layers,
            n_heads=self.model.n_heads,
            options=self.options,
            provenance=self.provenance,
            sums={name: values.cpu() for name, values in self.sums.tensors.items()},
            per_text={name: values[order] for name, values in line.items()},
            names=tuple(self.names[place] for place in order.tolist()),
            broken=tuple(self.sums.broken),
            notes=self.notes,
        )

    def _capture(self, one: OneBatch, ids: Tensor) -> None:
        seen = interp.capture(self.model, ids, self.layers)
        seen.need("scores", "weights", "visible")
        assert seen.scores is not None
        assert seen.weights is not None
        assert seen.visible is not None
        for place, layer in enumerate(seen.layers):
            visible = seen.visible[place][None, None]
            scores = seen.scores[place][None].masked_fill(~visible, -torch.inf)
            one.add(layer, squares.readings_of(scores, seen.weights[place][None], one.real, full=self.full), visible)


def _singly(batch: Batch) -> Iterator[Batch]:
    for row, length in enumerate(batch.lengths):
        yield Batch.of([batch.ids[row, :length]], [batch.index[row]], [batch.names[row]])


def _registry_layers(model: Model) -> set[int]:
    """Layers whose attention goes through the registry: seen by a forward of two tokens. None for a model that is not of transformers."""
    found: set[int] = set()
    if not model.is_transformers or model.dtype == torch.float64:
        return found
    ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    watch = Watch(lambda layer, readings, visible: found.add(layer), torch.ones_like(ids, dtype=torch.bool), False)
    with torch.no_grad(), evaluating(model.module), watched(model.module, watch):
        model.module(ids, use_cache=False)
    return found if -1 not in found else set()


def fingerprint(model: Model) -> str:
    """A digest of up to 64 numbers of every parameter: two checkpoints of one name do not share it."""
    digest = hashlib.sha256()
    for name, values in model.module.named_parameters():
        flat = values.detach().flatten()
        sample = flat[:: max(1, len(flat) // 64)][:64].float().cpu()
        digest.update(f"{name}{tuple(values.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def _digest(ids: Tensor) -> int:
    return int.from_bytes(hashlib.sha256(ids.to("cpu", torch.int64).numpy().tobytes()).digest()[:8], "little", signed=True)
