"""What does a causal mask change, and what leaks without it?

By hand on three scores, on the toy's ten rows, and in two next-token models trained with and without the mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import interp
from analyses._chapter import Beside
from interp import attention
from interp.capturing import Capture, capture
from interp.cli import analysis_main
from interp.errors import InterpError
from interp.models import Model, load, toy
from interp.models.names import small_model
from interp.models.small import Sizes, Transformer
from interp.models.training import IGNORED, batched, fit
from interp.report import Report
from interp.results import Curve, Grid, Table

PREFIX = "The team colour is red. So the players wear"
WORDS = ("players", "wear", "red")
SOURCE = "000 §15.5"


def run(scores: Sequence[float] = (0.0, 0.0, 2.0), *, updates: int = 150, rate: float = 0.02, seed: int = 0) -> Report:
    """The wear row of `scores` against players, wear and red, the toy before and after masking, and a model trained on its answers."""
    if len(scores) != 3:
        raise InterpError(f"three scores are needed, against players, wear and red; got {len(scores)}")
    beside = Beside("mask", "toy")
    by_hand, entries = _by_hand(torch.tensor(scores, dtype=torch.float32)), _entries()
    model = load("toy")
    made = capture(model, PREFIX)
    shapes, squares = _shapes(model, made), _squares(made)
    padding, padded = _padding(made)
    losses, floor, masked, open_ = _trained(updates, rate, seed)
    at_once, largest = _at_once(masked)
    last = losses.frame.iloc[-1]
    numbers = {
        "last_row_change": float((squares["unmasked"][-1] - squares["masked"][-1]).abs().max()),
        "other_rows_change": float((squares["unmasked"][:-1] - squares["masked"][:-1]).abs().max()),
        "weight_above_diagonal_unmasked": float(squares["unmasked"].triu(1).sum(-1)[:-1].mean()),
        "weight_on_padding": padded,
        "prefix_difference": largest,
        "least_loss_from_prefixes": floor,
        **{name: float(last[name]) for name in ("with_mask", "without_mask", "without_mask_on_prefixes")},
    }
    _claims(beside, numbers, shapes)
    return Report(
        analysis="causal_mask",
        model="toy",
        question="What does a causal mask change, and what leaks without it?",
        answer=(
            f"Trained without the mask, a next-token model reaches a loss of {numbers['without_mask']:.3f} nats, below the "
            f"{floor:.3f} that any reader of prefixes can reach, and {numbers['without_mask_on_prefixes']:.3f} once only the prefix exists; "
            f"with the mask it reaches {numbers['with_mask']:.3f} and loses nothing. In the toy the mask takes away "
            f"{numbers['weight_above_diagonal_unmasked']:.0%} of a row's weight on average and leaves the last row as it is."
        ),
        numbers=numbers,
        tables=[by_hand, entries, beside.table, shapes, _rows(made, squares), at_once, padding, losses],
        grids=[
            _grid("scores", "The toy's scores, before any mask: a row is a query.", made, squares["scores"], "score", True),
            _grid("weights_unmasked", "Softmax of all ten scores of a row.", made, squares["unmasked"], "weight"),
            _grid("weights_masked", "Softmax of the visible scores alone.", made, squares["shown"], "weight"),
        ],
        curves=[
            Curve(
                "leak", "Loss at every update; dashed, the least that is possible from prefixes alone.", losses, "update",
                ("with_mask", "without_mask"), baseline="floor", y_label="nats a token",
            )
        ],
        claims=beside.claims,
        definitions=["scores", "visible", "weights"],
        notes=[
            "The two next-token models have one layer, one head, learned positions and the same start; they learn the twelve recorded "
            "sentences by heart, so their losses say what each can see, not how well it would do on new text.",
            "The least possible loss is the entropy of the next word given the prefix, counted over the twelve sentences.",
        ],
        provenance=model.provenance() | {"updates": updates, "rate": rate, "trained_seed": seed},
        captures=[made, capture(masked, PREFIX + " red"), capture(open_, PREFIX + " red")],
    )  # fmt: skip


def _by_hand(scores: Tensor) -> Table:
    """The wear row three ways: every key, red masked, and red's score set to 0, which masks nothing."""
    see = torch.tensor([True, True, False])
    ways = {
        "without": attention.weights(scores[None])[0],
        "with": attention.weights(scores[None], see[None])[0],
        "score 0 in its place": attention.weights(torch.where(see, scores, 0.0)[None])[0],
    }
    rows = [{"mask": name, **dict(zip(WORDS, row.tolist(), strict=True))} for name, row in ways.items()]
    return Table.of("wear_row", "Weights of the wear row; a score of 0 in place of −∞ leaves the key available.", rows)


def _entries() -> Table:
    see = attention.visible(3)
    rows = [{"query": WORDS[i], **{WORDS[j]: "0" if see[i, j] else "−∞" for j in range(3)}} for i in range(3)]
    return Table.of("mask", "What the causal mask adds to the scores of the last three positions.", rows)


