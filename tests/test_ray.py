"""Row statistics on a real Ray of two nodes with one core each: the local engine's figures, with a node killed on the way."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tiny import tiny

from interp import cli
from interp.corpus import Text
from interp.distributed import measuring
from interp.distributed.parts import Document
from interp.errors import InterpError
from interp.models import Model, load
from interp.rows import RowStatistics, measure

ray = pytest.importorskip("ray")

from interp.distributed.tally import Tally  # noqa: E402
from interp.distributed.worker import Result  # noqa: E402

WORDS = "Once upon a time there was a little dog who liked to play in the park with her friend Tom"
SMALL = {"num_cpus": 1, "object_store_memory": 120 << 20, "include_dashboard": False}
pytestmark = [pytest.mark.filterwarnings("ignore")]  # Ray's own


class Two:
    """Two nodes; `kill` takes the second away, `node` gives it back."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        self.nodes, self.alive = Nodes(initialize_head=True, head_node_args=SMALL), False
        ray.init(address=self.nodes.address, logging_level="ERROR", log_to_driver=False)

    def whole(self) -> None:
        if not self.alive:
            self.second = self.nodes.add_node(**{key: SMALL[key] for key in ("num_cpus", "object_store_memory")})
            self.nodes.wait_for_nodes()
            self.second_id, self.alive = self.second.node_id[:8], True

    def kill(self) -> None:
        self.alive = False
        self.nodes.remove_node(self.second, allow_graceful=False)

    def close(self) -> None:
        ray.shutdown()
        self.nodes.shutdown()


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as a worker has, so that float32 rounds alike
    made = Two()
    made.whole()
    # Work begins when both workers are there, or the first would have done it all.
    ray.data.DataContext.get_current().wait_for_min_actors_s = 120
    try:
        yield made
    finally:
        made.close()
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def stories() -> Model:
    place = Path(os.environ.get("INTERP_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "models" / "stories260k"
    return load(str(place)) if place.is_dir() else tiny("llama")


def documents(model: Model, count: int) -> list[Any]:
    draw = random.Random(0)
    if model.tokenizer is None:
        return [Document([draw.randrange(2, 101) for _ in range(draw.randint(1, 12))], f"t{n}") for n in range(count)]
    return [Text(" ".join(draw.choices(WORDS.split(), k=draw.randint(1, 4))), f"t{n}", "") for n in range(count)]


def equal(one: RowStatistics, other: RowStatistics) -> None:
    """Every share of a text bit for bit, counts too, sums to 1e-12 of the largest."""
    assert one.names == other.names
    assert one.about() == other.about()
    assert one.broken == other.broken
    for name, values in other.per_text.items():
        assert torch.equal(one.per_text[name], values), name
    assert set(one.sums) == set(other.sums)
    for name, values in other.sums.items():
        torch.testing.assert_close(one.sums[name], values, rtol=1e-12, atol=1e-12, msg=name)


def test_a_node_is_killed_in_the_middle_and_every_figure_is_the_local_one(
    two: Two, stories: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, path, add = documents(stories, 5000), tmp_path / "rows.safetensors", Tally.add
    nodes: list[str] = []

    def watched(tally: Tally, result: Result) -> bool:
        nodes.append(result.node)
        if nodes.count(two.second_id) == 2 and two.alive:  # it has the next part in hand
            two.kill()
        return add(tally, result)

    monkeypatch.setattr(Tally, "add", watched)
    made = measuring("ray")(stories, iter(texts), "full", save=path, every=2)
    equal(made, measure(stories, texts, "full"))
    equal(RowStatistics.read(path), made)
    engine = made.provenance["engine"]
    assert not two.alive
    assert engine["parts"] == 10
    assert engine["retries"] >= 1, engine
    assert sum(worker["texts"] for worker in engine["workers"]) == 5000
    assert {worker["device"] for worker in engine["workers"]} == {"cpu"}
    assert all(worker["tokens_a_second"] > 0 for worker in engine["workers"])


def test_resumed_on_a_cluster_of_another_size_with_rows_that_are_not_finite(two: Two, tmp_path: Path) -> None:
    model, path, texts = tiny("llama"), tmp_path / "rows.safetensors", documents(tiny("llama"), 1300)
    with torch.no_grad():
        model.module.model.embed_tokens.weight[77] = torch.nan  # every text that holds id 77 is poisoned from there on
    whole = measure(model, texts, "full")
    assert len(whole.broken) == 20
    measure(model, texts[:512], "full", save=path)
    changed = [*texts[:3], Document([5, 6, 7], "t3"), *texts[4:]]
    on_one, before = measuring("ray", workers=1), path.read_bytes()
    with pytest.raises(InterpError, match=r"another corpus: text 3 \(t3\) is not the text that was measured before"):
        on_one(model, changed[:512], "full", save=path, resume=True)
    with pytest.raises(InterpError, match="there already; resume it"):
        on_one(model, texts, "full", save=path)
    with pytest.raises(InterpError, match="cannot be resumed: it has detail 'full' against 'first'"):
        on_one(model, texts, "first", save=path, resume=True)
    assert RowStatistics.read(path).texts == 512
    assert path.read_bytes() == before
    made = on_one(model, texts, "full", save=path, resume=True)
    equal(made, whole)
    (worker,) = made.provenance["engine"]["workers"]
    assert (worker["parts"], worker["texts"]) == (3, 788)
    equal(measure(model, texts, "full", save=path, resume=True), whole)


def test_the_command_on_ray_writes_the_local_report_and_names_a_bad_line(two: Two, shared: Path, tmp_path: Path, capsys) -> None:
    file, model = tmp_path / "texts.jsonl", str(shared / "models" / "stories260k")
    written = [json.dumps({"text": text.text}) for text in documents(load(model), 600)]
    file.write_text("\n".join([*written[:550], "bad", *written[550:]]), encoding="utf-8")
    call = ["run", "sinks", "--model", model, "--texts", str(file), "--out"]
    assert cli.call(cli.app, [*call, str(tmp_path / "local"), "--skip-bad"]) == 0
    assert cli.call(cli.app, [*call, str(tmp_path / "ray"), "--skip-bad", "--engine", "ray", "--workers", "1"]) == 0
    for table in sorted((tmp_path / "local").glob("*.csv")):
        pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "ray" / table.name), pd.read_csv(table), rtol=1e-12)
    local, on_ray = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("local", "ray"))
    assert on_ray["numbers"] == pytest.approx(local["numbers"], rel=1e-12)
    assert on_ray["answer"] == local["answer"]
    assert on_ray["provenance"]["engine"]["parts"] == 2
    assert "1 bad lines were passed over" in (tmp_path / "ray" / "index.html").read_text(encoding="utf-8")
    capsys.readouterr()
    saved = ["--save", str(tmp_path / "kept"), "--engine", "ray", "--workers", "1"]
    assert cli.call(cli.app, [*call, str(tmp_path / "no"), *saved]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"interp: {file}:551: not JSON (Expecting value at column 1); mend it, or pass --skip-bad to count and pass over such lines"
    )
    assert not (tmp_path / "no").exists()
    (kept,) = tmp_path.glob("kept-*.safetensors")
    assert RowStatistics.read(kept).texts == 512  # what was read before the bad line is measured and kept
