"""Many starts of the toy, trained at once: how many solve the task, how many look at the colour, and what the others learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from interp.models import toy
from interp.results import Table

NO_COLOUR = "The game is starting. So the players wear"
ALL = "looks up all three colours"


def sweep(count: int, updates: int, rate: float) -> Table:
    """`seeds.csv`: one line a start, seeds 0 to `count` − 1."""
    rows = [_start(course) for course in toy.courses(range(count), updates, rate)]
    return Table.of(
        "seeds",
        f"{count} starts after {updates} updates: what each predicts, where it looks, and what it says where no colour is stated.",
        rows,
        validation_correct="of the 3 held-out prefixes",
        training_correct="of the 9 prefixes it was trained on",
        weight_red="mean weight on the colour position, prefixes that state red",
        smallest_weight="smallest weight on the colour position in the 12 prefixes",
        without_a_colour=f"predicted after: {NO_COLOUR}",
        learned="a colour counts as looked up where its mean weight exceeds ½",
    )


def shares(table: Table) -> dict[str, Any]:
    """The shares of starts that the report prints, each in [0, 1]."""
    frame = table.frame
    correct = frame["validation_correct"] == 3
    looks = frame["learned"] == ALL
    absent = correct & ~looks
    return {
        "starts": len(frame),
        "share_3_of_3": float(correct.mean()),
        "share_on_colour": float(looks.mean()),
        "share_on_colour_alone": float((frame["smallest_weight"] >= 0.9995).mean()),
        "share_by_absence": float(absent.mean()),
        "share_absence_confirmed": float((absent & (frame["without_a_colour"] == frame["not_looked_up"])).mean()),
        "share_unsolved": float((~correct).mean()),
    }


def summary(table: Table) -> Table:
    """How many starts learned what."""
    counts = table.frame["learned"].value_counts()
    rows = [{"learned": what, "starts": int(n), "share": n / len(table.frame)} for what, n in counts.items()]
    return Table.of("learned", "What the starts learned, most frequent first.", rows)


def _start(course: toy.Course) -> dict[str, Any]:
    every = toy.prefixes()
    held = [place for place, prefix in enumerate(every) if prefix.validation]
    learned = [place for place, prefix in enumerate(every) if not prefix.validation]
    weight = course.rows[-1, :, toy.COLOUR_AT]
    means = {
        colour: float(weight[[place for place, prefix in enumerate(every) if prefix.target == colour]].mean())
        for colour in toy.COLOURS
    }
    right = int(course.correct[-1, held].sum())
    missed = [colour for colour, mean in means.items() if mean <= 0.5]
    return {
        "seed": course.seed,
        "validation_correct": right,
        "training_correct": int(course.correct[-1, learned].sum()),
        **{f"weight_{colour}": mean for colour, mean in means.items()},
        "smallest_weight": float(weight.min()),
        "training_loss": float(course.losses[-1, learned].mean()),
        "validation_loss": float(course.losses[-1, held].mean()),
        "not_looked_up": " ".join(missed),
        "without_a_colour": _predicted(course.module()),
        "learned": _kind(right, missed),
    }


def _kind(right: int, missed: list[str]) -> str:
    if right < 3:
        return f"cannot tell {' from '.join(missed)}" if len(missed) > 1 else "some held-out prefixes wrong"
    return ALL if not missed else f"looks up the others, says {' or '.join(missed)} where it finds none"


@torch.no_grad()
def _predicted(module: toy.ColourRecall) -> str:
    tokens: Tensor = torch.tensor([toy.WordTokenizer().encode(NO_COLOUR)])
    return toy.WORDS[int(module(tokens)[0, -1].argmax())]
