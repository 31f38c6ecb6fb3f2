"""Captures on disk: bit for bit there and back; whatever is partial, foreign, truncated or tampered with is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tiny import IDS, tiny

import interp
from interp.capturing.files import FORMAT


@pytest.fixture(scope="module")
def made():
    return interp.capture(tiny("mistral"), list(IDS))


def parts(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118


def same(one, other):
    for field in fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, torch.Tensor):
            assert left.dtype == right.dtype
            assert torch.equal(left, right), field.name
        else:
            assert left == right, field.name


@pytest.mark.parametrize("case", ["mistral", "bloom", "gpt_oss", "gemma2"])
def test_there_and_back_bit_for_bit(case, tmp_path):
    capture = interp.capture(tiny(case), list(IDS), [1])
    assert capture.save(tmp_path / "a.safetensors") == tmp_path / "a.safetensors"
    same(capture, interp.read(tmp_path / "a.safetensors"))
    first = (tmp_path / "a.safetensors").read_bytes()
    interp.read(tmp_path / "a.safetensors").save(tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_a_file_may_hold_less_and_what_follows_is_computed(made, tmp_path):
    for kept, back in (
        (("q", "k"), ("scores", "weights")),
        (("scores",), ("weights",)),
        (("weights",), ()),
    ):
        empty = {name: None for name in ("q", "k", "v", "scores", "weights", "z") if name not in kept}
        path = replace(made, **empty).save(tmp_path / "less.safetensors")
        again = interp.read(path)
        for name in back:
            torch.testing.assert_close(getattr(again, name), getattr(made, name), atol=1e-6, rtol=0)
        for name in set(empty) - set(back):
            assert getattr(again, name) is None
    with pytest.raises(interp.InterpError, match="this needs q, but the capture holds only visible, weights"):
        again.need("q")


def test_soft_cap_and_bias_come_back_into_scores(tmp_path):
    for case in ("bloom", "gemma2"):
        whole = interp.capture(tiny(case), list(IDS))
        path = replace(whole, scores=None, weights=None, z=None, v=None).save(tmp_path / f"{case}.safetensors")
        torch.testing.assert_close(interp.read(path).scores, whole.scores, atol=1e-5, rtol=0)
        torch.testing.assert_close(interp.read(path).weights, whole.weights, atol=1e-6, rtol=0)


def changed(path, change, keep_digest=False):
    """The file at `path` with its tensors and words changed by `change(tensors, words)`; by a stranger, or by one who leaves the digest out."""
    tensors, words = parts(path)
    if not keep_digest:
        del words["sha256"]
    change(tensors, words)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, words)
    return path


def word(name, value):
    def change(tensors, words):
        words[name] = value

    return change


def tensor(name, of):
    def change(tensors, words):
        tensors[name] = of(tensors[name])

    return change


def without(*names):
    def change(tensors, words):
        for name in names:
            tensors.pop(name, None)
            words.pop(name, None)

    return change


def doubled(weights):
    weights = weights.clone()
    weights[1, 2, 6, 6] *= 2
    return weights


REFUSED = [
    (word("format", "interp-capture/2"), r"has format 'interp-capture/2'; this version reads interp-capture/1"),
    (without("format"), r"has format 'none'; this version reads"),
    (without("q", "scores", "weights", "z", "k"), r"holds none of weights, scores, q"),
    (without("tokens"), r"is damaged: 'tokens'"),
    (word("tokens", "no json"), r"is damaged: Expecting value"),
    (word("tokens", json.dumps(["a"])), r"has shape .* but 2 layers and 1 tokens need"),
    (word("tokens", json.dumps([1] * 11)), r"its tokens are not all text"),
    (word("layers", "[0, 0]"), r"its layers \(0, 0\) are not distinct numbers"),
    (word("layers", "[0, 1, 2]"), r"3 layers and 11 tokens"),
    (word("scale", "[0.5]"), r"1 numbers of scale for 2 layers"),
    (word("provenance", "[]"), r"its provenance is no object"),
    (word("provenance", '{"dtype": "float31"}'), r"is damaged"),
    (tensor("weights", doubled), r"contradicts itself: rows sum to 1: .* at 1\.2 row 6; softmax\(scores\) = weights"),
    (tensor("q", lambda q: q * 1.01), r"contradicts itself: scale · q·k = scores"),
    (tensor("v", lambda v: v + 0.1), r"contradicts itself: weights · v = z"),
    (tensor("scores", lambda s: s.flip(-1)), r"contradicts itself: scale · q·k = scores"),
    (tensor("visible", lambda seen: seen.logical_not()), r"contradicts itself: no weight on unseen keys"),
    (tensor("visible", lambda seen: seen.float()), r"visible holds float32"),
    (tensor("ids", lambda ids: ids.float()), r"ids holds float32"),
    (tensor("ids", lambda ids: ids[:-1]), r"ids has shape \(10,\)"),
    (tensor("weights", lambda w: (w * 100).int()), r"weights holds int32"),
    (tensor("weights", lambda w: w[:, :4]), r"disagree about the number of heads"),
    (tensor("k", lambda k: torch.cat([k, k[:, :1]], 1)), r"6 heads cannot share"),
    (tensor("z", lambda z: z[0]), r"z has 3 axes, expected 4"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=[reason[:40] for _, reason in REFUSED])
def test_refused_with_the_reason(made, tmp_path, change, reason):
    path = changed(made.save(tmp_path / "x.safetensors"), change)
    with pytest.raises(interp.InterpError, match=reason) as raised:
        interp.read(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "change", [tensor("ids", lambda ids: ids + 1), word("text", "another"), tensor("z", lambda z: z * (1 + 1e-7))]
)
def test_a_change_too_small_to_contradict_is_seen_by_the_digest(made, tmp_path, change):
    path = changed(made.save(tmp_path / "x.safetensors"), change, keep_digest=True)
    with pytest.raises(interp.InterpError, match="was changed after it was written"):
        interp.read(path)


def test_truncated_foreign_and_missing(made, tmp_path):
    path = made.save(tmp_path / "x.safetensors")
    whole = path.read_bytes()
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(interp.InterpError, match="cannot be read as safetensors"):
            interp.read(path)
    path.write_bytes(b"PK\x03\x04 no safetensors at all" * 9)
    with pytest.raises(interp.InterpError, match="cannot be read as safetensors"):
        interp.read(path)
    with pytest.raises(interp.InterpError, match="no file .*missing.safetensors"):
        interp.read(tmp_path / "missing.safetensors")
    with pytest.raises(interp.InterpError, match="no file"):
        interp.read(tmp_path)
    save_file({"embedding": torch.zeros(3)}, path)
    with pytest.raises(interp.InterpError, match=f"has format 'none'; this version reads {FORMAT}"):
        interp.read(path)


def test_one_flipped_byte_anywhere_is_refused_or_changes_nothing(made, tmp_path):
    path = replace(made, v=None, z=None).save(tmp_path / "x.safetensors")
    whole = path.read_bytes()
    for place in torch.randint(8, len(whole), (40,), generator=torch.Generator().manual_seed(0)).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(interp.InterpError):
            interp.read(path)


def test_a_failed_write_leaves_nothing(made, tmp_path, monkeypatch):
    import safetensors.torch

    def fails(*args):
        raise OSError("disk full")

    made.save(tmp_path / "x.safetensors")
    before = (tmp_path / "x.safetensors").read_bytes()
    monkeypatch.setattr(safetensors.torch, "save_file", fails)
    with pytest.raises(OSError, match="disk full"):
        made.save(tmp_path / "x.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]
    assert (tmp_path / "x.safetensors").read_bytes() == before
    with pytest.raises(interp.InterpError, match="no folder"):
        made.save(tmp_path / "nowhere" / "x.safetensors")
