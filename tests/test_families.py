"""Each family by hand against its own eager forward; routes against each other; the shipped table against a sample examined again."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from tiny import CASES, IDS, tiny

import interp
from interp import attention, families
from interp.capturing import checks
from interp.capturing.registry import implementation
from interp.families.examine import difference, examine
from interp.families.sweep import types

ROUTES = {  # what works where; the others refuse, and these are their words
    "registry": {"gpt_neo", "bloom", "falcon-alibi", "falcon-rotary", "falcon-multi-query"},
    "operations": {"gpt_oss"},
    "hooks": {
        "opt", "gpt_neo", "gptj", "bloom", "gpt_oss", "deepseek_v3", "falcon-alibi", "falcon-rotary", "falcon-multi-query",
        "gpt2-unscaled", "gpt_neox",
    },
}  # fmt: skip


@cache
def captured(case: str, route: str = "auto"):
    return interp.capture(tiny(case), list(IDS), route=route)


@pytest.mark.parametrize("case", CASES)
def test_capture_is_what_the_eager_forward_computed(case):
    made, model = captured(case), tiny(case)
    with torch.no_grad(), implementation(model.module, "eager"):
        out = model.module(torch.tensor(IDS)[None], use_cache=False, output_attentions=True)
    torch.testing.assert_close(made.weights, torch.stack([one[0] for one in out.attentions]), atol=1e-6, rtol=0)
    seen = made.visible[:, None]
    sink = None if made.sinks is None else made.sinks[:, :, None].expand(-1, -1, len(IDS))
    torch.testing.assert_close(attention.weights(made.scores, seen, sink=sink), made.weights, atol=1e-6, rtol=0)
    group = made.n_heads // made.n_kv_heads
    torch.testing.assert_close(made.weights @ made.v.repeat_interleave(group, 1), made.z, atol=1e-5, rtol=0)
    assert torch.isfinite(made.scores).all()
    assert float(made.scores.std()) > 0.3, "scores too flat to tell a wrong scale"
    assert max(check.worst for check in checks(made)) < 1e-5
    assert not made.visible.triu(1).any()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", CASES)
def test_routes_agree(case, route):
    if case in ROUTES[route]:
        with pytest.raises(interp.InterpError):
            captured(case, route)
    else:
        assert difference(captured(case), captured(case, route)) < 1e-5


@pytest.mark.parametrize(
    ("case", "scales"),
    [
        ("gpt2", [5**-0.5] * 2),
        ("gpt2-inverse-layer", [5**-0.5, 5**-0.5 / 2]),  # C2
        ("gpt2-upcast", [5**-0.5, 5**-0.5 / 2]),
        ("gpt2-unscaled", [1, 1]),
        ("gpt_neo", [1, 1]),  # C3
        ("opt", [1, 1]),
        ("gemma2", [7**-0.5] * 2),  # C4
        ("deepseek_v3", [13**-0.5] * 2),
        ("llama", [10**-0.5] * 2),
        ("falcon-alibi", [10**-0.5] * 2),
    ],
)
def test_scale_of_a_family(case, scales):
    """q·k times that scale is the score, where nothing is added; OPT's q carries it already."""
    made = captured(case)
    group = made.n_heads // made.n_kv_heads
    product = made.q @ made.k.repeat_interleave(group, 1).transpose(-1, -2)
    scaled = product * torch.tensor(scales)[:, None, None, None]
    if made.softcap and made.softcap[0]:
        scaled = made.softcap[0] * torch.tanh(scaled / made.softcap[0])
    if made.bias is not None:
        scaled = scaled + made.bias
    torch.testing.assert_close(made.scores, scaled, atol=2e-5, rtol=0)
    assert made.scale == pytest.approx(scales)


@pytest.mark.parametrize(
    ("case", "layer", "counts"),
    [
        ("mistral", 0, [1, 2] + [3] * 9),  # C13
        ("gemma2", 0, [1, 2] + [3] * 9),
        ("gemma2", 1, list(range(1, 12))),
        ("gpt_neo", 0, list(range(1, 12))),  # C3
        ("gpt_neo", 1, [1, 2, 3] + [4] * 8),
        ("gpt_oss", 0, [1, 2] + [3] * 9),
    ],
)
def test_windows(case, layer, counts):
    assert captured(case).visible[layer].sum(-1).tolist() == counts


def test_alibi_is_a_bias_of_the_key_alone_or_of_the_distance():
    """C5: rows of scores minus scale · q·k rise by the head's slope from key to key, as far as its bfloat16 goes."""
    for case in ("bloom", "falcon-alibi"):
        made = captured(case)
        bias = made.scores - made.scale[0] * (made.q @ made.k.transpose(-1, -2))
        steps = bias[..., 1:] - bias[..., :-1]
        slopes = steps[0, :, -1, 0]
        both = made.visible[:, None, :, 1:]  # a bias inside a mask has no value where the mask hides
        off = (steps - slopes[None, :, None, None]).abs() * both
        assert float(off.max()) < 0.01
        assert len({round(float(one), 4) for one in slopes}) == 3
        torch.testing.assert_close(made.bias, bias, atol=2e-5, rtol=0)


