"""What the size of the scores does to softmax: variance, largest weight, entropy, and the slope that is left to learn from.

Pure functions on scores and weights; every key is taken as visible.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp import attention


def slope(weights: Float[Tensor, "row key"]) -> Float[Tensor, " row"]:
    """Size of ∂weights/∂scores of each row: ‖diag(w) − w wᵀ‖ (Frobenius). 0 where one key has it all; at most ½ for two keys.

    >>> slope(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.5000, 0.0000])
    """
    # ‖diag(w) − w wᵀ‖² = Σ w² − 2 Σ w³ + (Σ w²)²
    square, cube = weights.square().sum(-1), weights.pow(3).sum(-1)
    return (square - 2 * cube + square.square()).clamp(min=0).sqrt()


def reading(scores: Float[Tensor, "row key"]) -> dict[str, float]:
    """Of rows of scores: variance, mean largest weight, mean entropy in nats, share of rows above 0.99, mean slope."""
    weights = attention.weights(scores)
    return {
        "variance": float(scores.double().var(unbiased=False)),
        "largest_weight": float(weights.amax(-1).mean()),
        "entropy": float(torch.special.entr(weights).sum(-1).mean()),
        "saturated": float((weights.amax(-1) > 0.99).double().mean()),
        "slope": float(slope(weights).mean()),
    }


def random_products(rows: int, keys: int, d_k: int, seed: int, block: int = 512) -> Float[Tensor, "row key"]:
    """q·k for independent standard normal components: each row a fresh query and fresh keys. Mean 0, variance d_k."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for start in range(0, rows, block):
        now = min(block, rows - start)
        q, k = torch.randn(now, 1, d_k, generator=generator), torch.randn(now, keys, d_k, generator=generator)
        parts.append(attention.scores(q, k, 1.0)[:, 0])
    return torch.cat(parts)
