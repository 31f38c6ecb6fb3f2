"""The one door for text into pages and for data into scripts: nothing else in `interp.report` escapes anything.

What the eye cannot see (control characters, directions, zero widths) is given a visible form; everything else arrives as it
is. Lone surrogates are no Unicode text and are shown by number too. The door for CSV files is `interp.report.table_file`.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from interp.errors import InterpError

_NAMED = {"\n": "↵", "\t": "⇥", "\r": "␍", "\x7f": "␡"}
# Drawn as nothing although they are letters or marks: joiners, fillers, separators.
_BLANK = set("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2028\u2029\u3164\uffa0")
_UNSEEN = ("Cc", "Cf", "Cs")


def visible(text: str) -> str:
    """The text with a visible form for every character that has none: ↵ ⇥ ␀ and, for the others, ⟨U+200B⟩.

    >>> visible("a\\n\\x00b\\u202e"), visible("Ġthe 🤗")
    ('a↵␀b⟨U+202E⟩', 'Ġthe 🤗')
    """
    return "".join(map(_visible, text)) if not (text.isascii() and text.isprintable()) else text


def _visible(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    number = ord(character)
    if number < 0x20:
        return chr(0x2400 + number)
    nobody = number & 0xFFFE == 0xFFFE or 0xFDD0 <= number <= 0xFDEF
    if nobody or character in _BLANK or unicodedata.category(character) in _UNSEEN:
        return f"⟨U+{number:04X}⟩"
    return character


def whole(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which UTF-8 cannot hold."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def html(value: object) -> Markup:
    """Any value as text of a page, in an element or in a quoted attribute; Markup made here passes as it is.

    >>> html("</script><b x=\\"'&")
    Markup('&lt;/script&gt;&lt;b x=&#34;&#39;&amp;')
    """
    return value if isinstance(value, Markup) else escape(visible(str(value)))


def cell(text: str) -> Markup:
    """A token or another text cell: as `html`, with spaces at either end marked by a dot that is no part of the text.

    The page of another report beside this one (`../NAME/index.html`, nothing else) becomes a link.
    """
    if not text:
        return Markup('<span class="empty" title="empty text"></span>')
    if re.fullmatch(r"\.\./[a-z0-9.-]+/index\.html", text):
        return Markup('<a href="{0}">{0}</a>').format(text)
    bare = text.strip(" ")
    if len(bare) == len(text):
        return html(text)
    if not bare:
        return _spaces(text)
    left = len(text) - len(text.lstrip(" "))
    return _spaces(text[:left]) + html(bare) + _spaces(text[left + len(bare) :])


def _spaces(run: str) -> Markup:
    return Markup('<span class="space">{}</span>').format(run) if run else Markup("")


def prose(text: str) -> Markup:
    """Sentences of an author: line breaks are spaces, `names` between backquotes are set as code, e^Δ as a power."""
    plain = re.sub(r"\be\^([Δδ]|[−-]?\d+(?:\.\d+)?)", r"e<sup>\1</sup>", str(html(" ".join(text.split()))))
    return Markup(re.sub(r"`([\w.\-/=+·,:\[\] ]+)`", r"<code>\1</code>", plain))


def label(text: str, most: int = 18) -> str:
    """A token as a label of a figure: visible, spaces at the ends as ·, and at most `most` columns wide.

    >>> label(" Mary"), label("a very long piece of text", 9)
    ('·Mary', 'a very l…')
    """
    shown = visible(text)
    bare = shown.strip(" ")
    left = len(shown) - len(shown.lstrip(" "))
    shown = "·" * left + bare + "·" * (len(shown) - left - len(bare))
    if width(shown) <= most:
        return shown
    kept = ""
    for character in shown:
        if width(kept + character) > most - 1:
            break
        kept += character
    return kept + "…"


def width(text: str) -> int:
    """Columns that a text takes where a wide character (Chinese, emoji) takes two and a combining mark none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def plain(value: Any) -> Any:
    """Numbers, texts, lists and mappings as JSON knows them; NaN and infinities become None. Refuses what it does not know."""
    if isinstance(value, (np.generic, np.ndarray)) or (hasattr(value, "tolist") and hasattr(value, "dtype")):
        return plain(value.tolist())
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return whole(str(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(plain(str(key))): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return value.name if value.is_absolute() else value.as_posix()
    if type(value).__module__.split(".")[0] == "torch":  # torch.float32, torch.device: names without an address
        return str(value)
    raise InterpError(f"a report holds numbers, text, lists and mappings; got a {type(value).__name__}")


def to_json(data: Any, indent: int | None = None) -> str:
    """Valid JSON: keys sorted, null for NaN and infinities, real characters."""
    return json.dumps(plain(data), ensure_ascii=False, allow_nan=False, sort_keys=True, indent=indent)


def script_data(data: Any) -> Markup:
    """JSON that may stand inside a <script> element: no <, > or & is left in it.

    >>> script_data(["</script>", float("nan")])
    Markup('["\\\\u003c/script\\\\u003e", null]')
    """
    written = to_json(data)
    for risky in "<>&\u2028\u2029":
        written = written.replace(risky, f"\\u{ord(risky):04x}")
    return Markup(written)


def slug(text: str) -> str:
    """A folder name from a model's name: the last part of a path, else owner-name; a-z, 0-9, dots and dashes only.

    >>> slug("openai-community/gpt2"), slug("/data/models/GPT2 tiny/"), slug("../..")
    ('openai-community-gpt2', 'gpt2-tiny', 'model')
    """
    parts = [part for part in re.split(r"[/\\]", text) if part not in ("", ".", "..", "~")]
    path = bool(re.match(r"[/\\~.]|[A-Za-z]:[/\\]", text)) or len(parts) > 2
    name = (parts[-1] if path else "-".join(parts)) if parts else ""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:80] or "model"


def model_name(text: str) -> str:
    """A model as a page shows it: a hub id as it is, a folder by its last name (pages hold no absolute path)."""
    return PurePath(text).name if text.startswith(("/", "~")) or re.match(r"[A-Za-z]:[/\\]", text) else text


def numbers(values: Iterable[Any]) -> Callable[[int | float], str]:
    """How to write the numbers of one column: as many decimals as one of them needs where three do, else as the largest needs.

    Decimal points then stand below each other; what would lose its digits by it (below 0.001 at four decimals) is written as `number`.

    >>> shown = numbers([0.5, 1.0, 1.25])
    >>> shown(0.5), shown(1.0), numbers([0.05, 1 / 3, 2e-7])(0.05)
    ('0.50', '1.00', '0.0500')
    """
    finite = [value for value in values if isinstance(value, float) and math.isfinite(value)]
    largest = max((abs(value) for value in finite if not value.is_integer()), default=0.0)
    if not 1e-3 <= largest < 1e4:
        return number
    exact = (places for places in (1, 2, 3) if all(round(value, places) == value and abs(value) < 1e4 for value in finite))
    few = next(exact, None)
    decimals = few or 5 - len(str(int(largest)))
    least, most = 10.0 ** (1 - decimals), max(largest, 1.0)

    def shown(value: int | float) -> str:
        # Whole numbers far above the rest are counts among shares: they stay whole.
        aligned = isinstance(value, float) and math.isfinite(value) and (few or least <= abs(value) <= most or value == 0)
        return f"{value:.{decimals}f}".replace("-", "−") if aligned else number(value)

    return shown


def number(value: int | float) -> str:
    """A number for a cell or a tile: whole numbers whole, others to four significant digits, with a real minus sign.

    >>> number(0.59491), number(12), number(1234567.0), number(2.4e-7), number(float("nan")), number(-0.5)
    ('0.5949', '12', '1,234,567', '2.4e−7', '–', '−0.5000')
    """
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        shown = f"{int(value):,}" if abs(value) >= 10_000 else str(int(value))
    elif 1e-3 <= abs(value) < 1e4:
        shown = f"{value:#.4g}".rstrip(".")
    else:
        shown = re.sub(r"e([+-])0*(\d+)", lambda found: f"e{'-' if found[1] == '-' else ''}{found[2]}", f"{value:.3g}")
    return shown.replace("-", "−")
