"""A run on W workers, simulated from measured costs: where do reading, folding or the slowest part begin to cost more than 5 %?

One process reads and folds (the driver); workers take a part as soon as they are free and a part is there.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

WORKERS = (1, 10, 100, 1000)
LIMIT = 0.05


@dataclass(frozen=True)
class Costs:
    """Seconds: of a part on a worker, one number for each that was measured; and of the driver, to read one, to fold one."""

    parts: Sequence[float]
    read: float
    fold: float

    @property
    def mean(self) -> float:
        return sum(self.parts) / len(self.parts)


def simulate(costs: Costs, workers: int, count: int, seed: int = 0) -> float:
    """Seconds until the last of `count` parts is folded. A part's time is drawn from those measured.

    The driver does one thing at a time: it folds what has come in, and else reads ahead, two parts a worker as Ray Data does.

    >>> simulate(Costs([1.0], 0.0, 0.0), workers=4, count=8)
    2.0
    >>> simulate(Costs([1.0], 1.0, 0.0), workers=4, count=8)
    9.0
    """
    draw = random.Random(seed)
    free = [0.0] * workers  # when each worker can begin
    heapq.heapify(free)
    running: list[float] = []  # when each part in hand will be done
    now, read = 0.0, 0
    folded = 0
    while folded < count:
        done = running and running[0] <= now
        if read < count and not done and len(running) < 2 * workers:
            now += costs.read
            begin = max(now, heapq.heappop(free))
            end = begin + draw.choice(costs.parts)
            heapq.heappush(free, end)
            heapq.heappush(running, end)
            read += 1
            continue
        now = max(now, heapq.heappop(running)) + costs.fold
        folded += 1
    return now


def lines(costs: Costs, per_worker: int = 200, workers: Sequence[int] = WORKERS) -> list[dict[str, Any]]:
    """For each number of workers, with `per_worker` parts for each: the share of the time lost in all, and by each cost alone.

    Lost = 1 − ideal / simulated, the ideal being all work spread evenly. `stragglers`: reading and folding cost nothing.
    """
    made = []
    for count in workers:
        parts = per_worker * count
        ideal = costs.mean * per_worker
        alone = {
            "stragglers": replace(costs, read=0.0, fold=0.0),
            "reading": Costs([costs.mean], costs.read, 0.0),
            "folding": Costs([costs.mean], 0.0, costs.fold),
            "all": costs,
        }
        lost = {name: 1 - ideal / simulate(each, count, parts) for name, each in alone.items()}
        lost = {name: max(0.0, share) for name, share in lost.items()}
        over = [name for name in ("stragglers", "reading", "folding") if lost[name] > LIMIT]
        made.append(
            {"workers": count, "parts": parts, **{f"{name}_lost": lost[name] for name in lost}, "over_5_percent": " ".join(over)}
        )
    return made


def reach(costs: Costs) -> dict[str, float]:
    """The number of workers at which the driver is busy all the time with one cost, and with both: beyond it more workers bring nothing."""
    both = costs.read + costs.fold
    return {
        name: costs.mean / cost if cost else float("inf")
        for name, cost in (("reading", costs.read), ("folding", costs.fold), ("both", both))
    }
