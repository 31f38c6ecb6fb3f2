"""Row statistics on a real Ray of two nodes with one core each: the local engine's figures, with a node killed on the way."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import tiny

from interp.corpus import Text
from interp.distributed import measuring
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


def documents(model: Model, count: int) -> list[Text]:
    draw = random.Random(0)
    if model.tokenizer is None:
        return [Text([draw.randrange(2, 101) for _ in range(draw.randint(1, 12))], f"t{n}", "") for n in range(count)]  # type: ignore[arg-type]
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