def test_a_family_whose_fused_and_eager_forward_differ_is_refused():
    """Falcon with ALiBi adds its bias once under sdpa and twice under eager (transformers 5.24): no eager capture stands for sdpa."""
    model = tiny("falcon-alibi", attn_implementation="sdpa")
    with pytest.raises(interp.InterpError, match="logits are those of a plain forward"):
        interp.capture(model, list(IDS))


def test_learned_sinks_take_weight():
    made = captured("gpt_oss")
    missing = 1 - made.weights.sum(-1)
    assert float(missing.min()) > 0
    top = made.scores.masked_fill(~made.visible[:, None], -math.inf)
    logsum = torch.logsumexp(torch.cat([top, made.sinks[:, :, None, None].expand(*top.shape[:3], 1)], -1), -1)
    torch.testing.assert_close(missing, torch.exp(made.sinks[:, :, None] - logsum), atol=1e-6, rtol=0)


def test_heads_and_widths():
    """C7, C8: k and v keep their own head count; latent v is narrower; q is after norm and rotary."""
    assert captured("llama").k.shape == (2, 3, 11, 10)
    assert captured("falcon-multi-query").k.shape == (2, 1, 11, 10)
    latent = captured("deepseek_v3")
    assert (latent.q.shape[-1], latent.v.shape[-1], latent.z.shape[-1]) == (13, 5, 5)
    model = tiny("qwen3")
    seen = {}
    handle = model.module.model.layers[0].self_attn.q_norm.register_forward_hook(lambda m, a, out: seen.update(q=out))
    made = interp.capture(model, list(IDS))
    handle.remove()
    normed = seen["q"][0].transpose(0, 1)
    torch.testing.assert_close(made.q[0].norm(dim=-1), normed.norm(dim=-1), atol=1e-4, rtol=0)  # rotary turns, keeps the length
    assert not torch.allclose(made.q[0][:, 1:], normed[:, 1:], atol=1e-2)


def test_a_fault_inside_a_family_is_refused_by_the_route_through_operations(monkeypatch):
    """A weight doubled after softmax, and scores changed in an unknown way, end the trail: nothing is returned."""
    from transformers.models.gpt_neo.modeling_gpt_neo import nn

    plain = nn.functional.softmax
    monkeypatch.setattr(nn.functional, "softmax", lambda x, **options: plain(x, **options) * 2)
    with pytest.raises(interp.InterpError, match="no softmax attention was seen in layers 0, 1"):
        interp.capture(tiny("gpt_neo"), list(IDS))
    monkeypatch.setattr(nn.functional, "softmax", lambda x, **options: plain(x.tanh(), **options))
    with pytest.raises(interp.InterpError, match="no softmax attention was seen in layers 0, 1"):
        interp.capture(tiny("gpt_neo"), list(IDS))


def test_operations_leave_the_model_as_it_was():
    model = tiny("bloom")
    before = [(len(part._forward_hooks), len(part._forward_pre_hooks), part.training) for part in model.module.modules()]
    logits = model.logits(torch.tensor(IDS))
    interp.capture(model, list(IDS))
    assert [(len(p._forward_hooks), len(p._forward_pre_hooks), p.training) for p in model.module.modules()] == before
    assert torch.equal(model.logits(torch.tensor(IDS)), logits)


def test_layers_without_attention_are_named_and_refused():
    from interp.families.tiny import tiny as of_type

    hybrid = of_type("bamba")
    made = interp.capture(hybrid, list(IDS))
    assert made.layers == (1,)
    assert made.provenance["layers_without_attention"] == [0]
    with pytest.raises(interp.InterpError, match="tiny-bamba: no softmax attention was seen in layer 0; ask for layers"):
        interp.capture(hybrid, list(IDS), [0, 1])


def test_the_shipped_table_covers_every_type():
    rows = {row["model_type"]: row for row in families.table()}
    assert {row["status"] for row in rows.values()} <= {"certified", "refused", "not buildable"}
    assert sum(row["status"] == "certified" for row in rows.values()) >= 120
    assert all(float(row["error"]) < 2e-5 and float(row["agreement"] or 0) < 1e-5 for row in rows.values() if row["error"])
    assert all(float(row["eager_error"] or 0) < 1e-5 for row in rows.values())
    import transformers

    if rows["llama"]["transformers"] == transformers.__version__:
        assert sorted(rows) == types()


@pytest.mark.parametrize(
    "kind",
    [
        "llama",
        "gpt_neo",
        "bloom",
        "falcon",
        "gpt_oss",
        "xglm",
        "mamba",
        "openai-gpt",
        "granite_swa",
        "diffllama",
        "lfm2_moe",
        "gemma4_text",
    ],
)
def test_the_shipped_table_agrees_with_a_sample(kind):
    import transformers

    row = {row["model_type"]: row for row in families.table()}[kind]
    if row["transformers"] != transformers.__version__:
        pytest.skip(f"the shipped table is of transformers {row['transformers']}, here is {transformers.__version__}")
    again = examine(kind)
    assert (again["status"], again["route"] or "", again["routes"] or "") == (row["status"], row["route"], row["routes"])
    if row["status"] == "refused":
        assert again["reason"] == row["reason"]
