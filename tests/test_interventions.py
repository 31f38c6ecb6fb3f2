"""What interventions do: the rule as an intervention, what heads write, the loss without logits, pruning, and that δ = 0 changes no bit."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from planted import IDS, POSITIONS, TEXTS
from planted import drawn as tiny
from tiny import tiny as one_of

import interp
from analyses import _resting, pruning, resting_spot, score_shift
from interp import attribution, hooks, losses
from interp import interventions as change
from interp.errors import InterpError, UnknownName
from interp.measures import pruning as measure
from interp.models import Model

# The rule as an intervention -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_raised_score_moves_its_weight_by_the_rule_and_nothing_else(kind: str) -> None:
    report = score_shift.run(tiny(kind), TEXTS[:1], max_tokens=9, deltas=(-8.0, 0.0, 3.0, 8.0))
    frame = report.tables[0].frame
    assert len(frame) == tiny(kind).n_layers * tiny(kind).n_heads * 4
    assert report.numbers["holds"] is True
    assert report.numbers["zero_is_bit_equal"] is True
    assert (frame[frame["delta"] == 0]["kl"] == 0).all()
    assert (frame[frame["delta"] == 8]["weight_after"] > frame[frame["delta"] == 8]["weight_before"]).all()
    assert (frame[frame["delta"] == 8]["kl"] > 0).any()


def test_a_rule_that_is_broken_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = score_shift._row

    def doubled(model: Model, ids: torch.Tensor, layer: int, below: object, asked: list[object]) -> object:
        weights, z, logits = right(model, ids, layer, below, asked)  # type: ignore[arg-type]
        return (weights * 1.01 if asked else weights), z, logits

    monkeypatch.setattr(score_shift, "_row", doubled)
    report = score_shift.run(tiny(), TEXTS[:1], max_tokens=9, deltas=(2.0,))
    assert report.numbers["holds"] is False
    assert [claim.verdict for claim in report.claims] == ["fails"]


def nothing(model: Model, length: int) -> dict[str, dict[str, object]]:
    """Interventions that go through all the motions and change nothing: δ = 0, no head hidden, a value that no later row fetches."""
    return {
        "scores + 0": {"blocks.*.attn.hook_attn_scores" if model.n_layers > 1 else "blocks.0.attn.hook_attn_scores": lambda scores: scores + 0.0},
        "no head hidden": _resting.hide_in({layer: [] for layer in range(model.n_layers)}, 0) | {"blocks.0.attn.hook_attn_scores": _resting.hide(0, [])},
        "withheld from no row": _resting.withhold(model, length - 1),
        "z moved by 0": {f"{layer}.0": lambda z: z + 0.0 for layer in range(model.n_layers)},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["toy", "stories260k", "smollm2"])
def test_an_intervention_by_nothing_leaves_the_logits_bit_equal(name: str, request: pytest.FixtureRequest) -> None:
    stories = name == "stories260k"
    model = interp.load(str(request.getfixturevalue("shared") / "models" / name)) if stories else request.getfixturevalue(name)
    text = "The team colour is red." if name == "toy" else "Once upon a time there was"
    ids = model.tokens(text).ids[None]
    before = change.logits(model, ids)
    for what, edits in nothing(model, ids.shape[1]).items():
        with hooks.edit(model, edits):  # type: ignore[arg-type]
            assert torch.equal(change.logits(model, ids), before), what
    last = model.n_layers - 1
    residual = change.residuals(model, ids, [last]).get(last)
    with (
        change.above(model, last, residual),
        hooks.edit(model, {f"blocks.{last}.attn.hook_attn_scores": lambda scores: scores + 0.0}),
    ):
        assert torch.equal(change.logits(model, ids), before)
    shifted = score_shift.run(model, [text], max_tokens=6, layers=sorted({0, last}), deltas=(0.0,))
    assert shifted.numbers["zero_is_bit_equal"] is True
    assert (shifted.tables[0].frame["logit_change"] == 0).all()


def test_one_token_has_no_score_to_move() -> None:
    with pytest.raises(InterpError, match="two tokens or more"):
        score_shift.run(tiny(), ["7"])


# What heads write -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_contributions_add_up_and_a_silenced_head_gives_none(kind: str) -> None:
    model = tiny(kind)
    right, wrong = torch.tensor([3, 4]), torch.tensor([5, 6])
    found = attribution.head_contributions(model, IDS, right, wrong)
    assert found.error < 1e-4
    last = change.logits(model, IDS)[:, -1]
    assert torch.allclose(found.difference, (last[[0, 1], right] - last[[0, 1], wrong]).double(), atol=1e-5)
    with hooks.edit(model, {"1.2": torch.zeros_like}):
        silenced = attribution.head_contributions(model, IDS, right, wrong)
    assert float(silenced.heads[:, 1, 2].abs().max()) == 0
    assert torch.allclose(silenced.heads[:, 0], found.heads[:, 0], atol=1e-1)
    assert float(found.heads[:, 1, 2].abs().max()) > 0


def test_contribution_of_the_last_layer_is_what_its_removal_takes() -> None:
    """In the last layer, with the scale held and no MLP after it, a head's contribution is the whole of its direct effect."""
    model = tiny("llama")
    for block in model.module.model.layers:
        block.mlp.down_proj.weight.data.zero_()
    right, wrong = torch.tensor([3, 4]), torch.tensor([5, 6])
    found = attribution.head_contributions(model, IDS, right, wrong)
    norm, unembed = model.module.model.norm, model.module.lm_head
    with hooks.trace(model, "ln_final.hook_in") as seen:
        change.logits(model, IDS)
        before = seen["ln_final.hook_in"][:, -1]
    with hooks.trace(model, "ln_final.hook_in") as seen, hooks.edit(model, {"1.1": torch.zeros_like}):
        change.logits(model, IDS)
        after = seen["ln_final.hook_in"][:, -1]
    scale = before.pow(2).mean(-1, keepdim=True).add(norm.variance_epsilon).rsqrt()
    expected = (((before - after) * scale * norm.weight) * (unembed.weight[right] - unembed.weight[wrong])).sum(-1)
    assert torch.allclose(found.heads[:, 1, 1].float(), expected, atol=1e-5)


