"""Places: the three ways to tell them, each against its formula, its property and its limit; and the analysis that uses them."""

from __future__ import annotations

import math

import pytest
import torch

from analyses import positions as analysis
from interp import attention, positions
from interp.errors import InterpError


def test_angles_are_those_of_the_formula():
    for base in (10_000.0, 500_000.0):
        table = positions.angles(torch.tensor([0.0, 7.0]), 6, base)
        for place, m in enumerate((0, 7)):
            for j in range(3):
                assert float(table[place, j]) == pytest.approx(m * base ** (-2 * j / 6), rel=1e-14)


def test_sinusoids_are_defined_at_any_place_and_their_products_depend_on_the_distance():
    far = positions.sinusoidal(torch.tensor([3.0, 8.0, 1_000_003.0, 1_000_008.0]), 14)
    assert far.abs().max() <= 1
    assert float(far[0] @ far[1]) == pytest.approx(float(far[2] @ far[3]), abs=1e-8)
    assert far[0, 2].item() == pytest.approx(math.sin(3 * 10_000 ** (-2 / 14)))
    assert far[0, 3].item() == pytest.approx(math.cos(3 * 10_000 ** (-2 / 14)))


@pytest.mark.parametrize("pairing", ["halves", "neighbours"])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_the_rotary_score_depends_on_the_distance_alone(pairing, base):
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(5, 14, generator=generator, dtype=torch.float64) for _ in range(2))
    places = torch.tensor([0.0, 2.0, 3.0, 11.0, 40.0])
    here, there = (
        attention.scores(positions.rotate(q, places + s, base, pairing), positions.rotate(k, places + s, base, pairing))
        for s in (0, 1000)
    )
    assert torch.allclose(here, there, atol=1e-11)
    assert not torch.allclose(here, attention.scores(q, k), atol=1e-3)
    assert torch.allclose(positions.rotate(q, places, base, pairing).norm(dim=-1), q.norm(dim=-1))
    assert torch.allclose(positions.rotate(positions.rotate(q, places, base, pairing), -places, base, pairing), q)


def test_a_pair_is_turned_by_its_own_angle():
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    turned = positions.rotate(x, torch.tensor([2.0]), 100.0)
    assert turned.tolist()[0] == pytest.approx([math.cos(2), 0, math.sin(2), 0])
    turned = positions.rotate(x.roll(2, -1), torch.tensor([2.0]), 100.0, "neighbours")
    assert turned.tolist()[0] == pytest.approx([0, 0, math.cos(0.2), math.sin(0.2)])


def test_a_learned_table_ends():
    table = torch.arange(12.0).view(4, 3)
    assert positions.learned(table, torch.tensor([3, 0])).tolist() == [[9, 10, 11], [0, 1, 2]]
    with pytest.raises(InterpError, match="place 4 has no vector: the table has 4, for places 0 to 3"):
        positions.learned(table, torch.tensor([4]))
    with pytest.raises(InterpError, match="must be even; got 7"):
        positions.frequencies(7)


def test_shuffled_input_gives_shuffled_output_bit_for_bit_and_a_causal_mask_breaks_it():
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(11, d, generator=generator, dtype=torch.float64) for d in (3, 3, 5))
    order = torch.randperm(11, generator=generator)
    plain = positions.order_blind(q, k, v)
    assert torch.equal(positions.order_blind(q[order], k[order], v[order]), plain[order])
    expected = attention.attend(attention.weights(attention.scores(q, k)), v)
    assert torch.allclose(plain, expected, atol=1e-13)
    causal = positions.order_blind(q, k, v, causal=True)
    seen = attention.visible(11)
    assert torch.allclose(causal, attention.attend(attention.weights(attention.scores(q, k), seen), v), atol=1e-13)
    assert not torch.allclose(positions.order_blind(q[order], k[order], v[order], causal=True), causal[order], atol=1e-3)


def verdicts(report):
    return {claim.id: claim.verdict for claim in report.claims}


def frame(report, name):
    return next(table.frame for table in report.tables if table.name == name)


def test_the_two_sentences_on_smollm2(smollm2):
    report = analysis.run(smollm2)
    found = verdicts(report)
    assert found.pop("positions-gpt2-learned") == "not measured here"
    assert set(found.values()) == {"holds"}
    assert report.numbers["blend_difference_without_places"] < 1e-6
    assert report.numbers["blend_difference_with_places"] > 0.01
    rows = frame(report, "last_row")
    without = rows.pivot_table(index="token", columns="sentence", values="weight_without_places")
    assert without[1].tolist() == pytest.approx(without[2].tolist(), abs=1e-6)
    with_places = rows.set_index(["sentence", "token"])["weight_with_places"]
    assert abs(with_places[1, " dog"] - with_places[2, " dog"]) > 0.01
    printed = frame(report, "chapter")
    assert printed["agrees"].all()
    assert dict(zip(printed["id"], printed["chapter"], strict=True)) == {
        "positions-base-10000": "10000",
        "positions-base-500000": "500000",
    }
    assert frame(report, "shifted_model")["logit_change"].max() < 1e-2


def test_a_real_model_with_a_learned_table_and_one_with_rotary_angles(shared):
    learned = analysis.run(str(shared / "models" / "nano_gpt_sort"))
    assert learned.numbers["places"] == "learned"
    assert learned.numbers["blend_difference_without_places"] < 1e-6
    assert learned.numbers["blend_difference_with_places"] > 0.01
    assert frame(learned, "shifted_model")["logit_change"].iloc[1] > 0.01
    rotary = analysis.run(str(shared / "models" / "stories260k"))
    assert verdicts(rotary)["positions-model-angles"] == "holds"
    assert rotary.numbers["blend_difference_without_places"] < 1e-6


def test_a_model_without_places_cannot_tell_and_other_sentences_are_checked(toy):
    report = analysis.run(toy)
    assert report.numbers["places"] == "none"
    assert report.numbers["blend_difference_with_places"] < 1e-6
    assert "positions-places-tell" not in verdicts(report)
    with pytest.raises(InterpError, match="must hold the same tokens in another order"):
        analysis.run(toy, ["The team colour is red .", "The team colour is blue ."])
