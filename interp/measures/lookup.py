"""Lookups in a table of keys and values: hard, nearest-neighbour, Gaussian and dot-product; what tells one from another.

Pure functions on one query and one table; `attention.soft_lookup` is the soft one.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from interp import attention
from interp.errors import InterpError


def hard_lookup(query: Float[Tensor, " d"], keys: Float[Tensor, "m d"], values: Float[Tensor, "m d_v"]) -> Float[Tensor, " d_v"]:
    """The value whose key scores highest and nothing of the others; keys that tie share evenly.

    The limit of a soft lookup as its scores grow, but a step function of the query: no slope to learn from.

    >>> import torch
    >>> hard_lookup(torch.tensor([1.0]), torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [4.0]]))
    tensor([2.])
    """
    scores = attention.scores(query[None], keys, 1.0)[0]
    winners = (scores == scores.max()).to(values.dtype)
    return (winners / winners.sum()) @ values


def nearest(
    query: Float[Tensor, " d"], keys: Float[Tensor, "m d"], values: Float[Tensor, "m d_v"], count: int = 1
) -> Float[Tensor, " d_v"]:
    """Mean value of the `count` keys nearest to the query by distance; of equals the lower index counts.

    >>> import torch
    >>> nearest(torch.tensor([0.4]), torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[2.0], [4.0], [9.0]]), 2)
    tensor([3.])
    """
    if not 1 <= count <= len(keys):
        raise InterpError(f"{count} nearest of {len(keys)} keys; give 1 to {len(keys)}")
    order = (keys - query[None]).norm(dim=-1).sort(stable=True).indices
    return values[order[:count]].mean(0)


@dataclass(frozen=True, eq=False)
class KernelParts:
    """−½‖q − k‖² = dot + key_term + query_term, one entry a key; query_term is the same for all and cancels in the weights."""

    exponent: Float[Tensor, " m"]
    dot: Float[Tensor, " m"]
    key_term: Float[Tensor, " m"]
    query_term: Float[Tensor, " m"]

    @property
    def error(self) -> float:
        """Largest difference between the two sides: rounding alone."""
        return float((self.exponent - (self.dot + self.key_term + self.query_term)).abs().max())


def kernel_parts(query: Float[Tensor, " d"], keys: Float[Tensor, "m d"]) -> KernelParts:
    """The exponent of a Gaussian kernel of width 1, and the three parts it falls into (Zhang et al. 2023, §11.3.1)."""
    return KernelParts(
        exponent=-0.5 * ((query[None] - keys) ** 2).sum(-1),
        dot=keys @ query,
        key_term=-0.5 * (keys**2).sum(-1),
        query_term=(-0.5 * query @ query).expand(len(keys)),
    )


def added(
    weights: Float[Tensor, " m"], values: Float[Tensor, "m d_v"], out: Float[Tensor, "d_v vocab"]
) -> Float[Tensor, "m vocab"]:
    """What each position adds to the output scores of one row: weight × value · out. Their sum and the bias are the row's logits.

    >>> import torch
    >>> added(torch.tensor([0.5, 0.5]), torch.tensor([[2.0], [4.0]]), torch.tensor([[1.0, -1.0]]))
    tensor([[ 1., -1.],
            [ 2., -2.]])
    """
    return weights[:, None] * (values @ out)
