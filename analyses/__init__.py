"""One script a question; each has `run(...) -> Report` and reads like its abstract. Here: from arguments to captures, for all of them.

An analysis is found by its file's name; there is nothing to register.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interp.corpus import Corpus, Source, Text, texts
from interp.errors import InterpError
from interp.progress import track

if TYPE_CHECKING:
    from interp.capturing import Capture
    from interp.models import Model

SHOWN_IDS = 3
SHOWN_TOKENS = 48


@dataclass(eq=False)
class Material:
    """What an analysis looks at, one capture at a time: (name, Capture) of each text or recording. Keeps none of them.

    `provenance()` says, after the captures were gone through, what they came from, with a digest of all their token ids.
    """

    model: str
    captures: Iterable[tuple[str, Capture]]
    total: int | None = None
    _first: dict[str, Any] = field(default_factory=dict, init=False)
    _digest: Any = field(default_factory=hashlib.sha256, init=False)
    _seen: list[tuple[str, list[int]]] = field(default_factory=list, init=False)
    _count: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[tuple[str, Capture]]:
        for name, capture in track(self.captures, f"{self.model}: capturing", self.total):
            if not self._count:
                self._first.update(capture.provenance)
            ids = [] if capture.ids is None else capture.ids.tolist()
            self._digest.update(repr(ids).encode())
            if self._count < SHOWN_IDS:
                self._seen.append((name, ids))
            self._count += 1
            yield name, capture

    def provenance(self) -> dict[str, Any]:
        """Of the first capture, with the texts counted, the ids of the first three, and SHA-256 over the ids of all."""
        shown = {name: ids for name, ids in self._seen if ids}
        return {**self._first, "texts": self._count, "ids": shown, "ids_sha256": self._digest.hexdigest()[:16]}


def material(
    model: str | Model = "toy",
    source: Source = None,
    captures: Iterable[str | Path | Capture] | None = None,
    *,
    bos: str = "keep",
    layers: Sequence[int] | None = None,
    max_tokens: int | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    dtype: str = "float32",
    device: str = "auto",
) -> Material:
    """Captures of `source` (see corpus.texts; None: the built-in passages, for the toy its own sentences), or recordings as they are."""
    if captures is not None:
        return _recordings(list(captures)[:limit], source, layers, max_tokens)
    import interp

    loaded = interp.load(model, dtype=dtype, device=device)
    corpus = texts_of(loaded, source, limit, skip_bad)
    made = ((text.name, interp.capture(loaded, text.text, layers, bos, max_tokens=max_tokens)) for text in corpus)
    return Material(loaded.name, made, limit)


def texts_of(
    model: Model,
    source: Source = None,
    limit: int | None = None,
    skip_bad: bool = False,
    *,
    sample: int | None = None,
    seed: int = 0,
) -> Corpus:
    """The texts of `source` (see corpus.texts); where none is given, the built-in passages, or the toy's own sentences."""
    if source is None and model.source == "trained here":
        source = _toy_texts()
    return texts(source, limit, skip_bad, sample=sample, seed=seed)


def _toy_texts() -> list[Text]:
    from interp.models.toy import prefixes

    return [Text(prefix.text, f"prefix-{number}", f"built-in:prefix-{number}") for number, prefix in enumerate(prefixes())]


def _recordings(
    given: list[str | Path | Capture], source: Source, layers: Sequence[int] | None, max_tokens: int | None
) -> Material:
    from interp.capturing import Capture, read

    if source is not None or layers is not None or max_tokens is not None:
        raise InterpError("recordings are read as they are; give texts, layers and max_tokens only with a model")
    if not given:
        raise InterpError("no recordings in an empty list; give at least one capture or file")

    def opened() -> Iterator[tuple[str, Capture]]:
        for place, item in enumerate(given):
            capture = item if isinstance(item, Capture) else read(item)
            yield (Path(item).stem if isinstance(item, (str, Path)) else f"capture {place}"), capture

    first = given[0] if isinstance(given[0], Capture) else read(given[0])
    return Material(first.model or "a recording", opened(), len(given))


def opening(capture: Capture, most: int = SHOWN_TOKENS) -> Capture:
    """The first `most` tokens of a capture, for a page: with a causal mask, just what a capture of those tokens alone holds."""
    if capture.n_tokens <= most:
        return capture
    cut: dict[str, Any] = {"tokens": capture.tokens[:most], "ids": None if capture.ids is None else capture.ids[:most].clone()}
    for name in ("q", "k", "v", "z"):
        if (tensor := getattr(capture, name)) is not None:
            cut[name] = tensor[:, :, :most].clone()
    for name in ("scores", "weights", "visible", "bias"):
        if (tensor := getattr(capture, name)) is not None:
            cut[name] = tensor[..., :most, :most].clone()
    return replace(capture, **cut, text="".join(capture.tokens[:most]))
