"""capture(): recordings by others, what it refuses, memory, several texts; the model as it was before."""

from __future__ import annotations

import gc

import pytest
import torch
from safetensors import safe_open
from tiny import IDS, tiny

import interp
from interp.capturing import captures, memory
from interp.capturing.checks import checks
from interp.errors import NotFaithful
from interp.measures import ratio, sinks

MARY = "When Mary and John went to the store, John gave a drink to"


@pytest.mark.parametrize(("number", "share"), [(0, 0.8009), (1, 0.8079), (2, 0.8194)])
def test_real_gpt2_recordings(shared, number, share):
    made = interp.read(shared / "data" / f"gpt2_explainer_{number}.safetensors")
    rows, _ = sinks.counted_rows(made.weights, made.visible)
    assert float(sinks.over_rows(sinks.first_argmax(made.weights), rows).mean()) == pytest.approx(share, abs=5e-5)
    softmax = next(check for check in checks(made) if check.name.startswith("softmax"))
    assert softmax.worst <= 2.5e-7
    found = ratio.residuals(made.scores, made.weights, made.visible)
    assert float(found.max.max()) <= ratio.tolerance(made.scores, made.visible)


def test_john_smith_recording(shared):
    made = interp.read(shared / "data" / "gpt2_bertviz_john_smith_qk.safetensors")
    scores = made.q @ made.k.transpose(-1, -2) / 8
    weights = scores.masked_fill(~made.visible[:, None], -torch.inf).softmax(-1)
    torch.testing.assert_close(weights, made.weights, atol=1e-6, rtol=0)
    assert made.tokens == ("John", "Smith", "is", "also", "the", "son", "of", "Fred", "Smith")
    assert made.v is None


@pytest.mark.parametrize("route", ["registry", "operations", "hooks"])
def test_nano_gpt_equals_its_authors_recording(shared, route):
    model = interp.load(str(shared / "models" / "nano_gpt_sort"))
    with safe_open(shared / "data" / "nano_gpt_sort_activations.safetensors", "pt") as file:
        theirs = {name: file.get_tensor(name) for name in ("idx", "q", "k", "v", "att", "attSm")}
    for row in range(3):
        made = interp.capture(model, theirs["idx"][row].long(), [0], route=route)
        for ours, name in (("q", "q"), ("k", "k"), ("v", "v"), ("weights", "attSm")):
            torch.testing.assert_close(getattr(made, ours)[0], theirs[name][row], atol=1e-5, rtol=0)
        seen = made.visible[0].expand(3, -1, -1)
        torch.testing.assert_close(made.scores[0][seen], theirs["att"][row][seen], atol=1e-5, rtol=0)
        assert made.scores.isfinite().all()


def test_mary_and_john_on_a_real_model(smollm2):
    from interp.capturing.registry import implementation

    made = interp.capture(smollm2, MARY, bos="none")
    assert made.n_tokens == 14
    rows, _ = sinks.counted_rows(made.weights, made.visible)
    assert float(sinks.over_rows(sinks.first_argmax(made.weights), rows).mean()) == pytest.approx(0.595, abs=5e-4)
    assert float(sinks.over_rows(sinks.first_weight(made.weights), rows).mean()) == pytest.approx(0.505, abs=5e-4)
    with torch.no_grad(), implementation(smollm2.module, "eager"):
        eager = smollm2.module(made.ids[None], output_attentions=True, use_cache=False)
    assert len(eager.attentions) == smollm2.n_layers
    torch.testing.assert_close(made.weights, torch.stack([one[0] for one in eager.attentions]), atol=1e-6, rtol=0)
    assert smollm2.tokenizer.decode(int(eager.logits[0, -1].argmax())) == " Mary"
    alone = interp.capture(smollm2, MARY, [17, 4], bos="none")
    assert alone.layers == (4, 17)
    assert torch.equal(alone.weights[1], made.weights[17])


