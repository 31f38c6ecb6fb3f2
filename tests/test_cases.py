"""Kinds of mistake that people met with this job, C1 to C32: each is a test or a refusal; those that no other file names are here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from tiny import IDS, tiny
from transformers import BartConfig, BartForConditionalGeneration, GPT2Config, GPT2LMHeadModel

import interp
from interp import attention
from interp.capturing import captures, checks
from interp.capturing.registry import implementation
from interp.measures import ratio, sinks
from interp.models import Model

SIX = list(IDS[:6])


def test_every_case_is_named_by_a_test():
    text = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    named = {int(number) for number in re.findall(r"def test_\w*?_C(\d+)\b", re.sub(r"_C(\d+)_C", r"_C\1 def test__C", text))}
    assert sorted(set(range(1, 33)) - named) == []


def keys_per_row(made, layer):
    return made.visible[layer].sum(-1).tolist()


def test_fused_attention_still_gives_all_weights_C1():
    """transformers' sdpa answers `output_attentions` with an empty tuple: capture never asks it."""
    model = tiny("gpt2")
    assert model.module.config._attn_implementation == "sdpa"
    made = interp.capture(model, SIX)
    assert made.weights.shape == (2, 3, 6, 6)
    assert model.module.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("case", "options", "scales"),
    [
        ("gpt2-inverse-layer", {"n_layer": 3, "n_embd": 12}, (1 / 2, 1 / 4, 1 / 6)),
        ("gpt2-unscaled", {"n_embd": 12}, (1.0, 1.0)),
    ],
)
def test_the_scale_is_the_module_s_C2(case, options, scales):
    flags = {"gpt2-inverse-layer": {"scale_attn_by_inverse_layer_idx": True}, "gpt2-unscaled": {"scale_attn_weights": False}}[
        case
    ]
    config = GPT2Config(**{"n_layer": 2, "n_head": 3, "vocab_size": 101, "n_positions": 16, **options, **flags})
    torch.manual_seed(0)
    made = interp.capture(Model.of_transformers("gpt2-flags", GPT2LMHeadModel(config).eval(), None, "seed-0", "tests"), SIX)
    assert made.scale == pytest.approx(scales)
    torch.testing.assert_close(made.scores[-1], made.q[-1] @ made.k[-1].transpose(-1, -2) * scales[-1], atol=1e-6, rtol=0)


def test_an_unscaled_model_with_a_window_C3():
    made = interp.capture(tiny("gpt_neo", window_size=2), SIX)
    assert made.scale == (1.0, 1.0)
    assert keys_per_row(made, 0) == [1, 2, 3, 4, 5, 6]
    assert keys_per_row(made, 1) == [1, 2, 2, 2, 2, 2]


def test_the_scale_of_the_configuration_C4():
    made = {scalar: interp.capture(tiny("gemma2", query_pre_attn_scalar=scalar), SIX, [0]) for scalar in (144, 224, 256)}
    assert made[224].scale[0] / made[256].scale[0] == pytest.approx(1.0690, abs=5e-5)
    assert made[224].scale[0] == pytest.approx(0.06682, abs=5e-6)
    assert made[256].scale[0] == 0.0625
    assert made[144].scale[0] == pytest.approx(0.08333, abs=5e-6)
    assert {"revision", "transformers", "torch"} <= set(made[144].provenance)


def test_alibi_in_either_form_gives_the_same_weights_and_differences_C5():
    qk = torch.tensor([[0.3, -0.1, 0.2]])
    one, other = qk + torch.tensor([-1.0, -0.5, 0.0]), qk + torch.tensor([0.0, 0.5, 1.0])
    for scores in (one, other):
        assert attention.weights(scores)[0].tolist() == pytest.approx([0.2191, 0.2421, 0.5388], abs=5e-5)
    assert attention.weights(qk)[0].tolist() == pytest.approx([0.3883, 0.2603, 0.3514], abs=5e-5)
    torch.testing.assert_close(one.diff(), other.diff())
    made = interp.capture(tiny("bloom"), SIX)
    assert made.bias is not None
    found = ratio.residuals(made.scores, made.weights, made.visible)
    assert float(found.max.max()) <= ratio.tolerance(made.scores, made.visible)


