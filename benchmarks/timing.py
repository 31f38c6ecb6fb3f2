"""Ratios of times, paired: in every round each way runs once beside the plain forward, and the median of the rounds' ratios counts."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.ways import Way


def seconds(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def rounds(ways: Mapping[str, Way], repeats: int, wait: Callable[[], None]) -> dict[str, list[float]]:
    """Seconds of each way, a number a round, after one run to warm up; "plain" is among them."""
    for call in ways.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, call in ways.items():
            times[name].append(seconds(call, wait))
    return times


def ratio(times: Mapping[str, list[float]], name: str) -> float:
    """Median over rounds of a way's time over the plain forward's in the same round."""
    return statistics.median(mine / plain for mine, plain in zip(times[name], times["plain"], strict=True))


def starting(arguments: list[str], repeats: int = 5) -> float:
    """Median seconds of a whole process."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(arguments, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def start_times() -> dict[str, float]:
    """`import interp` (less an empty Python) and `interp --help`."""
    empty = starting([sys.executable, "-c", "pass"])
    command = Path(sys.executable).with_name("interp")
    arguments = [str(command)] if command.exists() else [sys.executable, "-m", "interp.cli"]
    return {
        "import interp": starting([sys.executable, "-c", "import interp"]) - empty,
        "interp --help": starting([*arguments, "--help"]),
    }
