"""What heads do: planted heads are found and nothing else is labelled; a random model gets no labels."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from planted import POSITIONS, planted

import interp
from analyses import heads as analysis
from interp import attention
from interp import interventions as change
from interp.errors import InterpError
from interp.measures import heads

IDS = [list(range(POSITIONS)), list(range(20, 20 + POSITIONS))]


def labels(model: interp.Model) -> list[str]:
    texts = [" ".join(map(str, ids)) for ids in IDS]
    report = analysis.run(model, texts)
    return report.tables[0].frame["label"].tolist()


def test_planted_heads_are_found_and_named() -> None:
    assert labels(planted()) == ["previous token", "first token"]


@pytest.mark.parametrize(
    ("previous", "sink", "expected"), [(False, True, ["", "first token"]), (True, False, ["previous token", ""])]
)
def test_a_head_taken_away_loses_its_label(previous: bool, sink: bool, expected: list[str]) -> None:
    assert labels(planted(previous, sink)) == expected


def test_a_random_model_gets_no_labels() -> None:
    assert labels(planted(False, False)) == ["", ""]


def test_diagonals_by_hand() -> None:
    weights = torch.zeros(1, 1, 6, 6)
    for query in range(1, 6):
        weights[0, 0, query, query - 1] = 1.0
    assert float(heads.previous_token(weights)) == 1.0
    assert float(heads.duplicate_token(weights, 3)) == 0.0
    assert float(heads.induction(weights, 3)) == 0.0  # key = query − 2
    assert float(heads.induction(weights, 2)) == 1.0  # key = query − 1
    with pytest.raises(InterpError, match="diagonal key = query − 6 does not exist in 6 tokens"):
        heads.diagonal(weights, 6)


def test_entropy_distance_and_mass_by_hand() -> None:
    weights = attention.weights(torch.zeros(1, 1, 4, 4), attention.visible(4))
    assert heads.entropy(weights)[0, 0].tolist() == pytest.approx([0, math.log(2), math.log(3), math.log(4)])
    assert heads.distance(weights)[0, 0].tolist() == pytest.approx([0, 0.5, 1.0, 1.5])
    keys = torch.tensor([False, True, False, True])
    assert heads.mass_on(weights, keys)[0, 0].tolist() == pytest.approx([0, 0.5, 1 / 3, 0.5])


def test_repeated_random_ids_follow_the_published_protocol() -> None:
    ids = heads.repeated_random(50257)
    torch.manual_seed(0)
    half = torch.randint(100, 20000, (2, 100))
    assert torch.equal(ids, torch.cat((half, half), 1))
    assert int(heads.repeated_random(53, period=8).max()) < 53


PUBLISHED = {
    "previous_token": {(4, 11): 0.9921, (3, 7): 0.5286, (6, 8): 0.4993, (2, 2): 0.4818},
    "duplicate_token": {(0, 5): 0.7035, (3, 0): 0.6776, (0, 1): 0.1324},
    "induction": {(5, 1): 0.9306, (6, 9): 0.9258, (5, 5): 0.9256, (7, 10): 0.9038, (7, 2): 0.8510},
}


@pytest.mark.gpt2
def test_gpt2_equals_the_published_scores(gpt2) -> None:
    made = analysis.repeated(gpt2, 100)
    for score, heads_ in PUBLISHED.items():
        for (layer, head), value in heads_.items():
            assert float(made[score][layer, head]) == pytest.approx(value, abs=1e-4)


def ids_of(model: interp.Model) -> torch.Tensor:
    return torch.tensor(IDS)


def test_the_loss_is_that_of_the_models_own_logits() -> None:
    model = planted()
    made = change.loss(model, ids_of(model))
    for text, row in zip(made, ids_of(model), strict=True):
        own = torch.nn.functional.cross_entropy(model.logits(row)[:-1], row[1:])
        assert float(text) == pytest.approx(float(own), abs=1e-5)


def test_what_lies_below_the_edited_layer_is_not_computed_and_changes_nothing(shared) -> None:
    model = interp.load(str(shared / "models" / "stories260k"))
    ids = torch.randint(0, model.d_vocab, (3, 9), generator=torch.Generator().manual_seed(0))
    residual = change.residuals(model, ids, range(model.n_layers))
    plain = change.loss(model, ids)
    for layer in range(model.n_layers):
        edits = {f"{layer}.1": torch.zeros_like}
        whole = change.loss(model, ids, edits)
        with change.above(model, layer, residual.get(layer)), interp.trace(model, "blocks.0.attn.hook_z") as seen:
            part = change.loss(model, ids, edits)
        assert torch.equal(whole, part)
        assert not torch.equal(whole, plain)
        assert bool(seen) == (layer == 0)
    other = ids.flip(0)
    assert torch.equal(change.loss(model, other), plain.flip(0)), "a block below still hands on the old residual stream"


def test_blocks_are_themselves_again_after_an_exception(shared) -> None:
    model = interp.load(str(shared / "models" / "stories260k"))
    with pytest.raises(RuntimeError, match="on purpose"), change.above(model, 2, torch.zeros(1, 4, model.d_model)):
        raise RuntimeError("on purpose")
    assert not any("forward" in block.__dict__ for block in model.bridge.blocks)