@pytest.mark.parametrize("case", ["gpt2", "bloom", "llama"])
def test_cached_steps_are_rows_of_the_one_capture_of_the_whole_text_C6(case):
    """Generation is captured as the text it made: with or without a cache, row i is row i. The last new token has no row."""
    model = tiny(case)
    with torch.no_grad(), implementation(model.module, "eager"):
        out = model.module.generate(
            torch.tensor([SIX[:5]]), attention_mask=torch.ones(1, 5, dtype=torch.long), max_new_tokens=3, min_new_tokens=3, do_sample=False,
            output_attentions=True, return_dict_in_generate=True,
        )  # fmt: skip
    assert out.sequences.shape[1] == 8
    made = interp.capture(model, out.sequences[0, :-1])
    assert [tuple(step[0].shape[-2:]) for step in out.attentions] == [(5, 5), (1, 6), (1, 7)]
    for step in out.attentions:
        for layer, weights in enumerate(step):
            rows, keys = weights.shape[-2:]
            torch.testing.assert_close(made.weights[layer, :, keys - rows : keys, :keys], weights[0], atol=1e-5, rtol=0)


def test_q_and_k_are_after_norm_and_rotary_C7():
    made = interp.capture(tiny("qwen3"), SIX)
    model = tiny("qwen3")
    raw = []
    model.module.model.layers[0].self_attn.q_proj.register_forward_hook(lambda part, args, out: raw.append(out[0]))
    interp.capture(model, SIX)
    assert not torch.allclose(made.q[0].transpose(0, 1).flatten(1), raw[0], atol=1e-2)
    group = made.n_heads // made.n_kv_heads
    again = made.q @ made.k.repeat_interleave(group, 1).transpose(-1, -2) * made.scale[0]
    torch.testing.assert_close(again, made.scores, atol=1e-5, rtol=1e-5)


