"""What a call takes, in seconds and in bytes of tensors on the CPU, and the exponent with which it grows. Times hold for this machine only."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from interp.errors import InterpError


def seconds(call: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of `repeats` runs after one that is not counted: what it takes when nothing else disturbs."""
    call()
    taken = []
    for _ in range(max(1, repeats)):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most bytes that torch held at once on the CPU for what it allocated during the call, workspace of its kernels included."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's library writes to stderr when it starts
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        call()
    held = most = 0
    for event in watched.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def exponent(sizes: Sequence[int | float], costs: Sequence[int | float]) -> float:
    """The e of cost ≈ c·sizeᵉ: slope of a straight line through the logarithms, by least squares.

    >>> exponent([1, 2, 4], [3, 12, 48])
    2.0
    """
    if len(sizes) != len(costs) or len(set(sizes)) < 2 or min(*sizes, *costs) <= 0:
        raise InterpError(f"an exponent needs two sizes or more and positive costs; got {list(sizes)} and {list(costs)}")
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return round(above / sum((a - mean_x) ** 2 for a in x), 12)
