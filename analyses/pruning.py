"""How many heads can go before the loss moves, and what tells which?

Each head's z is zeroed, or replaced by its mean over the texts, alone; then heads go one after another, gentlest first, beside
random orders as a control: the order is found on every other text and judged on the rest. `save` keeps what was measured, `resume`
goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from scipy.stats import spearmanr

from analyses._pruning import Kept, Sweep, looked_at, removal
from interp import corpus, models
from interp import interventions as change
from interp.cli import analysis_main
from interp.errors import UnknownName, at_least
from interp.measures import pruning
from interp.models import Model
from interp.report import Report
from interp.results import Claim, Curve, Grid, Table

REPLACEMENTS = ("zero", "mean")
FIFTH = 0.2  # "many"
SOURCE = "003 Multi-head attention"


def run(
    model: str | Model = "toy",
    texts: Any = None,
    *,
    bos: str = "keep",
    limit: int = 8,
    max_tokens: int = 64,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "auto",
    replace: str = "mean",
    steps: int = 20,
    orders: int = 3,
    every: int = 1,
    save: str | Path | None = None,
    resume: bool = False,
) -> Report:
    """Loss with each head removed, the curve of loss against share removed, and rank correlations with what might predict it.

    Of `texts`, the first `limit` pieces of `max_tokens`. `every` 3 tries each third head alone, so no more than a third can go.
    `save` names a file that keeps each loss as it is measured; `resume` takes up what is in it. All heads of a model of 135 million
    parameters on 32 pieces of 128 tokens are some 200 · 10¹² operations: half an hour at 110 · 10⁹ a second.
    """
    at_least(1, limit=limit, steps=steps, every=every)
    at_least(2, max_tokens=max_tokens)
    at_least(0, orders=orders)
    if replace not in REPLACEMENTS:
        raise UnknownName("replacement", replace, REPLACEMENTS)
    model = models.load(model, dtype=dtype, device=device)
    ids, names = change.windows(model, corpus.texts(texts), max_tokens, limit, bos)
    means, signs = looked_at(model, ids)
    removed = {head: removal(replace, means[head]) for head in list(means)[::every]}
    kept = Kept(None if save is None else Path(save), {"model": model.revision, "ids": ids.tolist(), "replace": replace}, resume)
    sweep = Sweep(model, ids, removed, kept)
    rise = sweep.one_by_one()
    # Heads that seem to cost nothing on the texts they were chosen by may cost something on others.
    seen, held = (slice(0, None, 2), slice(1, None, 2)) if len(ids) > 1 else (slice(None), slice(None))
    order = [head for head in pruning.gentlest_first(rise[..., seen].mean(-1)) if head in removed]
    judged = Sweep(model, ids[held], removed, kept, "held ")
    curves = {"gentlest first": judged.along(order, steps, "gentlest")}
    for draw in range(orders):
        shuffled = [head for head in pruning.random_order(model.n_layers, model.n_heads, seed + draw) if head in removed]
        curves[f"random {draw}"] = judged.along(shuffled, steps, f"random-{seed + draw}")
    return _report(model, names, (sweep.plain, judged.plain), rise, curves, signs, replace, seed)


def _report(
    model: Model,
    names: list[str],
    plain: tuple[torch.Tensor, torch.Tensor],
    rise: torch.Tensor,
    curves: Mapping[str, Any],
    signs: Any,
    replace: str,
    seed: int,
) -> Report:
    """`plain`: the loss of all texts, and of the held ones."""
    whole, held = plain
    apart = len(whole) > 1
    total, base, held_base = model.n_layers * model.n_heads, float(whole.mean()), float(held.mean())
    lines = []
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            if bool(rise[layer, head].isnan().any()):
                continue  # not tried
            low, high = pruning.interval(rise[layer, head], seed=seed)
            own = {name: float(sign[layer, head]) for name, sign in signs.items()}
            lines.append({"layer": layer, "head": head, "rise": float(rise[layer, head].mean()), "low": low, "high": high, **own})
    frame = pd.DataFrame(lines)
    curve = pd.DataFrame(
        [
            {"order": name, "removed": count, "share_removed": count / total, "loss": float(losses.mean())}
            | dict(zip(("low", "high"), pruning.interval(losses, seed=seed), strict=True))
            for name, points in curves.items()
            for count, losses in points
        ]
    )
    correlation = pd.DataFrame(
        [
            {"predictor": name, "rank_correlation": float(spearmanr(frame[name], frame["rise"], nan_policy="omit").statistic)}
            for name in signs
        ]
    )
    within = {
        name: pruning.share_within([(count, float(losses.mean())) for count, losses in points], held_base, total)
        for name, points in curves.items()
    }
    gentle, control = within["gentlest first"], [share for name, share in within.items() if name != "gentlest first"]
    best = correlation.loc[correlation["rank_correlation"].abs().fillna(-1).idxmax()]
    low, high = pruning.interval(whole, seed=seed)
    share_low, share_high = pruning.share_interval(curves["gentlest first"], held, total, seed=seed)
    table = Table("curve", "Loss against heads removed, in each order; intervals over texts.", curve, {"loss": "nats per token"})
    return Report(
        analysis="pruning",
        model=model.name,
        question="How many heads can go before the loss moves, and what tells which?",
        answer=(
            f"Removing the gentlest {gentle:.0%} of the {total} heads of {model.name} keeps the loss within 1 % of {held_base:.3f} nats per "
            f"token ({share_low:.0%} to {share_high:.0%} over resampled texts){', on texts not used to choose them' if apart else ''}; "
            f"in random orders {min(control, default=0):.0%} to {max(control, default=0):.0%} can go. "
            f"The best single predictor of a head's cost is {best['predictor']} (rank correlation {best['rank_correlation']:.2f})."
        ),
        numbers={
            "heads": total,
            "heads_tried": len(frame),
            "loss": base,
            "loss_low": low,
            "loss_high": high,
            "loss_held": held_base,
            "share_within_1_percent": gentle,
            "share_within_1_percent_low": share_low,
            "share_within_1_percent_high": share_high,
            "share_within_1_percent_random": max(control, default=0.0),
            "texts": len(names),
            **{f"rank_correlation_{name}": value for name, value in correlation.itertuples(index=False)},
        },
        tables=[
            Table("heads", "Each head removed alone.", frame, {"rise": "nats per token", "low": "95 % interval over texts", "high": "the same"}),
            table,
            Table("predictors", "Spearman rank correlation with the rise of the loss.", correlation),
        ],
        grids=[
            Grid(
                "rise",
                f"Rise of the loss where the head alone is removed (z replaced by {replace if replace == 'mean' else 'zero'}).",
                "nats per token",
                rise.mean(-1).numpy(),
                tuple(map(str, range(model.n_layers))),
                tuple(map(str, range(model.n_heads))),
                signed=True,
            )
        ],
        curves=[
            Curve("loss", "Loss as heads are removed, gentlest first and in random orders.", table, "share_removed", ("loss",), group="order",
                  x_label="share of heads removed", y_label="loss, nats per token")
        ],
        claims=_claims(model.name, gentle, max(control, default=0.0), (share_low, share_high), len(frame), total),
        notes=[
            *([f"Only {len(frame)} of the {total} heads were tried: the share that can go is at least what is said here."] if len(frame) < total else []),
            f"The order is found on every other text ({len(whole) - len(held)}) and judged on the rest ({len(held)}); intervals are over "
            "texts, not over orders." if apart else "One text alone: the order is found and judged on it, and no interval can be had.",
            f"The curve steps by {curve['share_removed'].drop_duplicates().iloc[1]:.1%} of the heads; the share within 1 % is the last step "
            "before the loss first passes it.",
            f"Loss with all heads: {base:.3f} nats per token ({low:.3f} to {high:.3f}, 95 % over {len(names)} texts).",
            f"A removed head's z is replaced by {'its mean over these texts and positions' if replace == 'mean' else 'zero'}.",
        ],
        provenance=model.provenance() | {"seed": seed, "texts": names},
    )  # fmt: skip


def _claims(model: str, share: float, control: float, interval: tuple[float, float], tried: int, total: int) -> list[Claim]:
    """Whether a fifth of the heads can go, and whether measuring each alone tells which; no verdict that the heads tried cannot give."""
    some = f"; {tried} of {total} heads tried" if tried < total else ""
    measured = f"{share:.1%} ({interval[0]:.1%} to {interval[1]:.1%}); in random order {control:.1%}{some}"
    rows = [
        ("pruning-many-heads", "Many heads can be pruned with little loss.", "at least a fifth of the heads within 1 % of the loss",
         share >= FIFTH, tried == total or share >= FIFTH, "fewer than a fifth would have counted against it"),
        ("pruning-order", "Each head's cost alone tells which can go together.", "a larger share, gentlest first, than in a random order",
         share > control, share < tried / total or control < tried / total, "no larger a share than at random would have counted against it"),
    ]  # fmt: skip
    return [
        Claim.judged(id, SOURCE, claim, expected=expected, measured=measured, holds=holds, model=model, why=why)
        if told
        else Claim.unmeasured(id, SOURCE, claim, expected=expected, model=model, why=f"{measured}; too few heads to tell: interp run pruning --model {model}")
        for id, claim, expected, holds, told, why in rows
    ]  # fmt: skip


if __name__ == "__main__":
    analysis_main(run)