def _squares(made: Capture) -> dict[str, Tensor]:
    assert made.scores is not None
    assert made.weights is not None
    assert made.visible is not None
    scores, masked = made.scores[0, 0], made.weights[0, 0]
    shown = masked.masked_fill(~made.visible[0], torch.nan)
    return {"scores": scores, "unmasked": attention.weights(scores), "masked": masked, "shown": shown}


def _shapes(model: Model, made: Capture) -> Table:
    """The chapter's table of shapes, read from the tensors of one forward."""
    with interp.trace(model, "hook_embed") as seen:
        model.logits(model.tokens(PREFIX).ids)
    x = seen["hook_embed"][0]
    tensors = {"X": x, **{name.upper()[0]: getattr(made, name)[0, 0] for name in ("q", "k", "v")}}
    tensors |= {"S": made.scores[0, 0], "A": made.weights[0, 0], "Z": made.z[0, 0]}  # type: ignore[index]
    printed = {
        "X": (None, 8),
        "Q": (None, 4),
        "K": (None, 4),
        "V": (None, 8),
        "S": (None, None),
        "A": (None, None),
        "Z": (None, 8),
    }
    rows = []
    for name, tensor in tensors.items():
        wanted = tuple(made.n_tokens if size is None else size for size in printed[name])
        text = " × ".join("T" if size is None else str(size) for size in printed[name])
        rows.append(
            {"matrix": name, "chapter": text, "here": " × ".join(map(str, tensor.shape)), "agrees": tuple(tensor.shape) == wanted}
        )
    return Table.of("shapes", f"Shapes in the toy, T = {made.n_tokens} positions.", rows)


def _rows(made: Capture, squares: dict[str, Tensor]) -> Table:
    rows = [
        {
            "query": i,
            "query_token": made.tokens[i].strip(),
            "key": j,
            "key_token": made.tokens[j].strip(),
            "score": float(squares["scores"][i, j]),
            "visible": j <= i,
            "weight_unmasked": float(squares["unmasked"][i, j]),
            "weight": float(squares["masked"][i, j]),
        }
        for i in range(made.n_tokens)
        for j in range(made.n_tokens)
    ]
    return Table.of("rows", "Every row of the toy, before and after masking.", rows)


def _grid(name: str, caption: str, made: Capture, values: Tensor, unit: str, signed: bool = False) -> Grid:
    labels = [f"{place} {token.strip()}" for place, token in enumerate(made.tokens)]
    limits = None if signed else (0, 1)
    return Grid(name, caption, unit, values.numpy(), labels, labels, "query", "key", limits, signed)


def _padding(made: Capture, pads: int = 3) -> tuple[Table, float]:
    """The toy's scores with padding keys of high score behind them: what a padding mask does to each row."""
    assert made.scores is not None
    assert made.weights is not None
    n = made.n_tokens
    wide = torch.full((n + pads, n + pads), 50.0)
    wide[:n, :n] = made.scores[0, 0]
    real = torch.arange(n + pads) < n
    padded = attention.weights(wide, attention.visible(n + pads, causal=False, real=real) & attention.visible(n + pads))[:n]
    large = attention.weights(torch.where(real, wide, -1e9))[:n]
    rows = [
        {
            "query": i,
            "on_padding": float(padded[i, n:].sum()),
            "on_padding_large_negative": float(large[i, n:].sum()),
            "row_change": float((padded[i, :n] - made.weights[0, 0, i]).abs().max()),
        }
        for i in range(n)
    ]
    caption = f"{pads} padding keys with a score of 50 each: masked, they get exactly nothing and change nothing."
    table = Table.of("padding", caption, rows, on_padding_large_negative="with −1e9 in place of the mask")
    return table, float(table.frame[["on_padding", "on_padding_large_negative"]].max().max())


def _trained(updates: int, rate: float, seed: int) -> tuple[Table, float, Model, Model]:
    """Two models from one start, with and without the mask, on every next word of the twelve recorded sentences."""
    ids = [toy.WordTokenizer().encode(f"{prefix.text} {prefix.target}") for prefix in toy.prefixes()]
    tokens, last = batched(ids)
    place = torch.arange(tokens.shape[1])
    targets = torch.where(place < last[:, None], tokens.roll(-1, 1), IGNORED)
    columns, models = {}, []
    for causal in (True, False):
        sizes = Sizes(1, 1, 16, 8, 16, len(toy.WORDS), tokens.shape[1], causal)
        module = Transformer(sizes, seed)
        columns[causal] = fit([module], tokens, targets, updates, rate, f"training {'with' if causal else 'without'} the mask")[
            :, 0
        ]
        name = "next word, with the mask" if causal else "next word, without the mask"
        models.append(small_model(name, module, toy.WordTokenizer(), f"seed-{seed}"))
    honest = _on_prefixes(models[1], ids)
    floor = _floor(ids)
    lines = [
        {
            "update": at,
            "with_mask": float(columns[True][at]),
            "without_mask": float(columns[False][at]),
            "without_mask_on_prefixes": honest if at == updates else float("nan"),
            "floor": floor,
        }
        for at in range(updates + 1)
    ]
    table = Table.of(
        "leak",
        "Mean loss of the next word, nats. Without the mask the answer is in the input; on prefixes alone it is not.",
        lines,
        without_mask_on_prefixes="the trained model where only the prefix exists; last update alone",
        floor="entropy of the next word given the prefix",
    )
    return table, floor, models[0], models[1]


