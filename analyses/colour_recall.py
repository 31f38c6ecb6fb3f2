"""How does one attention layer learn to recall a colour, and does every start learn the same?

The toy is trained anew from `seed`, then once more at a tenth of the rate, then from `seeds` other starts at once (0: none).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from analyses import _recall, _starts
from interp.capturing import Capture, capture
from interp.cli import analysis_main
from interp.errors import InterpError
from interp.measures import lookup
from interp.models import toy
from interp.models.names import small_model
from interp.report import Report
from interp.results import Curve, Grid, Table

SHOWN = ("The team colour is red. So the players wear", "The team colour is black. So the players wear")
PARTS = {"W_E": "embedding rows", "W_Q": "query matrix", "W_K": "key matrix", "W_V": "value matrix", "W_U": "output matrix"}


def run(
    *,
    seed: int = toy.DEFAULT_SEED,
    updates: int = toy.UPDATES,
    rate: float = toy.RATE,
    slow_updates: int = 1000,
    seeds: int = 200,
) -> Report:
    """The course of one training run, what its weights do at `wear`, a slower run, and a sweep over other starts."""
    if seeds < 0 or slow_updates < 1:
        raise InterpError(f"seeds {seeds} and slow_updates {slow_updates}: give 0 or more starts and at least one update")
    course, slow = toy.train(seed, updates, rate), toy.train(seed, slow_updates, rate / 10)
    training, slower = _training(course, "training"), _training(slow, "training_slow")
    model = small_model("toy", course.module(), toy.WordTokenizer(), f"seed-{seed}")
    captures = [capture(model, text) for text in SHOWN]
    wear, held = _wear(captures, model.module.W_U.detach()), _validation(course)
    starts = [_starts.sweep(seeds, updates, rate)] if seeds else []
    shares = _starts.shares(starts[0]) if starts else {}
    beside = _recall.claims(training, wear, held, slower, shares)
    last = training.frame.iloc[-1]
    row, odds = _rows(course), _probabilities(course)
    numbers = {
        "updates": updates,
        **{name: last[name].item() for name in _recall.COLUMNS if name != "predicted"},
        "first_update_above_half": _first(training, "weight_on_colour", 0.5),
        "slow_first_update_above_half": _first(slower, "weight_on_colour", 0.5),
        "slow_validation_correct": int(slower.frame["validation_correct"].iloc[-1]),
        **shares,
    }
    return Report(
        analysis="colour_recall",
        model="toy",
        question="How does one attention layer learn to recall a colour, and does every start learn the same?",
        answer=_answer(numbers),
        numbers=numbers,
        tables=[_recall.printed(training), wear, held, *starts, *map(_starts.summary, starts), beside.table, training, slower, row, odds],
        grids=_matrices(course),
        curves=[
            _curve("loss", "Mean loss of the nine training and the three validation prefixes.", training, ("training_loss", "validation_loss"), "nats"),
            _curve("row_at_wear", f"The attention row of the last word of: {SHOWN[0]}", row, [name for name in row.frame if name != "update"], "weight"),
            _curve("probabilities", f"Probability of each colour after: {SHOWN[0]}", odds, toy.COLOURS, "probability"),
            _curve("loss_slow", "The same start at a tenth of the rate.", slower, ("training_loss", "validation_loss"), "nats"),
            _curve("weight_slow", "Its weight on the colour, and the largest other weight.", slower, ("weight_on_colour", "largest_other_weight"), "weight"),
        ],
        claims=beside.claims,
        definitions=["scores", "weights", "z"],
        notes=[
            "The chapter's starting values are not printed, so its table can be met in kind, and to the digit only where training ends; "
            "the default start was chosen among others because its course is close to the chapter's.",
            "Positions count from 1, as in the chapter. The row and the probabilities are those of the first training prefix.",
            "A start counts as looking up a colour where the mean weight on the colour position exceeds one half.",
        ],
        provenance=model.provenance() | {"seed": seed, "updates": updates, "rate": rate, "seeds": seeds},
        captures=captures,
    )  # fmt: skip


def _training(course: toy.Course, name: str) -> Table:
    """Every update of a run, in the chapter's columns."""
    every = toy.prefixes()
    held = torch.tensor([prefix.validation for prefix in every])
    row, log_p = course.rows[:, 0], course.log_p[:, 0]
    others = row.clone()
    others[:, toy.COLOUR_AT] = 0
    columns: dict[str, Any] = {
        "update": range(len(row)),
        "weight_on_colour": row[:, toy.COLOUR_AT].tolist(),
        "largest_other_weight": others.amax(1).tolist(),
        "p_colour": log_p[:, toy.WORDS.index(every[0].target)].exp().tolist(),
        "predicted": [toy.WORDS[place] for place in log_p.argmax(-1).tolist()],
        "training_loss": course.losses[:, ~held].mean(1).tolist(),
        "validation_loss": course.losses[:, held].mean(1).tolist(),
        "validation_correct": course.correct[:, held].sum(1).int().tolist(),
    }
    lines = [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]
    return Table.of(
        name,
        f"Every update of the run at rate {course.lr:g}, first training prefix and losses.",
        lines,
        p_colour="probability of the stated colour, first training prefix",
        training_loss="nats, mean over 9 prefixes",
        validation_loss="nats, mean over 3 prefixes",
        validation_correct="of 3",
    )


