"""A report with hostile text in every place that takes text, and a reader of pages: shared by the tests of reports."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from interp.report import Report
from interp.results import Claim, Curve, Grid, Table

STANDING = "</script><b x=\"'&"
TOKENS = [
    " When",
    STANDING,
    "entrar<!--#exec",
    "-->",
    "<|endoftext|>",
    "x<script>alert('xss');</script>",
    "a\x00b",
    "\u202eabc",
    "🤗",
    "漢字",
    "$x_2^3$",
    "=1+1",
    "\n",
    *(
        "+1",
        "-1",
        "@x",
        "'tis",
        '"',
        "]]>",
        "`${1}`",
        "\t",
        "\r\n",
        "\u200b",
        "e\u0301",
        "<0xF0>",
        "\ud83e",
        "",
        " the",
        " the",
        " ",
    ),
]


def sample(**changes: object) -> Report:
    """A report with the standing token in every place that takes text."""
    n = len(TOKENS)
    weights = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    weights[np.triu_indices(n, 1)] = np.nan
    tokens = Table.of(
        "tokens",
        f"Tokens {STANDING}",
        [{"position": i, STANDING: t, "weight": 1 / (i + 1)} for i, t in enumerate(TOKENS)],
        weight=STANDING,
    )
    rows = [
        {"position": i, "first_weight": 0.5, "uniform": 1 / (i + 1), "low": 0.4, "high": 0.6, "text": STANDING}
        for i in range(1, 8)
    ]
    curve = Table.of("by_position", "Positions.", rows)
    made = {
        "analysis": "sinks",
        "model": f"owner/{STANDING}",
        "question": f"How much? {STANDING}",
        "answer": f"Half of it. {STANDING}",
        "numbers": {
            "first_weight": 0.5,
            "missing": float("nan"),
            STANDING: STANDING,
            "count": 12345,
            "deep": {"x": np.float32(0.25)},
        },
        "tables": [tokens],
        "grids": [Grid("pattern", f"Weights. {STANDING}", STANDING, weights, TOKENS, TOKENS, "query", "key", limits=(0, 1))],
        "curves": [
            Curve(
                "curve",
                STANDING,
                curve,
                "position",
                ("first_weight",),
                "uniform",
                ("low", "high"),
                group="text",
                y_label=STANDING,
            )
        ],
        "claims": [
            Claim.number(STANDING, STANDING, STANDING, expected=1, measured=2, tolerance=0.1, model=STANDING, why=STANDING)
        ],
        "definitions": ["first_weight", f"own: {STANDING}"],
        "notes": [STANDING],
        "provenance": {"model": {"name": STANDING, "folder": Path("/home/somebody/model")}, "list": [1, STANDING]},
        "command": f"interp run sinks --text '{STANDING}'",
    }
    return Report(**{**made, **changes})  # type: ignore[arg-type]


def short(**changes: object) -> Report:
    """The sample without its figures, which take most of the time."""
    return sample(**{"grids": [], "curves": [], **changes})


class Page(HTMLParser):
    """The elements of a page, its text, and whether they close in the order in which they open."""

    VOID = {"meta", "link", "br", "img", "input"}

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.cells: list[str] = []
        self.comments = 0
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data

    def handle_comment(self, data: str) -> None:
        self.comments += 1
