"""The resting-spot account on planted sinks: hidden, exchanged, withheld, cut, evicted; each found, and gone when it is removed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from planted import IDS, POSITIONS, TEXTS, planted
from planted import drawn as tiny

from analyses import _eviction, _resting, _spikes, resting_spot
from interp import hooks
from interp import interventions as change


def test_the_planted_sink_is_hidden_exchanged_and_silenced() -> None:
    model = planted(previous=False)
    plain = _resting.observe(model, IDS)
    sinking = _resting.importance(plain).mean(0) > 0.3
    assert sinking.tolist() == [[False, True]]
    frame = _resting.masked(model, IDS, plain, sinking).set_index("condition")
    assert frame.loc["nothing changed", "rise"] == 0
    assert frame.loc["key 0 hidden from the sinking heads", "on_key_0"] == pytest.approx(
        float(plain.weights[:, :, 0, 3:, 0].mean()) / 2, rel=1e-5
    )
    assert frame.loc["key 0 hidden from all heads", "on_key_0"] == 0
    places = _resting.place_or_token(model, IDS, plain).set_index("condition")
    tokens, rows = places.loc["tokens 0 and 5 exchanged"], places.loc["position rows 0 and 5 exchanged"]
    assert tokens["on_first_place"] > 0.5 > tokens["on_other_place"]  # made by the place, not by the token
    assert rows["on_other_place"] > 0.5 > rows["on_first_place"]


def test_what_lies_below_an_edit_is_taken_from_the_plain_run() -> None:
    model = tiny("gpt2")
    plain = _resting.observe(model, IDS)
    for edits in (
        {"blocks.1.attn.hook_attn_scores": _resting.hide(0)},
        {"2.1": torch.zeros_like},
        {"blocks.*.attn.hook_v": _resting.silence_value(0)},
    ):
        whole, part = _resting.observe(model, IDS, edits), _resting.observe(model, IDS, edits, plain)
        assert torch.equal(whole.weights, part.weights)
        assert torch.equal(whole.loss, part.loss)
        assert not torch.equal(whole.loss, plain.loss)
    assert _resting.lowest_layer(model, "blocks.1.attn.hook_attn_scores") == 1
    assert _resting.lowest_layer(model, "2.1") == _resting.lowest_layer(model, "2.1:hook_q") == 2
    assert _resting.lowest_layer(model, "blocks.*.attn.hook_v") == _resting.lowest_layer(model, "embed.hook_out") == 0


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_withheld_value_is_weight_times_value_less_in_later_rows(kind: str) -> None:
    model, key = tiny(kind), 2
    names = [f"blocks.0.attn.hook_{name}" for name in ("v", "pattern", "z")]
    with hooks.trace(model, names) as seen:
        change.logits(model, IDS)
    v, weights, z = (seen[name] for name in names)
    expected = z.clone()
    for head in range(model.n_heads):
        for row in range(key + 1, POSITIONS):
            own = v[:, key, head // (model.n_heads // model.n_kv_heads)]
            expected[:, row, head] -= weights[:, head, row, key, None] * own
    kept: list[torch.Tensor] = []
    edits = _resting.withhold(model, key)
    with hooks.edit(model, edits), hooks.trace(model, names[2]) as after:
        change.logits(model, IDS)
        kept.append(after[names[2]])
    assert torch.allclose(kept[0], expected, atol=1e-5)
    assert torch.equal(kept[0][:, : key + 1], z[:, : key + 1])


def test_silencing_a_value_leaves_the_weights() -> None:
    model = tiny("llama")
    plain = _resting.observe(model, IDS)
    seen = _resting.observe(model, IDS, {"blocks.0.attn.hook_v": _resting.silence_value(0)})
    assert torch.equal(seen.weights[:, 0], plain.weights[:, 0])
    assert not torch.equal(seen.loss, plain.loss)


def test_spikes_are_found_where_planted_and_cut() -> None:
    model = planted(previous=False)
    with torch.no_grad():
        model.module.transformer.wte.weight.mul_(100)  # so that no place's own unit vector is 100 times the median
        model.module.transformer.wpe.weight[0, 0] = 5000.0
    plain = _resting.observe(model, IDS)
    found, spiked = _spikes.spikes(model, IDS, plain)
    assert found.loc[0, ["position", "dimension", "spike_tokens"]].tolist() == [0, 0, 2]
    assert found.loc[0, "times_median"] > 1000
    cut = _spikes.cut(model, IDS, plain).set_index("condition")
    assert cut.loc["spikes cut", "rise"] != 0
    pieces = [["a", ".", "b"] + ["c"] * (POSITIONS - 3)] * 2
    frame, shares = _spikes.secondary(model, IDS, pieces, plain, spiked)
    assert shares["marks_among_all"] == pytest.approx(1 / (POSITIONS - 9))
    assert shares["seen_before_among_all"] == 0
    assert list(frame.columns)[:4] == ["text", "position", "token_id", "token"]


def test_a_planted_secondary_sink_is_found_and_gone_when_removed() -> None:
    model = planted(previous=False)
    weight = model.module.transformer.h[0].attn.c_attn.weight
    pieces = [["a"] * POSITIONS] * 2

    def later() -> list[int]:
        plain = _resting.observe(model, IDS)
        frame, _ = _spikes.secondary(model, IDS, pieces, plain, torch.zeros(1, 2, POSITIONS - 8, dtype=torch.bool))
        return sorted(set(frame["position"][frame["importance"] > 0.2]))

    none = later()
    with torch.no_grad():
        weight[6, 2 * POSITIONS + POSITIONS] = 1.0  # head 1's constant query meets place 6 as it meets place 0
    assert set(later()) == {*none, 6}
    assert 6 not in none


def test_a_window_with_everything_kept_is_full_attention() -> None:
    model = tiny("llama")
    frame, places = _eviction.evicted(model, IDS, [5], [0, POSITIONS])
    loss = frame.set_index("kept")["loss"]
    assert loss[str(POSITIONS)] == pytest.approx(loss["full"], abs=1e-6)
    assert loss["0"] != pytest.approx(loss["full"], abs=1e-6)
    assert set(places["kept"]) == {"full", "0", str(POSITIONS)}


def test_fall_is_zero_where_nothing_repeats() -> None:
    frame = _resting.own_pattern(planted(), 7, 0)
    assert frame["fall"].abs().max() < 0.05  # neither planted head looks for repeats
    assert (frame["induction"] < 0.5).all()


def test_the_report_says_what_would_have_counted_against_it() -> None:
    report = resting_spot.run(planted(), TEXTS, max_tokens=POSITIONS, period=8, evict_length=0)
    verdicts = {claim.id: claim.verdict for claim in report.claims}
    assert verdicts["resting-place"] == verdicts["resting-position-row"] == "holds"
    assert verdicts["resting-evict"] == verdicts["resting-fires"] == "not measured here"
    assert {"loss", "loss_low", "loss_high"} <= report.numbers.keys()
    assert all(claim.expected for claim in report.claims)
    assert report.numbers["sinking_heads"] == 1
    none = resting_spot.run(planted(False, False), TEXTS, max_tokens=POSITIONS, period=8, evict_length=0)
    assert [claim.id for claim in none.claims] == ["resting-spot"]
    assert "cannot be tested" in none.answer
