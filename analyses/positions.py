"""Does attention know where a token stands, and how is it told?

Two sentences of the same tokens in another order; shuffled input; learned tables, sinusoids and rotary angles by their formulas;
and the model's own first layer with its places taken away and put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from analyses._chapter import Beside
from analyses._places import (
    SENTENCES,
    kind_of,
    learned_substitute,
    model_frequencies,
    pair_of,
)
from analyses._places import (
    blends as blends_of,
)
from analyses._places import (
    shifted as shifted_model,
)
from interp import attention, models, positions
from interp.cli import analysis_main
from interp.errors import InterpError, at_least
from interp.models import Model
from interp.report import Report
from interp.results import Claim, Curve, Table

BASES = (10_000.0, 500_000.0)
SHIFTS = (1, 10, 100, 1_000, 10_000, 100_000)


def run(
    model: str | Model = "smollm2",
    sentences: Sequence[str] = SENTENCES,
    *,
    bos: str = "none",
    width: int = 64,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "auto",
) -> Report:
    """Order and places, by hand and in `model`; `sentences` are two texts with the same tokens, `width` that of the vectors by hand."""
    at_least(2, width=width)
    loaded = models.load(model, dtype=dtype, device=device)
    pair = pair_of(loaded, sentences, bos)
    kind = kind_of(loaded)
    words, blends = blends_of(loaded, pair, kind)
    shuffled, rotary, shifted = _shuffled(seed), _rotary(width, seed), shifted_model(loaded, pair[0], kind)
    beside = Beside("positions", loaded.name)
    _claims(beside, loaded, kind, blends, shuffled, rotary, shifted)
    distance, angle = _by_distance(width, seed), _angles(loaded, width)
    numbers = {
        **blends,
        "places": kind,
        "shuffled_error": shuffled["unmasked"],
        "shuffled_error_with_causal_mask": shuffled["causal"],
        "rotary_error_float64": float(rotary.frame.query("dtype == 'float64'")["difference"].max()),
        "chapter_numbers": len(beside.rows),
        "chapter_agreed": beside.agreed,
    }
    return Report(
        analysis="positions",
        model=loaded.name,
        question="Does attention know where a token stands, and how is it told?",
        answer=_answer(loaded, kind, numbers),
        numbers=numbers,
        tables=[words, beside.table, rotary, shifted, angle, distance, _sinusoids(width)],
        curves=[
            Curve(
                "score_by_distance",
                "Mean score of a query and a key that look alike, by the distance between them; rotary with two bases.",
                distance,
                "distance",
                [name for name in distance.frame.columns if name != "distance"],
                y_label="score / score at distance 0",
                log_x=True,
            ),
            Curve(
                "angles_by_pair",
                "Angle by which one place turns each pair of components.",
                angle,
                "pair",
                [name for name in angle.frame.columns if name.startswith("base_")],
                y_label="radians",
                log_y=True,
            ),
        ],
        claims=beside.claims,
        definitions=["z", "weights"],
        notes=[
            "Places are taken away by an edit of the running model's hook points, and only layer 0 is compared: from layer 1 on a causal "
            "mask alone tells the order, because what a position holds by then depends on which tokens it could see.",
            "Bit-for-bit equality is shown with sums that are rounded once; a matrix product adds in another order after a shuffle, "
            "so there the two differ by rounding.",
        ],
        provenance=loaded.provenance() | {"ids": [one.ids.tolist() for one in pair], "seed": seed, "bos": bos},
    )


def _shuffled(seed: int) -> dict[str, Any]:
    """Eleven random vectors and a shuffle: largest difference bit by bit, by matrix products, and under a causal mask."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(11, d, generator=generator, dtype=torch.float64) for d in (5, 5, 7))
    order = torch.randperm(11, generator=generator)
    whole = attention.attend(attention.weights(attention.scores(q, k)), v)
    again = attention.attend(attention.weights(attention.scores(q[order], k[order])), v[order])
    found: dict[str, Any] = {"by_products": float((again - whole[order]).abs().max())}
    for name, causal in (("unmasked", False), ("causal", True)):
        plain = positions.order_blind(q, k, v, causal)
        found[name] = float((positions.order_blind(q[order], k[order], v[order], causal) - plain[order]).abs().max())
    return found


