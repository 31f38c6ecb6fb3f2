"""Why scores are divided: the closed form of the slope against autograd, random products, and the analysis."""

from __future__ import annotations

import math

import pytest
import torch

from analyses import scaling
from interp.errors import InterpError
from interp.measures import saturation


def test_the_slope_is_the_size_of_the_derivative_that_autograd_finds():
    scores = torch.tensor([[0.3, -1.0, 2.0, 0.0, 1.1], [30.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    weights = scores.softmax(-1)
    for row, expected in zip(scores, saturation.slope(weights), strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row)
        assert float(jacobian.norm()) == pytest.approx(float(expected), abs=1e-12)
    assert float(saturation.slope(weights)[1]) < 1e-12


def test_the_variance_is_the_width_and_one_after_division():
    for width in (4, 64, 1024):
        products = saturation.random_products(768, 13, width, seed=1)
        assert products.shape == (768, 13)
        assert float(products.var()) / width == pytest.approx(1, abs=0.08)
    reading = saturation.reading(products / math.sqrt(1024))
    assert reading["variance"] == pytest.approx(1, abs=0.08)
    assert reading["saturated"] == 0
    assert saturation.reading(products)["saturated"] > 0.6


@pytest.fixture(scope="module")
def report():
    return scaling.run("toy", widths=(4, 64, 1024), rows=512)


def test_claims_and_chapter_numbers(report):
    verdicts = {claim.id: claim.verdict for claim in report.claims}
    # 64 components: many rows are saturated, not most. The chapter overstates, and the ledger says so.
    assert verdicts.pop("scaling-saturates-64") == "fails"
    assert set(verdicts.values()) == {"holds"}
    chapter = next(table.frame for table in report.tables if table.name == "chapter")
    assert chapter["agrees"].all()
    assert chapter["chapter"].tolist() == ["64", "2", "8"]
    widths = next(table.frame for table in report.tables if table.name == "widths")
    assert (widths["slope_scaled"] > 0.25).all()
    assert widths["slope_unscaled"].is_monotonic_decreasing


def test_the_toys_own_scores_are_undone_by_its_divisor(report):
    heads = next(table.frame for table in report.tables if table.name == "heads")
    assert heads["scale"].tolist() == [0.5]
    assert float(heads["variance_unscaled"].iloc[0]) == pytest.approx(4 * float(heads["variance_scaled"].iloc[0]), rel=1e-5)


def test_too_little_is_refused():
    with pytest.raises(InterpError, match="keys 1; give 2 or more"):
        scaling.run("toy", keys=1)
