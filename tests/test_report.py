"""A report as a folder and as a page: hostile text everywhere, same bytes, nothing half-written, nothing asked of the network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from interp.errors import InterpError, UnknownName
from interp.report import Report, folder, from_csv, page
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


@pytest.fixture(scope="module")
def html() -> str:
    return sample().html()


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
    assert shown == [*TOKENS[:6], "a␀b", "⟨U+202E⟩abc", *TOKENS[8:12], "↵"]


def test_the_figures_hold_the_tokens_as_text(html: str) -> None:
    figure = html[html.index("<svg") : html.index("</svg>")]
    assert "&lt;/script&gt;&lt;b x=" in figure
    assert "$x_2^3$" in figure  # no mathematics made of a token
    assert "\x00" not in html
    assert "\u202e" not in html


def test_nothing_invisible_is_left_anywhere_in_the_page() -> None:
    hidden = "a\u202eb\u200bc\x1bd"
    written = sample(model=hidden, analysis=f"x{hidden}", provenance={hidden: hidden}, command=hidden).html()
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


def test_written_files(tmp_path: Path) -> None:
    report = sample()
    index = report.write(tmp_path / "r")
    assert index == tmp_path / "r" / "index.html"
    assert sorted(os.listdir(tmp_path)) == ["r"]
    assert sorted(os.listdir(tmp_path / "r")) == [
        "by_position.csv",
        "claims.csv",
        "index.html",
        "pattern.csv",
        "summary.json",
        "tokens.csv",
    ]
    assert from_csv(tmp_path / "r" / "tokens.csv")[STANDING].tolist() == TOKENS
    assert len(from_csv(tmp_path / "r" / "pattern.csv")) == len(TOKENS) ** 2
    source = (tmp_path / "r" / "summary.json").read_text(encoding="utf-8")
    summary = json.loads(source, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert sorted(summary) == list(summary) == ["analysis", "answer", "model", "numbers", "provenance", "question"]
    assert summary["numbers"] == {"count": 12345, "deep": {"x": 0.25}, "first_weight": 0.5, "missing": None, STANDING: STANDING}
    assert "/home/somebody" not in source + index.read_text(encoding="utf-8")


def test_same_input_same_bytes_under_any_locale_and_settings(tmp_path: Path) -> None:
    sample().write(tmp_path / "a")
    code = (
        "import importlib.util, sys, matplotlib; matplotlib.rcParams.update({'font.size': 22, 'svg.fonttype': 'path'})\n"
        "spec = importlib.util.spec_from_file_location('t', sys.argv[1]); t = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(t); t.sample().write(sys.argv[2])"
    )
    plain = {
        "PYTHONCOERCECLOCALE": "0",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "7",
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code, __file__, str(tmp_path / "b")], env=plain, check=True, cwd=tmp_path
    )
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_a_failure_leaves_the_old_report_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample().write(tmp_path / "r")
    before = {file.name: file.read_bytes() for file in (tmp_path / "r").iterdir()}
    put = folder._put

    def failing(path: Path, text: str) -> None:
        if path.name == "index.html":
            raise OSError(28, "No space left on device")
        put(path, text)

    monkeypatch.setattr(folder, "_put", failing)
    with pytest.raises(InterpError, match=r"^cannot write the report to .*: No space left on device; give --out"):
        sample(answer="Other.").write(tmp_path / "r")
    assert {file.name: file.read_bytes() for file in (tmp_path / "r").iterdir()} == before
    assert os.listdir(tmp_path) == ["r"]


def test_a_failed_rename_puts_the_old_report_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample().write(tmp_path / "r")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".new"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(KeyboardInterrupt):
        sample(answer="Other.").write(tmp_path / "r")
    assert os.listdir(tmp_path) == ["r"]
    assert "Half of it." in (tmp_path / "r" / "summary.json").read_text(encoding="utf-8")


def test_a_new_report_replaces_the_old_one_whole(tmp_path: Path) -> None:
    sample().write(tmp_path / "r")
    sample(claims=[]).write(tmp_path / "r")
    assert not (tmp_path / "r" / "claims.csv").exists()


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InterpError, match="holds something else than a report; give --out an empty or a new folder$"):
        sample().write(tmp_path)
    (tmp_path / "empty").mkdir()
    assert sample().write(tmp_path / "empty").is_file()


def test_reports_in_the_default_place_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sample(model="toy").write() == Path("reports/sinks-toy/index.html")
    sample(analysis="ratio_rule", model="/data/gpt2-tiny").write()
    (tmp_path / "reports" / "broken").mkdir()
    (tmp_path / "reports" / "broken" / "summary.json").write_text("{", encoding="utf-8")
    index = folder.write_index(Path("reports")).read_text(encoding="utf-8")
    links = [value for _, name, value in Page(index).attributes if name == "href" and value.endswith("index.html")]
    assert links == ["ratio-rule-gpt2-tiny/index.html", "sinks-toy/index.html"]
    assert Page(index).tags.count("b") == 0
    assert sorted(os.listdir("reports")) == ["broken", "index.html", "ratio-rule-gpt2-tiny", "sinks-toy"]


def test_long_tables_show_their_first_rows_and_say_so(tmp_path: Path) -> None:
    table = Table("many", "Rows.", pd.DataFrame({"n": range(1000)}))
    written = sample(tables=[table]).write(tmp_path / "r").read_text(encoding="utf-8")
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
    one, two = sample()._repr_html_(), sample(answer="Other.")._repr_html_()
    ids = [re.findall(r' id="([^"]+)"', part) for part in (one, two)]
    assert not set(ids[0]) & set(ids[1])
    assert ".csv" not in one  # a notebook has no files beside it


@pytest.mark.browser
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """Dark and light, wide and narrow, without network: no error, no request, no sideways scrolling; tables sort by mouse and key."""
    browsers = pytest.importorskip("playwright.sync_api")
    chromium = next(
        filter(Path.exists, map(Path, ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"))), None
    )
    index = sample().write(tmp_path / "r")
    both = tmp_path / "both.html"
    both.write_text(f"<meta charset=utf-8>{sample()._repr_html_()}{sample(answer='Other.')._repr_html_()}", encoding="utf-8")
    with browsers.sync_playwright() as play:
        try:
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        except browsers.Error as missing:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no Chromium here: {str(missing).splitlines()[0]}")
        said: list[str] = []
        for scheme, width in (("light", 1400), ("dark", 400)):
            tab = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True).new_page()
            tab.on("console", lambda message: said.append(message.text))
            tab.on("pageerror", lambda error: said.append(str(error)))
            tab.on(
                "request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else None
            )
            for place, tables in ((index, 1), (both, 2)):
                tab.goto(place.as_uri())
                assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
                assert tab.locator("th button").count() == 3 * tables
            last = tab.locator("table").last
            last.get_by_role("button", name="weight").focus()
            tab.keyboard.press("Enter")
            tab.keyboard.press("Enter")
            assert last.locator("th").last.get_attribute("aria-sort") == "ascending"
            assert last.locator("tbody tr").first.locator("td").first.inner_text() == str(len(TOKENS) - 1)
        browser.close()
    assert said == []
