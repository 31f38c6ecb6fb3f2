"""A long run that is cut off: what was saved is whole, goes on where it stopped, and refuses another corpus, model or option."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_rows import corpus, tiny

from interp.batches import Batch
from interp.errors import InterpError
from interp.rows import RowStatistics, measure

TEXTS = corpus(9, 21, 14, 30, 6, 17, 12)


def parts(texts: list[list[int]] = TEXTS) -> list[Batch]:
    return [Batch.of([torch.tensor(ids)], [number], [f"t{number}"]) for number, ids in enumerate(texts)]


def equal(one: RowStatistics, other: RowStatistics) -> None:
    assert one.names == other.names
    assert one.about() == other.about()
    assert all(torch.equal(one.sums[name], values) for name, values in other.sums.items())
    assert all(torch.equal(one.per_text[name], values) for name, values in other.per_text.items())


def cut_off(stop: int, kind: type[BaseException]):
    for number, part in enumerate(parts()):
        if number == stop:
            raise kind
        yield part


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_resumed_equals_uninterrupted_bit_for_bit(kind: type[BaseException], tmp_path: Path) -> None:
    model, path = tiny("gpt2"), tmp_path / "rows.safetensors"
    whole = measure(model, parts(), "full")
    for stop in (3, 5):
        with pytest.raises(kind):
            measure(model, cut_off(stop, kind), "full", save=path, every=2, resume=True)
        assert RowStatistics.read(path).texts == stop // 2 * 2
    equal(measure(model, parts(), "full", save=path, every=2, resume=True), whole)
    equal(RowStatistics.read(path), whole)
    equal(measure(model, parts(), "full", save=path, resume=True), whole)
    assert [file.name for file in tmp_path.iterdir()] == ["rows.safetensors"]


def test_resume_refuses_what_differs(tmp_path: Path) -> None:
    model, path = tiny("gpt2"), tmp_path / "rows.safetensors"
    measure(model, parts(TEXTS[:3]), save=path, bos="none", options={"seed": 1})
    with pytest.raises(InterpError, match="there already; resume it"):
        measure(model, parts(), save=path)
    same = {"save": path, "resume": True}
    with pytest.raises(InterpError, match="cannot be resumed: it has bos 'none' against 'keep'"):
        measure(model, parts(), **same, options={"seed": 1})
    with pytest.raises(InterpError, match="seed 1 against 2"):
        measure(model, parts(), **same, bos="none", options={"seed": 2})
    with pytest.raises(InterpError, match="detail 'first' against 'full'"):
        measure(model, parts(), "full", **same, bos="none", options={"seed": 1})
    with pytest.raises(InterpError, match="model 'gpt2' against 'llama'"):
        measure(tiny("llama"), parts(), **same, bos="none", options={"seed": 1})
    other = [*TEXTS[:2], TEXTS[5], *TEXTS[3:]]
    with pytest.raises(InterpError, match=r"another corpus: text 2 \(t2\) is not the text"):
        measure(model, parts(other), **same, bos="none", options={"seed": 1})
    with pytest.raises(InterpError, match="another corpus: it lacks text 2"):
        measure(model, parts(TEXTS[:2]), **same, bos="none", options={"seed": 1})
    with pytest.raises(InterpError, match="needs the file"):
        measure(model, parts(), resume=True)
    assert RowStatistics.read(path).texts == 3


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = tiny("gpt2"), tmp_path / "rows.safetensors"
    first = measure(model, parts(TEXTS[:2]), save=path)
    before = path.read_bytes()

    def full_disk(*_: object) -> None:
        Path(tmp_path / ".rows.safetensors.part").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(InterpError, match="No space left on device.*what was there is as it was"):
        first.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["rows.safetensors"]
    with pytest.raises(InterpError, match="no folder"):
        first.save(tmp_path / "no" / "rows.safetensors")


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    with pytest.raises(InterpError, match="no file"):
        RowStatistics.read(tmp_path / "gone")
    torn = tmp_path / "torn"
    torn.write_bytes(measure(tiny("gpt2"), parts()[:1]).save(tmp_path / "whole").read_bytes()[:-50])
    with pytest.raises(InterpError, match="cannot be read as safetensors"):
        RowStatistics.read(torn)
    save_file({"x": torch.zeros(1)}, tmp_path / "other", {"format": "interp-capture/1"})
    with pytest.raises(InterpError, match="has format 'interp-capture/1'; this version reads interp-rows/2"):
        RowStatistics.read(tmp_path / "other")


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from test_rows import tiny
from test_rows_resume import parts
from interp.rows import measure

def endless():
    yield from parts()
    while True:
        pass

measure(tiny("gpt2"), endless(), save=sys.argv[1], every=3)
"""


def test_a_kill_loses_no_more_than_the_last_interval(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    code = KILLED.format(tests=str(Path(__file__).parent))
    run = subprocess.Popen([sys.executable, "-c", code, str(path)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    patience = time.monotonic() + 120
    while not path.exists() or RowStatistics.read(path).texts < 6:
        assert run.poll() is None
        assert time.monotonic() < patience
        time.sleep(0.1)
    run.send_signal(signal.SIGKILL)
    run.wait()
    made = measure(tiny("gpt2"), parts(), save=path, resume=True)
    assert made.texts == 7
    equal(made, measure(tiny("gpt2"), parts()))
