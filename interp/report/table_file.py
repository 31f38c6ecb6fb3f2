"""CSV files of a report: RFC 4180, UTF-8, safe to open in a spreadsheet, and read back to equal values.

The scheme, in full: text is always quoted and numbers never; an empty cell without quotes is missing. A text that begins with
= + - @ ' or a tab, line feed or carriage return gets one apostrophe in front, so that no spreadsheet takes it for a formula;
`from_csv` takes exactly one apostrophe off again. A text that is a negative number and nothing else ("-1") stays as it is.
Numbers are written so that they read back equal. The only loss: a lone surrogate, which UTF-8 cannot hold, becomes U+FFFD.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import InterpError
from interp.report.text import whole

_RISKY = ("=", "+", "-", "@", "'", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER = re.compile(r"-\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)
_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r\n|\n|\r|\Z)')
_CONSTANTS = {"True": True, "False": False, "inf": math.inf, "-inf": -math.inf, "": math.nan}


def guard(text: str) -> str:
    """One apostrophe in front of what a spreadsheet would run.

    >>> guard("=1+1"), guard("'tis"), guard(" the"), guard("-1"), guard("+1")
    ("'=1+1", "''tis", ' the', '-1', "'+1")
    """
    return f"'{text}" if text.startswith(_RISKY) and not _NUMBER.fullmatch(text) else text


def to_csv(frame: pd.DataFrame) -> str:
    """The frame without its index, as one text with CRLF line ends.

    >>> to_csv(pd.DataFrame({"token": ["=A1", "a, b"], "first_weight": [0.5, float("nan")]}))
    '"token","first_weight"\\r\\n"\\'=A1",0.5\\r\\n"a, b",\\r\\n'
    """
    head = ",".join(_quoted(str(name)) for name in frame.columns)
    columns = [map(_written, frame.iloc[:, i].tolist()) for i in range(len(frame.columns))]
    return "".join(f"{line}\r\n" for line in [head, *map(",".join, zip(*columns, strict=True))])


def _quoted(text: str) -> str:
    return '"' + guard(whole(text)).replace('"', '""') + '"'


def _written(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return _quoted(value)
    if value is None or value is pd.NA or value is pd.NaT:
        return ""
    if isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return _quoted(str(value))


def from_csv(source: str | Path) -> pd.DataFrame:
    """A frame with the values that `to_csv` was given: text as text ("007", "NA" and "" too), numbers, missing as NaN.

    `source` is a path, or the text of a file itself where it holds a line break.
    """
    text = source if isinstance(source, str) and ("\n" in source or "\r" in source) else _read(Path(source))
    head, *rows = [*_lines(text)] or [[]]
    names = [str(name) for name in head]
    if not names:
        raise InterpError("the CSV is empty: it has no head")
    if wrong := [i for i, row in enumerate(rows, 2) if len(row) != len(names)]:
        raise InterpError(f"row {wrong[0]} of the CSV has {len(rows[wrong[0] - 2])} cells, its head {len(names)}")
    return pd.DataFrame({name: _column([row[i] for row in rows]) for i, name in enumerate(names)}, columns=pd.Index(names))


def _column(values: list[Any]) -> pd.Series:
    """Pandas' own guess of a dtype, but text stays plain Python text and "" is not missing."""
    some_text = any(isinstance(value, str) for value in values)
    return pd.Series(values, dtype=object) if some_text or not values else pd.Series(values)


def _read(path: Path) -> str:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return file.read()


def _lines(text: str) -> Iterator[list[Any]]:
    row: list[Any] = []
    at = 0
    while at < len(text):
        found = _FIELD.match(text, at)
        if found is None:
            raise InterpError(f"this is no CSV: a quote inside a cell is not closed or not doubled near {text[at : at + 30]!r}")
        quoted, bare, end = found.groups()
        row.append(_value(bare) if quoted is None else _unguard(quoted.replace('""', '"')))
        at = found.end()
        if end == "," and at == len(text):
            row.append(math.nan)
        if end != "," or at == len(text):
            yield row
            row = []


def _unguard(text: str) -> str:
    return text[1:] if text.startswith("'") and text[1:].startswith(_RISKY) else text


def _value(bare: str) -> Any:
    if bare in _CONSTANTS:
        return _CONSTANTS[bare]
    try:
        return int(bare)
    except ValueError:
        pass
    try:
        return float(bare)
    except ValueError:
        return bare
