"""The causal mask: the chapter's digits, the toy's rows, and what leaks without it."""

from __future__ import annotations

import pytest
import torch

from analyses import causal_mask
from interp import capture
from interp.errors import InterpError


@pytest.fixture(scope="module")
def report():
    return causal_mask.run()


def table(report, name):
    return next(table for table in report.tables if table.name == name).frame


def test_the_wear_row_to_the_printed_digits_and_a_zero_masks_nothing(report):
    frame = table(report, "wear_row").set_index("mask")
    assert [f"{weight:.3f}" for weight in frame.loc["without"]] == ["0.107", "0.107", "0.787"]
    assert frame.loc["with"].tolist() == [0.5, 0.5, 0.0]
    assert frame.loc["score 0 in its place"].tolist() == pytest.approx([1 / 3] * 3)
    assert table(report, "mask").iloc[1].tolist() == ["wear", "0", "0", "−∞"]
    chapter = table(report, "chapter")
    assert chapter["agrees"].all()
    assert chapter["chapter"].tolist() == ["0.107", "0.107", "0.787", "0.5", "0.5", "0"]


def test_every_claim_holds(report):
    assert [claim.id for claim in report.claims if claim.verdict != "holds"] == []
    assert len(report.claims) == 14


def test_the_toys_rows_and_shapes(report):
    shapes = table(report, "shapes").set_index("matrix")["here"].to_dict()
    assert shapes == {"X": "10 × 8", "Q": "10 × 4", "K": "10 × 4", "V": "10 × 8", "S": "10 × 10", "A": "10 × 10", "Z": "10 × 8"}
    rows = table(report, "rows")
    assert len(rows) == 100
    sums = rows.groupby("query")[["weight_unmasked", "weight"]].sum()
    assert sums.to_numpy().ravel().tolist() == pytest.approx([1.0] * 20, abs=1e-5)
    assert (rows.loc[~rows["visible"], "weight"] == 0).all()
    last = rows[rows["query"] == 9]
    assert last["weight"].tolist() == pytest.approx(last["weight_unmasked"].tolist(), abs=1e-6)
    assert report.numbers["other_rows_change"] > 0.1


def test_without_the_mask_the_answer_leaks(report):
    numbers = report.numbers
    assert numbers["without_mask"] < 0.02 < numbers["least_loss_from_prefixes"]
    assert numbers["least_loss_from_prefixes"] <= numbers["with_mask"] < numbers["least_loss_from_prefixes"] + 0.02
    assert numbers["without_mask_on_prefixes"] > 3 * numbers["with_mask"]
    open_ = report.captures[2]
    assert open_.visible.all()
    assert float(open_.weights[0, 0].triu(1).sum()) > 1
    assert not report.captures[1].weights[0, 0].triu(1).any()


def test_the_least_loss_is_worked_by_hand():
    """After 1 stand 2 or 3, evenly; after (1, 2) always 4: log 2 twice in four places."""
    assert causal_mask._floor([[1, 2, 4], [1, 3, 4]]) == pytest.approx(torch.tensor(2.0).log().item() / 2)


def test_padding_and_each_prefix_alone(report):
    padding = table(report, "padding")
    assert (padding["on_padding"] == 0).all()
    assert (padding["on_padding_large_negative"] == 0).all()
    assert padding["row_change"].max() < 1e-6
    at_once = table(report, "at_once")
    assert at_once["target"].tolist() == ["team", "colour", "is", "red", ".", "So", "the", "players", "wear", "red"]
    assert at_once["p_target"].tolist() == pytest.approx(at_once["p_target_from_prefix_alone"].tolist(), abs=1e-4)


def test_other_scores_and_too_few(toy):
    other = causal_mask._by_hand(torch.ones(3)).frame
    assert other.iloc[0, 1:].tolist() == pytest.approx([1 / 3] * 3)
    with pytest.raises(InterpError, match="three scores are needed, against players, wear and red; got 2"):
        causal_mask.run((0.0, 1.0))
    assert capture(toy, causal_mask.PREFIX).n_tokens == 10
