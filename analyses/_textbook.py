"""What the ledger adds to the analyses' own claims: counts, shapes, pronoun puzzles, and what only GPT-2 could settle. For `textbook`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from analyses import _puzzles
from analyses._chapter import Beside
from interp import attention
from interp.models import Model
from interp.results import Claim, Table

LARGEST = _puzzles.LARGEST_GPT2
NEEDS = "needs GPT-2's weights, from the hub or a folder: interp run textbook --model gpt2"


def listed(lines: Sequence[dict[str, Any]]) -> Table:
    """Every analysis that ran, with its verdicts and where its page or how it is run."""
    return Table.of(
        "analyses", "The analyses behind the ledger, and what each settled in this run.", lines,
        page="its report, where it was written beside this one; else the command that writes it", note="why it could not run",
    )  # fmt: skip


def puzzle_claims(answered: Table, model: str) -> tuple[dict[str, Any], list[Claim]]:
    """Accuracy with its interval, beside chance and the published share; and the claims that rest on it."""
    right, of = int(answered.frame["right"].sum()), len(answered.frame)
    low, high = _puzzles.wilson(right, of)
    pairs = answered.frame.groupby("pair")["right"].all()
    numbers = {
        "puzzles": of, "puzzle_accuracy": right / of, "puzzle_low": low, "puzzle_high": high, "puzzle_pairs_right": float(pairs.mean()),
        "puzzle_chance": _puzzles.CHANCE, "puzzle_published_largest_gpt2": LARGEST,
    }  # fmt: skip
    share = f"{right / of:.1%} of {of} ({low:.1%} to {high:.1%})"
    claims = [
        Claim.judged(
            "puzzles-weak", "001", "A small language model isn't very good at pronoun puzzles.",
            expected="even the upper end of the interval below 85 %", measured=share, holds=high < 0.85, model=model,
            why=f"both sentences of a pair right in {pairs.mean():.1%} of {len(pairs)} pairs; puzzles written for this project",
        ),
        Claim.judged(
            "puzzles-above-chance", "001", "Guessing gets 50 %; a language model gets more.",
            expected="the lower end of the interval above 50 %", measured=share, holds=low > _puzzles.CHANCE, model=model,
        ),
    ]  # fmt: skip
    return numbers, claims


def counted(model: Model) -> list[Claim]:
    """Claims that a few lines settle: gaps and ratios, shapes, linearity, where the parameters are."""
    beside = Beside("textbook", "by hand")
    beside.add("e-to-gap", "001", "e to the gap between 4.25 and 3.23", "2.8", math.exp(4.25 - 3.23))
    beside.add("percent-ratio", "001", "36 % over 13 %", "2.8", 36 / 13)
    beside.add("d-k", "001", "768 numbers shared out to 12 heads", "64", 768 / 12)
    beside.add("heads", "001", "12 heads in each of 12 layers", "144", 12 * 12)
    row = attention.weights(torch.tensor([[4.25, 3.23, 0.0, -1.0]]))[0]
    beside.judge(
        "small-lead", "001", "Softmax turns a small lead into a big one.", "a lead of 1.02 more than doubles the weight",
        f"{float(row[0] / row[1]):.2f} times the weight", float(row[0] / row[1]) > 2,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    q, k, v, other = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3, 5), (7, 5), (7, 2), (7, 2)))
    weights = attention.weights(attention.scores(q, k))
    z = attention.attend(weights, v)
    beside.judge(
        "shapes", "003 The whole thing in matrix form", "n queries and m keys give an n × m square, rows that sum to 1, and n × d_v outputs.",
        "(3, 7), sums of 1, (3, 2)", f"{tuple(weights.shape)}, sums off by {float((weights.sum(-1) - 1).abs().max()):.1g}, {tuple(z.shape)}",
        weights.shape == (3, 7) and z.shape == (3, 2) and float((weights.sum(-1) - 1).abs().max()) < 1e-12, "queries of one sequence, keys of another",
    )  # fmt: skip
    off = float((attention.attend(weights, 2 * v + other) - 2 * z - attention.attend(weights, other)).abs().max())
    beside.judge(
        "linear", "003 Attention inside a transformer block", "For given weights attention is linear in the values.",
        "no difference but rounding", f"{off:.1g}", off < 1e-12,
    )  # fmt: skip
    query = q[:1].clone().requires_grad_()
    attention.attend(attention.weights(attention.scores(query, k)), v).sum().backward()
    assert query.grad is not None
    slope = float(query.grad.norm())
    nudged = float(((q[:1] + 1e-6) @ k.T).argmax() - (q[:1] @ k.T).argmax())
    beside.judge(
        "smooth", "003 Attention as a soft lookup", "A soft lookup has a slope to learn from where a hard one has none.",
        "a gradient, and no change of the hard choice under a nudge", f"gradient {slope:.3g}; hard choice moved by {nudged:g}", slope > 0 and nudged == 0,
    )  # fmt: skip
    return beside.claims + _parameters(model)


def _parameters(model: Model) -> list[Claim]:
    """Feed-forward against attention in the first block, by the names transformers gives them."""
    if not model.is_transformers:
        return []
    sizes = {"mlp": 0, "attn": 0}
    for name, parameter in model.module.named_parameters():
        if ".0." in name:
            for kind in sizes:
                sizes[kind] += parameter.numel() if kind in name else 0
    config = model.module.config.get_text_config(decoder=True)
    wide = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * model.d_model
    total = sum(sizes.values())
    beside = Beside("textbook", model.name)
    if total:
        beside.judge(
            "feed-forward", "003 Attention inside a transformer block", "The feed-forward part holds most of a block's parameters.",
            "more than half", f"{sizes['mlp'] / total:.1%} of {total:,}", sizes["mlp"] > total / 2, "first block, norms left out",
        )  # fmt: skip
        beside.judge(
            "four-times", "003 Attention inside a transformer block", "The feed-forward part is usually widened by 4 ×.",
            "4 ×", f"{wide / model.d_model:.3g} ×", wide == 4 * model.d_model, f"{model.d_model} to {wide}; gated networks are narrower, with a third matrix",
        )  # fmt: skip
    return beside.claims


def without_gpt2(claims: Sequence[Claim], model: Model) -> list[Claim]:
    """Lines for what the chapter says of GPT-2 itself, where this run did not measure GPT-2."""
    if model.name.rpartition("/")[2] == "gpt2":
        mine: list[Claim] = []
    else:
        mine = [
            Claim.unmeasured(id, source, claim, expected=expected, model="gpt2", why=NEEDS)
            for id, source, claim, expected in (
                ("gpt2-half-of-rows", "001", "From the fourth word on, most attention rests on the first word in more than half of the rows.", "above 50 %"),
                ("gpt2-no-job", "001", "Many of GPT-2's heads have no job one can name.", "at least a quarter"),
                ("gpt2-puzzles", "001", "GPT-2 isn't very good at pronoun puzzles.", "below 85 %"),
            )
            if not (id == "gpt2-half-of-rows" and any(one.id.endswith("-recorded") for one in claims))
        ]  # fmt: skip
    return [
        *mine,
        Claim.unmeasured(
            "gpt2-xl-puzzles", "001", "The largest GPT-2 answers 70.70 % of Winograd questions.", expected="70.70 %", model="gpt2-xl",
            why="needs the weights of gpt2-xl and the published set of Winograd questions; the puzzles here are others",
        ),
    ]  # fmt: skip


def left_out(model: Model, names: Sequence[str]) -> list[Claim]:
    """Lines for what the chapters say of heads, where the analysis that would measure it was left out of the run."""
    rows = {
        "heads": (
            ("heads-previous-token", "003 Multi-head attention", "Some heads attend to the previous token.", "a head above the threshold"),
            ("heads-without-a-job", "001 and 003", "Many heads have no job one can name.", "at least a quarter of the heads without a label"),
        ),
        "pruning": (("pruning-many-heads", "003 Multi-head attention", "Many heads can be pruned with little loss.",
                     "at least a fifth of the heads within 1 % of the loss"),),
        "resting_spot": (("resting-spot", "001: the resting spot", "The first token is a resting spot.", "heads that rest on it, and do without it"),),
    }  # fmt: skip
    return [
        Claim.unmeasured(id, source, claim, expected=expected, model=model.name, why=f"left out of this run: interp run {analysis} --model {model.name}")
        for analysis, lines in rows.items()
        if analysis not in names
        for id, source, claim, expected in lines
    ]  # fmt: skip