def _on_prefixes(model: Model, ids: Sequence[Sequence[int]]) -> float:
    losses = [
        -float(model.logits(torch.tensor(row[:end]))[-1].log_softmax(-1)[row[end]]) for row in ids for end in range(1, len(row))
    ]
    return sum(losses) / len(losses)


def _floor(ids: Sequence[Sequence[int]]) -> float:
    """Mean of −log (share of that next word among all occurrences of the prefix)."""
    seen = Counter(tuple(row[:end]) for row in ids for end in range(1, len(row)))
    follows = Counter(tuple(row[: end + 1]) for row in ids for end in range(1, len(row)))
    shares = [follows[tuple(row[: end + 1])] / seen[tuple(row[:end])] for row in ids for end in range(1, len(row))]
    return float(-torch.tensor(shares, dtype=torch.float64).log().mean())


def _at_once(model: Model) -> tuple[Table, float]:
    """One recorded sentence: a prefix and a target at every position, from one forward and from a forward a prefix."""
    tokens = model.tokens(PREFIX + " red")
    together = model.logits(tokens.ids).log_softmax(-1)
    rows = []
    for place in range(len(tokens) - 1):
        target = int(tokens.ids[place + 1])
        alone = model.logits(tokens.ids[: place + 1])[-1].log_softmax(-1)
        rows.append(
            {
                "position": place + 1,
                "prefix": model.tokenizer.decode(tokens.ids[: place + 1].tolist()),
                "target": toy.WORDS[target],
                "p_target": float(together[place, target].exp()),
                "p_target_from_prefix_alone": float(alone[target].exp()),
                "largest_difference": float((together[place] - alone).abs().max()),
            }
        )
    table = Table.of("at_once", "A prefix and its target at every position of one sentence, in one calculation.", rows)
    return table, float(table.frame["largest_difference"].max())


def _claims(beside: Beside, numbers: dict[str, Any], shapes: Table) -> None:
    scores = _by_hand(torch.tensor([0.0, 0.0, 2.0])).frame.set_index("mask")
    for way, printed in (("without", ("0.107", "0.107", "0.787")), ("with", ("0.5", "0.5", "0"))):
        for word, number in zip(WORDS, printed, strict=True):
            what = f"scores 0, 0, 2: weight of wear on {word}, {way} the mask"
            beside.add(f"{way}-{word}", SOURCE, what, number, float(scores.loc[way, word]))
    zero, tiny = float(scores.loc["score 0 in its place", "red"]), 1e-4
    judged: tuple[tuple[str, str, str, str, str, Any], ...] = (
        ("zero", SOURCE, "a score of 0 is not a mask: the key stays available", "more than 0", f"{zero:.3f}", zero > 0),
        ("shapes", "000 §15.4.1", "shapes of X, Q, K, V, S, A, Z", "as printed", "all" if shapes.frame["agrees"].all() else "not all",
         shapes.frame["agrees"].all()),
        ("last-row", "000 §15.6", "the mask leaves the last row unchanged", "equal to rounding", f"{numbers['last_row_change']:.1e}",
         numbers["last_row_change"] < 1e-6),
        ("at-once", "000 §15.5.1", "one sentence gives a prefix and its target at every position in one calculation",
         "as from each prefix alone", f"{numbers['prefix_difference']:.1e} nats", numbers["prefix_difference"] < tiny),
        ("leak", SOURCE, "without the mask training rewards reading the answer", "a loss below what prefixes allow",
         f"{numbers['without_mask']:.3f} against {numbers['least_loss_from_prefixes']:.3f}",
         numbers["without_mask"] < numbers["least_loss_from_prefixes"]),
        ("no-use", SOURCE, "what was learned so is of no use when only the prefix exists", "a loss above the masked model's",
         f"{numbers['without_mask_on_prefixes']:.3f} against {numbers['with_mask']:.3f}",
         numbers["without_mask_on_prefixes"] > numbers["with_mask"]),
        ("honest", SOURCE, "with the mask no loss is below what prefixes allow", "at or above it",
         f"{numbers['with_mask']:.3f} against {numbers['least_loss_from_prefixes']:.3f}",
         numbers["with_mask"] > numbers["least_loss_from_prefixes"] - tiny),
        ("padding", "000 §15.5.2", "masked padding gets no weight, nor with a very large negative number", "exactly 0",
         f"{numbers['weight_on_padding']:g}", numbers["weight_on_padding"] == 0),
    )  # fmt: skip
    for claim in judged:
        beside.judge(*claim)


if __name__ == "__main__":
    analysis_main(run)
