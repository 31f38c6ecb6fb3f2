"""The analysis `sinks` against figures worked by hand, published figures, a recording by others, and transformers' own eager weights."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from analyses import opening, sinks
from interp.capturing import Capture, capture, read
from interp.errors import InterpError
from interp.measures import spread
from interp.measures.bootstrap import interval
from interp.measures.first_token import Totals, tally
from interp.models import load

MARY = "When Mary and John went to the store, John gave a drink to"
COLUMNS = {
    "heads": "layer head kv_head rows first_weight first_argmax first_majority importance sink_rate uniform_first_weight",
    "positions": "query texts rows first_weight first_weight_low first_weight_high first_argmax first_argmax_low first_argmax_high "
    "uniform_first_weight",
    "texts": "text tokens first_token_id first_token first_weight first_argmax sink_rate",
}


def planted(first: float, tokens: int = 7, name: str = "planted") -> Capture:
    """Two layers of three heads. Head 1.2 puts `first` on key 0 and the rest on itself; all others look at themselves alone."""
    weights = torch.eye(tokens).repeat(2, 3, 1, 1)
    weights[1, 2, 1:, 0] = first
    weights[1, 2, range(1, tokens), range(1, tokens)] = 1 - first
    visible = torch.ones(2, tokens, tokens, dtype=torch.bool).tril()
    return Capture(
        tuple("abcdefg"[:tokens]), (4, 9), torch.arange(tokens), weights=weights, visible=visible, provenance={"model": name}
    )


def test_a_planted_sink_is_found_and_nothing_else(tmp_path):
    report = sinks.run(captures=[planted(0.75), planted(0.25, tokens=5)])
    # From the fourth token on: 4 rows of the first text and 2 of the second.
    heads = {table.name: table.frame for table in report.tables}["heads"].set_index(["layer", "head"])
    assert list(heads.index) == [(layer, head) for layer in (4, 9) for head in range(3)]
    sink = heads.loc[(9, 2)]
    assert sink["rows"] == 6
    assert sink["first_weight"] == pytest.approx((4 * 0.75 + 2 * 0.25) / 6)
    assert sink["first_argmax"] == sink["first_majority"] == pytest.approx(4 / 6)
    # Column 0 holds 1 + 6 · 0.75 of 7 rows, then 1 + 4 · 0.25 of 5 rows: above 0.3 both times.
    assert sink["importance"] == pytest.approx((5.5 / 7 + 2 / 5) / 2)
    assert sink["sink_rate"] == 1
    assert heads.drop(index=[(9, 2)])[["first_weight", "first_argmax", "sink_rate"]].to_numpy().max() == 0
    even = [1 / 4, 1 / 5, 1 / 6, 1 / 7, 1 / 4, 1 / 5]
    assert report.numbers["uniform_first_weight"] == pytest.approx(sum(even) / 6)
    assert report.numbers["first_weight"] == pytest.approx(sink["first_weight"] / 6)
    assert (report.numbers["rows"], report.numbers["texts"], report.numbers["tokens"]) == (36, 2, 12)
    assert "head 9.2 rests there most" in report.answer
    assert "2 of 2 texts have 9 tokens or fewer" in report.notes[0]


def test_files_and_columns(tmp_path):
    page = sinks.run(captures=[planted(0.75)]).write(tmp_path / "out")
    for name, columns in COLUMNS.items():
        assert list(pd.read_csv(page.parent / f"{name}.csv").columns) == columns.split()
    numbers = json.loads((page.parent / "summary.json").read_text())["numbers"]
    assert set(numbers) == {
        "first_weight", "first_argmax", "first_majority", "sink_rate", "epsilon", "from_query", "uniform_first_weight",
        "uniform_importance", "rows", "texts", "tokens",
    }  # fmt: skip
    positions = pd.read_csv(page.parent / "positions.csv")
    assert list(positions["query"]) == [1, 2, 3, 4, 5, 6]
    assert positions["first_weight"].to_list() == pytest.approx([0.75 / 6] * 6)


def test_sums_of_texts_do_not_depend_on_their_order():
    one, other = (tally(c.weights, c.visible) for c in (planted(0.7), planted(0.4, tokens=5)))
    forth, back = Totals(), Totals()
    for first, then, total in ((one, other, forth), (other, one, back)):
        total.add(first)
        total.add(then)
    assert forth.overall() == back.overall()
    for name, values in forth.queries().items():
        torch.testing.assert_close(values, back.queries()[name], rtol=0, atol=0, equal_nan=True)


def test_recordings_of_two_models_do_not_add_up():
    other = planted(0.5)
    with pytest.raises(InterpError, match="a text of 1 layers × 3 heads after 2 × 3; add texts of one model only"):
        sinks.run(
            captures=[
                planted(0.5),
                Capture(other.tokens, (4,), weights=other.weights[:1], visible=other.visible[:1], provenance={}),
            ]
        )


def test_texts_too_short_for_a_fourth_token():
    with pytest.raises(InterpError, match="no row to measure from the fourth token on: the longest text has 3 tokens"):
        sinks.run(captures=[planted(0.5, tokens=3)])


def test_the_opening_of_a_capture_is_the_capture_of_the_opening(toy):
    whole = capture(toy, "The team colour is red. So the players wear")
    cut, short = opening(whole, 4), capture(toy, "The team colour is")
    assert cut.tokens == short.tokens
    for name in ("ids", "q", "k", "v", "scores", "visible", "weights", "z"):
        assert torch.allclose(getattr(cut, name), getattr(short, name)), name
    assert opening(short, 4) is short


def test_smollm2_on_mary_and_john(smollm2):
    report = sinks.run(smollm2, [MARY], bos="none")
    assert report.numbers["first_argmax"] == pytest.approx(0.5949, abs=5e-5)
    assert report.numbers["first_weight"] == pytest.approx(0.5047, abs=5e-5)
    assert report.numbers["tokens"] == 14
    eager = _eager(smollm2, MARY)
    assert report.numbers["first_weight"] == pytest.approx(float(eager[:, :, 3:, 0].mean()), abs=1e-6)
    assert report.numbers["first_argmax"] == pytest.approx(float((eager[:, :, 3:].argmax(-1) == 0).double().mean()), abs=1e-9)
    heads = {table.name: table.frame for table in report.tables}["heads"]
    assert heads["first_weight"].to_list() == pytest.approx(eager[:, :, 3:, 0].mean(-1).flatten().tolist(), abs=1e-5)
    assert (heads["kv_head"] == heads["head"] // 3).all()


def _eager(model, text: str) -> torch.Tensor:
    """transformers' own weights [layer, head, query, key] of one text."""
    from interp.models.model import twin

    module = twin(model.module)
    module.set_attn_implementation("eager")
    with torch.no_grad():
        out = module(model.tokens(text, "none").ids[None], output_attentions=True)
    return torch.cat(out.attentions)


