"""Add δ to one score inside the running model: does the row follow w' = w·e^δ / (1 + w·(e^δ − 1)), and what comes of it?

The ratio rule as an intervention. In every head one score of one row is raised by δ before softmax; its weight must move as the rule
says and every other ratio of the row must stay. What the head hands on, and the next-token logits, are then read off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from analyses import material
from analyses._stated import stated
from interp import hooks, models
from interp import interventions as change
from interp.capturing import Capture
from interp.cli import analysis_main
from interp.errors import InterpError, at_least
from interp.measures import ratio
from interp.models import Model
from interp.progress import track
from interp.report import Report
from interp.results import Claim, Curve, Grid, Table

DELTAS = (-8.0, -4.0, -1.0, 0.0, 1.0, 4.0, 8.0)
AT_ONCE = 512  # tokens a forward: each copy of the text carries one head and one δ


@dataclass(frozen=True)
class _Asked:
    """One copy of the text in a batch: the head, its chosen key, and δ."""

    head: int
    key: int
    delta: float


def run(
    model: str | Model = "toy",
    texts: Any = None,
    *,
    bos: str = "keep",
    max_tokens: int = 16,
    layers: Sequence[int] | None = None,
    deltas: Sequence[float] = DELTAS,
    dtype: str = "float32",
    device: str = "auto",
) -> Report:
    """The last row of the first text: the weight nearest to ½ is moved by each δ, in each head, and compared with the rule."""
    at_least(2, max_tokens=max_tokens)
    model = models.load(model, dtype=dtype, device=device)
    made = next(capture for _, capture in material(model, texts, bos=bos, layers=layers, max_tokens=max_tokens, limit=1))
    if made.n_tokens < 2:
        raise InterpError("the row of a one-token text has one key; give a text of two tokens or more")
    assert made.ids is not None
    frame = pd.DataFrame(
        [line for layer in track(made.layers, f"{model.name}: layers") for line in shifts(model, made, layer, deltas)]
    )
    return _report(model, made, frame)


@torch.no_grad()
def shifts(model: Model, made: Capture, layer: int, deltas: Sequence[float]) -> list[dict[str, Any]]:
    """One line a head and δ: the weight before, after, by the rule; how far the other ratios moved; what z and the logits did."""
    assert made.ids is not None
    assert made.weights is not None
    keys = (made.weights[made.row_of(layer), :, -1] - 0.5).abs().argmin(-1).tolist()
    asked = [_Asked(head, keys[head], float(delta)) for head in range(model.n_heads) for delta in deltas]
    residual = change.residuals(model, made.ids[None], [layer]).get(layer)
    step = min(len(asked), max(1, AT_ONCE // made.n_tokens))
    ids = made.ids[None].expand(step, -1)
    below = None if residual is None else residual.expand(step, -1, -1)
    plain = _row(model, ids, layer, below, [])
    lines = []
    for start in range(0, len(asked), step):
        # Always whole batches of one shape, so that the same sums are done in the same order with and without the change.
        some = asked[start : start + step]
        moved = _row(model, ids, layer, below, some)
        lines += [
            _line(layer, one, *(tuple(part[at] for part in side) for side in (plain, moved))) for at, one in enumerate(some)
        ]
    return lines


def _row(
    model: Model, ids: torch.Tensor, layer: int, below: torch.Tensor | None, asked: Sequence[_Asked]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Last rows of a batch, each copy with its own change: weights [text, head, key], z [text, head, d], logits [text, vocab]."""

    def raise_score(scores: torch.Tensor) -> torch.Tensor:
        for at, one in enumerate(asked):
            scores[at, one.head, -1, one.key] += one.delta
        return scores

    sites = [f"blocks.{layer}.attn.{name}" for name in ("hook_pattern", "hook_z")]
    edits = {f"blocks.{layer}.attn.hook_attn_scores": raise_score} if asked else {}
    with change.above(model, layer, below), hooks.trace(model, sites) as seen, hooks.edit(model, edits):
        logits = change.logits(model, ids)[:, -1]
    return seen[sites[0]][:, :, -1], seen[sites[1]][:, -1], logits


