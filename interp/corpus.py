"""Texts from files, globs, stdin, or built in; read one at a time, so a corpus larger than memory is no matter.

.txt: one text a line, blank lines are none; .jsonl: the field `text`; .csv, .parquet: the column `text`; `-`: stdin, one text a
line. UTF-8 throughout. A bad line is named by file and number; it stops the reading, or `skip_bad` counts it and goes on.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path

from interp.errors import InterpError
from interp.readers import BadLine, lines_of, paths_of
from interp.stores import Stored

Source = str | Path | Stored | Sequence["str | Path | Stored | Text"] | None

SENTENCES = {
    "mary-and-john": "When Mary and John went to the store, John gave a drink to",
    "dog-chased-cat": "The dog chased the cat.",
    "cat-chased-dog": "The cat chased the dog.",
    "colour-recall": "The team colour is red. So the players wear",
}


@dataclass(frozen=True)
class Text:
    """One text: what it says, a name to show, and where it stood ("news.jsonl:17")."""

    text: str
    name: str
    source: str


@dataclass(eq=False)
class Corpus(Iterable[Text]):
    """The texts of one source, read anew each time it is iterated (stdin: once). `skipped` names the bad lines passed over."""

    source: Source = None
    limit: int | None = None
    skip_bad: bool = False
    sample: int | None = None
    seed: int = 0
    skipped: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        for name, count in (("limit", self.limit), ("sample", self.sample)):
            if count is not None and count < 1:
                raise InterpError(f"{name} {count} leaves no text; give 1 or more")

    def __iter__(self) -> Iterator[Text]:
        self.skipped.clear()
        stream = _first(self._every(), self.limit)
        found = False
        for text in stream if self.sample is None else _reservoir(stream, self.sample, self.seed):
            found = True
            yield text
        if not found:
            bad = f" ({len(self.skipped)} bad lines were skipped; the first: {self.skipped[0]})" if self.skipped else ""
            raise InterpError(f"no texts in {self._shown()}{bad}; give at least one")

    def _every(self) -> Iterator[Text]:
        if self.source is None:
            yield from passages()
        elif isinstance(self.source, (str, Path, Stored)):
            yield from self._files(paths_of(str(self.source)))
        else:
            for place, item in enumerate(self.source):
                if isinstance(item, Text):
                    yield item
                elif isinstance(item, (Path, Stored)):
                    yield from self._files(paths_of(str(item)))
                else:
                    yield Text(_no_file(item), f"text {place}", f"text {place}")

    def _files(self, paths: Iterable[Path | Stored]) -> Iterator[Text]:
        for path in paths:
            for number, line in lines_of(path):
                if isinstance(line, BadLine):
                    if not self.skip_bad:
                        raise InterpError(
                            f"{path}:{number}: {line.why}; mend it, or pass --skip-bad to count and pass over such lines"
                        )
                    self.skipped.append(f"{path}:{number}: {line.why}")
                else:
                    where = f"{path.name if str(path) != '-' else 'stdin'}:{number}"
                    yield Text(line, where, where)

    def _shown(self) -> str:
        if self.source is None or isinstance(self.source, (str, Path, Stored)):
            return str(self.source)
        return ", ".join(str(item) for item in self.source) or "an empty list"


def texts(
    source: Source = None, limit: int | None = None, skip_bad: bool = False, *, sample: int | None = None, seed: int = 0
) -> Corpus:
    """The texts of a source, streamed.

    `source`: None = the built-in passages; a str or Path = one file, a glob ("news/*.jsonl", "s3://bucket/*.parquet"), or "-" for stdin;
    a list holds texts (str, Text) and files (Path, Stored). `limit`: the first so many. `sample`: so many drawn at random by `seed`, each text as
    likely as any other, in the order of the corpus; the whole corpus is read once. Raises InterpError for a file that is not
    there or of another kind, and while reading for a bad line or no text at all.

    >>> [text.text for text in texts(["one", "two", "three"], limit=2)]
    ['one', 'two']
    """
    return source if isinstance(source, Corpus) else Corpus(source, limit, skip_bad, sample, seed)


@lru_cache(maxsize=1)
def _passages() -> tuple[Text, ...]:
    folder = resources.files("interp") / "passages"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".txt")), key=lambda file: file.name)
    return tuple(
        Text(file.read_text(encoding="utf-8").strip("\n"), name := file.name.removesuffix(".txt"), f"built-in:{name}")
        for file in files
    )


def passages() -> list[Text]:
    """The built-in passages, each of at least 80 tokens and of a register of its own, written for this project."""
    return list(_passages())


def sentences() -> list[Text]:
    """The short examples of the chapters: Mary and John, the dog and the cat, the colour to recall."""
    return [Text(text, name, f"built-in:{name}") for name, text in SENTENCES.items()]


def _no_file(item: str) -> str:
    if len(item) < 200 and "\n" not in item and item.endswith((".txt", ".jsonl", ".csv", ".parquet")) and Path(item).is_file():
        raise InterpError(f"{item!r} in a list is taken as a text, but a file of that name is there; give Path({item!r})")
    return item


def _first(stream: Iterator[Text], limit: int | None) -> Iterator[Text]:
    for place, text in enumerate(stream, 1):
        yield text
        if place == limit:
            return


def _reservoir(stream: Iterable[Text], size: int, seed: int) -> list[Text]:
    """Vitter's algorithm R: text number n replaces a kept one with probability size / n, so all are kept with equal chance."""
    draw = random.Random(seed)
    kept: list[tuple[int, Text]] = []
    for place, text in enumerate(stream):
        if place < size:
            kept.append((place, text))
        elif (slot := draw.randrange(place + 1)) < size:
            kept[slot] = (place, text)
    return [text for _, text in sorted(kept, key=lambda pair: pair[0])]
