"""Progress on stderr for what lasts longer than a second. Silent where stderr is no terminal, so logs and pipes stay clean."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

Item = TypeVar("Item")
PATIENCE = 1.0


def track(
    items: Iterable[Item], description: str, total: int | None = None, size: Callable[[Item], int] | None = None
) -> Iterator[Item]:
    """The same items, with a bar beside them once they have taken `PATIENCE` seconds: done, rate, time left where `total` is known.

    An item counts as one, or as many as `size` says (the texts of a batch).
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    total = len(items) if total is None and isinstance(items, Sized) else total
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=total)
    # A timer, not a look at the clock between items: the first item alone may take a minute.
    start = threading.Timer(PATIENCE, bar.start)
    start.daemon = True
    start.start()
    try:
        for item in items:
            yield item
            bar.advance(task, 1 if size is None else size(item))
    finally:
        start.cancel()
        start.join()
        bar.stop()


def _rate() -> Any:
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Rate(ProgressColumn):
        """Items a second, once two of them are done."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.3g}/s")

    return Rate()
