"""interp audit: passes on what is faithful, and names the check that a patched model fails."""

from __future__ import annotations

import json
from types import MethodType

import pytest
import torch
from tiny import IDS, tiny
from transformers.models.llama import modeling_llama

from interp import cli
from interp.capturing.audit import audit
from interp.capturing.state import snapshot
from interp.corpus import Text

TEXT = [Text(" ".join(map(str, IDS)), "eleven ids", "here:1")]


def audited(model):
    return audit(model, TEXT)


@pytest.mark.parametrize("name", ["toy", "nano_gpt_sort", "stories260k"])
def test_the_command_holds_on(name, shared, capsys):
    place = name if name == "toy" else str(shared / "models" / name)
    assert cli.call(cli.app, ["audit", "--model", place, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert len(found["checks"]) >= 18
    assert all(isinstance(check["worst"], float) and check["passed"] for check in found["checks"])
    if name != "toy":
        assert found["routes"] == ["registry", "operations", "hooks"]
        agree = next(check for check in found["checks"] if check["check"] == "routes agree")
        assert agree["worst"] <= 1e-5


def test_the_table_prints_each_check_with_its_figure():
    found = audited(tiny("llama"))
    table = found.table()
    assert found.passed
    for line in found.lines:
        assert f"{line.check.name} " in table
        assert f"{line.check.worst:.3g}" in table
    assert table.splitlines()[-1] == f"all {len(found.lines)} checks hold"


EAGER = modeling_llama.eager_attention_forward


def doubling(module, query, key, value, mask, *args, **options):
    z, weights = EAGER(module, query, key, value, mask, *args, **options)
    weights = weights.clone()
    weights[:, 2, 6:7, 3:4] *= 2
    return z, weights


def unmasked(module, query, key, value, mask, *args, **options):
    return EAGER(module, query, key, value, None, *args, **options)


def unscaled(module, query, key, value, mask, scaling, **options):
    return EAGER(module, query, key, value, mask, scaling=1.0, **options)


def dropping(module, query, key, value, mask, *args, **options):
    z, weights = EAGER(module, query, key, value, mask, *args, **options)
    weights = torch.nn.functional.dropout(weights, 0.5, training=True)
    values = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return (weights @ values).transpose(1, 2), weights


PATCHES = [
    (doubling, {"softmax(scores) = weights", "rows sum to 1", "ratio rule"}),
    (unmasked, {"nothing above the diagonal", "no weight on unseen keys", "logits are those of a plain forward"}),
    (unscaled, {"softmax(scores) = weights", "ratio rule", "logits are those of a plain forward"}),
    (dropping, {"rows sum to 1", "a repeat gives the same bits", "softmax(scores) = weights"}),
]


@pytest.mark.parametrize(("patch", "named"), PATCHES, ids=[patch.__name__ for patch, _ in PATCHES])
def test_a_patched_attention_is_named_with_its_place(monkeypatch, patch, named):
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", patch)
    found = audited(tiny("llama"))
    assert named <= set(found.failed)
    if patch is doubling:
        worst = next(line.check for line in found.lines if line.check.name == "rows sum to 1")
        assert (worst.head, worst.row) == (2, 6)
        assert "FAILED" in found.table()


def test_the_command_exits_with_1_and_names_the_check(monkeypatch, shared, capsys):
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", doubling)
    place = str(shared / "models" / "stories260k")
    assert cli.call(cli.app, ["audit", "--model", place, "--max-tokens", "9"]) == 1
    assert "FAILED: rows sum to 1, softmax(scores) = weights" in capsys.readouterr().out


def test_a_model_that_is_not_causal_any_more_is_named():
    """The mask is dropped from the whole model, plain forward and all: its own logits tell."""
    model = tiny("llama")
    for layer in model.module.model.layers:
        own = layer.self_attn.forward

        def forward(self, *args, own=own, **options):
            hidden = args[0] if args else options["hidden_states"]
            n = hidden.shape[1]
            return own(*args, **{**options, "attention_mask": torch.ones(1, 1, n, n, dtype=torch.bool)})

        layer.self_attn.forward = MethodType(forward, layer.self_attn)
    assert {"earlier logits blind to later tokens", "the mask shows no later token"} <= set(audited(model).failed)


def test_a_changed_scale_of_the_module_is_named():
    model = tiny("llama")
    model.module.model.layers[1].self_attn.scaling = 1.0
    found = audited(model)
    line = next(line for line in found.lines if line.check.name == "attention settings are the configuration's")
    assert not line.check.passed
    assert line.check.layer == 1
    assert "layers.1.self_attn.scaling is 1.0" in line.note


def test_dropout_that_cannot_be_switched_off_is_named():
    model = tiny("gpt2", attn_pdrop=0.5)
    model.module.train()
    model.module.eval = lambda: model.module  # dropout stays on
    assert {"evaluation mode while captured", "a repeat gives the same bits", "rows sum to 1"} <= set(audited(model).failed)


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("double", "softmax(scores) = weights"),
        ("mask", "nothing above the diagonal"),
        ("scale", "scale · q·k = scores"),
        ("dropout", "a repeat gives the same bits"),
    ],
)
def test_a_patched_toy_is_named(fault, named):
    from interp.models.names import load

    model = load("toy")
    attn = model.module.blocks[0].attn
    if fault == "double":
        attn.hook_pattern.add_hook(lambda tensor, hook: tensor * torch.where(torch.arange(tensor.shape[-1]) == 0, 2.0, 1.0))
    if fault == "mask":
        attn.causal = False
    if fault == "scale":
        attn.hook_attn_scores.add_hook(lambda tensor, hook: tensor * 2.0)
    if fault == "dropout":
        attn.hook_pattern.add_hook(lambda tensor, hook: torch.nn.functional.dropout(tensor, 0.5, training=True))
    found = audit(model, ["The team colour is red. So the players wear"])
    assert named in found.failed