@pytest.mark.shared
def test_recorded_gpt2(shared):
    path = shared / "data" / "gpt2_explainer_0.safetensors"
    report = sinks.run(captures=[path])
    assert report.numbers["first_argmax"] == pytest.approx(0.8009, abs=5e-5)
    assert report.claims[0].verdict == "holds"
    recorded = read(path)
    late = recorded.weights[:, :, 3:]
    assert report.numbers["first_weight"] == pytest.approx(float(late[..., 0].mean()), abs=1e-6)
    assert report.model == "gpt2"


@pytest.mark.shared
def test_passages_of_a_real_model(shared):
    report = sinks.run(str(shared / "models" / "stories260k"), limit=2, max_tokens=64)
    assert report.numbers["tokens"] == 128
    assert report.numbers["rows"] == 2 * 61 * 40
    assert report.provenance["texts"] == 2
    assert len(report.provenance["ids_sha256"]) == 16
    assert len(report.provenance["ids"]["chat"]) == 64


def test_nothing_absolute_is_written(tmp_path):
    page = sinks.run(captures=[planted(0.75)]).write(tmp_path / "out")
    for file in page.parent.iterdir():
        assert str(tmp_path) not in file.read_text(encoding="utf-8")
        assert str(Path.home()) not in file.read_text(encoding="utf-8")


TALES = [
    "Once upon a time there was a little dog who liked to run.",
    "One day, the sun was very hot and Tom was sad because he lost his ball.",
    "Lily saw a big red car.",
]


def _frames(report) -> dict[str, pd.DataFrame]:
    return {table.name: table.frame for table in report.tables}


