"""What carries statistics past one machine, without Ray running: parts, the fold, packed weights, object stores, refusals, the simulation."""

from __future__ import annotations

import importlib.util
import pickle
import random
from pathlib import Path

import pandas as pd
import pytest
import torch
from test_rows import corpus
from tiny import tiny

from benchmarks.scaling import Costs, lines, reach, simulate
from interp import cli
from interp.batches import BUFFER, Batch, batches
from interp.corpus import texts
from interp.distributed import Cluster, measuring
from interp.distributed.fold import Fold
from interp.distributed.parts import Document, Part, cut, dumps
from interp.errors import InterpError, NotHere
from interp.rows import measure
from interp.rows.measuring import Run
from interp.stores import Stored


def ids(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(2, 101) for _ in range(draw.randint(1, 9))] for _ in range(count)]


# ---- parts


@pytest.mark.parametrize("groups", [1, 2])
def test_parts_hold_the_batches_of_the_local_engine(groups: int) -> None:
    model, given = tiny("gpt2"), ids(2 * BUFFER + 300)
    there = list(batches(model, given))
    parts = [pickle.loads(dumps(part)) for part in cut(model, given, {}, groups=groups)]
    assert [part.number for part in parts] == list(range(len(parts)))
    assert [len(part.texts) for part in parts] == [BUFFER * groups] * (2 // groups) + [300]
    assert_equal([batch for part in parts for batch in part.batches(model, "keep", None)], there)


def assert_equal(made: list[Batch], there: list[Batch]) -> None:
    assert len(made) == len(there)
    for one, other in zip(made, there, strict=True):
        assert one.index == other.index
        assert one.names == other.names
        assert torch.equal(one.ids, other.ids)


def test_windows_and_ready_batches_are_cut_by_the_driver() -> None:
    model, given = tiny("gpt2"), corpus(9, 21, 14, 30)
    there = list(batches(model, given, max_tokens=8, overlap=2))
    for parts in (cut(model, given, {}, max_tokens=8, overlap=2), cut(model, there, {})):
        assert_equal([batch for part in parts for batch in part.batches(model, "keep", 8)], there)


def test_a_part_carries_the_digests_of_what_was_measured_before_and_of_nothing_else() -> None:
    model = tiny("gpt2")
    parts = list(cut(model, ids(BUFFER + 5), {3: 33, BUFFER + 1: 44, BUFFER + 9: 55}))
    assert [dict(part.done) for part in parts] == [{3: 33}, {BUFFER + 1: 44}]
    assert list(cut(model, [], {})) == []
    with pytest.raises(InterpError, match="texts is one string"):
        list(cut(model, "one", {}))


# ---- the fold


def test_the_fold_gives_the_same_bits_whatever_the_order_and_counts_a_part_once() -> None:
    model = tiny("gpt2")
    sums = [measure(model, [Batch.of([torch.tensor(text)], [n], ["t"])], "full").sums for n, text in enumerate(ids(11, 1))]
    totals = []
    for seed in range(6):
        order = random.Random(seed).sample(range(11), 11)
        fold = Fold()
        for number in order:
            assert fold.add(number, sums[number])
            assert not fold.add(order[0], sums[number])  # a part that was retried: nothing changes
        totals.append(fold.total())
    for total in totals[1:]:
        assert all(torch.equal(total[name], values) for name, values in totals[0].items())
    whole = measure(model, [Batch.of([torch.tensor(text)], [n], ["t"]) for n, text in enumerate(ids(11, 1))], "full").sums
    for name, values in whole.items():
        torch.testing.assert_close(totals[0][name], values, rtol=1e-12, atol=1e-12, msg=name)


def test_a_fold_of_nothing_and_of_parts_that_held_nothing_new() -> None:
    fold, one = Fold(), {"texts": torch.ones(2, dtype=torch.float64)}
    assert fold.total() is None
    for number in range(4):
        fold.add(number, one if number == 2 else None)
    assert torch.equal(fold.total()["texts"], one["texts"])


# ---- weights


def test_packed_weights_give_the_same_figures_and_lie_outside_the_skeleton() -> None:
    pytest.importorskip("ray")
    from interp.distributed.weights import pack, unpack

    for case in ("llama", "gpt2"):
        model, given = tiny(case), ids(7)
        packed = pack(model)
        weights = {id(values): values.numel() * 4 for values in model.module.parameters()}
        assert sum(array.nbytes for array in packed.arrays) >= sum(weights.values())
        assert len(pickle.dumps(packed.skeleton)) < sum(weights.values())
        made = unpack(packed, "cpu")
        assert measure(made, given, "full").about() == measure(model, given, "full").about()
        assert all(
            torch.equal(one, other) for one, other in zip(made.module.parameters(), model.module.parameters(), strict=True)
        )
        # Not copied: the weights are the arrays' own memory.
        starts = {array.ctypes.data for array in packed.arrays}
        assert {values.data_ptr() for values in made.module.parameters()} <= starts


def test_tied_weights_stay_tied() -> None:
    pytest.importorskip("ray")
    from interp.distributed.weights import pack, unpack

    module = unpack(pack(tiny("gpt2")), "cpu").module
    assert module.lm_head.weight is module.transformer.wte.weight


# ---- a worker, without Ray's process around it


def test_a_worker_refuses_a_text_that_changed_and_measures_only_what_is_new() -> None:
    pytest.importorskip("ray")
    from interp.distributed.tally import Tally
    from interp.distributed.worker import Result

    model, given = tiny("gpt2"), ids(6)
    run = Run(model, True, (0, 1), {}, None)
    (part,) = cut(model, given, {})
    for batch in part.batches(model, "keep", None):
        run.forward(batch)
    made = run.statistics()
    tally = Tally(Run(model, True, (0, 1), {}, None))
    result = Result(0, tuple(range(6)), made, None, "w", "n", "cpu", 2.0, 2)
    assert tally.add(result)
    assert not tally.add(result)
    assert tally.statistics().texts == 6
    assert tally.report()["retries"] == 1
    assert tally.report()["workers"] == [
        {
            "node": "n",
            "device": "cpu",
            "parts": 1,
            "texts": 6,
            "tokens": made.tokens,
            "seconds": 2.0,
            "tokens_a_second": made.tokens / 2,
        }
    ]
    with pytest.raises(InterpError, match="text number 0 comes twice"):
        tally.add(Result(1, (0,), made, None, "w", "n", "cpu", 1.0, 1))
    for number, why in ((5, "later"), (3, "first")):
        assert not tally.add(Result(number, (), None, why, "w", "n", "cpu", 1.0, 1))
    with pytest.raises(InterpError, match="first"):
        tally.refuse()
    other = Run(model, True, (0,), {}, None).statistics()
    with pytest.raises(InterpError, match=r"worker w measures otherwise than asked: layers \[0\] against \[0, 1\]"):
        tally.add(Result(9, (99,), other, None, "w", "n", "cpu", 1.0, 1))


# ---- object stores


def test_files_by_uri_read_as_files_by_path(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\nbad\n{"text": "z"}\n', encoding="utf-8")
    (tmp_path / "x" / "b.txt").write_text("one\ntwö\n", encoding="utf-8")
    (tmp_path / "c.csv").write_text('n,text\n1,"q\nr"\n', encoding="utf-8")
    pd.DataFrame({"text": ["p1", "p2"]}).to_parquet(tmp_path / "d.parquet")
    uri = tmp_path.as_uri()
    for tail in ("x/b.txt", "*.csv", "*/*.txt", "**/*.txt", "d.parquet", "[cd].*"):
        assert list(texts(f"{uri}/{tail}")) == list(texts(str(tmp_path / tail)))
    assert [text.text for text in texts([Stored(f"{uri}/x/b.txt"), "more"])] == ["one", "twö", "more"]
    kept = texts(f"{uri}/a.jsonl", skip_bad=True)
    assert [text.text for text in kept] == ["x", "z"]
    assert kept.skipped == [f"{uri}/a.jsonl:2: not JSON (Expecting value at column 1)"]
    with pytest.raises(InterpError, match=r"a.jsonl:2: not JSON .* mend it, or pass --skip-bad"):
        list(texts(f"{uri}/a.jsonl"))
    with pytest.raises(InterpError, match=r"no file .*none\*.txt; give"):
        list(texts(f"{uri}/none*.txt"))
    with pytest.raises(InterpError, match="gone.txt cannot be read"):
        list(texts(f"{uri}/gone.txt"))
    with pytest.raises(InterpError, match="foo://bucket/x.txt cannot be reached"):
        list(texts("foo://bucket/x.txt"))
    with pytest.raises(InterpError, match="is of no kind that is read here"):
        list(texts(f"{uri}/x.zip"))


# ---- what is refused before anything starts


def test_the_local_engine_takes_no_option_of_ray_and_needs_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measuring() is measure
    with pytest.raises(InterpError, match="--address and --workers say how Ray works; add --engine ray"):
        measuring("local", "auto", 2)
    with pytest.raises(InterpError, match="no engine 'rya'; nearest: ray"):
        measuring("rya")
    with pytest.raises(InterpError, match="workers 0 measure nothing"):
        measuring("ray", workers=0)
    with pytest.raises(InterpError, match="1.5 GPUs a worker"):
        Cluster(gpus_per_worker=1.5)
    with pytest.raises(InterpError, match="ray://h:1 is Ray's client"):
        Cluster("ray://h:1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotHere, match=r"needs Ray, which is not installed; pip install 'interp\[ray\]'"):
        measuring("ray")


@pytest.mark.parametrize("name", ["sinks", "leads"])
def test_the_command_without_the_extra_is_one_line_and_exit_2(name: str, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.call(cli.app, ["run", name, "--engine", "ray", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "interp: --engine ray needs Ray, which is not installed; pip install 'interp[ray]'\n"
    assert not (tmp_path / "out").exists()


# ---- the simulation


def test_the_simulation_by_hand() -> None:
    assert simulate(Costs([2.0], 0.0, 0.0), 3, 6) == 4
    assert simulate(Costs([2.0], 0.5, 0.0), 1, 3) == pytest.approx(6.5)
    assert simulate(Costs([1.0], 0.0, 1.0), 10, 10) == pytest.approx(11)  # all arrive together and are folded one by one
    assert reach(Costs([6.0], 1.0, 2.0)) == {"reading": 6, "folding": 3, "both": 2}
    found = lines(Costs([1.0, 1.0], 1e-4, 1e-2), per_worker=50, workers=(1, 1000))
    assert found[0]["over_5_percent"] == ""
    assert found[1]["over_5_percent"] == "folding"
    assert found[1]["folding_lost"] > 0.85


def test_what_travels_is_small_and_comes_back_bit_for_bit() -> None:
    assert len(dumps(Part(3, 5, (Document("a", "n"),)))) < 1000
    made = measure(tiny("gpt2"), ids(3), "full")
    back = pickle.loads(dumps(made))
    assert back.about() == made.about()
    assert all(torch.equal(back.sums[name], values) for name, values in made.sums.items())
