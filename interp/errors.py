"""The few errors that `interp` raises on purpose: each is one line that says what was asked, what came and what would do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InterpError(ValueError):
    """Bad input. The command prints it as one line and exits with 2."""


class UnknownName(InterpError):
    """A name that does not exist here; the message lists the nearest that do."""

    def __init__(self, kind: str, asked: str, known: Iterable[str], hint: str = "") -> None:
        known = list(known)
        near = difflib.get_close_matches(asked, known, n=3, cutoff=0.4)
        if near:
            would_do = f"nearest: {', '.join(near)}"
        else:
            shown = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
            would_do = f"known: {shown}" if known else "none is known"
        super().__init__(f"no {kind} {asked!r}; {would_do}{'; ' + hint if hint else ''}")


class NotHere(InterpError):
    """Something that this machine lacks: weights, a file, an optional package. Says how to get it."""


class NotFaithful(InterpError):
    """A capture that failed its own proof: what was captured is not what the model computed."""


def at_least(least: int, **counts: int | None) -> None:
    """Refuse, by name, a count below `least`; None stands for no limit.

    >>> at_least(1, steps=0)
    Traceback (most recent call last):
    interp.errors.InterpError: steps 0; give 1 or more
    """
    for name, count in counts.items():
        if count is not None and count < least:
            raise InterpError(f"{name} {count}; give {least} or more")
