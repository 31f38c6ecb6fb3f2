"""One head, worked: on SmolLM2, on recordings of GPT-2, and, where its weights are, on GPT-2 to the chapter's digits."""

from __future__ import annotations

import math

import pytest
import torch

from analyses import gpt2_head
from interp.errors import InterpError


@pytest.fixture(scope="module")
def report(smollm2):
    return gpt2_head.run(smollm2)


def tables(report):
    return {table.name: table.frame for table in report.tables}


def test_smollm2_on_the_sentence(report):
    numbers = report.numbers
    assert (numbers["squares"], numbers["masked"], numbers["heads"]) == (196, 91, 270)
    assert numbers["exp_delta"] == pytest.approx(math.exp(numbers["score_a"] - numbers["score_b"]))
    assert numbers["weight_ratio"] == pytest.approx(numbers["exp_delta"], rel=1e-4)
    row = tables(report)["last_row"]
    assert row["weight"].sum() == pytest.approx(1, abs=1e-5)
    assert row["token"].tolist()[1] == " Mary"
    verdicts = {claim.id: claim.verdict for claim in report.claims}
    assert verdicts["gpt2-head-mary-score"] == verdicts["gpt2-head-divisor"] == "not measured here"
    assert verdicts["gpt2-head-pair"] == verdicts["gpt2-head-output"] == verdicts["gpt2-head-masked"] == "holds"
    assert all("needs GPT-2's weights" in claim.why for claim in report.claims if claim.verdict == "not measured here")


def test_heads_side_by_side_times_the_output_matrix(report, smollm2):
    outputs = tables(report)["outputs"]
    assert len(outputs) == 30
    assert (outputs["difference"] / outputs["largest_output"]).max() < 1e-5
    # By the module's own weights, without the bridge's view of them.
    weight = smollm2.module.model.layers[3].self_attn.o_proj.weight
    assert torch.equal(smollm2.bridge.blocks[3].attn.W_O.reshape(576, 576), weight.T)


def test_recorded_gpt2(shared):
    report = gpt2_head.run(captures=[shared / "data" / "gpt2_bertviz_john_smith_qk.safetensors"])
    verdicts = {claim.id: claim.verdict for claim in report.claims}
    for measured in ("pair", "heads", "heads-in-layer", "d-head", "divisor"):
        assert verdicts[f"gpt2-head-{measured}"] == "holds", measured
    assert verdicts["gpt2-head-john-weight"] == verdicts["gpt2-head-places"] == "not measured here"
    chapter = tables(report)["chapter"]
    assert dict(zip(chapter["chapter"], chapter["here"], strict=True)) == {"144": 144, "12": 12, "64": 64, "8": 8}
    other = gpt2_head.run(captures=[shared / "data" / "gpt2_explainer_0.safetensors"], head="9.9")
    assert other.numbers["head"] == "9.9"
    assert {claim.id: claim.verdict for claim in other.claims}["gpt2-head-mary-score"] == "not measured here"


def test_the_printed_digits_decide(monkeypatch):
    """A planted GPT-2 row with the chapter's scores passes; one off by a hundredth does not."""
    from analyses._chapter import Beside

    scores = [4.24, 4.25, 0.0, 3.23, *[2.05] * 10]
    total = sum(map(math.exp, scores))
    row = [{"score": s, "weight": math.exp(s) / total} for s in scores]
    pair = {
        "exp_delta": math.exp(1.02),
        "weight_ratio": math.exp(1.02),
        "delta": 1.02,
        "layer": 9,
        "head": 9,
        "token_a": "",
        "token_b": "",
    }

    class Made:
        n_tokens = 14

    def settle():
        beside = Beside("gpt2-head", "gpt2")
        counts = {"squares": 196, "masked": 91}
        gpt2_head._claims(beside, Made(), True, gpt2_head.SENTENCE, "the chapter's", row, pair, counts, None)
        return {claim.id: claim.verdict for claim in beside.claims}

    found = settle()
    assert found["gpt2-head-mary-score"] == found["gpt2-head-john-score"] == found["gpt2-head-ratio"] == "holds"
    row[1]["score"] = 4.26
    assert settle()["gpt2-head-mary-score"] == "fails"


@pytest.mark.gpt2
def test_gpt2_to_the_printed_digits(gpt2):
    report = gpt2_head.run(gpt2)
    assert tables(report)["chapter"]["agrees"].all()
    assert len(tables(report)["chapter"]) == 17


def test_bad_heads_are_refused(toy):
    with pytest.raises(InterpError, match="no head '9'; write layer.head"):
        gpt2_head.run(toy, "The team colour is red .", head="9")
    with pytest.raises(InterpError, match="no captured layer"):
        gpt2_head.run(toy, "The team colour is red .", head="9.0")
