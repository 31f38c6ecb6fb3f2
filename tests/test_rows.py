"""Row statistics against captures: every family's masks, caps and sinks; any split of a corpus; a file that survives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import interp
from interp import attention
from interp.batches import Batch, batches, windows
from interp.errors import InterpError
from interp.measures.first_token import Totals, tally
from interp.models import Model
from interp.rows import RowStatistics, blocks, fused, measure, squares, tap

NAMES = ("first_weight", "first_argmax", "first_majority", "entropy", "largest", "lead")


def tiny(kind: str, **options: Any) -> Model:
    """A small random model of a family; 2 layers, 4 heads sharing 2 key-value heads where the family can."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 97,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 400,
    }
    if kind == "gpt2":
        sizes = {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 400}
    elif kind == "bloom":
        sizes = {"vocab_size": 97, "hidden_size": 48, "n_layer": 2, "n_head": 4}
    elif kind != "opt":
        sizes |= {"num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 40}
    config = AutoConfig.for_model(kind, **{**sizes, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **options})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = AutoModelForCausalLM.from_config(config).eval()
        for name, values in module.named_parameters():
            # Scores of several units, so that a wrong scale, cap or window shows.
            if values.ndim > 1 or "sinks" in name:
                torch.nn.init.normal_(values, std=0.3)
    return Model.of_transformers(kind, module, None, "", "tests")


FAMILIES = {
    "gpt2": {},
    "llama": {},
    "opt": {"ffn_dim": 40, "word_embed_proj_dim": 48},
    "qwen3": {},
    "mistral": {"sliding_window": 7},
    "gemma2": {"sliding_window": 7, "attn_logit_softcapping": 3.0},
    "gpt_oss": {"sliding_window": 7, "num_local_experts": 2, "num_experts_per_tok": 1},
    "bloom": {},  # not in the registry: captured
}


def corpus(*lengths: int, vocab: int = 97) -> list[list[int]]:
    draw = torch.Generator().manual_seed(11)
    return [torch.randint(3, vocab, (length,), generator=draw).tolist() for length in lengths]


def totals(model: Model, texts: list[list[int]]) -> Totals:
    made = Totals()
    for ids in texts:
        seen = interp.capture(model, ids)
        made.add(tally(seen.weights, seen.visible))
    return made


def same(one: dict[str, Any], other: dict[str, Any], within: float) -> None:
    for name, values in other.items():
        if name in one:
            assert torch.allclose(torch.as_tensor(one[name]), torch.as_tensor(values), atol=within, rtol=0, equal_nan=True), name


@pytest.mark.parametrize("kind", FAMILIES)
def test_first_and_full_equal_the_capture(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = tiny(kind, **FAMILIES[kind]), corpus(13, 37, 5)
    expected = totals(model, texts)
    for detail in ("first", "full"):
        made = measure(model, texts, detail)
        same(made.overall(), expected.overall(), 1e-5)
        same(made.heads(), expected.heads(), 1e-5)
        same(made.queries(), expected.queries(), 1e-5)
        assert made.left_out() == expected.left_out
        assert bool(made.notes) == (kind == "bloom")
    monkeypatch.setattr(tap, "SHORT", 0)  # the same through blocks
    inside = measure(model, texts, "full")
    for name in NAMES:
        assert torch.allclose(inside.by_query(name), made.by_query(name), atol=2e-5, equal_nan=True), name
    assert torch.allclose(inside.key_importance(), made.key_importance(), atol=1e-5, equal_nan=True)


def test_a_layer_can_be_measured_alone() -> None:
    model, texts = tiny("llama"), corpus(9, 8)
    whole, one = measure(model, texts, "full"), measure(model, texts, "full", layers=[1])
    assert one.layers == (1,)
    assert torch.allclose(one.first_weight()[0], whole.first_weight()[1])
    assert torch.allclose(one.entropy()[0], whole.entropy()[1])


def test_the_toy_is_captured(toy: Model) -> None:
    text = "The team colour is red . So the players wear"
    made = measure(toy, [text], "full")
    seen = interp.capture(toy, text)
    assert seen.weights is not None
    assert torch.allclose(made.by_query("first_weight")[0, 0], seen.weights[0, 0, :, 0].double(), atol=1e-6)
    assert "captured" in made.notes[0]


CASES = {
    "grouped": {},
    "window": {"window": 9},
    "cap": {"cap": 2.0},
    "sinks": {"sinks": True},
    "bias": {"bias": True},
}


@pytest.mark.parametrize("way", [blocks, squares])
@pytest.mark.parametrize("case", CASES)
def test_readings_equal_the_square(way: Any, case: str) -> None:
    draw = torch.Generator().manual_seed(5)
    texts, heads, kv_heads, length, d, d_v = 2, 6, 3, 83, 7, 5
    q, k, v = (
        torch.randn(texts, n, length, width, generator=draw) * 2 for n, width in ((heads, d), (kv_heads, d), (kv_heads, d_v))
    )
    asked = CASES[case]
    seen = attention.visible(length, window=asked.get("window"))
    sinks = torch.randn(heads, generator=draw) * 3 if asked.get("sinks") else None
    bias = torch.randn(1, heads, length, length, generator=draw) if asked.get("bias") else None
    real = torch.arange(length) < torch.tensor([[length], [31]])
    masking = blocks.Masking(seen[None, None] if "window" in asked else None, bias, asked.get("cap"), sinks)
    before = [x.clone() for x in (q, k, v)]
    out, found = way.attend(q, k, v, 0.4, real, masking)
    assert all(torch.equal(x, y) for x, y in zip((q, k, v), before, strict=True))
    scores = attention.scores(q.double(), k.double().repeat_interleave(2, 1), 0.4, asked.get("cap"))
    scores = scores if bias is None else scores + bias
    weights = attention.weights(scores, seen, sink=None if sinks is None else sinks[:, None].expand(heads, length))
    z = (weights @ v.double().repeat_interleave(2, 1)).transpose(1, 2)
    two = scores.masked_fill(~seen, -torch.inf).topk(2, -1).values
    expected = {
        "first": weights[..., 0],
        "largest": weights.amax(-1),
        "second": weights.topk(2, -1).values[..., 1],
        "first_is_top": weights[..., 0] >= weights.amax(-1),
        "entropy": torch.special.entr(weights).sum(-1),
        "lead": torch.where(torch.isfinite(two[..., 1]), two[..., 0] - two[..., 1], torch.nan),
        "mass": (weights * real[:, None, :, None]).sum(-2),
    }
    assert torch.allclose(out.double(), z, atol=2e-5)
    for name, values in expected.items():
        assert torch.allclose(getattr(found, name).double(), values.double(), atol=4e-5, equal_nan=True), name
    only_first = way.attend(q, k, v, 0.4, real, masking, full=False)[1]
    assert torch.allclose(only_first.first, found.first, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fused_kernel_gives_the_first_weight(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, heads, 71, 16, generator=draw).to(dtype) for heads in (6, 2, 2))
    found = fused.attend(q, k, v, 0.3)
    if found is None:
        pytest.skip(f"no fused kernel for {dtype} in this build of torch; such rows are read in blocks")
    out, first = found
    weights = attention.weights(attention.scores(q.float(), k.float().repeat_interleave(3, 1), 0.3), attention.visible(71))
    near = 1e-6 if dtype == torch.float32 else 2e-2
    assert torch.allclose(first, weights[..., 0], atol=near)
    assert torch.allclose(out.float(), (weights @ v.float().repeat_interleave(3, 1)).transpose(1, 2), atol=near)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "gemma2", "gpt_oss"])
