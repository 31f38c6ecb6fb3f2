"""measure() on Ray: the driver reads and cuts the corpus, Ray Data carries parts to workers that hold the model, the driver folds.

The feed is Ray's own queue, read by a Ray Data source on the driver's node; workers, retries and back-pressure are Ray Data's.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from interp.distributed import Cluster
from interp.distributed.feeding import Fed, Feed, Starts
from interp.distributed.parts import cut, dumps
from interp.distributed.tally import Tally
from interp.distributed.weights import pack
from interp.distributed.worker import Measurer, Result
from interp.errors import InterpError
from interp.models import Model
from interp.progress import track
from interp.rows import RowStatistics
from interp.rows.measuring import EVERY, begun

AHEAD = 4  # parts that are read before a worker asks for them
GPU_GROUPS = 16  # groups of texts a part on a GPU, which is through with one in a second or so
SAVING = 0.05  # share of the time that may go into the checkpoint


def measure(
    model: Model | str,
    texts: Iterable[Any],
    detail: str = "first",
    *,
    cluster: Cluster | None = None,
    bos: str = "keep",
    max_tokens: int | None = None,
    overlap: int | None = None,
    layers: Iterable[int] | None = None,
    options: Mapping[str, Any] | None = None,
    save: str | Path | None = None,
    every: int = EVERY,
    resume: bool = False,
    memory: int | None = None,
    total: int | None = None,
) -> RowStatistics:
    """What `rows.measure` gives of the same arguments, measured on `cluster`; see there.

    Equal to it in every count and share, and in sums to 1e-12; bit for bit the same on any number of workers. `save` is written after every
    `every` parts, and less often where that would take more than 1/20 of the time; whichever engine wrote it, either resumes it, on a
    cluster of any size. `provenance["engine"]` names workers, devices, parts, retries and tokens a second.
    """
    cluster = cluster or Cluster()
    cutting = {"bos": bos, "max_tokens": max_tokens, "overlap": overlap}
    run = begun(model, detail, {**cutting, **(options or {})}, layers, save, every, resume, memory)
    model = run.model
    total = len(texts) if total is None and isinstance(texts, Sequence) else total
    groups = GPU_GROUPS if cluster.gpus_per_worker else 1
    parts = cut(model, texts, dict(run.texts), bos=bos, max_tokens=max_tokens, overlap=overlap, groups=groups)
    plan = {
        "full": run.full,
        "layers": run.layers,
        "options": run.options,
        "memory": memory,
        "bos": bos,
        "max_tokens": max_tokens,
    }
    tally = Tally(run)
    with connected(cluster):
        workers = _workers(cluster)
        _consumed(_results(model, parts, plan, cluster, workers), tally, f"{model.name}: texts", total, save, every)
    run.all_met()
    if not run.texts:
        raise InterpError("no texts to measure; give at least one")
    made = tally.statistics()
    if save is not None:
        made.save(save)
    return made


def _consumed(
    results: Iterator[Result], tally: Tally, label: str, total: int | None, save: str | Path | None, every: int
) -> None:
    """Fold all results, saving now and then, and also where something raises: what was measured is kept."""
    kept, took, parts = time.monotonic(), 0.0, 0
    try:
        for result in track(results, label, total, lambda result: len(result.met)):
            parts += tally.add(result)
            if save is not None and parts >= every and time.monotonic() - kept > took / SAVING:
                start = time.monotonic()
                tally.statistics().save(save)
                kept, took, parts = time.monotonic(), time.monotonic() - start, 0
        tally.refuse()
    except BaseException:
        if save is not None and parts:
            tally.statistics().save(save)
        raise


@contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """A block with Ray: one that runs in this process already, the cluster at the address, or one on this machine for the block alone."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no call home
    own: dict[str, Any] = {} if cluster.address or os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
    try:
        ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InterpError(f"no Ray cluster at {cluster.address}: {str(error).strip().splitlines()[0][:160]}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _workers(cluster: Cluster) -> int:
    """How many workers, each of one CPU and its GPUs; refused where the cluster has no room for a single one."""
    has = ray.cluster_resources()
    room = int(has.get("CPU", 0))
    if cluster.gpus_per_worker:
        room = min(room, int(has.get("GPU", 0) / cluster.gpus_per_worker))
    if not room:
        raise InterpError(
            f"a worker needs 1 CPU and {cluster.gpus_per_worker:g} GPUs, but the cluster has {has.get('CPU', 0):g} and {has.get('GPU', 0):g}"
        )
    return cluster.workers or room


def _results(model: Model, parts: Iterator[Any], plan: dict[str, Any], cluster: Cluster, workers: int) -> Iterator[Result]:
    """A result for each part, in the order in which workers are done. An error of the reading is raised when all that was read is measured."""
    here = {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
    }
    queue = Queue(maxsize=AHEAD, actor_options=here)
    device = "cuda" if cluster.gpus_per_worker else "cpu"
    told = (ray.put(pack(model)), ray.remote(Starts).options(**here).remote(), device, plan)
    feed = Feed(map(dumps, parts), queue)
    context = ray.data.DataContext.get_current().copy()
    context.target_max_block_size = (
        1  # a row is a block by itself: a part goes out as soon as it is read, a result comes back as soon
    )
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    feed.start()
    arrived: set[int] = set()
    try:
        with ray.data.DataContext.current(context):
            source = ray.data.read_datasource(Fed(queue), override_num_blocks=1, num_cpus=0)
            done = source.map_batches(
                Measurer,
                fn_constructor_args=told,
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=workers),
                num_cpus=1,
                num_gpus=cluster.gpus_per_worker or None,
            )
            for block in done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in block.column("row"):
                    yield (result := pickle.loads(row.as_py()))
                    arrived.add(result.number)
                    if result.refused is not None:
                        feed.stop()
        feed.raised(arrived)
    finally:
        feed.stop()
        queue.shutdown(force=True)