@pytest.mark.shared
@pytest.mark.parametrize("bos", ["keep", "none"])
def test_row_statistics_give_what_captures_give(shared, bos):
    model = load(str(shared / "models" / "stories260k"))
    by_rows = sinks.run(model, TALES, bos=bos)
    by_squares = sinks.run(captures=[capture(model, text, bos=bos) for text in TALES])
    for name, value in by_squares.numbers.items():
        assert by_rows.numbers[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    rows, squares = _frames(by_rows), _frames(by_squares)
    for name in ("heads", "positions", "texts", "lengths", "headline"):
        one, other = (frames[name].drop(columns=["text", "input"], errors="ignore") for frames in (rows, squares))
        pd.testing.assert_frame_equal(one, other, check_dtype=False, rtol=1e-5, atol=1e-6)


@pytest.mark.shared
def test_bos_models_and_controls_side_by_side(shared, tmp_path):
    place = shared / "models" / "stories260k"
    report = sinks.run(str(place), limit=3, bos=["add", "none"], protocol="gu", seed=1)
    headline = _frames(report)["headline"]
    assert list(headline["bos"].unique()) == ["add", "none"]
    assert list(headline["input"].unique()) == ["texts", "random", "repeated"]
    assert (headline["texts"] == 3).all()
    texts = _frames(report)["texts"]
    assert (texts["tokens"] == 64).all()
    assert set(texts.loc[texts["bos"] == "add", "first_token"]) == {"<s>"}
    curve = report.curves[0]
    assert curve.group == "case"
    assert len(curve.table.frame["case"].unique()) == 4
    repeated = sinks.run(str(place), limit=3, bos=["add", "none"], protocol="gu", seed=1)
    pd.testing.assert_frame_equal(headline, _frames(repeated)["headline"])
    two = sinks.run([str(place), str(place)], TALES, bos="none")
    assert len(_frames(two)["headline"]) == 8
    assert two.write(tmp_path / "out").is_file()


@pytest.mark.shared
def test_the_protocol_leaves_short_texts_out_and_counts_them(shared):
    model = load(str(shared / "models" / "stories260k"))
    long = " ".join(TALES * 4)
    report = sinks.run(model, [long, *TALES, long], protocol="gu")
    assert report.numbers["texts"] == 2
    assert any("3 texts of fewer than 64 tokens are left out" in note for note in report.notes)
    with pytest.raises(InterpError, match="none of 3 texts has 64 tokens, which --protocol gu needs"):
        sinks.run(model, TALES, protocol="gu")
    with pytest.raises(InterpError, match="--protocol gu fixes 64 tokens a text"):
        sinks.run(model, TALES, protocol="gu", max_tokens=32)
    with pytest.raises(InterpError, match="no protocol 'guu'; nearest: gu"):
        sinks.run(model, TALES, protocol="guu")


@pytest.mark.shared
def test_sink_tokens_and_positions(shared):
    frames = _frames(sinks.run(str(shared / "models" / "stories260k"), TALES))
    tokens, positions = frames["sink_tokens"], frames["sink_positions"]
    assert (tokens.loc[0, "place"], tokens.loc[0, "token"]) == ("first", "<s>")
    assert positions.loc[0, "position"] == 0
    assert positions.loc[0, "share_of_weight"] == pytest.approx(tokens.loc[0, "share_of_weight"])
    assert tokens["share_of_weight"].sum() <= 1 + 1e-9


@pytest.mark.shared
def test_a_run_is_taken_up_and_refuses_another(shared, tmp_path, monkeypatch):
    place = str(shared / "models" / "stories260k")
    whole = sinks.run(place, TALES, save=str(tmp_path / "kept"))
    again = sinks.run(place, TALES, save=str(tmp_path / "kept"), resume=True)
    assert dict(again.numbers) == dict(whole.numbers)
    with pytest.raises(InterpError, match="cannot be resumed: it has seed 0 against 3 now"):
        sinks.run(place, TALES, save=str(tmp_path / "kept"), resume=True, seed=3)
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path / "cache"))
    sinks.run(place, TALES)
    assert not list((tmp_path / "cache" / "rows").iterdir())


def test_curves_by_position_carry_an_interval_over_texts():
    report = sinks.run(captures=[planted(0.75), planted(0.25, tokens=5), planted(0.5, tokens=5)])
    places = {table.name: table.frame for table in report.tables}["positions"].set_index("query")
    # At query 4 the three texts have means of 0.75 / 6, 0.25 / 6, 0.5 / 6: deviation 0.25 / 6, and t of 2 degrees is 4.3027.
    half = 4.3027 * 0.25 / 6 / 3**0.5
    assert places.loc[4, "texts"] == 3
    assert places.loc[4, "first_weight_low"] == pytest.approx(max(0, 0.5 / 6 - half), abs=1e-5)
    assert places.loc[4, "first_weight_high"] == pytest.approx(0.5 / 6 + half, abs=1e-5)
    assert places.loc[6, "texts"] == 1
    assert places.loc[6, ["first_weight_low", "first_argmax_high"]].isna().all()
    curve = report.curves[0]
    assert curve.baseline == "uniform_first_weight"
    assert curve.bands["first_argmax"] == ("first_argmax_low", "first_argmax_high")


def test_an_interval_from_sums_is_the_bootstrap_s_for_many_texts():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(3, 40, (400,), generator=draw).double()
    sums = rows * torch.rand(400, generator=draw, dtype=torch.float64)
    low, high = interval(sums, rows, draws=4000)
    parts = (sums, rows, sums**2, sums * rows, rows**2, torch.ones(400, dtype=torch.float64))
    found = spread.interval(*(part.sum() for part in parts))
    assert [float(end) for end in found] == pytest.approx([low, high], abs=0.002)


def test_bootstrap_intervals_are_those_of_the_mean():
    ones = torch.cat([torch.ones(200), torch.zeros(200)])
    low, high = interval(ones, torch.ones(400), draws=4000)
    # The standard error of a share of one half of 400 is 0.025.
    assert low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.005)
    assert high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.005)
    assert all(torch.tensor(interval(torch.ones(1), torch.ones(1))).isnan())


@pytest.mark.shared
def test_recordings_name_the_same_sink_tokens_as_row_statistics(shared):
    """Two ways: columns of captured squares, and sums while the model runs."""
    model = load(str(shared / "models" / "stories260k"))
    rows = _frames(sinks.run(model, TALES))
    recorded = _frames(sinks.run(model, captures=[capture(model, text) for text in TALES]))
    for name in ("sink_tokens", "sink_positions"):
        order = "token_id" if name == "sink_tokens" else "position"
        one, other = (frames[name].head(5).sort_values(order).reset_index(drop=True) for frames in (rows, recorded))
        pd.testing.assert_frame_equal(one, other, check_dtype=False, rtol=1e-5, atol=1e-6)