def _rotary(width: int, seed: int) -> Table:
    """Scores of one query and key, both moved by the same shift: how far the score moves, in two precisions."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(16, width, generator=generator, dtype=torch.float64) for _ in range(2))
    places = torch.arange(16).double() ** 2
    rows = []
    for base in BASES:
        for dtype in (torch.float64, torch.float32):
            start = _turned_scores(q.to(dtype), k.to(dtype), places, base)
            for shift in SHIFTS:
                moved = _turned_scores(q.to(dtype), k.to(dtype), places + shift, base)
                name = str(dtype).removeprefix("torch.")
                rows.append({"base": base, "dtype": name, "shift": shift, "difference": float((moved - start).abs().max())})
    return Table.of(
        "rotary_shift",
        "Query and key moved together: the largest change of any of 256 scores. The score depends on m − n alone, to rounding.",
        rows,
        difference="largest |score after the shift − score before|",
    )


def _turned_scores(q: Tensor, k: Tensor, places: Tensor, base: float) -> Tensor:
    return attention.scores(positions.rotate(q, places, base), positions.rotate(k, places, base))


def _by_distance(width: int, seed: int) -> Table:
    """How the score of a query with a key like itself falls with distance: Σ_j cos((m − n)θ_j) / pairs."""
    rows = []
    for distance in sorted({int(1.25**step) for step in range(56)}):
        place = torch.tensor([float(distance)])
        line: dict[str, float] = {"distance": distance}
        for base in BASES:
            line[f"base_{base:.0f}"] = float(positions.angles(place, width, base).cos().mean())
        rows.append(line)
    return Table.of("by_distance", "Rotary: mean of cos((m − n)·θ_j) over the pairs, for two bases.", rows)


def _angles(model: Model, width: int) -> Table:
    rows: list[dict[str, float]] = []
    turns = [positions.frequencies(width, base) for base in BASES]
    own = model_frequencies(model)
    for pair in range(width // 2):
        line: dict[str, float] = {
            "pair": pair,
            **{f"base_{base:.0f}": float(turn[pair]) for base, turn in zip(BASES, turns, strict=True)},
        }
        if own is not None and pair < len(own[0]):
            line |= {"model": float(own[0][pair]), "model_by_formula": float(own[1][pair])}
        rows.append(line)
    return Table.of(
        "angles",
        "θ_j = base^(−2j/d): the angle that one place adds, pair by pair; the model's own beside the formula with its base.",
        rows,
    )


def _sinusoids(width: int) -> Table:
    rows = []
    for place in (0, 1, 1_023, 1_024, 100_000, 10_000_000):
        here = positions.sinusoidal(torch.tensor([float(place), float(place) + 5]), width)
        rows.append({"place": place, "length": float(here[0].norm()), "product_with_5_further": float(here[0] @ here[1])})
    return Table.of(
        "sinusoids",
        "Sinusoids are defined for every place: their length is the same everywhere, and their product depends on the distance alone.",
        rows,
    )


def _claims(
    beside: Beside, model: Model, kind: str, blends: dict[str, float], shuffled: dict[str, Any], rotary: Table, shifted: Table
) -> None:
    without, with_places = blends["blend_difference_without_places"], blends["blend_difference_with_places"]
    beside.judge(
        "same-blend", "001; 003 Positional encoding", "Without places, one attention step blends the two sentences in the same way.",
        "no difference but rounding", f"relative difference {without:.2g}", without < 1e-5,
        f"layer 0 of {model.name}, places taken away",
    )  # fmt: skip
    if kind != "none":
        beside.judge(
            "places-tell", "001", "With places, the two sentences are told apart by the same attention step.",
            "a difference", f"relative difference {with_places:.3g}", with_places > 1e-3, f"places: {kind}",
        )  # fmt: skip
    if not (kind == "learned" and model.name.endswith("gpt2")):
        beside.claims.append(
            Claim.unmeasured(
                "positions-gpt2-learned", "001", "GPT-2's learned position vectors tell the two sentences apart.",
                expected="a difference", model="gpt2",
                why="needs GPT-2's weights: interp run positions --model gpt2. An untrained layer with a learned table of places stands in "
                f"here and differs by {learned_substitute():.2f} of its blend",
            )
        )  # fmt: skip
    beside.model = "by hand"
    beside.judge(
        "equivariant", "003 Positional encoding", "Shuffled tokens give the same outputs, shuffled to match.",
        "equal bit for bit", f"largest difference {shuffled['unmasked']:g}", shuffled["unmasked"] == 0,
        f"sums rounded once; by matrix products {shuffled['by_products']:.1g}",
    )  # fmt: skip
    beside.judge(
        "mask-breaks", "003 Masking", "A causal mask tells order: there a shuffle is not just a shuffle.",
        "a difference", f"{shuffled['causal']:.3g}", shuffled["causal"] > 1e-3, "the control of the claim before",
    )  # fmt: skip
    far = positions.sinusoidal(torch.tensor([10_000_000.0]), 512)
    try:
        positions.learned(torch.zeros(1024, 1), torch.tensor([1024]))
        refused = "a vector"
    except InterpError:
        refused = "none"
    beside.judge(
        "sinusoids", "003 Positional encoding", "Sinusoids are defined for any place, past every trained length.",
        "finite, of one length", f"length {float(far.norm()):.4f} at place 10,000,000 (√256 = 16)",
        abs(float(far.norm()) - 16) < 1e-9,
    )  # fmt: skip
    beside.judge(
        "no-place-1025", "001", "There is no vector for place 1,025 in a learned table of 1,024.",
        "none", refused, refused == "none", "a table of GPT-2's size, made here",
    )  # fmt: skip
    for base in BASES:
        worst = float(rotary.frame.query("base == @base and dtype == 'float64'")["difference"].max())
        beside.judge(
            f"rotary-{base:.0f}", "001", f"With rotary places of base {base:,.0f} the score depends on m − n alone.",
            "no change but rounding", f"{worst:.1g} after shifts up to {SHIFTS[-1]:,}", worst < 1e-8,
        )  # fmt: skip
        angle = positions.frequencies(64, base)
        beside.add(
            f"base-{base:.0f}",
            "001",
            "rotary base, from θ₀ and θ₁ of a 64-wide query",
            f"{base:.0f}",
            float((angle[0] / angle[1]) ** 32),
        )
    beside.model = model.name
    own = model_frequencies(model)
    if own is not None:
        off = float((own[0] / own[1] - 1).abs().max())
        beside.judge(
            "model-angles", "001", "A model's rotary angles are base^(−2j/d).", "the formula's",
            f"largest relative difference {off:.1g}", off < 1e-6,
            f"base {model.module.config.rope_parameters['rope_theta']:,.0f}, {len(own[0])} pairs",
        )  # fmt: skip
    moved = shifted.frame["logit_change"].dropna().max()
    if kind == "rotary" and model.is_transformers:
        beside.judge(
            "model-shift", "001", "A model with rotary places says the same wherever in its window a text stands.",
            "logits move by rounding alone", f"at most {moved:.1g}", bool(moved < 1e-2), "moved by up to 1,000 places, where there are so many",
        )  # fmt: skip


def _answer(model: Model, kind: str, numbers: dict[str, Any]) -> str:
    without, with_places = numbers["blend_difference_without_places"], numbers["blend_difference_with_places"]
    told = (
        f"with its {kind} places they differ by {with_places:.1%} of its length"
        if kind != "none"
        else "and it has no places to tell them apart"
    )
    return (
        f"Without places the last row of layer 0 of {model.name} blends both sentences alike (relative difference {without:.1g}); {told}. "
        f"Shuffled input gives shuffled output bit for bit, unless a causal mask tells the order. "
        f"Rotary scores depend on the distance alone: moved by up to {SHIFTS[-1]:,} places, they change by {numbers['rotary_error_float64']:.1g}."
    )


if __name__ == "__main__":
    analysis_main(run)