def test_on_cuda_as_on_the_cpu(kind: str, dtype: torch.dtype) -> None:
    texts, near = corpus(13, 37, 350), 1e-5 if dtype == torch.float32 else 2e-2
    here = [measure(tiny(kind, **FAMILIES[kind]), texts, detail).overall() for detail in ("first", "full")]
    there = tiny(kind, **FAMILIES[kind])
    there.module.to("cuda", dtype)
    for expected, detail in zip(here, ("first", "full"), strict=True):
        same(measure(there, texts, detail).overall(), expected, near)


@pytest.mark.parametrize("detail", ["first", "full"])
def test_any_split_of_a_corpus_adds_up(detail: str) -> None:
    model, texts = tiny("gpt2"), corpus(9, 21, 14, 30, 6, 17)
    parts = [Batch.of([torch.tensor(ids)], [number], [f"t{number}"]) for number, ids in enumerate(texts)]
    whole = measure(model, parts, detail)
    for order in ((0, 3), (1, 2, 4)), ((5, 1, 0), (2,)), ((4,), (5, 2, 1)):
        left = measure(model, [parts[place] for place in order[0]], detail)
        right = measure(model, [parts[place] for place in order[1]], detail)
        rest = measure(model, [parts[place] for place in range(6) if place not in order[0] + order[1]], detail)
        for made in (left + right + rest, rest + left + right):
            assert made.names == whole.names
            for name, values in whole.sums.items():
                assert torch.allclose(made.sums[name], values, rtol=1e-12, atol=1e-12), name
            assert all(torch.equal(made.per_text[name], values) for name, values in whole.per_text.items())


