"""The doors: text into pages, data into scripts, tables into CSV files and back."""

from __future__ import annotations

import csv
import io
import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import InterpError
from interp.report import from_csv, text
from interp.report.table_file import to_csv

STANDING = "</script><b x=\"'&"
HOSTILE = [
    STANDING, "hello", "world", "entrar<!--#exec", "cmd", '"ls', "-->", "<|endoftext|>", "a<b<c", "x<script>alert('xss');</script>",
    " the", "Ġthe", "🤗", "漢字", "", " ", "\n", "a\tb", "\r\n", "\x00", "\u202eabc", "zero\u200bwidth", "=1+1", "+1", "-1", "@x",
    "'tis", "''", "NA", "null", "nan", "007", "1e5", "True", "a,b", '"', "\ufeffbom", "＝1", "{{ 7*7 }}", "$x^2$", "&amp;", "]]>",
]  # fmt: skip
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


class Contents(HTMLParser):
    """Text and tags of a page, as a browser sees them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.tags: list[str] = []
        self.comments = 0
        self.feed(source)
        self.close()

    def handle_data(self, data: str) -> None:
        self.seen.append(data)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        self.comments += 1


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\n", "↵"), ("\t", "⇥"), ("\r", "␍"), ("\x00", "␀"), ("\x1b", "␛"), ("\x7f", "␡"), ("\x85", "⟨U+0085⟩"), ("\u200b", "⟨U+200B⟩"),
        ("\u202e", "⟨U+202E⟩"), ("\u2028", "⟨U+2028⟩"), ("\ufeff", "⟨U+FEFF⟩"), ("\ud83e", "⟨U+D83E⟩"), ("\uffff", "⟨U+FFFF⟩"),
        ("\u3164", "⟨U+3164⟩"), ("\U000e0041", "⟨U+E0041⟩"), ("é漢🤗 ½", "é漢🤗 ½"), ("👍🏽❤️", "👍🏽❤️"),
    ],
)  # fmt: skip
def test_what_cannot_be_seen_has_a_visible_form(raw: str, shown: str) -> None:
    assert text.visible(raw) == shown


@pytest.mark.parametrize("token", HOSTILE)
def test_a_token_in_a_page_stays_text(token: str) -> None:
    page = Contents(f'<td title="{text.html(token)}">{text.cell(token)}</td>')
    assert set(page.tags) <= {"td", "span"}
    assert page.comments == 0
    assert "".join(page.seen) == text.visible(token)


@given(anything)
@settings(max_examples=60, deadline=None)
def test_any_text_in_a_page_stays_text(token: str) -> None:
    page = Contents(f"<td>{text.html(token)}</td>")
    assert page.tags == ["td"]
    assert "".join(page.seen) == text.visible(token)


def test_prose_sets_names_as_code_and_nothing_else() -> None:
    assert text.prose("the\n  `first_weight` of `<b>`") == "the <code>first_weight</code> of `&lt;b&gt;`"


def test_prose_sets_powers_of_e() -> None:
    assert text.prose("e^Δ, e^1.06 and e^-2. Not the^2 or e^<b>") == (
        "e<sup>Δ</sup>, e<sup>1.06</sup> and e<sup>-2</sup>. Not the^2 or e^&lt;b&gt;"
    )


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        ([0.5, 1.0, 1.25], ["0.50", "1.00", "1.25"]), ([1.0, 2.0], ["1", "2"]), ([0.5, -1 / 3], ["0.5000", "−0.3333"]), ([3, 4], ["3", "4"]),
        ([0.5, math.nan, -2.0], ["0.5", "–", "−2.0"]), ([True, 0.5], ["yes", "0.5"]), ([20000.5, 1.0], ["2e4", "1"]),
        ([1 / 7, 1.0, 5.15e-5], ["0.1429", "1.0000", "5.15e−5"]), ([31 / 3, 1023.4567], ["10.3", "1023.5"]),
        ([1 / 7, 5.0, 0.0], ["0.1429", "5", "0.0000"]), ([2e-7, 1e-8], ["2e−7", "1e−8"]),
    ],
)  # fmt: skip
def test_numbers_of_a_column_share_their_decimals(column: list[float], shown: list[str]) -> None:
    assert list(map(text.numbers(column), column)) == shown


@pytest.mark.parametrize("token", HOSTILE)
def test_data_in_a_script_cannot_end_it(token: str) -> None:
    written = text.script_data({token: [token]})
    assert not set(written) & set("<>&\u2028\u2029")
    assert json.loads(written) == {token: [token]}


def test_json_holds_null_for_what_is_not_finite() -> None:
    data = {"b": np.float32("nan"), "a": [math.inf, -math.inf, 1.5, np.int64(3), True, None], "c": np.array([[0.0, -np.inf]])}
    written = text.to_json(data)
    assert written == '{"a": [null, null, 1.5, 3, true, null], "b": null, "c": [[0.0, null]]}'
    json.loads(written, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_json_holds_no_absolute_path_and_no_unknown_object() -> None:
    assert text.plain({"at": Path("/home/me/model"), "in": Path("data/x.txt")}) == {"at": "model", "in": "data/x.txt"}
    with pytest.raises(InterpError, match=r"^a report holds numbers, text, lists and mappings; got a object$"):
        text.plain({"x": object()})


@pytest.mark.parametrize(
    ("model", "slug"),
    [
        ("gpt2", "gpt2"), ("HuggingFaceTB/SmolLM2-135M", "huggingfacetb-smollm2-135m"), ("/data/my models/GPT 2/", "gpt-2"),
        ("../../etc", "etc"), ("..", "model"), ("", "model"), (STANDING, "script-b-x"), ("C:\\models\\x", "x"), ("../x/y", "y"),
        ("=cmd|' /C calc'!A0", "cmd-c-calc-a0"), ("\u202egpt2\x00", "gpt2"), ("漢字", "model"), ("a\nb\t", "a-b"), ("x" * 300, "x" * 80),
    ],
)  # fmt: skip
def test_a_model_name_becomes_one_safe_folder_name(model: str, slug: str) -> None:
    assert text.slug(model) == slug


def test_labels_of_figures_are_cut_by_width() -> None:
    assert text.label("漢字漢字漢字", 7) == "漢字漢…"
    assert text.label(" a ") == "·a·"
    assert text.width("漢a🤗é") == 6


def test_csv_gives_back_every_hostile_token(tmp_path: Path) -> None:
    frame = pd.DataFrame({"token": HOSTILE, STANDING: HOSTILE[::-1], "=head": range(len(HOSTILE))})
    path = tmp_path / "t.csv"
    path.write_bytes(to_csv(frame).encode())
    back = from_csv(path)
    assert list(back.columns) == list(frame.columns)
    assert back["token"].tolist() == HOSTILE
    assert back[STANDING].tolist() == HOSTILE[::-1]
    assert back["=head"].tolist() == list(range(len(HOSTILE)))


def test_no_cell_of_a_csv_is_a_formula() -> None:
    written = to_csv(pd.DataFrame({"=head": HOSTILE}))
    for row in csv.reader(io.StringIO(written, newline="")):
        assert row[0] == "-1" or not row[0].startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝"))


def test_csv_numbers_are_never_touched() -> None:
    numbers = {
        "x": [-0.1, 1e-300, 1 / 3, math.nan, math.inf, -math.inf, -0.0],
        "n": [-3, 0, 2**60, 1, 2, 3, 4],
        "yes": [True, False] * 3 + [True],
    }
    frame = pd.DataFrame(numbers)
    assert to_csv(frame).splitlines()[1] == "-0.1,-3,True"
    pd.testing.assert_frame_equal(from_csv(to_csv(frame)), frame)
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(to_csv(frame))), frame)


def test_csv_is_read_by_pandas_and_by_the_csv_module_as_documented() -> None:
    tokens = [token for token in HOSTILE if "\x00" not in token]
    written = to_csv(
        pd.DataFrame({"token": tokens, "first_weight": [0.5, math.nan] * (len(tokens) // 2) + [0.1] * (len(tokens) % 2)})
    )
    read = pd.read_csv(
        io.StringIO(written, newline=""), keep_default_na=False, na_values={"first_weight": [""]}, dtype={"token": str}
    )
    guard = r"^'(?=[=+\-@'\t\r\n＝＋－＠])"
    assert read["token"].str.replace(guard, "", regex=True).tolist() == tokens
    assert read["first_weight"].isna().sum() == len(tokens) // 2
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert [
        row[0].removeprefix("'") if row[0][:2] in ("'=", "'+", "'-", "'@", "''", "'\n", "'\t", "'\r", "'＝") else row[0]
        for row in rows[1:]
    ] == tokens


@given(
    st.lists(
        st.tuples(anything, st.one_of(st.floats(), st.integers(-(2**53), 2**53), anything, st.booleans(), st.none())),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=80, deadline=None)
def test_csv_gives_back_anything(rows: list[tuple[str, object]]) -> None:
    frame = pd.DataFrame({"a": [row[0] for row in rows], "b": pd.Series([row[1] for row in rows], dtype=object)})
    back = from_csv(to_csv(frame))
    assert back["a"].tolist() == frame["a"].tolist()
    for got, wanted in zip(back["b"].tolist(), frame["b"].tolist(), strict=True):
        missing = wanted is None or (isinstance(wanted, float) and math.isnan(wanted))
        assert math.isnan(got) if missing else got == wanted


def test_a_broken_csv_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    with pytest.raises(InterpError, match=r"^row 3 of the CSV has 1 cells, its head 2$"):
        from_csv("a,b\n1,2\n3\n")
    with pytest.raises(InterpError, match="a quote inside a cell is not closed"):
        from_csv('a\n"x\n')
    with pytest.raises(InterpError, match="the CSV is empty"):
        from_csv(tmp_path / "empty.csv")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.59491, "0.5949"), (3, "3"), (0.0, "0"), (1234567, "1,234,567"), (9999, "9999"), (12345.678, "1.23e4"), (-2e-9, "−2e−9"),
     (math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "–"), (True, "yes"), (1234.5, "1234"), (99.999999, "100.0")],
)  # fmt: skip
def test_numbers_as_the_eye_reads_them(value: float, shown: str) -> None:
    assert text.number(value) == shown
