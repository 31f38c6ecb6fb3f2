"""What runs on a worker: the model, loaded once; then parts, each measured from nothing but itself."""

from __future__ import annotations

import copy
import os
import pickle
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch

from interp.distributed.parts import Part, dumps
from interp.distributed.weights import unpack
from interp.errors import InterpError
from interp.rows import RowStatistics
from interp.rows.measuring import Run
from interp.rows.sums import Sums


@dataclass(frozen=True)
class Result:
    """What a worker says of one part: the statistics of its new texts (None where all were measured before), or why it has none."""

    number: int
    met: tuple[int, ...]
    statistics: RowStatistics | None
    refused: str | None
    worker: str
    node: str
    device: str
    seconds: float
    attempt: int


class Measurer:
    """A class that Ray Data keeps one of in each worker process; it maps parts to results, one a call."""

    def __init__(self, packed: Any, starts: Any, device: str, plan: dict[str, Any]) -> None:
        model = unpack(ray.get(packed), device)
        self._model, self._starts, self._plan = model, starts, plan
        self._run = Run(model, plan["full"], plan["layers"], plan["options"], plan["memory"])
        context = ray.get_runtime_context()
        self._who = (f"{context.get_node_id()[:8]}-{os.getpid()}", context.get_node_id()[:8], _named(model.device))

    def __call__(self, rows: dict[str, np.ndarray]) -> dict[str, list[bytes]]:
        return {"row": [dumps(self.measured(pickle.loads(row))) for row in rows["row"]]}

    def measured(self, part: Part) -> Result:
        """The statistics of one part. Bad input becomes a line for the driver to raise; Ray retries what is lost, not what is refused."""
        attempt, start = ray.get(self._starts.begun.remote(part.number)), time.perf_counter()
        run, refused = self._fresh(part), None
        try:
            for batch in part.batches(self._model, self._plan["bos"], self._plan["max_tokens"]):
                if (todo := run.undone(batch)) is not None:
                    run.forward(todo)
        except InterpError as error:
            refused = str(error)
        statistics = run.statistics() if run.names and refused is None else None
        took = time.perf_counter() - start
        return Result(part.number, tuple(run.met), statistics, refused, *self._who, took, attempt)

    def _fresh(self, part: Part) -> Run:
        """A run that has measured nothing, with the model's own facts, which took a forward to find, kept."""
        run, kept = copy.copy(self._run), self._run.sums
        run.sums = Sums(kept.layers, kept.n_heads, kept.d_vocab, kept.full, kept.device)
        run.texts, run.met, run.names, run.lines = dict(part.done), set(), [], []
        return run


def _named(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
