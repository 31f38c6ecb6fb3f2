"""Row statistics of the embedded real model against published figures and against eager weights."""

from __future__ import annotations

import pytest
import torch

from interp.capturing.registry import implementation
from interp.models import Model
from interp.rows import measure


def drawn(length: int) -> torch.Tensor:
    return torch.randint(1000, 40000, (1, length), generator=torch.Generator().manual_seed(0))


def test_first_weight_of_512_random_ids(smollm2: Model) -> None:
    """NUMBERS: .40714 over all rows; and every head's figure is eager's."""
    ids = drawn(512)
    made = measure(smollm2, [ids[0]], "full")
    assert float(made.by_query("first_weight").mean()) == pytest.approx(0.40714, abs=1e-5)
    with torch.no_grad(), implementation(smollm2.module, "eager"):
        weights = smollm2.module(ids, use_cache=False, output_attentions=True).attentions
    for layer, square in enumerate(weights):
        first = square[0, :, :, 0].double()
        assert torch.allclose(made.by_query("first_weight")[layer].mean(-1), first.mean(-1), atol=1e-5, rtol=0)
        top = square[0].amax(-1)
        differ = (first >= top) != (made.by_query("first_argmax")[layer] > 0.5)
        ties = (first - top.double()).abs() < 1e-6
        second = square[0].topk(2, -1).values
        ties |= (second[..., 0] - second[..., 1]) < 1e-5
        assert not bool((differ & ~ties).any())
        assert torch.allclose(made.by_query("largest")[layer], top.double(), atol=1e-4)


def test_first_weight_of_2048_random_ids(smollm2: Model) -> None:
    """NUMBERS: .34835 over all rows, with no square of 2,048 tokens anywhere."""
    made = measure(smollm2, [drawn(2048)[0]])
    assert float(made.by_query("first_weight").mean()) == pytest.approx(0.34835, abs=1e-5)
