"""trace() and edit(): names resolved first, functions by head, nested use, nothing left behind."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from tiny import IDS, tiny

import interp

ROW = torch.tensor([IDS])


@pytest.fixture(scope="module")
def model():
    made = tiny("llama")
    made.bridge  # noqa: B018 - built once for all tests here
    return made


def hooks_on(model):
    return sum(len(point.fwd_hooks) + len(point._forward_hooks) for point in model.bridge.hook_dict.values())


def logits(model):
    with torch.no_grad():
        return model.bridge(ROW)


def test_trace_keeps_what_a_capture_holds(model):
    made = interp.capture(model, list(IDS))
    with interp.trace(model, ["blocks.*.attn.hook_pattern", "1.2"]) as seen:
        logits(model)
    assert list(seen) == ["blocks.0.attn.hook_pattern", "blocks.1.attn.hook_pattern", "1.2"]
    for layer in range(2):
        torch.testing.assert_close(seen[f"blocks.{layer}.attn.hook_pattern"][0], made.weights[layer], atol=1e-6, rtol=0)
    torch.testing.assert_close(seen["1.2"][0], made.z[1, 2], atol=1e-5, rtol=0)


def test_an_edit_changes_one_head_and_only_inside_the_block(model):
    before = logits(model)
    with interp.edit(model, {"1.2": torch.zeros_like}), interp.trace(model, ["blocks.1.attn.hook_z"]) as seen:
        inside = logits(model)
    z = seen["blocks.1.attn.hook_z"][0]
    assert not z[:, 2].any()
    assert z[:, 1].any()
    assert not torch.allclose(inside, before, atol=1e-4)
    assert torch.equal(logits(model), before)


def test_a_head_of_the_square_is_edited_on_its_own_axis(model):
    with interp.edit(model, {"0.1:hook_pattern": torch.zeros_like}), interp.trace(model, "blocks.0.attn.hook_z") as seen:
        logits(model)
    z = seen["blocks.0.attn.hook_z"][0]
    assert not z[:, 1].any()
    assert z[:, 0].any()


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("blocks.0.atn.hook_q", r"no hook in tiny-llama: 'blocks.0.atn.hook_q'; nearest: blocks.0.attn.hook_q"),
        ("blocks.*.attn.hook_nothing", r"no hook in tiny-llama: 'blocks.\*.attn.hook_nothing'; nearest: "),
        ("9.9", r"no head 9.9 in tiny-llama: layers run from 0 to 1, heads from 0 to 5"),
        (["0.1", "blocks.7.hook_z"], r"no hook in tiny-llama: 'blocks.7.hook_z'"),
    ],
)
def test_a_typo_fails_before_anything_is_placed(model, names, reason):
    before = hooks_on(model)
    listed = [names] if isinstance(names, str) else names
    with pytest.raises(interp.InterpError, match=reason), interp.trace(model, names):
        raise AssertionError("the block must not run")
    with pytest.raises(interp.InterpError, match=reason), interp.edit(model, dict.fromkeys(listed, torch.zeros_like)):
        raise AssertionError("the block must not run")
    assert hooks_on(model) == before


def test_an_edit_of_another_shape_is_refused_by_name(model):
    reason = r"the edit of 1.2 returned \(1, 11\), expected \(1, 11, 10\)"
    with pytest.raises(interp.InterpError, match=reason), interp.edit(model, {"1.2": lambda z: z[..., 0]}):
        logits(model)
    with pytest.raises(interp.InterpError, match="this point has 3 heads"), interp.edit(model, {"1.5:hook_v": torch.zeros_like}):
        logits(model)
    assert hooks_on(model) == 0


def fails_inside(model):
    with interp.trace(model, "blocks.*.attn.hook_z"), interp.edit(model, {"0.1": torch.zeros_like}):
        logits(model)
        raise RuntimeError("planted")


def test_nothing_is_left_behind_nested_and_after_an_error_C27(model):
    calls = []
    point = model.bridge.hook_dict["blocks.0.attn.hook_z"]
    own = point.add_hook(lambda tensor, hook: calls.append(1))
    before = logits(model)
    own_hooks = hooks_on(model)
    with pytest.raises(RuntimeError, match="planted"):
        fails_inside(model)
    assert hooks_on(model) == own_hooks
    fired = len(calls)
    assert torch.equal(logits(model), before)
    assert len(calls) == fired + 1  # the person's own hook, once
    interp.capture(model, list(IDS), route="hooks")
    assert hooks_on(model) == own_hooks
    own.hook.remove()
    point.fwd_hooks.clear()
    assert hooks_on(model) == 0


def test_an_edit_may_write_into_what_it_gets(model):
    before = logits(model)

    def writing(z):
        z[:, 0] = 0
        return z

    with interp.edit(model, {"blocks.1.attn.hook_z": writing}):
        logits(model)
    assert torch.equal(logits(model), before)


def test_a_capture_does_not_see_another_face_s_edit_but_its_own_route_does(model):
    """The registry reads the module itself; hooks read the bridge, edits and all, and then the proof refuses."""
    whole = interp.capture(model, list(IDS))
    with interp.edit(model, {"0.1:hook_pattern": lambda w: w * 2}):
        assert torch.equal(interp.capture(model, list(IDS)).weights, whole.weights)
        with pytest.raises(interp.InterpError, match="not what the model computed"):
            interp.capture(model, list(IDS), route="hooks")


def test_the_toy_has_the_same_names(toy):
    ids = toy.tokens("The team colour is red. So the players wear").ids[None]
    with interp.trace(toy, ["0.0", "blocks.0.attn.hook_pattern"]) as seen:
        toy.bridge(ids)
    assert seen["0.0"].shape == (1, ids.shape[1], 8)
    assert seen["blocks.0.attn.hook_pattern"].sum(-1).allclose(torch.ones(1))


def test_an_edit_that_is_no_function_is_refused_before_the_forward(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it: the checker of types would speak first
    with pytest.raises(interp.InterpError, match="the edit of 0.0 is 3; give a function of a tensor"):
        interp.edit(tiny("gpt2"), {"0.0": 3}).__enter__()
