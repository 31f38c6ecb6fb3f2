"""First-token figures of one model and one treatment of its texts, from row statistics or from captures: the same fields either way."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import interp
from analyses import SHOWN_IDS, SHOWN_TOKENS, Material, opening
from interp.batches import Batch, random_batches
from interp.cache import cache_dir
from interp.capturing import Capture
from interp.errors import InterpError
from interp.measures.bootstrap import interval
from interp.measures.columns import Columns
from interp.measures.first_token import SHARES, Totals, tally
from interp.models import Model
from interp.report.text import slug
from interp.rows import RowStatistics, measure

GU_TOKENS, TOGETHER = 64, 32
CONTROLS = ("random", "repeated")


@dataclass(eq=False)
class Case:
    """What was measured on one input: `label` says which, `texts` has a line for each text with its sums of rows."""

    model: str
    bos: str
    input: str
    layers: Sequence[int]
    group: int
    heads: Mapping[str, Tensor]
    queries: Mapping[str, Tensor]
    overall: Mapping[str, float]
    texts: pd.DataFrame
    left_out: Mapping[str, int]
    provenance: Mapping[str, Any]
    sink_tokens: pd.DataFrame | None = None
    sink_positions: pd.DataFrame | None = None
    shown: list[Capture] = field(default_factory=list)
    notes: Sequence[str] = ()

    @property
    def which(self) -> dict[str, str]:
        """The columns that tell this case from others."""
        return {"model": self.model, "bos": self.bos, "input": self.input}

    @property
    def n_heads(self) -> int:
        return self.heads["rows"].shape[1]

    @property
    def tokens(self) -> int:
        return int(self.texts["tokens"].sum())

    def headline(self, seed: int = 0) -> list[dict[str, Any]]:
        """Each headline figure with its bootstrap interval over texts and what even attention would give."""
        even = {"first_weight": "uniform_first_weight"}
        lines = []
        for name in (*SHARES, "sink_rate"):
            count = torch.tensor(self.texts["heads" if name == "sink_rate" else "rows"].to_numpy(float))
            share = torch.tensor(self.texts[name].to_numpy(float)).nan_to_num()
            low, high = interval(share * count, count, seed)
            uniform = self.overall[even[name]] if name in even else None
            lines.append(
                {
                    "figure": name,
                    "value": self.overall[name],
                    "low": low,
                    "high": high,
                    "uniform": uniform,
                    "texts": len(self.texts),
                }
            )
        return lines


def from_captures(source: Material) -> Case:
    """One capture at a time, none kept but the opening of the first."""
    totals, columns, lines = Totals(), Columns(), []
    shown: list[Capture] = []
    for name, capture in source:
        weights, visible = capture.need("weights", "visible")
        one = tally(weights, visible)
        totals.add(one)
        ids = None if capture.ids is None else capture.ids.tolist()
        columns.add(weights, visible, capture.tokens, ids)
        sizes = {"rows": float(one.by_head["rows"].sum()), "heads": int(torch.isfinite(one.importance).sum())}
        first = {"first_token_id": None if ids is None else ids[0], "first_token": capture.tokens[0]}
        lines.append({"text": name, "tokens": capture.n_tokens, **first, **one.own, **sizes})
        shown = shown or [opening(capture)]
    return Case(
        model=source.model,
        bos=str(shown[0].provenance.get("bos", "")),
        input="recordings",
        layers=shown[0].layers,
        group=shown[0].n_heads // shown[0].n_kv_heads,
        heads=totals.heads(),
        queries=totals.queries(),
        overall=totals.overall(),
        texts=pd.DataFrame(lines),
        left_out=totals.left_out,
        provenance=source.provenance(),
        sink_tokens=columns.token_table(),
        sink_positions=columns.position_table(),
        shown=shown if shown[0].scores is not None else [],
    )


@dataclass
class Plan:
    """How texts are measured: everything that two runs must agree on, and where the statistics are kept meanwhile."""

    layers: Sequence[int] | None
    max_tokens: int | None
    overlap: int | None
    protocol: str
    seed: int
    options: Mapping[str, Any]
    save: str | None = None
    resume: bool = False
    measure: Callable[..., RowStatistics] = measure

    def cases(self, model: Model, corpus: Iterable[Any], treatments: Sequence[str]) -> Iterator[Case]:
        """The texts under each treatment of BOS; by Gu et al.'s protocol then as many of random tokens, and of one token repeated."""
        count = 0
        for bos in treatments:
            seen = _Seen(corpus)
            if self.protocol != "gu":
                yield self._case(model, seen, seen, bos, "texts")
                continue
            included = Included(model, seen, bos)
            case = self._case(model, seen, included, bos, "texts")
            if included.short:
                case.notes = [*case.notes, f"{included.short} texts of fewer than {GU_TOKENS} tokens are left out (bos {bos})."]
            yield case
            count = included.count
        for kind in CONTROLS if count else ():
            made = random_batches(count, GU_TOKENS, 0, model.d_vocab, seed=self.seed, repeated=kind == "repeated")
            yield self._case(model, None, made, "none", kind)

    def _case(self, model: Model, seen: _Seen | None, texts: Iterable[Any], bos: str, kind: str) -> Case:
        place = self._place(model, bos, kind)
        try:
            statistics = self.measure(
                model, texts, "full", bos=bos, max_tokens=self.max_tokens, overlap=self.overlap, layers=self.layers,
                options=self.options, save=place, resume=self.resume,
            )  # fmt: skip
        except KeyboardInterrupt:
            if place.exists():
                print("interp: what was measured is kept; the same command with --resume goes on", file=sys.stderr)
            raise
        if self.save is None:
            place.unlink()
        case = from_rows(model, statistics, bos, kind)
        if seen is not None:
            most = GU_TOKENS if self.protocol == "gu" else self.max_tokens
            ids = {text.name: model.tokens(text.text, bos).cut(most).ids.tolist() for text in seen.first}
            case.provenance = {**case.provenance, "bos": bos, "ids": ids}
            case.shown = self._opening(model, seen, bos)
        return case

    def _place(self, model: Model, bos: str, kind: str) -> Path:
        """The file of one case. One of our own is started anew without `resume`; one that the person named is never overwritten."""
        name = f"{slug(model.name)}-{bos}-{kind}.safetensors"
        if self.save is not None:
            asked = Path(self.save)
            return asked.with_name(f"{asked.stem}-{name}")
        place = cache_dir() / "rows" / f"sinks-{name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        if not self.resume:
            place.unlink(missing_ok=True)
        return place

    def _opening(self, model: Model, seen: _Seen, bos: str) -> list[Capture]:
        most = min(SHOWN_TOKENS, self.max_tokens or SHOWN_TOKENS)
        return [interp.capture(model, seen.first[0].text, self.layers, bos, max_tokens=most)]


