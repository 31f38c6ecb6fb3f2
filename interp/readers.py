"""Lines of corpus files: (number, text) one at a time, or (number, BadLine) where a line holds no text. Never a whole file in memory."""

from __future__ import annotations

import csv
import glob
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from interp.errors import InterpError
from interp.stores import Stored, stored

LONGEST = 64 * 1024 * 1024
KINDS = ".txt, .jsonl, .csv, .parquet, or - for stdin"


@dataclass(frozen=True)
class BadLine:
    """A line that is no text, and why."""

    why: str


Line = tuple[int, "str | BadLine"]


def paths_of(source: str) -> list[Path | Stored]:
    """The files that a path, a URI or a glob names, sorted; "-" stays. Refuses what is not there, a folder, another kind of file."""
    found: Sequence[Path | Stored]
    if "://" in source:
        found = stored(source)
    elif source == "-" or Path(source).is_file():
        found = [Path(source)]
    elif Path(source).is_dir():
        raise InterpError(f"{source} is a folder; name its files with a glob: '{source.rstrip('/')}/*.jsonl'")
    else:
        found = sorted(path for path in map(Path, glob.glob(source, recursive=True)) if path.is_file())
    if not found:
        raise InterpError(f"no file {source}; give {KINDS}")
    for path in found:
        if str(path) != "-" and path.suffix.lower() not in _READERS:
            raise InterpError(f"{path} is of no kind that is read here; give {KINDS}")
    return list(found)


def lines_of(path: Path | Stored) -> Iterator[Line]:
    """Every line of one corpus file, numbered from 1 (parquet and multi-line CSV: the row, the row's last line)."""
    if str(path) == "-":
        yield from _txt(sys.stdin.buffer)
        return
    read = _READERS[path.suffix.lower()]
    try:
        with path.open("rb") as stream:
            yield from read(stream)
    except InterpError as error:
        raise InterpError(f"{path}: {error}") from None
    except OSError as error:
        raise InterpError(f"{path} cannot be read: {error.strerror or error}") from None


def _raw(stream: BinaryIO) -> Iterator[tuple[int, bytes | BadLine]]:
    number = 0
    while line := stream.readline(LONGEST):
        number += 1
        if len(line) == LONGEST and not line.endswith(b"\n"):
            while (rest := stream.readline(LONGEST)) and not rest.endswith(b"\n"):
                pass
            yield number, BadLine(f"the line is longer than {LONGEST >> 20} MiB")
        else:
            yield number, (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).rstrip(b"\r\n")


def _decoded(stream: BinaryIO) -> Iterator[Line]:
    """Lines that are not blank, as UTF-8."""
    for number, line in _raw(stream):
        if isinstance(line, BadLine):
            yield number, line
        elif line.strip():
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                yield number, BadLine(f"byte {error.start + 1} of the line is not UTF-8")


_txt = _decoded


def _jsonl(stream: BinaryIO) -> Iterator[Line]:
    for number, line in _decoded(stream):
        if isinstance(line, BadLine):
            yield number, line
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, BadLine(f"not JSON ({getattr(error, 'msg', 'nested too deep')} at column {getattr(error, 'colno', 1)})")
            continue
        if not isinstance(record, dict) or "text" not in record:
            yield number, BadLine("JSON, but no object with a field 'text'")
        else:
            yield number, _checked(record["text"])


def _csv(stream: BinaryIO) -> Iterator[Line]:
    csv.field_size_limit(LONGEST)
    # Undecodable bytes pass as surrogates, so that one bad row can be named and passed over.
    wrapped = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        rows = csv.reader(wrapped, strict=True)
        column = _text_column(rows)
        while (row := _next(rows)) is not None:
            if isinstance(row, BadLine):
                yield rows.line_num, row
            elif row:
                yield (
                    rows.line_num,
                    _checked(row[column]) if column < len(row) else BadLine("the row ends before the column 'text'"),
                )
    finally:
        wrapped.detach()


def _next(rows: Iterator[list[str]]) -> list[str] | BadLine | None:
    try:
        return next(rows, None)
    except csv.Error as error:
        return BadLine(f"not CSV ({error})")


def _text_column(rows: Iterator[list[str]]) -> int:
    first = _next(rows)
    if isinstance(first, BadLine):
        raise InterpError(f"the first line is {first.why}")
    if "text" not in (first or []):
        raise InterpError("the first line names no column 'text'")
    return (first or []).index("text")


def _parquet(stream: BinaryIO) -> Iterator[Line]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(stream)
        names = table.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InterpError(f"not a parquet file ({str(error).splitlines()[0]})") from None
    if "text" not in names:
        raise InterpError(f"no column 'text'; its columns: {', '.join(names[:8])}")
    number = 0
    for batch in table.iter_batches(batch_size=1024, columns=["text"]):
        for value in batch.column(0).to_pylist():
            number += 1
            yield number, _checked(value)


def _checked(value: object) -> str | BadLine:
    if not isinstance(value, str):
        return BadLine(f"its 'text' is {'null' if value is None else type(value).__name__}, not a string")
    if not value.strip():
        return BadLine("its 'text' is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return BadLine("its 'text' is not UTF-8, or holds a lone surrogate")
    return value


_READERS = {".txt": _txt, ".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
