"""A corpus in parts: fixed runs of documents, whatever the number of workers, cut so that each batch in them is the local engine's."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from interp.batches import BUFFER, Batch, batches
from interp.errors import InterpError
from interp.models import Model

TOGETHER = 16  # ready batches a part
Item = TypeVar("Item")


@dataclass(frozen=True)
class Document:
    """A text, or its ids, and its name."""

    text: Any
    name: str


@dataclass(frozen=True)
class Part:
    """Documents to be tokenised and batched by a worker, the first of them number `start` of the corpus; or batches that are ready.

    `done` maps the number of a text that was measured before to the digest of its ids.
    """

    number: int
    start: int = 0
    texts: tuple[Document, ...] = ()
    ready: tuple[Batch, ...] = ()
    done: Mapping[int, int] = field(default_factory=dict)

    def batches(self, model: Model, bos: str, max_tokens: int | None) -> Iterator[Batch]:
        """The batches that the local engine makes of these texts: it groups every BUFFER texts by length, and a part is whole such groups."""
        yield from self.ready
        for batch in batches(model, self.texts, bos=bos, max_tokens=max_tokens):
            yield replace(batch, index=tuple(self.start + number for number in batch.index))


def dumps(item: Any) -> bytes:
    """A part or a result as it travels: pickled, its tensors as arrays, which takes a tenth of the time of torch's own way. pickle.loads reads it."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(item)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, item: Any) -> Any:
        return (torch.from_numpy, (item.numpy(),)) if isinstance(item, Tensor) else NotImplemented


def cut(
    model: Model,
    texts: Iterable[Any],
    done: Mapping[int, int],
    *,
    bos: str = "keep",
    max_tokens: int | None = None,
    overlap: int | None = None,
    groups: int = 1,
) -> Iterator[Part]:
    """Parts of `groups` times BUFFER texts each, in the order of the corpus. Goes through `texts` once.

    Texts cut into windows (`overlap`) are tokenised here, because a window's number depends on all texts before it; they come as ready batches.
    """
    if isinstance(texts, (str, bytes)):
        raise InterpError(f"texts is one string ({texts[:30]!r}); give a list of texts")
    stream = iter(texts)
    first = next(stream, None)
    if first is None:
        return
    whole = chain([first], stream)
    if isinstance(first, Batch) or (overlap is not None and max_tokens):
        ready = whole if isinstance(first, Batch) else batches(model, whole, bos=bos, max_tokens=max_tokens, overlap=overlap)
        for number, some in enumerate(_some(ready, TOGETHER)):
            yield Part(number, ready=some, done=_of(done, (place for batch in some for place in batch.index)))
        return
    start = 0
    for number, taken in enumerate(_some(whole, groups * BUFFER)):
        named = tuple(
            Document(getattr(text, "text", text), str(getattr(text, "name", f"text {place}")))
            for place, text in enumerate(taken, start)
        )
        yield Part(number, start, named, done=_of(done, range(start, start + len(named))))
        start += len(named)


def _of(done: Mapping[int, int], numbers: Iterable[int]) -> dict[int, int]:
    return {number: done[number] for number in numbers if number in done} if done else {}


def _some(items: Iterable[Item], count: int) -> Iterator[tuple[Item, ...]]:
    stream = iter(items)
    while some := tuple(islice(stream, count)):
        yield some
