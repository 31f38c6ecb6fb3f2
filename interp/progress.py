"""Progress on stderr for what lasts longer than a second. Silent where stderr is no terminal, so logs and pipes stay clean."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

Item = TypeVar("Item")
PATIENCE = 1.0


def track(items: Iterable[Item], description: str, total: int | None = None) -> Iterator[Item]:
    """The same items, with a bar beside them once they have taken `PATIENCE` seconds: done, rate, time left where `total` is known."""
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
            bar.advance(task)
    finally:
        start.cancel()
        start.join()
        bar.stop()
