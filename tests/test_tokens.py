"""Tokens: exactly the ids that enter, BOS said aloud, no byte lost; and what is refused."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest
import torch
from tiny import IDS, tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import interp
from interp.capturing import captures
from interp.models.tokens import bytes_of, shown, tokenise


@pytest.fixture(scope="module")
def stories(shared):
    return interp.load(str(shared / "models" / "stories260k"))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """A byte-level tokenizer as GPT-2's is, of single bytes, with one merge and an end-of-text token that is also BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)} | {"Ġt": 256, "<|end|>": 257}
    backend = Tokenizer(models.BPE(vocabulary, [("Ġ", "t")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|end|>", eos_token="<|end|>")


def test_bos_keep_add_none(stories):
    for bos, ids, first in (("keep", [1, 286], True), ("add", [1, 286], True), ("none", [286], False)):
        made = stories.tokens("was", bos)
        assert made.ids.tolist() == ids
        assert (made.ids[0] == stories.bos_id) == first == made.first_is_bos
        assert made.bos == bos
    captured = interp.capture(stories, "was", bos="none")
    assert captured.ids.tolist() == stories.tokens("was", "none").ids.tolist()
    assert captured.provenance["bos"] == "none"
    assert captured.provenance["first_is_bos"] is False


def test_a_tokenizer_that_adds_none_by_itself_C17(byte_level):
    assert tokenise(byte_level, "a t", "keep").ids.tolist() == tokenise(byte_level, "a t", "none").ids.tolist()
    added = tokenise(byte_level, "a t", "add")
    assert added.ids[0] == 257
    assert added.pieces == ("<|end|>", "a", " t")
    assert tokenise(byte_level, "<|end|>a t", "add").ids.tolist() == added.ids.tolist()  # no second one


def test_no_bos_to_add_is_refused_and_nothing_changes_C17(toy):
    with pytest.raises(interp.InterpError, match="bos='add', but the tokenizer of toy has no BOS token; use keep or none"):
        toy.tokens("So the players wear", "add")
    assert toy.tokens("So the players wear", "keep").ids.tolist() == toy.tokens("So the players wear", "none").ids.tolist()
    with pytest.raises(interp.InterpError, match="bos='maybe'; give one of keep, add, none"):
        toy.tokens("So", "maybe")


def test_split_characters_show_their_bytes_C21(byte_level):
    made = tokenise(byte_level, "\n🤗é", "none")
    assert made.pieces == ("\n", "<0xF0>", "<0x9F>", "<0xA4>", "<0x97>", "<0xC3>", "<0xA9>")
    assert b"".join(bytes_of(byte_level, number) for number in made.ids.tolist()) == "\n🤗é".encode()
    assert shown("🤗".encode()) == "🤗"
    every = "".join(map(chr, range(256)))
    ids = tokenise(byte_level, every, "none").ids.tolist()
    assert b"".join(bytes_of(byte_level, number) for number in ids) == every.encode()


def test_empty_text_is_refused_before_any_model_call_and_blank_is_text_C19(stories, byte_level):
    with pytest.raises(interp.InterpError, match="the text is empty: no tokens for stories260k"):
        interp.capture(stories, "")
    with pytest.raises(interp.InterpError, match="the text is empty"):
        tokenise(byte_level, "", "add")
    for blank in (" ", "   ", "\n", "\t \n"):
        made = interp.capture(stories, blank, bos="none")
        assert made.n_tokens >= 1
        assert made.text == blank


def test_a_single_token(stories):
    made = interp.capture(stories, [1])
    assert made.weights.shape[-2:] == (1, 1)
    assert bool((made.weights == 1).all())


def test_exactly_full_and_one_too_many_C20():
    model = tiny("gpt2", n_positions=16)
    ids = [number % 101 for number in range(17)]
    assert interp.capture(model, ids[:16]).n_tokens == 16
    reason = "17 tokens, but tiny-gpt2 has 16 positions; pass --max-tokens 16 to keep the first 16"
    with pytest.raises(interp.InterpError, match=reason):
        interp.capture(model, ids)
    cut = interp.capture(model, ids, max_tokens=16)
    assert cut.ids.tolist() == ids[:16]  # the first token stays
    with pytest.raises(interp.InterpError, match="at least 1 token is needed; got max_tokens=0"):
        interp.capture(model, ids, max_tokens=0)


def test_ids_are_taken_as_they_are():
    model = tiny("gpt2")
    for given in (list(IDS), torch.tensor(IDS), tuple(IDS), " ".join(map(str, IDS))):
        made = model.tokens(given)
        assert made.ids.tolist() == list(IDS)
        assert made.pieces == tuple(map(str, IDS))


def test_a_lone_surrogate_is_no_text(stories):
    with pytest.raises(interp.InterpError, match="lone surrogate at character 2"):
        stories.tokens("ab\ud800")


def drawn(random_numbers: random.Random) -> str:
    """A text of any kind: all of Unicode, control characters, long words, spaces, the tokenizer's own marks."""
    kind = random_numbers.randrange(6)
    length = random_numbers.randint(1, 12)
    if kind == 0:
        return "".join(chr(random_numbers.choice((0x20, 0x7F, 0x80, 0x2028, 0xFEFF, 0, 9, 10, 13, 0x1B))) for _ in range(length))
    if kind == 1:
        return "x" * random_numbers.randint(20, 80)
    if kind == 2:
        return " ".join(
            random_numbers.choice(("once", "upon", "▁", "<0x41>", "<s>", "</s>", "Ġ", "a", "  ")) for _ in range(length)
        )
    top = 0x110000 if kind == 3 else 0x3000
    points = (random_numbers.randrange(top) for _ in range(length))
    return "".join(chr(point) for point in points if unicodedata.category(chr(point)) != "Cs") or " "


def test_500_texts_through_capture_save_and_read_lose_nothing(stories, tmp_path):
    random_numbers = random.Random(0)
    path = tmp_path / "one.safetensors"
    for size in (1,) * 20 + (20,) * 24:  # one by one, and many in one forward
        texts = [drawn(random_numbers) for _ in range(size)]
        made = captures(stories, texts, [4]) if size > 1 else [interp.capture(stories, texts[0], [4])]
        for text, one in zip(texts, made, strict=True):
            raw = b"".join(bytes_of(stories.tokenizer, number) for number in one.ids.tolist()[1:])
            assert raw == recovered(text), repr(text)
            again = interp.read(one.save(path))
            assert (again.text, again.tokens, again.ids.tolist()) == (text, one.tokens, one.ids.tolist())
            assert torch.equal(again.weights, one.weights)


def recovered(text: str) -> bytes:
    """What the pieces join to: this tokenizer takes its special tokens out, puts a space before each rest, and writes ▁ for a space."""
    parts = (part for part in re.split("(<s>|</s>|<unk>)", text) if part)
    return "".join(part if part in ("<s>", "</s>", "<unk>") else f" {part}".replace("▁", " ") for part in parts).encode()