def test_the_toy_has_no_norm_to_follow(toy: Model) -> None:
    with pytest.raises(InterpError, match="no final norm"):
        attribution.head_contributions(toy, torch.tensor([[1, 2]]), torch.tensor([1]), torch.tensor([2]))


# The loss without the logits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["gpt2", "llama", "phi", "gemma2"])
def test_the_loss_in_pieces_is_that_of_the_logits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """phi has a bias; gemma2 caps its logits softly, so the shorter way must not be taken."""
    model = one_of(case)
    ids = torch.randint(0, model.d_vocab, (3, 11), generator=torch.Generator().manual_seed(0))
    made = change.logits(model, ids)
    by_hand = torch.nn.functional.cross_entropy(made[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(3, -1)
    monkeypatch.setattr(losses, "ROWS", 7)
    monkeypatch.setattr(losses, "WORDS", 13)
    each = losses.of_forward(model, model.bridge, ids, lambda: change.logits(model, ids))
    assert torch.allclose(each, by_hand, atol=2e-5)
    assert torch.allclose(losses.token_losses(made, ids), by_hand, atol=1e-6)
    assert model.extra["plain_unembedding"] is (case != "gemma2")
    assert torch.equal(change.logits(model, ids), made), "the unembedding is not itself again"


def test_an_edit_of_the_logits_changes_the_loss() -> None:
    model = tiny("llama")
    uniform = change.loss(model, IDS, {"unembed.hook_out": torch.zeros_like})
    assert uniform.tolist() == pytest.approx([math.log(53)] * 2, abs=1e-5)


# Pruning ------------------------------------------------------------------------------------------------------------------


def test_pruning_finds_the_head_that_matters_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    model, save = tiny(), tmp_path / "kept.json"
    report = pruning.run(model, TEXTS, max_tokens=POSITIONS, steps=3, orders=1, save=save)
    frame = report.tables[0].frame
    assert len(frame) == 9
    alone = change.loss(model, IDS, {"2.1": torch.zeros_like}) - change.loss(model, IDS)
    zeroed = pruning.run(model, TEXTS, max_tokens=POSITIONS, steps=3, orders=1, replace="zero").tables[0].frame
    at = zeroed[(zeroed["layer"] == 2) & (zeroed["head"] == 1)].iloc[0]
    assert at["rise"] == pytest.approx(float(alone.mean()), abs=1e-6)
    held = json.loads(save.read_text())
    gone = held["values"].pop("1.1")
    held["values"]["0.0"] = [9.125, 9.125]
    save.write_text(json.dumps(held))
    again = pruning.run(model, TEXTS, max_tokens=POSITIONS, steps=3, orders=1, save=str(save), resume=True).tables[0].frame
    assert again[(again["layer"] == 0) & (again["head"] == 0)]["rise"].iloc[0] == pytest.approx(
        9.125 - report.numbers["loss"]
    )  # kept
    assert again[(again["layer"] == 1) & (again["head"] == 1)]["rise"].iloc[0] == pytest.approx(
        sum(gone) / 2 - report.numbers["loss"]
    )
    with pytest.raises(InterpError, match="another replace"):
        pruning.run(model, TEXTS, max_tokens=POSITIONS, steps=3, orders=1, replace="zero", save=save, resume=True)
    with pytest.raises(InterpError, match="pass --resume"):
        pruning.run(model, TEXTS, max_tokens=POSITIONS, save=save)
    with pytest.raises(InterpError, match="pass --save FILE"):
        pruning.run(model, TEXTS, max_tokens=POSITIONS, resume=True)
    with pytest.raises(UnknownName, match="replacement"):
        pruning.run(model, TEXTS, replace="median")


def test_a_part_of_the_heads_gives_a_lower_bound_and_no_verdict_against() -> None:
    report = pruning.run(tiny(), TEXTS, max_tokens=POSITIONS, steps=3, orders=1, every=4)
    assert report.numbers["heads_tried"] == len(report.tables[0].frame) == 3
    assert report.tables[1].frame["removed"].max() == 3

    def verdicts(*given: float, tried: int) -> list[str]:
        claims = pruning._claims("m", given[0], given[1], (0.0, 1.0), tried, 9)
        assert all(claim.verdict != "not measured here" or "interp run pruning" in claim.why for claim in claims)
        return [claim.verdict for claim in claims]

    assert verdicts(0.1, 0.0, tried=3) == ["not measured here", "holds"]
    assert verdicts(0.1, 0.2, tried=9) == ["fails", "fails"]
    assert verdicts(3 / 9, 3 / 9, tried=3) == ["holds", "not measured here"]  # all that were tried can go in any order


def test_the_share_within_has_an_interval_over_texts() -> None:
    plain = torch.tensor([1.0, 1.0])
    curve = [(0, plain), (2, torch.tensor([1.0, 1.0])), (4, torch.tensor([1.0, 1.1])), (6, torch.tensor([9.0, 9.0]))]
    low, high = measure.share_interval(curve, plain, 8)  # type: ignore[arg-type]
    assert (low, high) == (0.25, 0.5)  # only draws of the first text alone allow four heads


def test_orders_and_intervals_by_hand() -> None:
    rise = torch.tensor([[0.3, 0.1], [0.2, 0.1]])
    assert measure.gentlest_first(rise) == [(0, 1), (1, 1), (1, 0), (0, 0)]
    assert sorted(measure.random_order(2, 3, 1)) == [(layer, head) for layer in range(2) for head in range(3)]
    assert measure.share_within([(0, 1.0), (2, 1.005), (4, 1.02), (6, 1.0)], 1.0, 8) == 0.25
    low, high = measure.interval(torch.tensor([1.0, 2.0, 3.0]))
    assert 1 <= low < 2 < high <= 3
    assert measure.interval(torch.tensor([2.0])) == (2.0, 2.0)


def test_nothing_is_left_behind() -> None:
    model = tiny()
    before = change.logits(model, IDS)
    resting_spot.run(model, TEXTS, max_tokens=POSITIONS, period=8, evict_length=0)
    score_shift.run(model, TEXTS[:1], max_tokens=5, deltas=(1.0,))
    assert torch.equal(change.logits(model, IDS), before)
    assert torch.equal(interp.Model.logits(model, IDS[0]), model.logits(IDS[0]))
