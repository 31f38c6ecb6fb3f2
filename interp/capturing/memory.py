"""How much a capture will take, said before the forward runs."""

from __future__ import annotations

import os
from pathlib import Path

from interp.errors import InterpError
from interp.models.model import Model


def size(model: Model, n_layers: int, tokens: int) -> int:
    """Bytes that a capture holds: scores and weights in float32, visible, and q, k, v, z. Layers × heads × T² rules."""
    squares = n_layers * model.n_heads * tokens * tokens * 4 * 2 + n_layers * tokens * tokens
    rows = n_layers * tokens * model.d_head * (2 * model.n_heads + 2 * model.n_kv_heads) * 4
    return squares + rows


def free() -> int:
    """Bytes of memory that can be had now, as the system says; half of the installed memory where it does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def guard(model: Model, n_layers: int, tokens: int, limit: int | None) -> None:
    """Refuse a capture above `limit` bytes (half of what is free, unless given), with the figure and the ways out."""
    need = size(model, n_layers, tokens)
    most = free() // 2 if limit is None else limit
    if need > most:
        raise InterpError(
            f"a capture of {tokens} tokens over {n_layers} layers × {model.n_heads} heads takes {need / 2**30:.2f} GiB, more than the limit of "
            f"{most / 2**30:.2f} GiB; ask for fewer --layers, fewer tokens (--max-tokens), or row statistics, which keep no square (interp.rows)"
        )