def test_a_hook_left_behind_and_a_changed_mode_are_named(monkeypatch):
    from interp.capturing import audit as module

    model = tiny("llama")
    real = module.record

    def leaky(model, *args):
        model.module.model.layers[1].register_forward_hook(lambda *_: None)
        model.module.model.layers[1].training = True
        return real(model, *args)

    monkeypatch.setattr(module, "record", leaky)
    found = audited(model)
    assert "hooks, mode and weights as before" in found.failed
    line = next(line for line in found.lines if line.check.name == "hooks, mode and weights as before")
    assert line.check.layer == 1


def test_a_weight_written_in_place_is_named(monkeypatch):
    from interp.capturing import audit as module

    model = tiny("llama")
    real = module.record

    def writing(model, *args):
        with torch.no_grad():
            model.module.model.layers[0].self_attn.q_proj.weight.mul_(1.0)
        return real(model, *args)

    monkeypatch.setattr(module, "record", writing)
    assert "hooks, mode and weights as before" in audited(model).failed


def test_what_an_error_leaves_behind_is_named(monkeypatch):
    from interp.capturing import state

    model = tiny("llama")
    real = state.record

    def careless(model, *args):
        handle = model.module.register_forward_pre_hook(lambda *_: None)
        made = real(model, *args)
        handle.remove()
        return made

    monkeypatch.setattr(state, "record", careless)
    assert audited(model).failed == ("the same after an error inside",)


def test_a_person_own_hooks_and_train_mode_survive_an_audit_C27_C12():
    model = tiny("gpt2", attn_pdrop=0.5)
    model.module.train()
    fired = []
    model.module.transformer.h[1].register_forward_hook(lambda *_: fired.append(1))
    before = snapshot(model)
    assert audited(model).passed
    assert fired
    assert snapshot(model).items() >= before.items()
    assert model.module.training
    assert model.module.transformer.h[0].attn.attn_dropout.training


def test_routes_that_do_not_fit_are_named_with_their_words():
    found = audited(tiny("opt"))
    assert found.passed
    assert "hooks" not in found.routes
    assert any(note.startswith("hooks: ") and "after softmax" in note for note in found.notes)


def test_half_precision_holds_by_its_own_tolerance():
    model = tiny("llama")
    model.module.to(torch.bfloat16)
    found = audited(model)
    assert found.passed
    assert next(line.check.tolerance for line in found.lines if line.check.name == "weights · v = z") == 8e-3


def test_what_cannot_be_captured_is_bad_input(capsys):
    assert cli.call(cli.app, ["audit", "--model", "no/such/folder/here"]) == 2
    assert capsys.readouterr().err.startswith("interp: no folder")
