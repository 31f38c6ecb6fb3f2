"""Sinks and the ratio rule on cases worked by hand, each with a control that must fail."""

from __future__ import annotations

import math

import pytest
import torch

from interp import attention
from interp.errors import InterpError
from interp.measures import ratio, sinks

A = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]])[None, None]
CAUSAL = torch.ones(1, 3, 3).tril().bool()


def test_importance_is_the_column_mean_of_gu_et_al_C14() -> None:
    made = [float(sinks.importance(A, CAUSAL, key)) for key in range(3)]
    assert made == pytest.approx([1.7 / 3, 0.4, 0.5], abs=1e-7)


def test_is_sink_is_strict() -> None:
    assert sinks.is_sink(torch.tensor([0.3, 0.30001], dtype=torch.float64)).tolist() == [False, True]


def test_uniform_attention_is_a_sink_up_to_nine_tokens() -> None:
    shares = {T: float(sinks.uniform_importance(torch.ones(1, T, T).tril().bool())) for T in range(1, 12)}
    assert all(shares[T] > 0.3 for T in range(1, 10))
    assert shares[10] < 0.3
    assert shares[4] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_first_token_measures_by_hand() -> None:
    rows, left = sinks.counted_rows(A, CAUSAL, from_query=1)
    assert rows.tolist() == [[[False, True, True]]]
    assert (left.before_from_query, left.total) == (1, 0)
    assert float(sinks.over_rows(sinks.first_weight(A), rows)) == pytest.approx(0.35)
    assert float(sinks.over_rows(sinks.first_argmax(A), rows)) == 0.5  # the tie of row 1 goes to key 0, row 2 to key 2
    assert float(sinks.over_rows(sinks.first_majority(A), rows)) == 0.0  # exactly ½ is no majority


def test_rows_that_cannot_see_the_first_key_are_left_out_and_counted_C13() -> None:
    visible = attention.visible(6, window=3)[None]
    weights = attention.weights(torch.zeros(1, 2, 6, 6), visible[:, None])
    rows, left = sinks.counted_rows(weights, visible, from_query=0)
    assert rows[0, 0].tolist() == [False, True, True, False, False, False]
    assert (left.key_0_not_visible, left.single_key) == (2 * 3, 2 * 1)
    assert float(sinks.importance(weights, visible)[0, 0]) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_a_nan_row_is_counted_and_not_averaged() -> None:
    broken = A.clone()
    broken[0, 0, 2, 1] = torch.nan
    rows, left = sinks.counted_rows(broken, CAUSAL, from_query=1)
    assert left.not_finite == 1
    assert float(sinks.over_rows(sinks.first_weight(broken), rows)) == pytest.approx(0.5)


def test_negative_weights_are_refused() -> None:
    with pytest.raises(InterpError, match="weights below 0 are no attention weights"):
        sinks.counted_rows(-A, CAUSAL)


def test_top_keys_find_a_sink_that_is_not_on_key_0_C16() -> None:
    scores = torch.zeros(1, 2, 8, 8)
    scores[..., 3] = 6.0
    visible = attention.visible(8)[None]
    keys, _ = sinks.top_keys(attention.weights(scores, visible[:, None]), visible)
    assert int(keys[0]) == 3


@pytest.fixture
def square() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 7, 7, generator=generator) * 3
    visible = attention.visible(7).expand(2, -1, -1)
    return scores, attention.weights(scores, visible[:, None]), visible


def test_the_rule_holds_to_rounding_and_counts_its_pairs(square) -> None:
    made = ratio.residuals(*square)
    assert float(made.max.max()) < 1e-5
    assert made.pairs.unique().tolist() == [sum(range(7))]  # row i has i pairs against its largest
    assert made.single_key_rows.unique().tolist() == [1]


def test_a_doubled_weight_leaves_a_residual_of_log_2(square) -> None:
    scores, weights, visible = square
    broken = weights.clone()
    row = broken[1, 2, 6]
    smallest = int(row.argmin())
    row[smallest] *= 2
    made = ratio.residuals(scores, broken, visible)
    assert float(made.max[1, 2]) == pytest.approx(math.log(2), abs=1e-5)
    assert float(made.max.max()) > ratio.tolerance(scores, visible)
    assert float(made.max[0].max()) < 1e-5


def test_softmax_taken_twice_fails_the_rule_C15() -> None:
    scores, visible = torch.tensor([2.0, 0.0]).expand(1, 1, 2, 2).clone(), torch.ones(1, 2, 2).bool()
    once = attention.weights(scores)
    assert once[0, 0, 0].tolist() == pytest.approx([0.8808, 0.1192], abs=1e-4)
    twice = attention.weights(once)
    assert twice[0, 0, 0].tolist() == pytest.approx([0.6817, 0.3183], abs=1e-4)
    assert float(ratio.residuals(scores, twice, visible).max.max()) == pytest.approx(2 - 0.7616, abs=1e-4)


def test_weights_that_underflow_are_excluded_and_counted_C11() -> None:
    scores = torch.tensor([0.0, -200.0, -1.0]).expand(1, 1, 3, 3)
    visible = torch.ones(1, 3, 3).bool()
    made = ratio.residuals(scores, attention.weights(scores), visible)
    assert (int(made.underflow), int(made.pairs)) == (3, 3)
    assert float(made.max.max()) < 1e-6


def test_leads_are_the_gap_of_the_two_largest_visible_scores() -> None:
    scores = torch.tensor([[9.0, 9, 9], [1, 4, 9], [5, 2, 4.5]])[None, None]
    delta, has_two = ratio.leads(scores, CAUSAL)
    assert delta[0, 0].tolist() == [0.0, 3.0, 0.5]
    assert has_two[0, 0].tolist() == [False, True, True]


@pytest.mark.parametrize("delta", [-8.0, -0.5, 0.0, 0.5, 8.0, 200.0])
def test_shifted_is_softmax_with_one_score_raised(delta: float) -> None:
    scores = torch.tensor([[0.3, -1.2, 2.0]], dtype=torch.float64)
    before = attention.weights(scores)[0, 1]
    scores[0, 1] += delta
    assert float(ratio.shifted(before, delta)) == pytest.approx(float(attention.weights(scores)[0, 1]), rel=1e-12)