def test_what_is_unlike_is_not_added() -> None:
    model, texts = tiny("gpt2"), corpus(9, 21)
    first = measure(model, texts)
    with pytest.raises(InterpError, match=r"text 0 \(text 0\) is in both"):
        first + first
    with pytest.raises(InterpError, match="detail 'first' against 'full'"):
        first + measure(model, texts, "full")
    with pytest.raises(InterpError, match="weights '[0-9a-f]+' against"):
        first + measure(tiny("gpt2", scale_attn_weights=False, n_inner=11), texts)


def test_a_text_alone_or_in_a_padded_batch_is_the_same() -> None:
    model, texts = tiny("mistral", sliding_window=7), corpus(9, 21, 14)
    together = measure(model, texts, "full")
    alone = [measure(model, [Batch.of([torch.tensor(ids)], [number])], "full") for number, ids in enumerate(texts)]
    apart = alone[0] + alone[1] + alone[2]
    for name in NAMES:
        assert torch.allclose(together.by_query(name), apart.by_query(name), atol=1e-6, equal_nan=True)


def test_the_model_is_as_it_was() -> None:
    model = tiny("llama")
    model.module.train()
    ids = torch.tensor(corpus(12)[0])
    before = model.logits(ids), model.module.config._attn_implementation
    measure(model, [ids.tolist()], "full")
    with pytest.raises(RuntimeError, match="stop"):
        measure(model, _failing(ids))
    assert model.module.training
    assert model.module.config._attn_implementation == before[1]
    assert torch.equal(model.logits(ids), before[0])


def _failing(ids: torch.Tensor) -> Any:
    yield ids.tolist()
    raise RuntimeError("stop")


@pytest.mark.parametrize("short", [0, 320])
def test_rows_that_are_not_finite_are_named_and_left_out(short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "SHORT", short)
    model, texts = tiny("gpt2"), corpus(9, 8)
    clean = measure(model, texts[1:], "full")
    with torch.no_grad():
        model.module.transformer.wte.weight[texts[0][4]] = torch.nan
    texts[1] = [token if token != texts[0][4] else 3 for token in texts[1]]
    made = measure(model, texts, "full")
    # From position 4 on in every head of layer 0; in layer 1 the same or more, as 0 · NaN is NaN where weights meet values.
    assert [row for row in made.broken if row[1:3] == (0, 0)] == [(0, 0, 0, query) for query in range(4, 9)]
    assert {row[0] for row in made.broken} == {0}
    assert made.left_out()["not_finite"] >= 2 * 4 * 5
    assert torch.isfinite(made.first_weight()).all()
    assert torch.isfinite(clean.first_weight()).all()
    assert torch.isfinite(made.key_importance()[..., :8]).all()


def test_batches_of_windows() -> None:
    model = tiny("gpt2")
    made = list(batches(model, [list(range(3, 40)), [5, 6]], max_tokens=16, overlap=4))
    assert sorted(number for batch in made for number in batch.index) == [0, 1, 2, 3]
    assert [len(window) for window in windows(torch.arange(37), 16, 4)] == [16, 16, 13]
    with pytest.raises(InterpError, match="overlap must be 0 or more and below the window"):
        windows(torch.arange(5), 4, 4)
    with pytest.raises(InterpError, match="500 tokens, but gpt2 has 400 positions"):
        measure(model, [[3] * 500])


def test_what_cannot_be_measured_is_refused() -> None:
    model = tiny("gpt2")
    with pytest.raises(InterpError, match="detail='all'; give first or full"):
        measure(model, [[1, 2, 3]], "all")
    with pytest.raises(InterpError, match="no texts to measure"):
        measure(model, [])
    with pytest.raises(InterpError, match="one string"):
        measure(model, "abc")
    first = measure(model, corpus(12))
    with pytest.raises(InterpError, match="entropy needs detail='full'"):
        first.entropy()
    with pytest.raises(InterpError, match="epsilon 0.333 is not kept"):
        first.sink_rate(0.333)
    assert isinstance(first, RowStatistics)
    assert "first_weight" in first._repr_html_()
