"""The analysis `ratio_rule`: holds where weights are the softmax of scores, fails by log 2 where one was doubled."""

from __future__ import annotations

import dataclasses
import json
import math

import pandas as pd
import pytest
import torch

from analyses import ratio_rule
from interp import attention
from interp.capturing import Capture, capture
from interp.errors import InterpError
from interp.measures import worked

COLUMNS = {
    "heads": "layer head pairs excluded max_residual rms_residual",
    "pairs": "layer head query key_a key_b token_a token_b score_a score_b delta exp_delta weight_a weight_b weight_ratio",
}


def planted(tokens: int = 5, double: bool = False) -> Capture:
    """Scores drawn at random and their softmax; with `double`, one weight of head 7.1 twice what it should be."""
    scores = torch.randn(2, 3, tokens, tokens, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    visible = torch.ones(2, tokens, tokens, dtype=torch.bool).tril()
    weights = attention.weights(scores, visible[:, None])
    if double:
        row = weights[1, 1, 4]
        row[row.argsort()[1]] *= 2
    return Capture(
        tuple("abcdefg"[:tokens]), (3, 7), scores=scores, weights=weights, visible=visible, provenance={"model": "planted"}
    )


def _frame(report, name: str) -> pd.DataFrame:
    return {table.name: table.frame for table in report.tables}[name]


def test_it_holds_and_every_pair_is_counted():
    report = ratio_rule.run(captures=[planted(), planted(tokens=4)])
    assert report.numbers["holds"] is True
    assert report.numbers["max_residual"] < 1e-12
    # Rows of 2 … T keys have one pair less than keys; the first row of each head and text has none and is excluded.
    assert report.numbers["pairs"] == 6 * (4 + 3 + 2 + 1) + 6 * (3 + 2 + 1)
    assert report.numbers["excluded"] == 12
    assert (_frame(report, "heads")["pairs"] == 16).all()
    assert report.claims[0].verdict == "holds"
    assert report.answer.startswith("Yes: over 96 pairs of planted")


def test_one_doubled_weight_is_found_and_is_log_2():
    report = ratio_rule.run(captures=[planted(), planted(double=True)])
    assert report.numbers["holds"] is False
    assert report.numbers["max_residual"] == pytest.approx(math.log(2), abs=1e-9)
    heads = _frame(report, "heads").set_index(["layer", "head"])
    assert heads["max_residual"].idxmax() == (7, 1)
    assert heads.drop(index=[(7, 1)])["max_residual"].max() < 1e-12
    assert report.claims[0].verdict == "fails"
    assert report.answer.startswith("No: ")


def test_pairs_to_check_by_hand():
    pairs = _frame(ratio_rule.run(captures=[planted()]), "pairs")
    made = planted()
    assert (pairs["query"] == 4).all()
    for pair in pairs.itertuples():
        layer = (3, 7).index(pair.layer)
        assert pair.score_a == float(made.scores[layer, pair.head, 4, pair.key_a])
        assert pair.weight_b == float(made.weights[layer, pair.head, 4, pair.key_b])
        assert pair.token_a == "abcde"[pair.key_a]
        assert pair.delta == pytest.approx(pair.score_a - pair.score_b)
        assert pair.exp_delta == pytest.approx(pair.weight_ratio, rel=1e-9)
    assert (pairs["delta"] >= 0).all()


def test_leads_follow_e_to_the_delta():
    leads = _frame(ratio_rule.run(captures=[planted()]), "leads")
    assert leads["rows"].sum() == 6 * 4
    assert leads["share"].sum() == pytest.approx(1)
    assert leads["weight_ratio"].to_list() == pytest.approx(leads["exp_lead"].to_list(), rel=1e-9)
    assert ((leads["lead_from"] <= leads["mean_lead"]) & (leads["mean_lead"] < leads["lead_to"])).all()


def test_saturated_rows_still_give_pairs():
    made = planted()
    sharp = made.scores * torch.tensor([1.0, 1, 1, 1, 1e5])[:, None]
    pairs = worked.pairs_to_work(sharp, attention.weights(sharp, made.visible[:, None]), made.visible)
    assert pairs
    assert all(pair.query < 4 for pair in pairs)


def test_files_and_columns(tmp_path):
    page = ratio_rule.run(captures=[planted()]).write(tmp_path / "out")
    for name, columns in COLUMNS.items():
        assert list(pd.read_csv(page.parent / f"{name}.csv").columns) == columns.split()
    assert (page.parent / "leads.csv").is_file()
    numbers = json.loads((page.parent / "summary.json").read_text())["numbers"]
    assert set(numbers) == {"pairs", "excluded", "max_residual", "rms_residual", "tolerance", "holds"}


def test_a_single_token_has_no_pair():
    with pytest.raises(InterpError, match="no pair to test: every row sees a single key"):
        ratio_rule.run(captures=[planted(tokens=1)])


def test_weights_alone_are_not_enough():
    with pytest.raises(InterpError, match="this needs scores, but the capture holds only visible, weights"):
        ratio_rule.run(captures=[dataclasses.replace(planted(), scores=None)])


def test_the_toy(toy):
    report = ratio_rule.run(toy)
    assert report.numbers["holds"] is True
    assert report.numbers["max_residual"] <= report.numbers["tolerance"]


def test_smollm2_holds_and_a_doubled_weight_does_not(smollm2):
    made = capture(smollm2, "When Mary and John went to the store, John gave a drink to", bos="none")
    report = ratio_rule.run(captures=[made])
    assert report.numbers["holds"] is True
    assert report.numbers["pairs"] + report.numbers["excluded"] == 270 * (13 * 14 // 2) + 270
    weights = made.weights.clone()
    second = int(weights[5, 2, 13].argsort()[-2])
    weights[5, 2, 13, second] *= 2
    if weights[5, 2, 13, second] > weights[5, 2, 13].topk(2).values[1]:
        weights[5, 2, 13, second] /= 4  # a halved weight is as far off, and the row's largest stays the reference
    broken = ratio_rule.run(captures=[dataclasses.replace(made, weights=weights)])
    assert broken.numbers["holds"] is False
    assert broken.numbers["max_residual"] == pytest.approx(math.log(2), abs=1e-4)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["gpt2_explainer_0", "gpt2_bertviz_john_smith_qk"])
def test_recorded_gpt2(shared, name):
    report = ratio_rule.run(captures=[shared / "data" / f"{name}.safetensors"])
    assert report.numbers["holds"] is True
    assert report.numbers["pairs"] > 2000
