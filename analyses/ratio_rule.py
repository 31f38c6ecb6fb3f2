"""Do two scores that differ by Δ get weights in the ratio e^Δ, whatever the rest of the row holds?

Tested on every visible pair of every row against the row's largest weight, in log space, on scores and weights that were captured
apart; with pairs to check by hand, and the lead of each row beside its weight ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from analyses import Material, material, opening
from interp.capturing import Capture
from interp.capturing.captured import dtype_of
from interp.cli import analysis_main
from interp.errors import InterpError
from interp.measures.worked import BIN, Totals, pairs_to_work
from interp.report import Report
from interp.results import Claim, Curve, Grid, Table


def run(
    model: Any = "toy",
    texts: Any = None,
    captures: Any = None,
    *,
    bos: str = "keep",
    layers: Sequence[int] | None = None,
    max_tokens: int | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    dtype: str = "float32",
    device: str = "auto",
) -> Report:
    """Residuals of the ratio rule in `model` on `texts`, or in recordings; one capture at a time."""
    source = material(
        model,
        texts,
        captures,
        bos=bos,
        layers=layers,
        max_tokens=max_tokens,
        limit=limit,
        skip_bad=skip_bad,
        dtype=dtype,
        device=device,
    )
    totals = Totals()
    pairs: list[dict[str, Any]] = []
    shown: list[Capture] = []
    for _, capture in source:
        scores, weights, visible = capture.need("scores", "weights", "visible")
        totals.add(scores, weights, visible, dtype_of(capture))
        pairs = pairs or _worked(capture)
        shown = shown or [opening(capture)]
    return _report(source, totals, pairs, shown)


def _worked(capture: Any) -> list[dict[str, Any]]:
    rows = []
    for layer, head, query, key_a, key_b in pairs_to_work(capture.scores, capture.weights, capture.visible):
        score_a, score_b = (float(capture.scores[layer, head, query, key]) for key in (key_a, key_b))
        weight_a, weight_b = (float(capture.weights[layer, head, query, key]) for key in (key_a, key_b))
        rows.append(
            {
                "layer": capture.layers[layer],
                "head": head,
                "query": query,
                "key_a": key_a,
                "key_b": key_b,
                "token_a": capture.tokens[key_a],
                "token_b": capture.tokens[key_b],
                "score_a": score_a,
                "score_b": score_b,
                "delta": score_a - score_b,
                "exp_delta": math.exp(score_a - score_b),
                "weight_a": weight_a,
                "weight_b": weight_b,
                "weight_ratio": weight_a / weight_b,
            }
        )
    return rows


def _report(source: Material, totals: Totals, pairs: list[dict[str, Any]], shown: list[Any]) -> Report:
    capture = shown[0]
    tested = int(totals.pairs.sum())
    if not tested or not pairs:
        raise InterpError("no pair to test: every row sees a single key; give a text of two tokens or more")
    numbers = {
        "pairs": tested,
        "excluded": int(totals.excluded.sum()),
        "max_residual": float(totals.max.max()),
        "rms_residual": float((totals.squares.sum() / totals.pairs.sum()).sqrt()),
        "tolerance": totals.tolerance,
        "holds": totals.holds,
    }
    heads = Table.of(
        "heads",
        "Each head: pairs tested, pairs and rows excluded, and the residual in nats.",
        [
            {
                "layer": layer,
                "head": head,
                "pairs": int(totals.pairs[place, head]),
                "excluded": int(totals.excluded[place, head]),
                "max_residual": float(totals.max[place, head]),
                "rms_residual": float(totals.rms[place, head]),
            }
            for place, layer in enumerate(capture.layers)
            for head in range(capture.n_heads)
        ],
    )
    worked = Table.of(
        "pairs",
        "Pairs of the first text to check by hand, from its last row where it has some to show: e^Δ beside the ratio of the weights.",
        pairs,
    )
    leads = Table.of("leads", f"Rows by the lead of their largest score over the next, in steps of {BIN} nats.", totals.leads())
    grid = Grid(
        "max_residual",
        "Largest residual of each head.",
        "nats",
        torch.where(totals.pairs > 0, totals.max, torch.nan).numpy(),
        tuple(map(str, capture.layers)),
        tuple(map(str, range(capture.n_heads))),
    )
    return Report(
        analysis="ratio_rule",
        model=source.model,
        question="Do two scores that differ by Δ get weights in the ratio e^Δ, whatever the rest of the row holds?",
        answer=_answer(source.model, numbers, pairs),
        numbers=numbers,
        tables=[heads, worked, leads],
        grids=[grid],
        curves=[
            Curve(
                "lead_and_ratio",
                "A row's lead Δ and the ratio of the same two weights (geometric mean of each step); dashed: e^Δ.",
                leads,
                x="mean_lead",
                y=("weight_ratio",),
                baseline="exp_lead",
                kind="points",
                x_label="lead Δ, nats",
                y_label="weight ratio",
                log_y=True,
            )
        ],
        claims=[_claim(source.model, numbers)],
        definitions=["ratio_residual", "lead", "scores", "weights"],
        notes=_notes(totals),
        provenance=source.provenance(),
        captures=shown,
    )


def _answer(model: str, numbers: dict[str, Any], pairs: list[dict[str, Any]]) -> str:
    verdict = "Yes" if numbers["holds"] else "No"
    one = min(pairs, key=lambda pair: abs(pair["delta"] - 1))
    return (
        f"{verdict}: over {numbers['pairs']:,} pairs of {model} the largest residual is {numbers['max_residual']:.1e} nats, where rounding "
        f"allows {numbers['tolerance']:.1e}. "
        f"In head {one['layer']}.{one['head']}, for example, scores of {one['score_a']:.2f} and {one['score_b']:.2f} give weights of "
        f"{one['weight_a']:.1%} and {one['weight_b']:.1%}: e^{one['delta']:.2f} = {one['exp_delta']:.2f} times as much."
    )


def _claim(model: str, numbers: dict[str, Any]) -> Claim:
    return Claim.judged(
        "ratio-rule",
        "001",
        "Two scores of a row that differ by Δ get weights in the ratio e^Δ, whatever the rest of the row holds.",
        expected=f"residual of at most {numbers['tolerance']:.1e}",
        measured=f"{numbers['max_residual']:.3e} over {numbers['pairs']} pairs",
        holds=numbers["holds"],
        model=model,
    )


def _notes(totals: Totals) -> list[str]:
    return [
        f"Excluded: {totals.underflow} pairs whose weight is below the smallest normal number of the dtype, {totals.single} rows that see a "
        f"single key, {totals.not_finite} rows that are not finite.",
        "The tolerance is that of the dtype, or 4 · eps · the largest score where the rounding of the scores themselves dominates.",
        "The rule alone misses a constant added to a row, missing mass and a wrong mask; a capture's own checks test those.",
    ]


if __name__ == "__main__":
    analysis_main(run)