def _line(layer: int, one: _Asked, plain: tuple[torch.Tensor, ...], moved: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    before, after = (side[0][one.head].double() for side in (plain, moved))
    expected = float(ratio.shifted(before[one.key], one.delta, before.sum() - before[one.key]))
    others = (before > 0) & (after > 0)
    others[one.key] = False
    kept = (after[others] / before[others]).log()
    log_before, log_after = (side[2].float().log_softmax(-1) for side in (plain, moved))
    return {
        "layer": layer,
        "head": one.head,
        "key": one.key,
        "delta": one.delta,
        "weight_before": float(before[one.key]),
        "weight_after": float(after[one.key]),
        "weight_by_rule": expected,
        "residual": abs(float(after[one.key]) - expected),
        "other_ratios_moved": float(kept.max() - kept.min()) if len(kept) > 1 else 0.0,
        "z_change": float((moved[1][one.head] - plain[1][one.head]).norm() / plain[1][one.head].norm().clamp_min(1e-12)),
        "logit_change": float((moved[2] - plain[2]).abs().max()),
        "kl": float((log_before.exp() * (log_before - log_after)).sum().clamp_min(0)),
        "bit_equal": bool(torch.equal(moved[2], plain[2])),
    }


def _report(model: Model, made: Capture, frame: pd.DataFrame) -> Report:
    loss, said = stated(model, [] if made.ids is None else [made.ids])
    worst, ratios = float(frame["residual"].max()), float(frame["other_ratios_moved"].max())
    tolerance = ratio.TOLERANCE[model.dtype]
    unmoved = frame[frame["delta"] == 0]
    still = bool(unmoved["bit_equal"].all())
    by_delta = frame.groupby("delta", as_index=False)[
        ["weight_before", "weight_after", "weight_by_rule", "z_change", "logit_change", "kl"]
    ].mean()
    course = Table(
        "by_delta", "Means over all heads, by δ.", by_delta, {"kl": "nats, plain against changed next-token distribution"}
    )
    largest = frame["delta"].abs().max()
    effect = frame[frame["delta"] == frame["delta"].max()].pivot(index="layer", columns="head", values="kl")
    holds = worst <= tolerance and ratios <= 10 * tolerance
    meanings = {
        "residual": "|weight_after − weight_by_rule|",
        "other_ratios_moved": "largest change of the log of a ratio between two other keys",
        "z_change": "norm of the change of the head's z, over the norm of z",
        "logit_change": "largest change of a next-token logit",
        "kl": "nats",
        "bit_equal": "the next-token logits are the same bits as without the change",
    }
    return Report(
        analysis="score_shift",
        model=model.name,
        question="If one score in a running model is raised by δ, does its row follow the ratio rule, and what comes of it?",
        answer=(
            f"{'Yes' if holds else 'No'}: over {len(frame)} changes up to |δ| = {largest:g} in {model.name} the weight is at most {worst:.1e} from "
            f"w·e^δ / (1 + w·(e^δ − 1)), and no other ratio of the row moves by more than {ratios:.1e}. "
            f"At δ = {frame['delta'].max():g} the next-token distribution moves by {by_delta['kl'].iloc[-1]:.4f} nats on average."
        ),
        numbers={"changes": len(frame), "max_residual": worst, "max_other_ratio": ratios, "tolerance": tolerance,
                 "holds": holds, "zero_is_bit_equal": still if len(unmoved) else None, **loss},
        tables=[Table("shifts", "Every head and δ: the weight of the last row that is nearest to ½, moved.", frame, meanings), course],
        grids=[Grid("effect", f"What raising one score by {frame['delta'].max():g} does to the next-token distribution.", "nats",
                    effect.to_numpy(), tuple(map(str, effect.index)), tuple(map(str, effect.columns)))],
        curves=[Curve("course", "Mean weight after the change, and by the rule.", course, "delta", ("weight_after", "weight_by_rule"),
                      x_label="δ added to one score", y_label="weight")],
        claims=[
            Claim.judged("score-shift-rule", "DESIGN: shifted weight", "Raising one score by δ moves its weight as the ratio rule says.",
                         expected=f"within {tolerance:g}, other ratios unmoved", measured=f"{worst:.1e}; others {ratios:.1e}", holds=holds,
                         model=model.name, why="an intervention in the running model, not a property of recorded numbers"),
            *([Claim.judged("score-shift-zero", "DESIGN: shifted weight", "An intervention with δ = 0 changes nothing.",
                            expected="the same bits", measured="the same bits" if still else "other bits", holds=still, model=model.name)]
              if len(unmoved) else []),
        ],
        definitions=["shifted_weight"],
        notes=["In the rule 1 − w is taken as the sum of the row's other weights: the same number, without the rounding of w near 1.",
               said, f"What would have counted against it: a weight further than {tolerance:g} from the rule, or another ratio that moves.",
               "One text, its last row, one key a head: the one whose weight is nearest to ½, so that it can move both ways.",
               "Where a row is saturated no weight is near ½, and little can move."],
        provenance=model.provenance() | {"text": made.text, "tokens": list(made.tokens)},
    )  # fmt: skip


if __name__ == "__main__":
    analysis_main(run)
