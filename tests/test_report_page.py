"""The page of a report: hostile text everywhere stays text, nothing asked of the network, figures of any shape."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hostile import STANDING, TOKENS, Page, sample, short

from interp.errors import InterpError, UnknownName
from interp.report import from_csv, page
from interp.report.text import label, visible
from interp.results import Claim, Curve, Grid, Table


@pytest.fixture(scope="module")
def html() -> str:
    return sample().html()


def test_the_page_parses_and_hostile_text_adds_no_element(html: str) -> None:
    parsed = Page(html)
    assert parsed.open == []
    assert parsed.tags.count("script") == 1  # our own sorting
    assert parsed.tags.count("b") == 1 + 1  # the marks of one claim and of the count
    assert parsed.comments == 0
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = [value[1:] for _, name, value in parsed.attributes if name in ("href", "xlink:href") and value.startswith("#")]
    assert links
    assert set(links) <= set(ids)


def test_there_is_one_cell_a_token_and_its_text_is_the_token(html: str) -> None:
    shown = Page(html).cells[1::3]
    assert shown[:13] == [*TOKENS[:6], "a␀b", "⟨U+202E⟩abc", *TOKENS[8:12], "↵"]
    assert shown == [visible(token) for token in TOKENS]


def test_the_figures_hold_the_tokens_as_text(html: str) -> None:
    figure = html[html.index("<svg") : html.index("</svg>")]
    assert "&lt;/script&gt;&lt;b x=" in figure
    assert "$x_2^3$" in figure  # no mathematics made of a token
    assert "\x00" not in html
    assert "\u202e" not in html
    written = [text.text for text in ElementTree.fromstring(figure + "</svg>").iter("{http://www.w3.org/2000/svg}text")]
    for token in TOKENS:  # on both axes, and as often as it is repeated
        assert written.count(label(token)) >= 2 * sum(label(token) == label(other) for other in TOKENS) - 2 * (not token), token


def test_nothing_invisible_is_left_anywhere_in_the_page() -> None:
    hidden = "a\u202eb\u200bc\x1bd"
    written = short(model=hidden, analysis=f"x{hidden}", provenance={hidden: hidden}, command=hidden).html()
    assert not set(written) & set("\u202e\u200b\x1b")
    assert "a⟨U+202E⟩b⟨U+200B⟩c␛d" in written


def test_the_page_asks_for_nothing_from_anywhere(html: str) -> None:
    addresses = [
        value for _, name, value in Page(html).attributes if name in ("href", "src", "xlink:href", "action", "srcset", "data")
    ]
    assert all(re.fullmatch(r"#[\w-]+|[a-z0-9_]+\.csv|summary\.json|data:[^<]*", address) for address in addresses)
    assert not re.findall(r"@import|url\((?!#)", html)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    assert "unsafe-inline" not in policy[1].partition("script-src")[2]


def test_the_hash_in_the_policy_is_that_of_the_script(html: str) -> None:
    script = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert [page._hash(part) in html for part in script] == [True]


def test_long_tables_show_their_first_rows_and_say_so(tmp_path: Path) -> None:
    table = Table("many", "Rows.", pd.DataFrame({"n": range(1000)}))
    written = short(tables=[table]).write(tmp_path / "r").read_text(encoding="utf-8")
    assert len(Page(written).cells) == page.MOST_ROWS == 200
    assert "The first 200 of 1000 rows are shown" in written
    assert len(from_csv(tmp_path / "r" / "many.csv")) == 1000


def test_large_maps_stay_small() -> None:
    values = np.random.default_rng(0).random((200, 190))
    grid = Grid("large", "", "weight", values, range(200), range(190), limits=(0, 1))
    markup = page.grid_html(grid)
    assert len(markup) < 400_000
    assert "data:image/png" in markup
    assert markup.count("<text") < 120


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (12, 12)])
def test_maps_of_any_shape_and_maps_without_a_value(shape: tuple[int, int]) -> None:
    rows, columns = (tuple(map(str, range(n))) for n in shape)
    markup = page.grid_html(Grid("g", "", "u", np.full(shape, np.nan), rows, columns))
    assert f"{shape[0] * shape[1]} of {shape[0] * shape[1]} cells have no value" in markup
    assert "<svg" in page.grid_html(Grid("g", "", "u", np.zeros(shape), rows, columns))


@pytest.mark.parametrize("kind", ["line", "points", "bars"])
def test_curves_of_every_kind_with_gaps_and_on_logarithmic_axes(kind: str) -> None:
    rows = [
        {"x": 10.0**i, "y": None if i == 2 else 10.0 ** (2 * i), "u": 1.0, "g": g} for i in range(-2, 5) for g in ("a", STANDING)
    ]
    log = kind != "bars"
    curve = Curve("c", "", Table.of("t", "", rows), "x", ("y",), "u", kind=kind, group="g", log_x=log, log_y=log)  # type: ignore[arg-type]
    markup = page.grid_html(curve)
    assert "mathdefault" not in markup
    assert "NaN" not in markup
    assert "&lt;/script&gt;" in markup


def test_a_claim_says_its_verdict_in_words(html: str) -> None:
    assert re.search(r'<span class="verdict fails"><b aria-hidden="true">✗</b> fails</span>', html)


def test_claims_that_fail_stand_first_and_those_not_measured_are_folded() -> None:
    def judged(name: str, holds: bool) -> Claim:
        return Claim.judged(name, "s", name, expected="x", measured="y", holds=holds, model="m")

    written = short(
        claims=[
            judged("one", True),
            Claim.unmeasured("two", "s", "two", expected="x", model="m", why="w"),
            judged("three", False),
        ]
    )
    claims = written.html().partition("<h2>Claims</h2>")[2].partition("</section>")[0]
    assert re.findall(r"</span> (\w+)</p>", claims) == ["three", "one", "two"]
    assert re.search(r"<details>\s*<summary>1 not measured in this run</summary>", claims)
    assert "two" not in claims.partition("<details>")[0]


def test_a_figure_of_a_defined_measure_prints_its_definition() -> None:
    grid = Grid("first_argmax", "Heads.", "share of rows", np.zeros((2, 3)), range(2), range(3), limits=(0, 1))
    assert "Where weights tie, the lower key counts" in page.grid_html(grid)


def test_what_a_report_refuses() -> None:
    with pytest.raises(UnknownName, match=r"^no definition 'first_weigth'; nearest: first_weight"):
        sample(definitions=["first_weigth"])
    with pytest.raises(InterpError, match="has tables of one name: tokens"):
        sample(tables=[sample().tables[0]] * 2)
    with pytest.raises(InterpError, match="two different tables named 'by_position'"):
        sample(tables=[Table.of("by_position", "", [{"a": 1}])])
    with pytest.raises(InterpError, match="needs an analysis and a question"):
        sample(question=" ")


def test_two_reports_in_one_page_do_not_clash() -> None:
    one, two = sample()._repr_html_(), short(answer="Other.")._repr_html_()
    ids = [re.findall(r' id="([^"]+)"', part) for part in (one, two)]
    assert not set(ids[0]) & set(ids[1])
    assert ".csv" not in one  # a notebook has no files beside it
