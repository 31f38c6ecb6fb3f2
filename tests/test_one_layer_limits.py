"""What one layer cannot do, on the toy; what positions, a second layer and several heads make learnable."""

from __future__ import annotations

import pytest

from analyses import _tasks, one_layer_limits


@pytest.fixture(scope="module")
def report():
    return one_layer_limits.run(starts=2, updates=150)


def table(report, name):
    return next(table for table in report.tables if table.name == name).frame


def test_swapped_colours_leave_everything_as_it_was(report):
    frame = table(report, "swap")
    assert frame["score"].tolist() == pytest.approx(frame["score_swapped"].tolist(), abs=1e-4)
    assert frame["weight"].tolist() == pytest.approx(frame["weight_swapped"].tolist(), abs=1e-6)
    red = frame[frame["token"] == "red"].iloc[0]
    assert (red["position"], red["position_swapped"]) == (5, 11)
    assert report.numbers["swap_prediction_difference"] < 1e-5


def test_other_words_do_change_it():
    _, numbers = one_layer_limits._swap(
        ("The team colour is red. So the players wear", "The team colour is blue. So the players wear")
    )
    assert numbers["swap_prediction_difference"] > 0.5


def test_two_subjects_get_the_same_relative_weight(report):
    frame = table(report, "subjects")
    assert frame["blue_to_red"][0] == pytest.approx(frame["blue_to_red"][1], abs=1e-5)
    assert frame["weight_blue"][0] != frame["weight_red"][0]


def test_positions_and_a_second_layer_make_the_tasks_learnable(report):
    best = table(report, "trained").groupby("shape")["training_correct"].max()
    assert best["one layer, positions"] == best["two layers, 4 heads"] == 1
    assert best["one layer, no positions"] <= 0.7
    assert best["one layer, 4 heads"] < 1
    assert [claim.id for claim in report.claims if claim.verdict != "holds"] == []
    assert len(table(report, "trained")) == 12


def test_captures_show_how(report):
    assert [(len(made.layers), made.n_heads) for made in report.captures] == [(1, 1), (2, 1), (2, 1), (2, 4)]
    recent = table(report, "looks").query("model == 'one layer, positions' and query_token == 'wear'").iloc[0]
    assert recent["key_token"] == "blue"


def test_the_tasks_ask_what_they_say():
    who, recent = _tasks.who(), _tasks.recent()
    by_text = {example.text: example.target for example in who}
    assert by_text["The teams wear blue. The referees wear red. So the players wear"] == "blue"
    assert by_text["The referees wear red. The teams wear blue. So the officials wear"] == "red"
    assert all(example.text.rsplit(".", 1)[0].endswith(example.target) for example in recent)
    assert (sum(example.held for example in who), sum(example.held for example in recent)) == (16, 20)
