"""Each check of a capture on a planted fault: it alone names what is wrong, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import IDS, tiny

import interp
from interp.capturing import checks
from interp.capturing.checks import excluded_rows, left_out, logits_check, prove, ratio_rule
from interp.errors import NotFaithful

LAYER, HEAD, ROW = 1, 2, 6


@pytest.fixture(scope="module")
def honest():
    return interp.capture(tiny("mistral"), list(IDS))


def planted(capture, name, change):
    """The capture with one tensor changed by `change` (in place, on a copy)."""
    tensor = getattr(capture, name).clone()
    change(tensor)
    return replace(capture, **{name: tensor})


def failing(capture):
    return {check.name: check for check in (*checks(capture), ratio_rule(capture)) if not check.passed}


def double(weights):
    weights[LAYER, HEAD, ROW, ROW] *= 2


def negative(weights):
    weights[LAYER, HEAD, ROW, ROW] = -0.25


def later(weights):
    weights[LAYER, HEAD, ROW, ROW + 1] = 1e-6


def behind_the_window(weights):
    weights[LAYER, HEAD, ROW, 0] = 1e-6


def scaled(tensor):
    tensor[LAYER, HEAD, ROW] *= 1.5


def infinite(scores):
    scores[LAYER, HEAD, ROW, ROW] = torch.inf


FAULTS = [
    ("weights", double, {"rows sum to 1", "softmax(scores) = weights", "weights · v = z", "ratio rule"}),
    ("weights", negative, {"weights are not negative", "rows sum to 1", "softmax(scores) = weights", "weights · v = z"}),
    ("weights", later, {"nothing above the diagonal", "no weight on unseen keys"}),
    ("weights", behind_the_window, {"no weight on unseen keys"}),
    ("scores", scaled, {"scale · q·k = scores", "softmax(scores) = weights", "ratio rule"}),
    ("scores", infinite, {"scores are finite", "scale · q·k = scores", "softmax(scores) = weights"}),
    ("q", scaled, {"scale · q·k = scores"}),
    ("z", scaled, {"weights · v = z"}),
]


@pytest.mark.parametrize(("name", "change", "expected"), FAULTS, ids=[fault[1].__name__ + "-" + fault[0] for fault in FAULTS])
def test_a_planted_fault_is_named_with_its_place(honest, name, change, expected):
    assert not failing(honest)
    found = failing(planted(honest, name, change))
    assert set(found) == expected
    for check in found.values():
        assert (check.layer, check.head) == (LAYER, HEAD)
        assert check.row in (None, ROW)  # the ratio rule speaks of a head
    with pytest.raises(NotFaithful, match=rf"at {LAYER}\.{HEAD} row {ROW}"):
        prove(planted(honest, name, change))


def test_a_doubled_weight_breaks_the_ratio_rule_by_log_2(honest):
    top = int(honest.weights[LAYER, HEAD, ROW].argmax())

    def change(weights):
        weights[LAYER, HEAD, ROW, top] *= 2

    found = failing(planted(honest, "weights", change))["ratio rule"]
    assert found.worst == pytest.approx(0.6931472, abs=1e-5)


def test_a_skipped_scale_is_seen_though_every_row_is_a_softmax(honest):
    raw = honest.scores / torch.tensor(honest.scale)[:, None, None, None]
    again = replace(honest, weights=interp.attention.weights(raw, honest.visible[:, None].expand(raw.shape)))
    assert set(failing(again)) == {"softmax(scores) = weights", "weights · v = z", "ratio rule"}


def test_weights_normalised_twice_fail_C15():
    scores = torch.tensor([[2.0, 0.0]])
    once = interp.attention.weights(scores)
    assert once[0].tolist() == pytest.approx([0.8808, 0.1192], abs=5e-5)
    twice = interp.attention.weights(once)
    assert twice[0].tolist() == pytest.approx([0.6817, 0.3183], abs=5e-5)
    square = torch.stack([torch.zeros(2), scores[0]])[None, None]
    wrong = torch.stack([torch.full((2,), 0.5), twice[0]])[None, None]
    made = interp.Capture(("a", "b"), (0,), scores=square, weights=wrong, visible=torch.ones(1, 2, 2, dtype=torch.bool))
    assert failing(made)["ratio rule"].worst == pytest.approx(2 - 0.7616, abs=1e-4)
    assert "softmax(scores) = weights" in failing(made)


def test_a_bias_is_part_of_the_product_check():
    made = interp.capture(tiny("bloom"), list(IDS))
    assert made.bias is not None
    assert not failing(made)
    assert "scale · q·k = scores" in failing(replace(made, bias=None))
    assert "scale · q·k = scores" in failing(planted(made, "bias", scaled))


def test_a_soft_cap_is_part_of_the_product_check():
    made = interp.capture(tiny("gemma2"), list(IDS))
    assert made.softcap == (2.0, 2.0)
    assert "scale · q·k = scores" in failing(replace(made, softcap=None))


def test_learned_sinks_leave_mass_missing_and_the_rule_holds():
    made = interp.capture(tiny("gpt_oss"), list(IDS))
    assert not failing(made)
    assert float(made.weights.sum(-1).max()) < 1
    assert {"rows sum to 1", "softmax(scores) = weights"} <= set(failing(replace(made, sinks=None)))
    assert "ratio rule" not in failing(replace(made, sinks=None))

    def too_much(weights):
        weights[LAYER, HEAD, ROW, : ROW + 1] += 1

    assert "rows sum to at most 1 (learned sinks)" in failing(planted(made, "weights", too_much))


def test_changed_logits_fail_with_their_row():
    plain = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    moved = plain.clone()
    moved[3, 2] += 1
    check = logits_check(moved, plain, torch.float32)
    assert not check.passed
    assert check.row == 3
    assert logits_check(plain, plain, torch.float32).passed
    assert not logits_check(moved.fill_(torch.nan), plain, torch.float32).passed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_holds_its_own_tolerance_and_not_float32s_C11(dtype):
    model = tiny("llama")
    model.module.to(dtype)
    made = interp.capture(model, list(IDS))
    assert made.weights.dtype == torch.float32
    assert not failing(made)
    strict = replace(made, provenance={**made.provenance, "dtype": "float32"})
    assert {"softmax(scores) = weights", "ratio rule"} <= set(failing(strict))


def test_rows_that_are_not_finite_in_the_model_are_named_left_out_and_counted():
    model = tiny("gpt2")
    with torch.no_grad():
        model.module.transformer.h[LAYER].attn.c_attn.bias[HEAD * model.d_head] = torch.nan  # the query of one head
    made = interp.capture(model, list(IDS[:7]))
    assert made.provenance["left_out"] == {"not_finite": 7, "first": [f"{LAYER}.{HEAD} row {row}" for row in range(7)]}
    assert torch.equal(excluded_rows(made).nonzero()[:, :2].unique(dim=0), torch.tensor([[LAYER, HEAD]]))
    assert made.weights[LAYER, HEAD].isnan().all()  # kept as they are, never repaired


def test_overflow_in_half_precision_is_left_out_and_counted_C9():
    model = tiny("gpt2")
    with torch.no_grad():
        model.module.transformer.h[0].attn.c_attn.weight.mul_(300)
    model.module.to(torch.float16)
    made = interp.capture(model, list(IDS[:7]))
    assert made.provenance["left_out"]["not_finite"] > 0
    assert made.provenance["left_out"]["first"][0].startswith("0.")


def test_nothing_is_left_out_of_an_ordinary_capture(honest):
    assert left_out(honest) == {}
    assert "left_out" not in honest.provenance


def test_rows_without_a_visible_key_are_left_out_and_counted_C10(honest):
    seen = honest.visible.clone()
    seen[0, 0] = False
    weights = honest.weights.clone()
    weights[0, :, 0] = 1 / honest.n_tokens  # what transformers' eager attention makes of such a row
    made = replace(honest, visible=seen, weights=weights)
    assert left_out(made)["no_visible_key"] == honest.n_heads
    assert not {"rows sum to 1", "no weight on unseen keys", "nothing above the diagonal"} & set(failing(made))
