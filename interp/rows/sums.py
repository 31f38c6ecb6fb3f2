"""The running sums behind RowStatistics, in float64: one batch's readings are added layer by layer, nothing of a text is kept but one line.

| axis | runs over |
|---|---|
| layer, head, query, key | as everywhere; `query` and `key` as far as the longest text |
| epsilon | the thresholds 0, 0.01, …, 1 |
| bin | leads of 0 to 20 in steps of 1/4, and one bin for all above |
| place, token | place 0 = the text's first token, 1 = any other; token = id in the vocabulary |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from interp.batches import Batch
from interp.measures.first_token import BY_PLACE
from interp.measures.sinks import EPSILON, FROM_QUERY, MANY
from interp.rows.readings import Readings

AXES: dict[str, tuple[str, ...]] = {
    "texts": ("query",),  # texts that have a token there
    "hidden": ("layer", "query"),  # of these, rows that do not see key 0
    "rows": ("layer", "head", "query"),  # of these, rows that see key 0 and are finite: what the first-token sums run over
    "first_weight": ("layer", "head", "query"),
    "first_majority": ("layer", "head", "query"),
    "rows_square": (
        "query",
    ),  # Σ over texts of n², n the rows of a text at that place, all layers and heads: for intervals over texts
    "first_weight_square": ("query",),  # Σ over texts of x², x the text's own sum there
    "first_weight_rows": ("query",),  # Σ over texts of x · n
    "importance": ("layer", "head"),  # Σ over texts of importance_0
    "importance_texts": ("layer", "head"),  # texts that have one
    "above": ("layer", "head", "epsilon"),  # texts whose importance_0 is above ε
    "uniform_importance": ("layer",),  # Σ over texts of what even attention would give
}
FULL_AXES: dict[str, tuple[str, ...]] = {
    "first_argmax": ("layer", "head", "query"),
    "first_argmax_square": ("query",),  # as of first_weight
    "first_argmax_rows": ("query",),
    "finite": ("layer", "head", "query"),  # finite rows, whether they see key 0 or not: what entropy and largest run over
    "entropy": ("layer", "head", "query"),
    "largest": ("layer", "head", "query"),
    "lead_rows": ("layer", "head", "query"),  # finite rows that see two keys or more
    "lead": ("layer", "head", "query"),
    "mass": ("layer", "head", "key"),  # weight drawn by the key at that place
    "mass_rows": ("layer", "head", "key"),  # rows that see it
    "token_mass": ("place", "token"),  # the same by token id, all layers and heads together
    "token_rows": ("place", "token"),
    "token_sinks": ("place", "token"),  # (text, layer, head, key) with importance_k above 0.3, of keys that MANY rows see
    "token_count": ("place", "token"),  # keys that MANY rows see, each counted once a layer and head
    "lead_bins": ("layer", "head", "bin"),  # rows whose lead lies in the bin and whose ratio could be had
    "lead_sum": ("layer", "head", "bin"),
    "ratio_sum": ("layer", "head", "bin"),  # Σ ln(largest / second)
    "residual_square": ("layer", "head"),  # of ln(largest / second) − lead
    "residual_max": ("layer", "head"),
    "underflow": ("layer", "head"),  # rows whose second weight is 0 in float32, which have no ratio
}
LONG = ("query", "key")
LARGEST = ("residual_max",)  # merged by maximum, all else by sum
EPSILONS = torch.arange(101, dtype=torch.float64) / 100
BIN, BINS = 0.25, 81
TINY = 1.2e-38  # below it float32 has lost digits
NAMED = 20  # rows that are not finite, kept by name
PER_TEXT = ("rows", "first_weight", "first_argmax", "first_majority", "sinks", "heads")


@dataclass
class Sums:
    """Mutable while a corpus is measured; `layers` are those that are measured, in order."""

    layers: tuple[int, ...]
    n_heads: int
    d_vocab: int
    full: bool
    device: torch.device
    tensors: dict[str, Tensor] = field(default_factory=dict)
    broken: list[tuple[int, int, int, int]] = field(default_factory=list)  # (text, layer, head, query)
    length: int = 0

    def __post_init__(self) -> None:
        axes = {**AXES, **FULL_AXES} if self.full else AXES
        sizes = {"layer": len(self.layers), "head": self.n_heads, "epsilon": len(EPSILONS), "bin": BINS, "place": 2}
        sizes |= {"token": self.d_vocab, "query": 0, "key": 0}
        for name, names in axes.items():
            if name not in self.tensors:
                shape = [sizes[axis] for axis in names]
                self.tensors[name] = torch.zeros(shape, dtype=torch.float64, device=self.device)
        self.length = self.tensors["texts"].shape[0]

    def open(self, batch: Batch) -> OneBatch:
        """Room for a batch; `add` each layer, then `close`."""
        if (more := batch.ids.shape[1] - self.length) > 0:
            for name, tensor in self.tensors.items():
                if (FULL_AXES | AXES)[name][-1] in LONG:
                    self.tensors[name] = pad(tensor, (0, more))
            self.length += more
        return OneBatch(self, batch)


class OneBatch:
    """One batch on its way into the sums. `per_text` holds each text's own sums over its layers and heads."""

    def __init__(self, sums: Sums, batch: Batch) -> None:
        self.sums, self.batch = sums, batch
        device = sums.device
        self.ids, self.real = batch.ids.to(device), batch.real.to(device)
        self.lengths = torch.tensor(batch.lengths, device=device, dtype=torch.float64)
        texts, length = self.ids.shape
        self.query = torch.arange(length, device=device)
        self.uniform = 1 / (self.query + 1).double()
        self.per_text = {name: torch.zeros(texts, dtype=torch.float64, device=device) for name in PER_TEXT}
        kept = ("rows", *(name for name in BY_PLACE if name in sums.tensors))
        self.by_place = {name: torch.zeros(texts, length, dtype=torch.float64, device=device) for name in kept}
        self.tokens = torch.zeros(4, texts, length, dtype=torch.float64, device=device)  # mass, rows, sinks, count by key
        self._broken: list[tuple[int, Tensor]] = []
        self._seen: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}
        sums.tensors["texts"][:length] += self.real.sum(0)

    def add(self, layer: int, readings: Readings, visible: Tensor | None) -> None:
        """One layer's readings [text, head, query]; `visible` [text, 1, query, key] or None = causal."""
        place = self.sums.layers.index(layer)
        broken = readings.broken & self.real[:, None]
        finite = self.real[:, None] & ~broken
        sees_first, mass_rows, _ = self._masks(visible)
        rows = finite & sees_first[:, None]
        self._broken.append((layer, broken))
        self._put("hidden", place, (self.real & ~sees_first).sum(0))
        first = readings.first.double()
        parts = {"first_weight": first, "first_majority": (readings.first > 0.5).double()}
        if readings.first_is_top is not None:
            parts["first_argmax"] = readings.first_is_top.double()
        late = rows.clone()
        late[..., :FROM_QUERY] = False
        self._put("rows", place, rows.sum(0))
        self.by_place["rows"] += rows.sum(1)
        self.per_text["rows"] += late.sum((1, 2))
        for name, values in parts.items():
            kept = _kept(values, rows)
            self._put(name, place, kept.sum(0))
            if name in self.by_place:
                self.by_place[name] += kept.sum(1)
            self.per_text[name] += _kept(values, late).sum((1, 2))
        self._importance(place, _kept(first, rows).sum(-1), rows.sum(-1))
        even = _kept(self.uniform, self.real & sees_first).sum(-1) / (self.real & sees_first).sum(-1)
        self.sums.tensors["uniform_importance"][place] += even.nan_to_num(0.0).sum()
        if readings.mass is not None:
            self._whole_rows(place, readings, finite)
            self._mass(place, readings.mass, mass_rows, broken.any(-1))

    def _put(self, name: str, place: int, values: Tensor) -> None:
        self.sums.tensors[name][place, ..., : values.shape[-1]] += values

    def _masks(self, visible: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """(rows that see key 0 [text, query], rows that see each key [text, key]); layers share masks, so each is counted once."""
        number = 0 if visible is None else visible.data_ptr()
        if number not in self._seen:
            if visible is None:
                sees = torch.ones_like(self.real)
                rows = (self.lengths[:, None] - self.query).clamp_min(0)
            else:
                sees = visible[:, 0, :, 0].expand_as(self.real)
                rows = (visible[:, 0] & self.real[..., None]).sum(1).double()
            self._seen[number] = sees, rows, visible  # the mask is held, so that its address stays its own
        return self._seen[number]

    def _importance(self, place: int, drawn: Tensor, rows: Tensor) -> None:
        """Of key 0, each text and head by itself: the indicator of sink_rate is taken per text."""
        tensors, has = self.sums.tensors, rows > 0
        importance = torch.where(has, drawn / rows.clamp_min(1), 0.0)
        tensors["importance"][place] += importance.sum(0)
        tensors["importance_texts"][place] += has.sum(0)
        tensors["above"][place] += (importance[..., None] > EPSILONS.to(importance.device)).sum(0)
        self.per_text["sinks"] += (importance > EPSILON).sum(-1)
        self.per_text["heads"] += has.sum(-1)

    def _whole_rows(self, place: int, readings: Readings, finite: Tensor) -> None:
        assert readings.entropy is not None
        assert readings.largest is not None
        assert readings.lead is not None
        assert readings.second is not None
        self._put("finite", place, finite.sum(0))
        self._put("entropy", place, _kept(readings.entropy.double(), finite).sum(0))
        self._put("largest", place, _kept(readings.largest.double(), finite).sum(0))
        lead = readings.lead.double()
        several = finite & ~torch.isnan(lead)
        self._put("lead_rows", place, several.sum(0))
        self._put("lead", place, _kept(lead, several).sum(0))
        self._ratios(place, lead, readings.largest.double(), readings.second.double(), several)

    def _ratios(self, place: int, lead: Tensor, largest: Tensor, second: Tensor, several: Tensor) -> None:
        tensors, there = self.sums.tensors, several & (second > TINY)
        ratio = torch.log(largest / second)
        residual = _kept(ratio - lead, there)
        tensors["underflow"][place] += (several & ~there).sum((0, 2))
        tensors["residual_square"][place] += residual.square().sum((0, 2))
        torch.maximum(tensors["residual_max"][place], residual.abs().amax((0, 2)), out=tensors["residual_max"][place])
        number = (_kept(lead, there) / BIN).long().clamp_(0, BINS - 1)
        number += torch.arange(self.sums.n_heads, device=lead.device)[:, None] * BINS
        for name, values in (("lead_bins", there.double()), ("lead_sum", _kept(lead, there)), ("ratio_sum", _kept(ratio, there))):
            counted = torch.bincount(number.flatten(), values.flatten(), self.sums.n_heads * BINS)
            tensors[name][place] += counted.view(-1, BINS)

    def _mass(self, place: int, mass: Tensor, rows: Tensor, left_out: Tensor) -> None:
        """Column mass of texts whose rows are all finite in that head; one that is not would make its columns NaN."""
        kept = (~left_out)[..., None]
        rows_of = kept * rows[:, None]
        drawn = _kept(mass, kept.expand_as(mass))
        self._put("mass", place, drawn.sum(0))
        self._put("mass_rows", place, rows_of.sum(0))
        many = rows_of >= MANY
        sinks = many & (drawn > EPSILON * rows_of)
        self.tokens += torch.stack([x.sum(1).double() for x in (drawn, rows_of, sinks, many)])

    def close(self) -> None:
        """Squares over texts, token sums, and the names of rows that are not finite."""
        rows = self.by_place["rows"]
        for name, values in self.by_place.items():
            self.sums.tensors[f"{name}_square"][: rows.shape[1]] += values.square().sum(0)
            if name != "rows":
                self.sums.tensors[f"{name}_rows"][: rows.shape[1]] += (values * rows).sum(0)
        if self.sums.full:
            place = (self.query > 0).long()
            number = (place * self.sums.d_vocab + self.ids)[self.real]
            for name, values in zip(("token_mass", "token_rows", "token_sinks", "token_count"), self.tokens, strict=True):
                self.sums.tensors[name].view(-1).index_add_(0, number, values[self.real])
        found = [
            (self.batch.index[text], layer, head, query)
            for layer, broken in self._broken
            if bool(broken.any())
            for text, head, query in broken.nonzero()[: 50 * NAMED].tolist()
        ]
        if found:
            self.sums.broken = sorted({*self.sums.broken, *found})[:NAMED]


def _kept(values: Tensor, rows: Tensor) -> Tensor:
    return torch.where(rows, values, 0.0)


def merged(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sums of two parts of a corpus, as long as the longer of them."""
    made = {}
    for name, tensor in one.items():
        second = other[name]
        if (FULL_AXES | AXES)[name][-1] in LONG:
            length = max(tensor.shape[-1], second.shape[-1])
            tensor, second = (pad(x, (0, length - x.shape[-1])) for x in (tensor, second))
        made[name] = torch.maximum(tensor, second) if name in LARGEST else tensor + second
    return made