class _Seen:
    """A corpus that is gone through once and remembers its first texts."""

    def __init__(self, corpus: Iterable[Any]) -> None:
        self._corpus = corpus
        self.first: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        self.first = []
        for text in self._corpus:
            if len(self.first) < SHOWN_IDS:
                self.first.append(text)
            yield text


class Included:
    """Gu et al.'s inclusion rule: texts of 64 tokens or more, their first 64; the others are counted in `short`."""

    def __init__(self, model: Model, texts: Iterable[Any], bos: str) -> None:
        self._model, self._texts, self._bos = model, texts, bos
        self.count = self.short = 0

    def __iter__(self) -> Iterator[Batch]:
        rows: list[Tensor] = []
        names: list[str] = []
        for text in self._texts:
            tokens = self._model.tokens(text.text, self._bos)
            if len(tokens) < GU_TOKENS:
                self.short += 1
                continue
            rows.append(self._model.fits(tokens.cut(GU_TOKENS)).ids)
            names.append(text.name)
            if len(rows) == TOGETHER:
                yield self._batch(rows, names)
                rows, names = [], []
        if rows:
            yield self._batch(rows, names)
        if not self.count:
            raise InterpError(f"none of {self.short} texts has {GU_TOKENS} tokens, which --protocol gu needs; give longer texts")

    def _batch(self, rows: list[Tensor], names: list[str]) -> Batch:
        start, self.count = self.count, self.count + len(rows)
        return Batch.of(rows, range(start, self.count), names)


def from_rows(model: Model, statistics: RowStatistics, bos: str, kind: str) -> Case:
    """The figures of row statistics of detail "full"."""
    texts = statistics.text_table()
    texts.insert(3, "first_token", [_piece(model, number) for number in texts["first_token_id"]])
    texts["rows"], texts["heads"] = statistics.per_text["rows"].numpy(), statistics.per_text["heads"].numpy()
    digest = hashlib.sha256(statistics.per_text["digest"].numpy().tobytes())
    tokens = statistics.token_table()
    tokens.insert(2, "token", [_piece(model, number) for number in tokens["token_id"]])
    return Case(
        model=statistics.model,
        bos=bos,
        input=kind,
        layers=statistics.layers,
        group=model.n_heads // model.n_kv_heads,
        heads=statistics.heads(),
        queries=statistics.queries(),
        overall=statistics.overall(),
        texts=texts,
        left_out=statistics.left_out(),
        provenance={
            **statistics.provenance,
            **statistics.options,
            "texts": statistics.texts,
            "ids_sha256": digest.hexdigest()[:16],
        },
        sink_tokens=tokens,
        sink_positions=statistics.position_table(),
        notes=statistics.notes,
    )


def _piece(model: Model, number: int) -> str:
    return model.tokens(torch.tensor([int(number)])).pieces[0]
