"""How far a ratio of sums would move with other texts of the same kind, from sums alone: for places and heads whose texts are not kept.

Texts are the unit, as in `interp.measures.bootstrap`, which gives nearly the same and needs every text's own sum.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import stdtrit
from torch import Tensor

from interp.measures.bootstrap import LEVEL

Sums = Float[Tensor, "*place"]


def interval(
    total: Sums,
    count: Sums,
    square: Sums,
    product: Sums,
    count_square: Sums,
    texts: Sums,
    level: float = LEVEL,
    limits: tuple[float, float] = (0.0, 1.0),
) -> tuple[Sums, Sums]:
    """The `level` interval of R = Σx / Σn at each place, by the linearised ratio and Student's t. NaN for fewer than two texts.

    x and n are a text's own sum and its number of rows; given are Σx, Σn, Σx², Σxn, Σn² and the number of texts. With m of them
    Var R = m / (m − 1) · Σ(x − Rn)² / (Σn)² (Cochran, Sampling Techniques, 1977, §6.4). Cut at `limits`, which a share cannot leave.

    >>> x, n = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 4.0, 4.0])
    >>> low, high = interval(x.sum(), n.sum(), (x * x).sum(), (x * n).sum(), (n * n).sum(), torch.tensor(3.0))
    >>> round(float(low), 3), round(float(high), 3)
    (0.0, 1.0)
    """
    ratio = total / count
    off = (square - 2 * ratio * product + ratio.square() * count_square).clamp_min(0)
    free = texts - 1
    half = torch.from_numpy(np.asarray(stdtrit(free.clamp_min(1).numpy(), (1 + level) / 2)))
    half = half * (off * texts / free).sqrt() / count
    half = torch.where(free >= 1, half, torch.nan)
    return (ratio - half).clamp(*limits), (ratio + half).clamp(*limits)