def _wear(captures: list[Capture], out: Tensor) -> Table:
    """The last row of the red and of the black prefix, position by position."""
    rows = []
    for made in captures:
        assert made.scores is not None
        assert made.weights is not None
        assert made.v is not None
        weights = made.weights[0, 0, -1]
        adds = lookup.added(weights, made.v[0, 0], out)
        rows += [
            {
                "prefix": made.text,
                "position": place + 1,
                "token": made.tokens[place].strip(),
                "score": float(made.scores[0, 0, -1, place]),
                "weight": float(weights[place]),
                **{f"adds_{colour}": float(adds[place, toy.WORDS.index(colour)]) for colour in toy.COLOURS},
            }
            for place in range(made.n_tokens)
        ]
    return Table.of(
        "wear", "What the row at wear does: score, weight, and weight × value × W_out.", rows, score="q · k / 2", adds_red="added to red's score"
    )  # fmt: skip


def _validation(course: toy.Course) -> Table:
    rows = [
        {
            "prefix": prefix.text,
            "target": prefix.target,
            "wear_at": len(toy.WordTokenizer().encode(prefix.text)),
            "predicted_before": toy.WORDS[int(course.log_p[0, place].argmax())],
            "predicted_after": toy.WORDS[int(course.log_p[-1, place].argmax())],
            "weight_on_colour": float(course.rows[-1, place, toy.COLOUR_AT]),
            "p_target": float(course.log_p[-1, place, toy.WORDS.index(prefix.target)].exp()),
        }
        for place, prefix in enumerate(toy.prefixes())
    ]
    rows = [row for row, prefix in zip(rows, toy.prefixes(), strict=True) if prefix.validation]
    return Table.of("validation", "The three held-out prefixes, with wear at a position that training never had.", rows)


def _rows(course: toy.Course) -> Table:
    words = SHOWN[0].replace(".", " .").split()
    names = [f"{place + 1} {word}" for place, word in enumerate(words)]
    lines = [
        {"update": at, **dict(zip(names, row[: len(words)].tolist(), strict=True))} for at, row in enumerate(course.rows[:, 0])
    ]
    return Table.of("row", "Weights of the last row at every update, by position and word.", lines)


def _probabilities(course: toy.Course) -> Table:
    lines = [
        {"update": at, **{colour: float(line[toy.WORDS.index(colour)].exp()) for colour in toy.COLOURS}}
        for at, line in enumerate(course.log_p[:, 0])
    ]
    return Table.of("colours", "Probability of each colour after the first training prefix, at every update.", lines)


def _matrices(course: toy.Course) -> list[Grid]:
    """The five matrices before and after, one colour scale a matrix."""
    grids = []
    for short, words in PARTS.items():
        name = next(name for name in course.end if name.rpartition(".")[2] == short)
        before, after = (state[name].reshape(-1, state[name].shape[-1]) for state in (course.start, course.end))
        most = float(torch.maximum(before.abs(), after.abs()).max())
        rows = toy.WORDS if short == "W_E" else range(len(before))
        columns = toy.WORDS if short == "W_U" else range(before.shape[1])
        for when, values in (("before", before), ("after", after)):
            grids.append(
                Grid(
                    f"{short.lower()}_{when}", f"{short}, the {words}, {when} training.", "entry", values.numpy(), rows, columns,
                    "token" if short == "W_E" else "input component", "token" if short == "W_U" else "component",
                    limits=(-most, most), signed=True,
                )
            )  # fmt: skip
    return grids


def _curve(name: str, caption: str, table: Table, columns: Any, unit: str) -> Curve:
    return Curve(name, caption, table, "update", tuple(columns), y_label=unit)


def _first(table: Table, column: str, above: float) -> int | None:
    reached = table.frame.loc[table.frame[column] > above, "update"]
    return int(reached.iloc[0]) if len(reached) else None


def _answer(numbers: dict[str, Any]) -> str:
    one = (
        f"From this start the weight on the colour passes one half at update {numbers['first_update_above_half']} and ends at "
        f"{numbers['weight_on_colour']:.3f}, with {numbers['validation_correct']} of 3 held-out prefixes right; at a tenth of the rate "
        f"it passes one half at update {numbers['slow_first_update_above_half']}."
    )
    if "starts" not in numbers:
        return one
    return (
        f"{one} Of {numbers['starts']} starts {numbers['share_3_of_3']:.1%} get 3 of 3, but only {numbers['share_on_colour']:.1%} look up "
        f"all three colours: {numbers['share_by_absence']:.1%} look up fewer and say the missing one where they find nothing."
    )


if __name__ == "__main__":
    analysis_main(run)
