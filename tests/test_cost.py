"""Ways to compute attention: exact ones equal, approximations right where they must be; what they cost; and the analysis. No time is asserted."""

from __future__ import annotations

import pytest
import torch

from analyses import _recurrence, cost
from interp import attention, growth, ways
from interp.errors import InterpError


def drawn(heads=3, n=149, d=16, size=1.0):
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(heads, n, d, generator=generator) * size for _ in range(3))


def test_three_exact_ways_agree():
    q, k, v = drawn()
    expected = attention.attend(attention.weights(attention.scores(q, k), attention.visible(149)), v)
    for way in (ways.full, ways.fused, ways.row_blocks):
        assert torch.allclose(way(q, k, v), expected, atol=1e-5)
    assert torch.allclose(ways.row_blocks(q, k, v, block=7), expected, atol=1e-5)


@pytest.mark.parametrize(("width", "first"), [(1, 0), (11, 0), (11, 3), (400, 0), (5, 400)])
def test_a_window_is_attention_under_that_mask(width, first):
    q, k, v = drawn()
    seen = attention.visible(149, window=width) | (attention.visible(149) & (torch.arange(149) < first))
    expected = attention.attend(attention.weights(attention.scores(q, k), seen), v)
    assert torch.allclose(ways.window(q, k, v, width, first, block=32), expected, atol=1e-5)
    assert ways.work(149, 16, "window", width, first) == int(seen.sum()) * 32


def test_random_features_are_causal_and_right_on_average():
    q, k, v = drawn(size=0.6)
    exact = ways.full(q, k, v)
    errors = [float((ways.random_features(q, k, v, m, block=32) - exact).norm() / exact.norm()) for m in (16, 256, 4096)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.12
    later = v.clone()
    later[:, 100:] = 9
    assert torch.equal(
        ways.random_features(q, k, v, 64, block=32)[:, :100], ways.random_features(q, k, later, 64, block=32)[:, :100]
    )


def test_counts():
    assert ways.work(1024, 64, "fused") == 524_800 * 128
    assert ways.head_parameters(512, 8) == ways.head_parameters(512, 1) == 4 * 512**2
    assert ways.counted_work(48, 3, 10) == ways.counted_work(48, 1, 10) == 4 * 10 * 48 * 48 + 2 * 10 * 10 * 48
    with pytest.raises(InterpError, match="a window needs 1 key or more"):
        ways.window(*drawn(), 0)
    with pytest.raises(InterpError, match="at least 1 random feature"):
        ways.random_features(*drawn(), 0)


def test_peak_memory_sees_what_is_held_at_once():
    def held():
        one = torch.ones(1000, 100)
        return one.sum()

    assert 400_000 <= growth.peak_bytes(held) < 410_000
    with pytest.raises(InterpError, match="an exponent needs two sizes"):
        growth.exponent([3], [1])
    assert growth.exponent([10, 100, 1000], [5, 50, 500]) == pytest.approx(1)


def test_a_gradient_decays_along_a_recurrent_net_and_not_in_attention():
    decay = _recurrence.gradients(reach=39, networks=2).frame.set_index("distance")
    assert decay["recurrent"][38] < 1e-3
    assert decay["recurrent"].is_monotonic_decreasing
    assert decay["attention"].between(0.3, 3).all()


@pytest.fixture(scope="module")
def report(smollm2):
    return cost.run(smollm2, sizes=(256, 512, 1024), repeats=1, max_tokens=128, lengths=(4, 12), updates=90)


def test_claims_and_chapter_numbers(report):
    assert {claim.id for claim in report.claims if claim.verdict != "holds"} == set()
    chapter = next(table.frame for table in report.tables if table.name == "chapter")
    assert chapter["agrees"].all()
    assert dict(zip(chapter["chapter"], chapter["here"], strict=True)) == {"524800": 524800, "196": 196, "91": 91, "64": 64}
    assert report.numbers["memory_exponent_full"] == pytest.approx(2, abs=0.05)
    assert report.numbers["memory_exponent_fused"] < 1.5
    assert report.numbers["largest_difference"] < 1e-5


def test_a_few_first_tokens_mend_a_window_on_a_model_that_rests_on_them(report):
    numbers = report.numbers
    assert numbers["window_64_error_with_first_4"] < numbers["window_64_error"] / 2
    table = next(table.frame for table in report.tables if table.name == "approximations")
    assert (table["saving"] == 1 - table["work"]).all()


def test_one_size_shows_no_growth():
    with pytest.raises(InterpError, match="growth needs two sizes"):
        cost.run("toy", sizes=(64,))
