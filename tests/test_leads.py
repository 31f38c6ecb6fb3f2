"""The analysis `leads`: its table against captures, e^Δ, and a control in which the ratio is not e^Δ."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_rows import corpus, tiny

import interp
from analyses import leads
from interp.errors import InterpError
from interp.measures import ratio
from interp.models import Model
from interp.rows import measure


def test_leads_are_those_of_captures() -> None:
    model, texts = tiny("llama"), corpus(13, 29, 7)
    made = measure(model, texts, "full")
    found = []
    for ids in texts:
        seen = interp.capture(model, ids)
        assert seen.scores is not None
        assert seen.visible is not None
        values, has_two = ratio.leads(seen.scores, seen.visible)
        found.append(values[has_two])
    whole = torch.cat(found).double()
    table = leads.report(made).tables[0].frame
    assert table["rows"].sum() == len(whole)
    assert math.isclose((table["lead"] * table["rows"]).sum(), float(whole.sum()), rel_tol=1e-5)
    for line in table.itertuples():
        top = line.lead_from + 0.25 if line.lead_from < 20 else math.inf
        assert abs(int(((whole >= line.lead_from) & (whole < top)).sum()) - line.rows) <= 1  # a lead on an edge, by rounding
        assert math.isclose(line.weight_ratio, line.e_to_the_lead, rel_tol=1e-4)


def test_a_ratio_that_is_not_e_to_the_lead_fails_the_claim() -> None:
    made = measure(tiny("gpt2"), corpus(13), "full")
    assert leads.report(made).claims[0].verdict == "holds"
    # One weight doubled: its row's log ratio is off by ln 2.
    off = made.sums["residual_max"].clone()
    off[0, 1] = math.log(2)
    assert leads.report(replace(made, sums={**made.sums, "residual_max": off})).claims[0].verdict == "fails"


def test_the_report_on_the_toy(toy: Model, tmp_path: Path) -> None:
    made = leads.run(toy)
    assert made.claims[0].verdict == "holds"
    assert {table.name for table in made.tables} == {"leads", "heads", "positions"}
    assert (made.write(tmp_path / "leads").parent / "leads.csv").is_file()
    with pytest.raises(InterpError, match="no row sees two keys"):
        leads.report(measure(toy, [[3]], "full"))
