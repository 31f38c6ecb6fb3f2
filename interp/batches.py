"""Texts into batches of token ids: windows of long texts, like lengths together, padding on the right. Streams; keeps a small buffer.

Padding stands on the right alone, after the text: no row of a causal model can see it, so every real row is what it would be by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import InterpError, at_least
from interp.models import Model

BATCH_TOKENS = 2048
BUFFER = 512


@dataclass(frozen=True, eq=False)
class Batch:
    """Some texts as one rectangle of ids. `index` numbers each text (or window) within the corpus, from 0, each number once."""

    ids: Int[Tensor, "text pos"]
    lengths: tuple[int, ...]
    index: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.lengths or self.ids.ndim != 2 or len(self.lengths) != len(self.ids) or len(self.index) != len(self.ids):
            raise InterpError(
                f"a batch needs ids [text, pos] and a length and a number for each text; got {tuple(self.ids.shape)}"
            )
        if min(self.lengths) < 1 or max(self.lengths) != self.ids.shape[1]:
            raise InterpError(
                f"lengths {self.lengths} do not fit ids of {self.ids.shape[1]} positions; the longest text fills its row"
            )

    @property
    def real(self) -> Bool[Tensor, "text pos"]:
        """True on tokens, False on padding."""
        return torch.arange(self.ids.shape[1]) < torch.tensor(self.lengths)[:, None]

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return sum(self.lengths)

    @classmethod
    def of(cls, rows: Sequence[Tensor], index: Sequence[int], names: Sequence[str] = ()) -> Batch:
        """Rows of ids, padded on the right with id 0."""
        ids = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        return cls(ids, tuple(map(len, rows)), tuple(index), tuple(names))

    @classmethod
    def padded(cls, ids: Tensor, attention_mask: Tensor, index: Sequence[int] | None = None) -> Batch:
        """From a rectangle padded on either side, as tokenizers make it: each text's real ids, moved to the left edge."""
        rows = [row[seen.bool()] for row, seen in zip(ids, attention_mask, strict=True)]
        return cls.of(rows, range(len(rows)) if index is None else index)


def windows(ids: Int[Tensor, " pos"], max_tokens: int, overlap: int | None = None) -> list[Tensor]:
    """The pieces of one text that are measured: its first `max_tokens` tokens, or with `overlap` the whole text in windows.

    Neighbouring windows share `overlap` tokens; each is a text of its own, whose first token is the window's. A last window that would add no
    new token is left out.

    >>> [window.tolist() for window in windows(torch.arange(7), 4, overlap=1)]
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    >>> [window.tolist() for window in windows(torch.arange(7), 4)]
    [[0, 1, 2, 3]]
    """
    at_least(1, max_tokens=max_tokens)
    if overlap is not None and not 0 <= overlap < max_tokens:
        raise InterpError(
            f"windows of {max_tokens} tokens with overlap {overlap}; the overlap must be 0 or more and below the window"
        )
    if overlap is None:
        return [ids[:max_tokens]]
    last = max(1, len(ids) - overlap)
    return [ids[start : start + max_tokens] for start in range(0, last, max_tokens - overlap)]


def batches(
    model: Model,
    texts: Iterable[Any],
    *,
    bos: str = "keep",
    max_tokens: int | None = None,
    overlap: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    buffer: int = BUFFER,
) -> Iterator[Batch]:
    """Batches of at most `batch_tokens` ids, padding included (a longer text is a batch by itself).

    `texts`: strings, ids, or anything with a `.text` (and a `.name`). Within each `buffer` texts those of like length go together;
    the same corpus and options give the same batches. `max_tokens` None: a text longer than the model's positions is refused.
    """
    waiting: list[tuple[Tensor, int, str]] = []
    number = 0
    for place, text in enumerate(texts):
        name = str(getattr(text, "name", f"text {place}"))
        tokens = model.tokens(getattr(text, "text", text), bos)
        limit = max_tokens or len(tokens.ids)
        for window in windows(tokens.ids, limit, overlap if max_tokens else None):
            model.fits(tokens.cut(len(window)))
            waiting.append((window, number, name))
            number += 1
        if len(waiting) >= buffer:
            yield from _grouped(waiting, batch_tokens)
            waiting = []
    yield from _grouped(waiting, batch_tokens)


def random_batches(
    count: int, length: int, low: int, high: int, *, seed: int = 0, repeated: bool = False, batch_tokens: int = BATCH_TOKENS
) -> Iterator[Batch]:
    """Controls of Gu et al.: `count` texts of `length` ids drawn from low..high−1, or with `repeated` one id drawn and repeated."""
    draw = torch.Generator().manual_seed(seed)
    rows = (torch.randint(low, high, (1 if repeated else length,), generator=draw).expand(length) for _ in range(count))
    some = max(1, batch_tokens // length)
    waiting: list[Tensor] = []
    for number, row in enumerate(rows):
        waiting.append(row)
        if len(waiting) == some or number == count - 1:
            yield Batch.of(waiting, range(number + 1 - len(waiting), number + 1))
            waiting = []


def _grouped(waiting: list[tuple[Tensor, int, str]], batch_tokens: int) -> Iterator[Batch]:
    """Longest first, so that each batch's width is known from its first text."""
    queue = sorted(waiting, key=lambda item: (-len(item[0]), item[1]))
    start = 0
    while start < len(queue):
        stop = start + max(1, batch_tokens // len(queue[start][0]))
        rows, index, names = zip(*queue[start:stop], strict=True)
        yield Batch.of(rows, index, names)
        start = stop
