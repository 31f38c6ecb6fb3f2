"""Corpus files in object stores and other file systems, by URI: s3://bucket/news/*.jsonl, gs://…, hdfs://…, file://….

Through pyarrow's file systems, which are also what Ray reads with; credentials are taken where those look for them.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from interp.errors import InterpError

WILD = "*?["


@dataclass(frozen=True)
class Stored:
    """One file, or a glob of several, by its URI; opened like a Path."""

    uri: str

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        dot = self.name.rpartition(".")
        return f".{dot[2]}" if dot[0] else ""

    def __str__(self) -> str:
        return self.uri

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """The file's bytes, buffered, read as they are asked for."""
        system, place = _system(self.uri)
        return _Opened(system.open_input_file(place), self.uri)


class _Opened(io.BufferedReader):
    """With a name, which pyarrow's files lack and Python's have."""

    def __init__(self, raw: Any, name: str) -> None:
        super().__init__(raw, 1 << 20)
        self._name = name

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._name


def stored(uri: str) -> list[Stored]:
    """The files that a URI or a glob names, sorted. Raises InterpError where there are none, or nothing here reaches such a place."""
    import pyarrow as pa
    from pyarrow import fs

    start = min((place for mark in WILD if (place := uri.find(mark)) >= 0), default=None)
    if start is None:
        _system(uri)  # a place of a kind that is unknown is refused before anything is loaded
        return [Stored(uri)]
    base = uri[: uri.rfind("/", 0, start) + 1]
    pattern = uri[len(base) :].split("/")
    system, folder = _system(base)
    folder = folder.rstrip("/")
    try:
        found = system.get_file_info(fs.FileSelector(folder, recursive=len(pattern) > 1))
    except (OSError, pa.ArrowException) as error:
        raise InterpError(f"{base} cannot be listed: {str(error).splitlines()[0][:160]}") from None
    files = [info.path[len(folder) :].lstrip("/") for info in found if info.type == fs.FileType.File]
    return [Stored(base + file) for file in sorted(files) if _matches(file.split("/"), pattern)]


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """As glob does: * stays within a folder, ** alone stands for any number of them."""
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _system(uri: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    try:
        return fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InterpError(f"{uri} cannot be reached: {str(error).splitlines()[0][:160]}") from None
