"""A Matplotlib figure as inline SVG of a page: same figure, same bytes; ids of its own; colours that follow light and dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from markupsafe import Markup

from interp.report import figures
from interp.report.text import html

if TYPE_CHECKING:
    from interp.results import Curve, Grid

_COLOURS = {
    figures.INK: "var(--ink)",
    figures.QUIET: "var(--quiet)",
    figures.UNSEEN: "var(--unseen)",
    figures.BACK: "var(--card)",
}


def drawn(value: Grid | Curve, id: str) -> Markup:
    """The value's figure as one <svg> element; every id in it begins with `id`, so figures of one page never clash."""
    with figures.styled(), warnings.catch_warnings():
        # Characters that DejaVu lacks are drawn by the reader's own fonts: text stays text in the SVG.
        warnings.filterwarnings("ignore", message=r"(?s).*[Gg]lyph")
        file = io.StringIO()
        figures.figure(value).savefig(
            file, format="svg", bbox_inches="tight", pad_inches=0.06, dpi=144, metadata={"Date": None, "Creator": None}
        )
    return clean(file.getvalue(), id, value.name.replace("_", " "))


def clean(source: str, id: str, title: str) -> Markup:
    """Only the <svg> element of Matplotlib's file, without its page-wide style, with prefixed ids and named colours."""
    body = source[source.index("<svg") : source.rindex("</svg>") + 6]
    body = re.sub(r"\s*<metadata>.*?</metadata>|\s*<style type=\"text/css\">.*?</style>", "", body, flags=re.DOTALL)
    used = set(re.findall(r"(?:url\(#|href=\"#)([\w-]+)", "".join(_tags(body))))
    body = _in_tags(body, lambda tag: _own(tag, id, used))
    size = {name: float(n) * 4 / 3 for name, n in re.findall(r' (width|height)="([\d.]+)pt"', _tags(body)[0])}
    box = re.search(r'viewBox="[^"]*"', body)
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="drawn" role="img" '
        f'aria-label="{html(title)}" width="{size["width"]:.0f}" height="{size["height"]:.0f}" '
        f'style="--natural: {size["width"]:.0f}px" {box[0] if box else ""}>'
    )
    return Markup(head + body[body.index(">") + 1 :])


def _tags(source: str) -> list[str]:
    # Matplotlib escapes < and > in text and in attributes, so a tag is exactly what stands between the two.
    return re.findall(r"<[^<>]*>", source)


def _in_tags(source: str, change: Callable[[str], str]) -> str:
    return re.sub(r"<[^<>]*>", lambda found: change(found[0]), source)


def _own(tag: str, id: str, used: set[str]) -> str:
    tag = re.sub(r' id="([^"]*)"', lambda found: f' id="{id}-{found[1]}"' if found[1] in used else "", tag)
    tag = re.sub(r"(url\(#|href=\"#)([\w-]+)", rf"\g<1>{id}-\g<2>", tag)
    if "style=" in tag or "fill=" in tag or "stroke=" in tag:
        for colour, name in _COLOURS.items():
            tag = tag.replace(colour, name)
    return tag
