"""The lookup of the chapter's two-entry table, its limits, and the table with the chapter's digits."""

from __future__ import annotations

import pytest
import torch

from analyses import soft_lookup
from interp import attention
from interp.errors import InterpError
from interp.measures import lookup

KEYS, VALUES = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 4.0]])


@pytest.fixture(scope="module")
def report():
    return soft_lookup.run()


def test_every_printed_number_comes_out(report):
    table = next(table for table in report.tables if table.name == "chapter").frame
    assert table["agrees"].all()
    printed = dict(zip(table["id"], table["chapter"], strict=True))
    assert printed["lookup-weight-1"] == "0.881"
    assert printed["lookup-code-weight-2"] == "0.1192"
    assert printed["lookup-code-z-1"] == "1.7616"
    here = dict(zip(table["id"], table["here"], strict=True))
    assert round(here["lookup-code-z-2"], 4) == 0.4768
    assert all(claim.verdict == "holds" for claim in report.claims)
    assert len(report.claims) == len(table) + 5


def test_a_changed_table_gives_a_changed_answer():
    report = soft_lookup.run(query=[0, 1, 0], keys=[[0, 1, 0], [0, 1, 0], [9, 0, 0]], values=[[3.0], [5.0], [100.0]])
    e = torch.tensor(1.0).exp()
    assert report.numbers["weights"] == pytest.approx([float(e / (2 * e + 1))] * 2 + [float(1 / (2 * e + 1))])
    assert report.numbers["hard_lookup"] == [4.0]  # two keys tie


def test_text_and_sequences_are_read_alike():
    assert soft_lookup.run(query="1,0", keys="1,0; -1,0").numbers == soft_lookup.run(query=(1, 0), keys=KEYS).numbers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query": "1,x"}, "query '1,x' are no rows of numbers"),
        ({"query": "1,0,0"}, r"query of 3, keys \(2, 2\)"),
        ({"keys": "nan,0; 1,0"}, "keys must be rows of finite numbers"),
        ({"values": "1"}, r"values \(1, 1\)"),
    ],
)
def test_bad_input_is_refused_in_one_line(options, message):
    with pytest.raises(InterpError, match=message):
        soft_lookup.run(**options)


def test_the_soft_lookup_grows_into_the_hard_one():
    query = torch.tensor([0.3, 0.7])
    distances = [float((attention.soft_lookup(query, KEYS, VALUES, scale)[2] - VALUES[0]).norm()) for scale in (0, 1, 10, 100)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-6
    assert torch.equal(lookup.hard_lookup(query, KEYS, VALUES), VALUES[0])


def test_the_kernel_falls_into_three_parts_and_length_is_what_the_dot_product_leaves_out():
    query, keys = torch.tensor([0.5, -2.0, 1.0]), torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]])
    parts = lookup.kernel_parts(query, keys)
    assert parts.error < 1e-6
    assert parts.exponent.tolist() == pytest.approx([-0.5 * (0.25 + 16 + 1), -0.5 * (0.25 + 1 + 4)])
    gaussian, dot = attention.gaussian_weights(query, keys), attention.weights((keys @ query)[None])[0]
    left = (gaussian[0] / gaussian[1]).log() - (dot[0] / dot[1]).log()
    assert float(left) == pytest.approx(-0.5 * (5 - 10), abs=1e-5)


def test_nearest_takes_the_nearest_and_refuses_too_many():
    keys, values = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[2.0], [4.0], [9.0]])
    assert lookup.nearest(torch.tensor([2.5]), keys, values).item() == 9
    assert lookup.nearest(torch.tensor([2.5]), keys, values, 2).item() == 6.5
    with pytest.raises(InterpError, match="4 nearest of 3 keys; give 1 to 3"):
        lookup.nearest(torch.tensor([2.5]), keys, values, 4)
