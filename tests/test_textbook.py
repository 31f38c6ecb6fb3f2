"""The ledger: it finds analyses by itself, calls nothing measured that was not, and the puzzles are answered by likelihood."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import tiny

import analyses
from analyses import _facts, _puzzles, _textbook, textbook
from analyses._winograd import PAIRS, Puzzle, puzzles
from interp.errors import InterpError

PLANTED = '''"""Is water wet?"""
from interp.errors import InterpError
from interp.report import Report
from interp.results import Claim

def run(model="toy", limit=0):
    if {refuse}:
        raise InterpError("no water here")
    claims = [
        Claim.number("wet", "000 §0", "Water is wet.", expected=limit, measured=4, tolerance=0, model="water"),
        Claim.unmeasured("dry", "003", "Sand is dry.", expected="dry", model="sand", why="needs sand"),
    ]
    return Report("wet", "water", "Is water wet?", "Yes.", claims=claims)
'''


@pytest.fixture
def planted(tmp_path, monkeypatch):
    def plant(name, refuse=False):
        (tmp_path / f"{name}.py").write_text(PLANTED.replace("{refuse}", str(refuse)))
        monkeypatch.setattr(analyses, "__path__", [*analyses.__path__, str(tmp_path)])

    return plant


def test_a_new_analysis_adds_its_claims_by_itself(planted, toy):
    planted("planted_water")
    report = textbook.run(toy, only=["planted_water"])
    assert [(claim.id, claim.verdict) for claim in report.claims] == [("wet", "holds"), ("dry", "not measured here")]
    numbers = report.numbers
    assert (numbers["claims"], numbers["holds"], numbers["fails"], numbers["not_measured"]) == (2, 1, 0, 1)
    assert report.files()["claims.csv"].frame["why"].tolist() == ["", "needs sand"]
    assert list(report.files()["claims.csv"].frame.columns) == [
        "id",
        "source",
        "claim",
        "expected",
        "measured",
        "tolerance",
        "model",
        "verdict",
        "why",
    ]


def test_a_page_of_the_ledger_names_the_command_that_writes_it(planted, toy, tmp_path, monkeypatch):
    planted("planted_water")
    monkeypatch.chdir(tmp_path)
    listed = textbook.run(toy, only=["planted_water"], pages=True).files()["analyses.csv"].frame
    page = Path("reports", "textbook", listed["page"][0]).resolve()
    assert "interp run textbook --model toy --only planted_water --pages" in page.read_text(encoding="utf-8")


def test_an_analysis_that_cannot_run_settles_nothing_and_says_so(planted, toy):
    planted("planted_drought", refuse=True)
    report = textbook.run(toy, only=["planted_drought"])
    assert not report.claims
    assert report.numbers["holds"] == 0
    assert "planted_drought could not run here: no water here" in report.notes
    with pytest.raises(InterpError, match="planted_droughts"):
        textbook.run(toy, only=["planted_droughts"])


def test_what_was_measured_goes_before_what_was_not(planted, toy):
    planted("planted_water")
    dry, wet = textbook.run(toy, only=["planted_water"]).claims[::-1]
    assert textbook._once([dry, wet, dry]) == [dry, wet]


def test_what_heads_do_has_its_rows_measured_or_with_the_command_that_would(toy):
    wanted = {"heads-previous-token", "heads-without-a-job", "pruning-many-heads", "resting-spot"}
    report = textbook.run(toy, only=["heads", "pruning", "resting_spot"], puzzles=False)
    assert wanted <= {claim.id for claim in report.claims}
    left = {claim.id: claim for claim in _textbook.left_out(toy, [])}
    assert set(left) == wanted
    for claim in left.values():
        assert claim.verdict == "not measured here"
        assert "interp run " in claim.why
    assert not _textbook.left_out(toy, ["heads", "pruning", "resting_spot"])


def test_the_ledger_on_smollm2(smollm2):
    short = ["leads", "circuits", "colour_recall", "causal_mask", "one_layer_limits", "cost", "heads", "pruning", "resting_spot"]
    report = textbook.run(smollm2, skip=[*short, "score_shift", "positions", "scaling"], puzzles=False)
    claims = {claim.id: claim for claim in report.claims}
    assert report.numbers["claims"] == len(report.claims) >= 40
    assert report.numbers["holds"] + report.numbers["fails"] + report.numbers["not_measured"] == report.numbers["claims"]
    assert claims["textbook-e-to-gap"].verdict == claims["textbook-percent-ratio"].verdict == "holds"
    assert claims["textbook-feed-forward"].verdict == "holds"
    assert claims["textbook-four-times"].verdict == "fails"  # 576 to 1,536: gated, 2.67 times
    for claim in report.claims:
        assert (claim.measured == "") == (claim.verdict == "not measured here")
        if claim.model.startswith("gpt2"):
            assert claim.verdict == "not measured here"
            assert "needs" in claim.why


def test_the_recordings_settle_what_gpt2_alone_can(shared, toy):
    files = [shared / "data" / f"gpt2_explainer_{number}.safetensors" for number in range(3)]
    report = textbook.run(toy, files, only=["sinks"])
    recorded = [claim for claim in report.claims if claim.id.endswith("-recorded")]
    assert recorded
    assert {claim.model for claim in recorded} == {"gpt2"}


def test_eighty_sentences_in_forty_pairs():
    asked = list(puzzles())
    assert len(PAIRS) == 40
    assert len(asked) == len({puzzle.before + puzzle.after for puzzle in asked}) == 80
    for puzzle in asked:
        assert puzzle.candidates[0] in (puzzle.before + " x").lower()
        assert puzzle.candidates[1] in (puzzle.before + " x").lower()
        assert "{" not in puzzle.before + puzzle.after


def test_the_likelier_reading_is_the_answer(smollm2):
    easy = [
        Puzzle(0, "Paris is the capital of France. The capital of France is", ".", ("Paris", "a purple spoon"), 0),
        Puzzle(1, "One, two, three, four,", " six, seven, eight.", ("ninety", "five,"), 1),
    ]
    frame = _puzzles.answered(smollm2, easy).frame
    ids = smollm2.tokens("One, two, three, four, five, six, seven, eight.", "none").ids
    start = len(smollm2.tokens("One, two, three, four, five,", "none").ids)
    logs = smollm2.logits(ids).log_softmax(-1)
    by_hand = sum(float(logs[place - 1, ids[place]]) for place in range(start, len(ids)))
    assert frame["log_likelihood_b"][1] == pytest.approx(by_hand, abs=1e-3)
    assert frame["answered"][1] == "five,"
    assert bool(frame["right"][1])


def test_pages_are_written_and_linked(planted, toy, tmp_path, monkeypatch):
    planted("planted_water")
    monkeypatch.chdir(tmp_path)
    report = textbook.run(toy, only=["planted_water"], pages=True)
    assert (tmp_path / "reports" / "wet-water" / "index.html").is_file()
    assert '<a href="../wet-water/index.html">' in report.html()
    assert "<a href" not in textbook.run(toy, only=["planted_water"]).files()["analyses.csv"].frame["page"][0]


def _facts_of(model):
    return {claim.id.removeprefix("textbook-"): claim.verdict for claim in _facts.facts(model)}


def test_facts_hold_on_models_of_each_kind():
    llama, gpt2 = _facts_of(tiny("llama")), _facts_of(tiny("gpt2"))
    assert set(llama.values()) == set(gpt2.values()) == {"holds"}
    assert "no-places-added" in llama
    assert "starts-from-sum" in gpt2


def test_facts_fail_where_the_parts_are_others(monkeypatch):
    """A feed-forward net that mixes positions, and one that is linear; places added where none should be; no residuals."""
    model = tiny("llama", seed=3)
    net = model.module.model.layers[0].mlp
    with monkeypatch.context() as patch:
        patch.setattr(net, "forward", lambda x: x.cumsum(1))
        found = _facts_of(model)
        assert (found["feed-forward-each"], found["feed-forward-bends"]) == ("fails", "fails")
    embedding = model.module.model.embed_tokens
    hook = embedding.register_forward_hook(
        lambda part, args, out: out + torch.arange(out.shape[-2])[:, None] if out.ndim == 3 else out
    )
    with monkeypatch.context() as patch:
        patch.setattr(_facts, "DEPTH", 1)  # so shallow a stack trains without its residual connections
        found = _facts_of(model)
    hook.remove()
    assert (found["no-places-added"], found["residuals"]) == ("fails", "fails")
