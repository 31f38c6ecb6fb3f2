"""How far a figure would move with other texts of the same kind: percentile bootstrap over texts, for figures that are a ratio of sums.

Texts are the unit: rows of one text are not independent, so they are drawn together. Says nothing of texts of another kind.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InterpError

DRAWS = 1000
LEVEL = 0.95
CELLS = 4_000_000


def interval(
    sums: Float[Tensor, " text"], counts: Float[Tensor, " text"], seed: int = 0, draws: int = DRAWS, level: float = LEVEL
) -> tuple[float, float]:
    """The central `level` of Σ sums / Σ counts over `draws` resamples of the texts, with replacement. NaN for fewer than two texts.

    Efron 1979; a text of many rows weighs as it does in the figure itself.

    >>> interval(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 6.0]))
    (0.5, 0.5)
    """
    if not 0 < level < 1 or draws < 1:
        raise InterpError(f"{draws} draws at level {level}; give 1 draw or more and a level between 0 and 1")
    texts = len(sums)
    if texts < 2 or not float(counts.sum()):
        return math.nan, math.nan
    pairs = torch.stack([sums, counts], -1).double().numpy()
    draw = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    some = max(1, CELLS // texts)
    for start in range(0, draws, some):
        times = draw.multinomial(texts, np.full(texts, 1 / texts), size=min(some, draws - start))
        total, count = (times @ pairs).T
        found.append(np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0))
    low, high = np.nanquantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
