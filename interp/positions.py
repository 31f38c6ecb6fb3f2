"""Where a token stands, told to attention: learned tables, sinusoids, rotary. Pure functions; rotary is the plain kind, no stretching.

And `order_blind`: attention whose sums are rounded once, so that shuffling its input shuffles its output bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from interp.errors import InterpError

Pairing = Literal["halves", "neighbours"]


def learned(table: Float[Tensor, "places d"], positions: Int[Tensor, " pos"]) -> Float[Tensor, "pos d"]:
    """Row i of the table for place i: nothing is known beyond its last row. Raises InterpError there.

    >>> learned(torch.eye(2), torch.tensor([1]))
    tensor([[0., 1.]])
    """
    if len(positions) and (int(positions.min()) < 0 or int(positions.max()) >= len(table)):
        last = int(positions.max())
        raise InterpError(f"place {last} has no vector: the table has {len(table)}, for places 0 to {len(table) - 1}")
    return table[positions]


def frequencies(width: int, base: float = 10_000.0) -> Float[Tensor, " pair"]:
    """θ_j = base^(−2j/width) for the pairs j = 0 … width/2 − 1, in radians a place; float64. Su et al. 2021, Vaswani et al. 2017.

    >>> frequencies(4, 100.0)
    tensor([1.0000, 0.1000], dtype=torch.float64)
    """
    if width % 2 or width < 2:
        raise InterpError(f"places are told by pairs of numbers, so the width must be even; got {width}")
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def angles(positions: Real[Tensor, " pos"], width: int, base: float = 10_000.0) -> Float[Tensor, "pos pair"]:
    """m·θ_j for place m and pair j, in radians; float64."""
    return positions.double()[:, None] * frequencies(width, base)


def sinusoidal(positions: Real[Tensor, " pos"], width: int, base: float = 10_000.0) -> Float[Tensor, "pos d"]:
    """sin(m·θ_j) at the even components, cos(m·θ_j) at the odd ones: defined for every place m. In [−1, 1]; float64.

    >>> sinusoidal(torch.tensor([0.0]), 4)
    tensor([[0., 1., 0., 1.]], dtype=torch.float64)
    """
    turned = angles(positions, width, base)
    return torch.stack([turned.sin(), turned.cos()], dim=-1).flatten(-2)


def rotate(
    x: Float[Tensor, "*lead pos d"],
    positions: Real[Tensor, " pos"],
    base: float = 10_000.0,
    pairing: Pairing = "halves",
) -> Float[Tensor, "*lead pos d"]:
    """Each pair j of the vector in place m turned by m·θ_j. Lengths stay; negative places turn back.

    `halves` pairs component j with j + d/2 (as transformers does), `neighbours` 2j with 2j + 1 (as the paper writes it).
    (R_m q)·(R_n k) = q·R_{n−m} k: a turn by mθ and one by nθ leave the difference, so the score depends on m − n alone.
    """
    turned = angles(positions, x.shape[-1], base)
    cos, sin = turned.cos().to(x.dtype), turned.sin().to(x.dtype)
    if pairing == "halves":
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)


def order_blind(
    q: Float[Tensor, "n d"], k: Float[Tensor, "m d"], v: Float[Tensor, "m d_v"], causal: bool = False
) -> Float[Tensor, "n d_v"]:
    """Unmasked (or causal) attention in float64 with every sum over keys rounded once (math.fsum), so that no order of keys matters.

    Proof: a score depends on its own query and key, exp on its own score; fsum gives the correctly rounded sum of a set of numbers,
    whatever their order; a quotient depends on its two parts. So attention(P q, P k, P v) = P attention(q, k, v), bit for bit. Slow.
    """
    rows = []
    for i, query in enumerate(q.double().tolist()):
        seen = range(i + 1) if causal else range(len(k))
        keys, values = k.double().tolist(), v.double().tolist()
        scores = [_dot(query, keys[j]) / math.sqrt(q.shape[-1]) for j in seen]
        top = max(scores)
        raised = [math.exp(score - top) for score in scores]
        total = math.fsum(raised)
        shares = [one / total for one in raised]
        rows.append([math.fsum(w * values[j][c] for w, j in zip(shares, seen, strict=True)) for c in range(v.shape[-1])])
    return torch.tensor(rows, dtype=torch.float64)


def _dot(one: Iterable[float], other: Iterable[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))
