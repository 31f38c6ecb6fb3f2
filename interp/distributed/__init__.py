"""Row statistics past one machine: the corpus in parts, the parts on Ray's workers, their sums folded as they come.

Ray (extra `ray`) schedules, moves and retries; nothing here does. A part is a fixed run of documents, and its sums follow from the part
alone, so any number of workers gives the local engine's figures, and a part that is measured twice counts once.
Limit: one process, the driver, reads the corpus; docs/ray.md says how far that reaches.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from interp.errors import InterpError, NotHere, UnknownName

if TYPE_CHECKING:
    from interp.rows import RowStatistics

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Cluster:
    """Where parts are measured. `address`: of a Ray cluster ("auto" on one of its nodes, "host:6379"); None starts Ray on this machine.

    `workers`: how many processes hold the model; None = one a CPU core, or one for each `gpus_per_worker` GPUs where that is above 0.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_worker: float = 0

    def __post_init__(self) -> None:
        if self.address is not None and self.address.startswith("ray://"):
            raise InterpError(
                f"{self.address} is Ray's client, which cannot feed a cluster; run on a node with --address auto, or by `ray job submit`"
            )
        if self.workers is not None and self.workers < 1:
            raise InterpError(f"workers {self.workers} measure nothing; give 1 or more")
        if self.gpus_per_worker < 0 or (self.gpus_per_worker > 1 and self.gpus_per_worker % 1):
            raise InterpError(f"{self.gpus_per_worker:g} GPUs a worker; give 0 for none, a share below 1, or a whole number")


def measuring(
    engine: str = "local", address: str | None = None, workers: int | None = None, gpus_per_worker: float = 0
) -> Callable[..., RowStatistics]:
    """`rows.measure` of an engine by name: the local one itself, or one of the same arguments that runs on Ray.

    Raises InterpError where Ray's options are given to the local engine, and NotHere where Ray is not installed.
    """
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if engine == "local":
        from interp.rows import measure

        given = {"--address": address, "--workers": workers, "--gpus-per-worker": gpus_per_worker or None}
        if wrong := [name for name, value in given.items() if value is not None]:
            raise InterpError(f"{' and '.join(wrong)} say how Ray works; add --engine ray")
        return measure
    cluster = Cluster(address, workers, gpus_per_worker)
    if importlib.util.find_spec("ray") is None:
        raise NotHere("--engine ray needs Ray, which is not installed; pip install 'interp[ray]'")
    from interp.distributed.driver import measure as on_ray

    return partial(on_ray, cluster=cluster)
