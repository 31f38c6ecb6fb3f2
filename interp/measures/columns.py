"""Which tokens and positions draw weight, over recordings: the sums of whole columns, one text at a time. `interp.rows` gives the same for a corpus."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import pad

from interp.measures.sinks import EPSILON, MANY
from interp.shapes import Square, Visible


class Columns:
    """Column mass Σ_i A[i, k] by token (as first token of its text, or later) and by position, in float64, and the rows that see the key.

    A head of a text counts where all its rows are finite, as in row statistics.
    """

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, Hashable], Tensor] = {}  # (mass, rows, sinks, keys that MANY rows see)
        self._pieces: dict[Hashable, str] = {}
        self._mass = self._rows = torch.zeros(0, 0, 0, dtype=torch.float64)

    def add(self, weights: Square, visible: Visible, tokens: Sequence[str], ids: Sequence[int] | None = None) -> None:
        """Add one text; tokens are told apart by id where there are ids, else by their pieces."""
        kept = torch.isfinite(weights).all(-1).all(-1)[..., None]
        mass = torch.where(kept, weights.double().sum(-2), 0.0)
        rows = (kept * visible.sum(-2)[:, None]).double()
        many = rows >= MANY
        by_key = torch.stack([x.sum((0, 1)).double() for x in (mass, rows, many & (mass > EPSILON * rows), many)], -1)
        for place, (piece, line) in enumerate(zip(tokens, by_key, strict=True)):
            which: Hashable = piece if ids is None else ids[place]
            key = ("later" if place else "first", which)
            self._pieces[which] = piece
            self._tokens[key] = self._tokens.get(key, torch.zeros_like(line)) + line
        self._mass, self._rows = _longest_sum(self._mass, mass), _longest_sum(self._rows, rows)

    def token_table(self, count: int = 20) -> pd.DataFrame:
        """The tokens that draw most weight: place, token_id (None without ids), token, share_of_weight, importance (mean over the rows that see
        one), sink_heads (mean number of heads in which one has importance above 0.3, of keys that 16 rows or more see; NaN where there is none)."""
        heads = self._mass.shape[0] * self._mass.shape[1]
        total = float(self._mass.sum())
        drawing = {key: line.tolist() for key, line in self._tokens.items() if line[0] > 0}
        lines = [
            {
                "place": place,
                "token_id": which if isinstance(which, int) else None,
                "token": self._pieces[which],
                "share_of_weight": mass / total,
                "importance": mass / rows,
                "sink_heads": sinks / keys * heads if keys else float("nan"),
            }
            for (place, which), (mass, rows, sinks, keys) in drawing.items()
        ]
        return pd.DataFrame(sorted(lines, key=lambda line: -line["share_of_weight"])[:count])

    def position_table(self, count: int = 20) -> pd.DataFrame:
        """The positions that draw most weight: position, share_of_weight, importance, and the heads in which that is above 0.3."""
        mass, rows = self._mass.sum((0, 1)), self._rows.sum((0, 1))
        top = mass.topk(min(count, len(mass))).indices
        return pd.DataFrame(
            {
                "position": top.numpy(),
                "share_of_weight": (mass[top] / mass.sum()).numpy(),
                "importance": (mass[top] / rows[top]).numpy(),
                "sink_heads": (self._mass > EPSILON * self._rows)[..., top].sum((0, 1)).numpy(),
            }
        )


def _longest_sum(one: Tensor, other: Tensor) -> Tensor:
    """Sums [layer, head, key] as long as the longer; an empty one takes the other's shape."""
    if not one.numel():
        return other
    length = max(one.shape[-1], other.shape[-1])
    return pad(one, (0, length - one.shape[-1])) + pad(other, (0, length - other.shape[-1]))
