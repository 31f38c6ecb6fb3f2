"""Sums of parts, folded in a tree whose shape is given by the numbers of the parts alone: any order of arrival makes the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from torch import Tensor

from interp.rows.sums import merged

Sums = Mapping[str, Tensor]


class Fold:
    """Parts 2k and 2k + 1 are added once both are here, then pairs of pairs. A part's number is taken once.

    Holds what waits for its neighbour: about as many sums as parts arrive out of order, and one for each level of the tree.
    """

    def __init__(self) -> None:
        self.taken: set[int] = set()
        self._waiting: dict[tuple[int, int], Sums | None] = {}  # (level, place): parts place · 2^level and on

    def add(self, number: int, sums: Sums | None) -> bool:
        """Take one part's sums (None: it held nothing new); False where that part is in already, and nothing changes."""
        if number in self.taken:
            return False
        self.taken.add(number)
        level, place = 0, number
        while (level, place ^ 1) in self._waiting:
            other = self._waiting.pop((level, place ^ 1))
            sums = _both(other, sums) if place % 2 else _both(sums, other)
            level, place = level + 1, place >> 1
        self._waiting[level, place] = sums
        return True

    def total(self) -> Sums | None:
        """The sums of all parts so far, in the order of their numbers; the tree stays as it is."""
        order = sorted(self._waiting, key=lambda key: key[1] << key[0])
        return reduce(_both, (self._waiting[key] for key in order), None)


def _both(one: Sums | None, other: Sums | None) -> Sums | None:
    if one is None or other is None:
        return one if other is None else other
    return merged(one, other)