def test_query_heads_read_their_own_key_head_C8():
    made = interp.capture(tiny("llama"), SIX)
    assert (made.weights.shape[1], made.k.shape[1], made.n_kv_heads) == (6, 3, 3)
    assert [made.kv_head(head) for head in range(6)] == [0, 0, 1, 1, 2, 2]
    wrong = made.q @ made.k.repeat(1, 2, 1, 1).transpose(-1, -2) * made.scale[0]
    right = made.q @ made.k.repeat_interleave(2, 1).transpose(-1, -2) * made.scale[0]
    torch.testing.assert_close(right, made.scores, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(wrong, made.scores, atol=1e-2)


def test_padding_rows_never_enter_a_capture_C10():
    """Eager attention gives left-padding rows uniform weights over all keys, future ones too: a padded capture holds real rows alone."""
    for made, text in zip(captures(tiny("llama"), [SIX, SIX[:4]], padding="left"), (SIX, SIX[:4]), strict=True):
        assert made.n_tokens == len(text)
        assert not made.weights.triu(1).any()


def test_a_window_counts_the_query_s_own_key_C13():
    made = interp.capture(tiny("mistral"), SIX)
    assert keys_per_row(made, 0) == [1, 2, 3, 3, 3, 3]
    both = interp.capture(tiny("gemma2"), SIX)
    assert [keys_per_row(both, layer) for layer in range(2)] == [[1, 2, 3, 3, 3, 3], [1, 2, 3, 4, 5, 6]]
    rows, left = sinks.counted_rows(made.weights, made.visible)
    assert not rows[:, :, 3:].any()  # key 0 is out of sight there: left out, not "no sink"
    assert left.total > 0


def test_a_sink_elsewhere_is_found_where_it_is_C16():
    weights = torch.full((1, 1, 6, 6), 0.02).tril()
    for row in range(6):
        weights[0, 0, row, min(row, 3)] += 1 - weights[0, 0, row].sum()
    seen = torch.ones(1, 6, 6, dtype=torch.bool).tril()
    found = [float(sinks.importance(weights, seen, key)) for key in range(6)]
    assert max(range(6), key=found.__getitem__) == 3
    assert found[3] > 0.9


def test_layers_keep_their_numbers_C26():
    model = tiny("gpt2")
    made = interp.capture(model, SIX, [1])
    assert made.layers == (1,)
    assert made.row_of(1) == 0
    assert torch.equal(made.weights[0], interp.capture(model, SIX).weights[1])
    with pytest.raises(interp.InterpError, match="no captured layer '0'"):
        made.row_of(0)
    for wrong in (2, -1):
        with pytest.raises(interp.InterpError, match=f"no layer {wrong} in tiny-gpt2: its layers run from 0 to 1"):
            interp.capture(model, SIX, [wrong])


def test_everything_lands_on_the_cpu_C29():
    made = interp.capture(tiny("llama"), SIX)
    for name in ("q", "k", "v", "scores", "visible", "weights", "z", "ids"):
        assert getattr(made, name).device.type == "cpu"


def test_a_batch_and_a_repeat_change_nothing_C30():
    model = tiny("llama")
    alone, again = interp.capture(model, SIX), interp.capture(model, SIX)
    assert torch.equal(alone.weights, again.weights)
    for made in captures(model, [SIX] * 5):
        torch.testing.assert_close(made.weights, alone.weights, atol=1e-5, rtol=0)
    assert {"dtype", "device", "torch", "transformers"} <= set(made.provenance)


def test_an_encoder_decoder_is_refused_by_name_C31(tmp_path):
    sizes = {
        "d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 7, "decoder_ffn_dim": 7, "vocab_size": 101, "max_position_embeddings": 16,
    }  # fmt: skip
    module = BartForConditionalGeneration(BartConfig(**sizes)).eval()
    model = Model.of_transformers("small-bart", module, None, "seed-0", "tests")
    with pytest.raises(
        interp.InterpError, match=r"small-bart is an encoder-decoder \(bart\); interp captures causal language models"
    ):
        interp.capture(model, SIX)
    module.save_pretrained(tmp_path)
    with pytest.raises(interp.InterpError, match=r"is an encoder-decoder \(bart\)"):
        interp.load(str(tmp_path))


def test_a_mask_dropped_from_a_capture_is_refused_whatever_its_mask_says_C13_C15():
    made = interp.capture(tiny("llama"), SIX)
    seen = torch.ones_like(made.visible)
    wrong = replace(made, visible=seen, weights=attention.weights(made.scores, seen[:, None].expand(made.scores.shape)))
    assert "nothing above the diagonal" in {check.name for check in checks(wrong) if not check.passed}


def nasty(tokens):
    """A capture of any tokens with one head of uniform weights."""
    n = len(tokens)
    seen = torch.ones(1, n, n, dtype=torch.bool).tril()
    scores = torch.zeros(1, 1, n, n)
    return interp.Capture(tuple(tokens), (0,), scores=scores, weights=attention.weights(scores, seen[:, None]), visible=seen)


def elements(page):
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append(tag)
    parser.feed(page)
    return found


def test_tokens_that_look_like_html_add_no_element_C22():
    tokens = [
        "hello",
        "entrar<!--#exec",
        "-->",
        "<|endoftext|>",
        "a<b<c",
        "x<script>alert('xss');</script>",
        "</script><b x=\"'&",
    ]
    plain = interp.view(nasty([f"t{number}" for number in range(len(tokens))]))
    assert elements(interp.view(nasty(tokens))) == elements(plain)


def test_the_data_of_a_page_is_json_that_a_browser_reads_C23():
    made = nasty(["a", "b"])
    broken = replace(made, weights=made.weights.clone().index_fill(2, torch.tensor([1]), torch.nan))
    for page in (interp.view(made), interp.view(broken)):
        for data in re.findall(r"<script[^>]*application/json[^>]*>(.*?)</script>", page, re.DOTALL):
            json.loads(data, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_pages_and_files_are_utf8_whatever_the_locale_C24(tmp_path):
    nasty(["Ġthe", "🤗", "▁é"]).save(tmp_path / "a.safetensors")
    environment = {**os.environ, "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    code = "import sys; from interp.cli import main; main(sys.argv[1:])"
    arguments = ["view", str(tmp_path / "a.safetensors"), "--out", str(tmp_path / "a.html")]
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code, *arguments], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert 'charset="utf-8"' in page.lower()


def test_a_long_text_makes_a_page_of_bounded_size_C25():
    short, long = (len(interp.view(nasty([f"t{number}" for number in range(count)]))) for count in (256, 512))
    assert long < 4 * 2**20
    assert long < 5 * short
