"""The maths by properties: any shape, mask, scale and dtype; against torch's own softmax and a sum written out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interp import attention
from interp.errors import InterpError
from interp.measures import ratio

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def problems(draw):
    """(q, k, scale, visible): any leading axes, sizes and dtype; a mask of any kind, also with rows that see nothing."""
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    n, m, d = draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.integers(1, 5))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    size = draw(st.sampled_from((0.0, 1e-3, 1.0, 8.0)))
    q, k = (torch.randn(*lead, count, d, generator=generator, dtype=torch.float64) * size for count in (n, m))
    scale = draw(st.sampled_from((None, 0.0, 1.0, -0.7, 1 / math.sqrt(d), 3.0)))
    kind = draw(st.sampled_from(("all", "causal", "window", "random")))
    if kind == "random":
        seen = torch.rand(*lead, n, m, generator=generator) < 0.6
    else:
        keys = max(n, m)
        seen = attention.visible(n, keys, causal=kind != "all", window=draw(st.integers(1, 4)) if kind == "window" else None)[
            :, -m:
        ]
    return q.to(dtype), k.to(dtype), scale, seen.expand(*lead, n, m)


@few
@given(problems())
def test_scores_are_the_products_written_out(problem):
    q, k, scale, _ = problem
    before = (q.clone(), k.clone())
    made = attention.scores(q.double(), k.double(), scale)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    by_hand = (q.double()[..., :, None, :] * k.double()[..., None, :, :]).sum(-1) * factor
    torch.testing.assert_close(made, by_hand, atol=1e-9, rtol=1e-9)
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])


@few
@given(problems(), st.sampled_from((0.5, 2.0, 30.0)))
def test_a_soft_cap_bounds_and_keeps_the_order(problem, cap):
    q, k, scale, _ = problem
    raw = attention.scores(q.double(), k.double(), scale)
    capped = attention.scores(q.double(), k.double(), scale, cap)
    assert float(capped.abs().max()) <= cap
    assert bool(((raw[..., :1] > raw) <= (capped[..., :1] >= capped)).all())


@few
@given(problems())
def test_weights_are_a_softmax_of_what_is_visible(problem):
    q, k, scale, seen = problem
    scores = attention.scores(q, k, scale)
    kept = scores.clone(), seen.clone()
    made = attention.weights(scores, seen, empty="zero")
    assert made.dtype == (torch.float64 if q.dtype == torch.float64 else torch.float32)
    assert torch.equal(scores, kept[0])
    assert torch.equal(seen, kept[1])
    assert bool((made >= 0).all())
    assert bool((made[~seen] == 0).all())
    rows = seen.any(-1)
    torch.testing.assert_close(made.sum(-1), rows.to(made.dtype), atol=1e-6, rtol=0)
    theirs = scores.to(made.dtype).masked_fill(~seen, -torch.inf).softmax(-1)
    torch.testing.assert_close(made[rows], theirs[rows], atol=1e-6, rtol=0)
    if not bool(rows.all()):
        with pytest.raises(InterpError, match="rows see no key"):
            attention.weights(scores, seen)


@few
@given(problems(), st.floats(-50, 50))
def test_a_constant_per_row_changes_no_weight(problem, constant):
    q, k, scale, seen = problem
    scores = attention.scores(q.double(), k.double(), scale)
    one, other = (attention.weights(each, seen, empty="zero") for each in (scores, scores + constant))
    torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


@few
@given(problems())
def test_the_ratio_rule_holds_for_any_pair(problem):
    q, k, scale, seen = problem
    scores = attention.scores(q.double(), k.double(), scale).reshape(1, -1, q.shape[-2], k.shape[-2])[:, :1]
    mask = seen.reshape(-1, *seen.shape[-2:])[:1]
    made = ratio.residuals(scores, attention.weights(scores, mask[:, None], empty="zero"), mask, torch.float64)
    assert float(made.max.max()) <= ratio.tolerance(scores, mask, torch.float64)


@few
@given(problems(), st.integers(1, 4))
def test_contexts_are_averages_of_visible_values(problem, width):
    q, k, scale, seen = problem
    weights = attention.weights(attention.scores(q.double(), k.double(), scale), seen, empty="zero")
    values = torch.randn(*k.shape[:-1], width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    made = attention.attend(weights, values)
    torch.testing.assert_close(made, (weights[..., None] * values[..., None, :, :]).sum(-2))
    rows = seen.any(-1)
    top = torch.where(seen[..., None], values[..., None, :, :], -torch.inf).amax(-2)
    assert bool((made[rows] <= top[rows] + 1e-9).all())
    # What nobody sees does not matter, be it as large as it may.
    hidden = ~seen.any(tuple(range(seen.ndim - 1))) if seen.ndim == 2 else torch.zeros(k.shape[-2], dtype=torch.bool)
    assert torch.equal(attention.attend(weights, values.masked_fill(hidden[:, None], 1e6)), made) or not hidden.any()


@few
@given(problems(), st.floats(-4, 4))
def test_a_learned_sink_takes_its_share(problem, logit):
    q, k, scale, seen = problem
    scores = attention.scores(q.double(), k.double(), scale)
    sink = torch.full(scores.shape[:-1], logit, dtype=torch.float64)
    made = attention.weights(scores, seen, sink=sink, empty="zero")
    wide = torch.cat([scores.masked_fill(~seen, -torch.inf), sink[..., None]], -1).softmax(-1)
    rows = seen.any(-1)
    torch.testing.assert_close(made[rows], wide[rows][..., :-1], atol=1e-9, rtol=0)


@few
@given(st.integers(1, 9), st.integers(0, 5), st.integers(1, 6), st.booleans())
def test_visible_by_its_definition(queries, more, window, causal):
    keys = queries + more
    made = attention.visible(queries, keys, causal=causal, window=window)
    for row in range(queries):
        place = row + more
        for key in range(keys):
            assert bool(made[row, key]) == ((key <= place or not causal) and abs(place - key) < window)


def test_large_negative_rows_keep_their_mask_C9():
    allowed = torch.tensor([-110208.0547, -110189.8125, -110206.5234, -110208.4531, -110192.6016, 0.0, 0.0, 0.0])
    seen = torch.tensor([True] * 5 + [False] * 3)
    made = attention.weights(allowed[None], seen[None])[0]
    assert made.tolist() == pytest.approx([1.1e-8, 0.9421, 5.2e-8, 7.6e-9, 0.0579, 0, 0, 0], abs=5e-5)
    low = torch.finfo(torch.float16).min
    half = attention.weights(torch.tensor([[-32.0, -64.0, low]], dtype=torch.float16), torch.tensor([[True, True, False]]))
    assert half[0].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)


def test_a_hidden_nan_or_infinity_reaches_no_weight():
    scores = torch.tensor([[1.0, math.nan, 2.0, math.inf]])
    seen = torch.tensor([[True, False, True, False]])
    assert attention.weights(scores, seen)[0].tolist() == pytest.approx([0.2689, 0, 0.7311, 0], abs=5e-5)
