"""The chapter's claims on the colour-recall run, and its training table beside ours."""

from __future__ import annotations

from typing import Any

from analyses._chapter import Beside
from interp.models import toy
from interp.results import Table

PRINTED = {
    0: ("0.099", "0.103", "0.058", ".", "2.837", "2.836", "0"),
    10: ("0.079", "0.160", "0.279", "blue", "1.215", "1.214", "1"),
    30: ("0.717", "0.085", "0.580", "red", "0.607", "0.641", "3"),
    50: ("1.000", "0.000", "1.000", "red", "0.000", "0.000", "3"),
    200: ("1.000", "0.000", "1.000", "red", "0.000", "0.000", "3"),
}
COLUMNS = ("weight_on_colour", "largest_other_weight", "p_colour", "predicted", "training_loss", "validation_loss", "validation_correct")  # fmt: skip


def printed(training: Table) -> Table:
    """The chapter's table with ours beside it, one line a number."""
    frame = training.frame.set_index("update")
    rows = [
        {"update": update, "quantity": name, "chapter": number, "here": frame.loc[update, name]}
        for update, line in PRINTED.items()
        if update in frame.index
        for name, number in zip(COLUMNS, line, strict=True)
    ]
    rows = rows or [{"update": 0, "quantity": COLUMNS[0], "chapter": PRINTED[0][0], "here": frame.loc[0, COLUMNS[0]]}]
    for row in rows:
        row["here"] = f"{row['here']:.3f}" if isinstance(row["here"], float) else str(row["here"])
    return Table.of("chapter_training", "The chapter's training table beside this run: another start, the same course.", rows)


def claims(training: Table, wear: Table, held: Table, slower: Table, shares: dict[str, Any]) -> Beside:
    """The chapter's claims on the course, on the trained row, and on the starts."""
    beside = Beside("recall", "toy")
    frame, source = training.frame.set_index("update"), "000 §15.2.3"
    for update in (50, 200):
        for name, number in zip(COLUMNS, PRINTED[update], strict=True):
            if update in frame.index and name != "predicted":
                beside.add(
                    f"{name.replace('_', '-')}-{update}",
                    source,
                    f"{name} at update {update}",
                    number,
                    float(frame.loc[update, name]),
                )
    if 50 in frame.index:
        weight, other = frame["weight_on_colour"], frame["largest_other_weight"]
        beside.judge(
            "start",
            "000 §15.2.1",
            "before training every weight is near 0.1 and red near 1/17",
            "within 0.01 of both",
            f"{weight[0]:.3f} and {frame['p_colour'][0]:.3f}",
            abs(weight[0] - 0.1) < 0.01 and abs(frame["p_colour"][0] - 1 / 17) < 0.01,
        )
        beside.judge(
            "off",
            source,
            "around update 10 the weight moves off the colour",
            "below its start, another position above",
            f"{weight[10]:.3f}, another {other[10]:.3f}",
            weight[10] < weight[0] < other[10],
        )
        beside.judge(
            "most", source, "by update 30 most of the weight is on the colour", "above 0.5", f"{weight[30]:.3f}", weight[30] > 0.5
        )
        gap = float((frame["validation_loss"] - frame["training_loss"]).abs().max())
        beside.judge(
            "follows",
            source,
            "the validation loss follows the training loss",
            "never 0.2 nats apart",
            f"{gap:.3f} at most",
            gap < 0.2,
        )
    lines = wear.frame
    stated = lines[lines["position"] == toy.COLOUR_AT + 1].set_index("token")
    rest = lines[lines["position"] != toy.COLOUR_AT + 1]
    for colour, line in stated.iterrows():
        beside.add(f"weight-{colour}", "000 §15.3", f"weight on {colour}, row at wear", "1.000", float(line["weight"]))
        adds = {name: float(line[f"adds_{name}"]) for name in toy.COLOURS}
        beside.judge(
            f"adds-{colour}",
            "000 §15.3",
            f"the value at {colour} raises the score of {colour} most",
            colour,
            ", ".join(f"{name} {value:+.1f}" for name, value in adds.items()),
            max(adds, key=adds.__getitem__) == colour,
        )
    beside.add("weight-elsewhere", "000 §15.3", "weight on any other position, at most", "0.000", float(rest["weight"].max()))
    beside.judge(
        "scores",
        "000 §15.3",
        "only the key of the colour matches the query of wear",
        "its score above 0, every other below",
        f"{stated['score'].min():.1f} at least, others {rest['score'].max():.1f} at most",
        bool(stated["score"].min() > 0 > rest["score"].max()),
    )
    beside.judge(
        "distance",
        source,
        "the rule carries over to wear at position 21",
        "3 of 3 predicted",
        f"{int((held.frame['predicted_after'] == held.frame['target']).sum())} of 3",
        bool((held.frame["predicted_after"] == held.frame["target"]).all()),
    )
    done = int(slower.frame["validation_correct"].iloc[-1])
    beside.judge(
        "slow",
        "000 §15.6",
        f"at a tenth of the rate {len(slower.frame) - 1} updates are enough",
        "3 of 3",
        f"{done} of 3",
        done == 3,
    )
    if shares:
        beside.judge(
            "every-start",
            source,
            "a trained model uses the colour position and nothing else",
            "every start",
            f"{shares['share_on_colour']:.1%} of {shares['starts']} starts look up all three colours",
            shares["share_on_colour"] == 1,
            f"{shares['share_by_absence']:.1%} look up two and say the third where they find neither; {shares['share_3_of_3']:.1%} reach 3 of 3",
        )
    return beside
