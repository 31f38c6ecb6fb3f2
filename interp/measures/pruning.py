"""Which heads can go: the order of the gentlest, curves of loss against heads removed, and bootstrap intervals over texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Head = tuple[int, int]


def gentlest_first(rise: Float[Tensor, "layer head"]) -> list[Head]:
    """All heads by the rise of the loss their removal alone causes, smallest first; ties by number."""
    heads = rise.shape[1]
    return [(int(place) // heads, int(place) % heads) for place in torch.argsort(rise.flatten(), stable=True)]


def random_order(layers: int, heads: int, seed: int) -> list[Head]:
    """All heads in an order drawn by `seed`: the control."""
    order = torch.randperm(layers * heads, generator=torch.Generator().manual_seed(seed))
    return [(int(place) // heads, int(place) % heads) for place in order]


def interval(values: Float[Tensor, " text"], draws: int = 1000, seed: int = 0, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over texts, in the values' unit; (x, x) for one text."""
    means = values.double()[_drawn(len(values), draws, seed)].mean(-1)
    return _central(means, level)


def _drawn(texts: int, draws: int, seed: int) -> Tensor:
    return torch.randint(0, texts, (draws, texts), generator=torch.Generator().manual_seed(seed))


def _central(values: Tensor, level: float) -> tuple[float, float]:
    low, high = torch.quantile(values, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64))
    return float(low), float(high)


def share_within(curve: Sequence[tuple[int, float]], plain: float, total: int, most: float = 0.01) -> float:
    """Largest share of heads removed, along a curve of (heads removed, loss), before the loss first rises above (1 + most) · plain."""
    best = 0
    for removed, loss in curve:
        if loss > plain * (1 + most):
            break
        best = removed
    return best / total


def share_interval(
    curve: Sequence[tuple[int, Float[Tensor, " text"]]],
    plain: Float[Tensor, " text"],
    total: int,
    draws: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float]:
    """The central `level` of `share_within` over resamples of the texts, the same texts at every point of the curve."""
    drawn = _drawn(len(plain), draws, seed)
    means = [(removed, losses.double()[drawn].mean(-1)) for removed, losses in curve]
    base = plain.double()[drawn].mean(-1)
    shares = [
        share_within([(removed, float(at[draw])) for removed, at in means], float(base[draw]), total) for draw in range(draws)
    ]
    return _central(torch.tensor(shares, dtype=torch.float64), level)