def test_what_is_asked_for_wrongly_is_refused_in_one_line(toy):
    model = tiny("llama")
    for arguments, options, reason in (
        ((model, list(IDS), [2]), {}, r"no layer 2 in tiny-llama: its layers run from 0 to 1"),
        ((model, list(IDS), [-1]), {}, r"no layer -1 in tiny-llama"),
        ((model, list(IDS), []), {}, r"no layers were asked for"),
        ((model, []), {}, r"at least one number"),
        ((model, [500]), {}, r"id 500 is not in the vocabulary of tiny-llama: ids run from 0 to 100"),
        ((model, torch.tensor([[1, 2]])), {}, r"ids of one text are one row"),
        ((model, list(IDS)), {"route": "magic"}, r"route='magic'; give auto, registry, operations, hooks"),
        ((toy, [1, 2]), {"route": "registry"}, r"toy is no transformers model; use route='hooks'"),
        ((model, "a text"), {}, r"tiny-llama has no tokenizer; give its ids"),
    ):
        with pytest.raises(interp.InterpError, match=reason) as raised:
            interp.capture(*arguments, **options)
        assert "\n" not in str(raised.value)


def test_the_memory_guard_speaks_before_the_forward():
    model = tiny("llama")
    ran = []
    model.module.register_forward_hook(lambda *_: ran.append(1))
    reason = r"11 tokens over 2 layers × 6 heads takes .* GiB, more than the limit of 0.00 GiB; ask for fewer --layers, fewer tokens .*interp.rows"
    with pytest.raises(interp.InterpError, match=reason):
        interp.capture(model, list(IDS), limit=1000)
    with pytest.raises(interp.InterpError, match="22 tokens|11 tokens"):
        captures(model, [list(IDS)] * 2, limit=1000)
    assert not ran


def test_the_size_said_is_the_size_held_C28():
    model = tiny("llama")
    made = interp.capture(model, list(IDS))
    held = sum(getattr(made, name).nbytes for name in ("q", "k", "v", "z", "scores", "weights", "visible"))
    assert memory.size(model, 2, len(IDS)) == held
    # GPT-2 at 1,024 tokens: 576 MiB for scores and as much for weights.
    gpt2 = tiny("gpt2")
    gpt2.n_heads, gpt2.n_kv_heads, gpt2.d_head = 12, 12, 64
    squares = 12 * 12 * 1024**2 * 4
    assert squares == 576 * 2**20
    vectors = 12 * 1024 * 4 * 12 * 64 * 4
    assert memory.size(gpt2, 12, 1024) == 2 * squares + vectors + 12 * 1024**2


def test_twenty_captures_hold_no_memory_C28():
    model = tiny("llama")
    counts = []
    for number in range(20):
        interp.capture(model, list(IDS))
        if number in (2, 19):
            gc.collect()
            counts.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("case", ["gpt2", "llama", "mistral", "opt", "gpt_neox", "gemma2"])
def test_padded_texts_are_what_they_are_alone_C18(case, padding):
    model = tiny(case)
    texts = [list(IDS), list(IDS[:4]), [7]]
    for text, made in zip(texts, captures(model, texts, padding=padding), strict=True):
        alone = interp.capture(model, text)
        assert made.tokens == alone.tokens
        assert torch.equal(made.visible, alone.visible)
        for name in ("q", "k", "v", "scores", "weights", "z"):
            one, other = getattr(made, name), getattr(alone, name)
            size = float(other.abs().max().clamp_min(1))
            torch.testing.assert_close(one, other, atol=1e-5 * size, rtol=0)
        assert made.ids[0] == text[0]  # the first token is the first real one
        assert made.provenance["padding"] == padding


def test_batches_that_cannot_be_padded_are_refused_by_name(toy):
    with pytest.raises(interp.InterpError, match="toy takes one text at a time"):
        captures(toy, [[1, 2], [1]])
    with pytest.raises(interp.InterpError, match="does not go through transformers' attention registry|takes no position ids"):
        captures(tiny("bloom"), [[1, 2], [1]], padding="left")
    with pytest.raises(interp.InterpError, match="padding='middle'; give right or left"):
        captures(tiny("llama"), [[1]], padding="middle")
    with pytest.raises(interp.InterpError, match="no texts to capture"):
        captures(tiny("llama"), [])


def test_positions_that_moved_would_be_refused(monkeypatch):
    """Without position ids a left-padded text is another text: its own plain forward says so."""
    import inspect

    model = tiny("gpt2")
    plain = model.module.forward
    monkeypatch.setattr(model.module, "forward", lambda *args, position_ids=None, **options: plain(*args, **options))
    assert "position_ids" in inspect.signature(model.module.forward).parameters
    with pytest.raises(NotFaithful, match="logits are those of a plain forward"):
        captures(model, [list(IDS), list(IDS[:4])], padding="left")
