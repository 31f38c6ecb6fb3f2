"""The colour-recall run: the chapter's course, its row at wear, the slower run, and what other starts learn."""

from __future__ import annotations

import pytest
import torch

from analyses import _starts, colour_recall
from interp.errors import InterpError
from interp.measures import lookup
from interp.models import toy

COLUMNS = [
    "update", "weight_on_colour", "largest_other_weight", "p_colour", "predicted", "training_loss", "validation_loss", "validation_correct",
]  # fmt: skip


@pytest.fixture(scope="module")
def report():
    return colour_recall.run(seeds=0, slow_updates=400)


def table(report, name):
    return next(table for table in report.tables if table.name == name).frame


def test_every_update_is_kept_and_the_course_is_the_chapters(report):
    frame = table(report, "training")
    assert list(frame.columns) == COLUMNS
    assert frame["update"].tolist() == list(range(201))
    assert frame["weight_on_colour"][10] < 0.099 < frame["largest_other_weight"][10]
    assert frame["weight_on_colour"][30] > 0.5
    for update in (50, 200):
        line = frame.iloc[update]
        assert [f"{line[name]:.3f}" for name in COLUMNS[1:4]] == ["1.000", "0.000", "1.000"]
        assert (line["predicted"], f"{line['training_loss']:.3f}", f"{line['validation_loss']:.3f}") == ("red", "0.000", "0.000")
        assert line["validation_correct"] == 3
    assert frame["validation_correct"][0] == 0
    beside = table(report, "chapter_training")
    assert len(beside) == 35
    assert beside.loc[beside["update"] == 30, "chapter"].tolist() == ["0.717", "0.085", "0.580", "red", "0.607", "0.641", "3"]


def test_every_claim_of_the_chapter_is_judged_and_the_default_start_meets_it(report):
    """The chapter's own run leaves every other word nothing to three decimals; so does the default start."""
    assert [claim.id for claim in report.claims if claim.verdict != "holds"] == []
    assert {"recall-off", "recall-most", "recall-distance", "recall-slow", "recall-weight-red", "recall-adds-black"} <= {
        claim.id for claim in report.claims
    }
    frame = table(report, "chapter").set_index("id")
    assert frame.loc["recall-weight-black", "here"] == pytest.approx(1, abs=5e-4)
    assert frame["agrees"].all()


def test_the_row_at_wear_adds_up_to_the_logits(report):
    frame = table(report, "wear")
    assert len(frame) == 20
    module = toy.train().module().requires_grad_(False)
    red = frame[frame["prefix"].str.contains("red")]
    ids = torch.tensor([toy.WordTokenizer().encode(red["prefix"].iloc[0])])
    for colour in toy.COLOURS:
        place = toy.WORDS.index(colour)
        total = red[f"adds_{colour}"].sum() + float(module.b_U[place])
        assert total == pytest.approx(float(module(ids)[0, -1, place]), abs=1e-3)
    assert red.loc[red["weight"].idxmax(), ["position", "token"]].tolist() == [5, "red"]


def test_distance_21_the_slow_run_and_the_matrices(report):
    held = table(report, "validation")
    assert held["wear_at"].tolist() == [21] * 3
    assert (held["predicted_after"] == held["target"]).all()
    assert (held["predicted_before"] != held["target"]).all()
    assert len(table(report, "training_slow")) == 401
    assert report.numbers["slow_first_update_above_half"] > 3 * report.numbers["first_update_above_half"]
    grids = {grid.name: grid for grid in report.grids}
    assert grids["w_k_before"].values.shape == grids["w_k_after"].values.shape == (8, 4)
    assert grids["w_k_before"].limits == grids["w_k_after"].limits
    assert len(grids) == 10


def test_starts_that_look_up_two_colours_or_tell_two_apart_are_told_from_the_rest():
    starts = [_starts._start(course) for course in toy.courses([1, 0, 54])]
    assert [line["learned"] for line in starts] == [
        "looks up all three colours", "looks up the others, says red where it finds none", "cannot tell red from black",
    ]  # fmt: skip
    assert [line["validation_correct"] for line in starts] == [3, 3, 2]
    assert starts[1]["without_a_colour"] == starts[1]["not_looked_up"] == "red"
    assert starts[1]["weight_red"] < 0.01 < 0.99 < starts[1]["weight_blue"]
    made = _starts.Table.of("seeds", "three", starts)
    shares = _starts.shares(made)
    third = pytest.approx(1 / 3)
    assert [shares[f"share_{name}"] for name in ("3_of_3", "on_colour", "by_absence", "unsolved")] == [2 / 3, third, third, third]
    assert _starts.summary(made).frame["starts"].sum() == 3


def test_what_positions_add_sums_to_the_context_through_the_output_matrix():
    weights, values, out = torch.rand(5), torch.rand(5, 3), torch.rand(3, 7)
    torch.testing.assert_close(lookup.added(weights, values, out).sum(0), weights @ values @ out)


def test_the_sweep_joins_the_report_and_bad_counts_are_refused():
    report = colour_recall.run(updates=3, slow_updates=2, seeds=2)
    assert report.numbers["starts"] == len(table(report, "seeds")) == 2
    assert "Of 2 starts" in report.answer
    with pytest.raises(InterpError, match="seeds -1 and slow_updates 1000: give 0 or more starts"):
        colour_recall.run(seeds=-1)
