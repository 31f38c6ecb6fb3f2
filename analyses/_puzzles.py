"""Pronoun puzzles answered by likelihood: which of two readings makes the rest of the sentence likelier? For `textbook`."""

from __future__ import annotations

import math

import torch

from analyses._winograd import Puzzle, puzzles
from interp.models import Model
from interp.models.model import evaluating
from interp.models.training import batched
from interp.progress import track
from interp.results import Table

CHANCE, LARGEST_GPT2 = 0.5, 0.7070


def wilson(right: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: right/of in the middle, pulled towards ½, inside 0..1.

    >>> [round(end, 3) for end in wilson(30, 40)]
    [0.598, 0.858]
    """
    share, spread = right / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return middle - half, middle + half


@torch.no_grad()
def answered(model: Model, asked: list[Puzzle] | None = None, batch: int = 16) -> Table:
    """Each sentence: log-likelihood of what follows the pronoun, once for each candidate in its place, in nats; and the answer."""
    asked = list(puzzles()) if asked is None else asked
    texts = [
        (p.before, f"{p.before} {who}" if p.before else who[0].upper() + who[1:], p.after) for p in asked for who in p.candidates
    ]
    found: list[float] = []
    for start in track(range(0, len(texts), batch), "pronoun puzzles"):
        starts = [model.tokens(reading, "none").ids.tolist() for _, reading, _ in texts[start : start + batch]]
        whole = [model.tokens(reading + after, "none").ids.tolist() for _, reading, after in texts[start : start + batch]]
        ids, last = batched(whole)
        with evaluating(model.module):
            out = model.module(ids.to(model.device), use_cache=False).logits.float()
        logs = torch.log_softmax(out[:, :-1], -1).gather(-1, ids[:, 1:, None].to(out.device))[..., 0]
        for row, (begin, end) in enumerate(zip(starts, last.tolist(), strict=True)):
            found.append(float(logs[row, len(begin) - 1 : end].sum()))
    rows = []
    for number, puzzle in enumerate(asked):
        logs_ab = found[2 * number : 2 * number + 2]
        said = 0 if logs_ab[0] > logs_ab[1] else 1
        rows.append(
            {
                "pair": puzzle.pair,
                "sentence": f"{puzzle.before} … {puzzle.after.strip()}",
                "candidate_a": puzzle.candidates[0],
                "candidate_b": puzzle.candidates[1],
                "log_likelihood_a": logs_ab[0],
                "log_likelihood_b": logs_ab[1],
                "meant": puzzle.candidates[puzzle.right],
                "answered": puzzle.candidates[said],
                "right": said == puzzle.right,
            }
        )
    return Table.of(
        "puzzles", "Eighty sentences in forty pairs; the candidate in place of the pronoun that makes the rest likelier is the answer.", rows,
        log_likelihood_a="nats, of what follows the pronoun, with candidate a in its place", meant="whom the pronoun means",
    )  # fmt: skip
