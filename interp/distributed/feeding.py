"""From the driver's reading to Ray Data: Ray's own queue between them. Light to import, because processes without a model load it too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.util.queue import Full, Queue

from interp.errors import InterpError


class Starts:
    """How often each part was begun: more than once where a worker was lost."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}

    def begun(self, number: int) -> int:
        self._count[number] = self._count.get(number, 0) + 1
        return self._count[number]


class Fed(Datasource):
    """Rows from a queue, on the driver's node."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    @property
    def supports_distributed_reads(self) -> bool:
        return False

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self, *args: Any, **options: Any
    ) -> list[Any]:  # of ReadTask, whose own hints a checker of types refuses to read
        read = partial(_rows, self._queue)
        return [ReadTask(read, BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None))]


def _rows(queue: Queue) -> Iterator[pa.Table]:
    while (row := queue.get()) is not None:
        yield pa.table({"row": pa.array([row], pa.large_binary())})


class Feed(threading.Thread):
    """Puts parts into the queue as fast as they are taken out, and an end mark after the last."""

    def __init__(self, parts: Iterator[bytes], queue: Queue) -> None:
        super().__init__(daemon=True)
        self._parts, self._queue, self._sent = parts, queue, 0
        self._error: BaseException | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            for part in self._parts:
                if not self._put(part):
                    break
                self._sent += 1
        except BaseException as error:  # raised again where the results are read
            self._error = error
        self._put(None)

    def _put(self, row: bytes | None) -> bool:
        while row is None or not self._stopped.is_set():
            try:
                self._queue.put(row, timeout=1)
                return True
            except Full:
                continue
            except ray.exceptions.RayError:  # the run is over
                break
        return False

    def stop(self) -> None:
        self._stopped.set()

    def raised(self, arrived: set[int]) -> None:
        """Raise what ended the reading, if anything did, and where a part that was read never came back: the process between was lost."""
        self.join()
        if self._error is not None:
            raise self._error
        if lost := self._sent - len(arrived):
            raise InterpError(
                f"{lost} of {self._sent} parts were lost on the way to a worker; what was measured is kept, --resume goes on"
            )
