"""How many heads can go before the loss moves, and what tells which?

Each head's z is zeroed, or replaced by its mean over the texts, alone; then heads go one after another, gentlest first, beside
random orders as a control. What lies below the head's layer is computed once. `save` keeps what was measured and goes on from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from scipy.stats import spearmanr

from analyses import material
from interp import corpus, hooks, models
from interp import interventions as change
from interp.cli import analysis_main
from interp.errors import InterpError, UnknownName
from interp.measures import heads, pruning, sinks
from interp.models import Model
from interp.progress import track
from interp.report import Report
from interp.results import Claim, Curve, Grid, Table

REPLACEMENTS = ("zero", "mean")


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
    steps: int = 10,
    orders: int = 3,
    save: Path | None = None,
) -> Report:
    """Loss with each head removed, the curve of loss against share removed, and rank correlations with what might predict it."""
    if replace not in REPLACEMENTS:
        raise UnknownName("replacement", replace, REPLACEMENTS)
    model = models.load(model, dtype=dtype, device=device)
    ids, names = change.windows(model, corpus.texts(texts), max_tokens, limit, bos)
    means = mean_z(model, ids)
    removed = {head: _removal(replace, means[head]) for head in means}
    plain = change.loss(model, ids)
    kept = _Kept(save, {"model": model.revision, "ids": ids.tolist(), "replace": replace})
    rise = one_by_one(model, ids, removed, plain, kept)
    order = pruning.gentlest_first(rise.mean(-1))
    curves = {"gentlest first": along(model, ids, removed, order, steps, kept, "gentlest")}
    for draw in range(orders):
        shuffled = pruning.random_order(model.n_layers, model.n_heads, seed + draw)
        curves[f"random {draw}"] = along(model, ids, removed, shuffled, steps, kept, f"random-{seed + draw}")
    signs = _signs(model, texts, bos, limit, max_tokens, means, ids)
    return _report(model, names, plain, rise, curves, signs, replace, seed)


def mean_z(model: Model, ids: torch.Tensor) -> dict[pruning.Head, torch.Tensor]:
    """Each head's z averaged over all texts and positions, [d_v]."""
    sites = [f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)]
    with hooks.trace(model, sites) as seen:
        change.logits(model, ids)
    return {
        (layer, head): seen[site][:, :, head].mean((0, 1)) for layer, site in enumerate(sites) for head in range(model.n_heads)
    }


def _removal(replace: str, mean: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.zeros_like if replace == "zero" else lambda z: mean.expand_as(z)


def one_by_one(
    model: Model, ids: torch.Tensor, removed: Mapping[pruning.Head, Any], plain: torch.Tensor, kept: _Kept
) -> torch.Tensor:
    """Rise of each text's loss, [layer, head, text] in nats per token, with that head alone removed."""
    rise = torch.zeros(model.n_layers, model.n_heads, len(ids), dtype=torch.float64)
    for layer in track(range(model.n_layers), f"{model.name}: heads of each layer removed"):
        wanted = [head for head in range(model.n_heads) if f"{layer}.{head}" not in kept]
        residual = change.residuals(model, ids, [layer]).get(layer) if wanted else None
        for head in range(model.n_heads):
            name = f"{layer}.{head}"
            if head in wanted:
                with change.above(model, layer, residual):
                    kept[name] = (change.loss(model, ids, {name: removed[layer, head]}) - plain).tolist()
            rise[layer, head] = torch.tensor(kept[name], dtype=torch.float64)
    return rise


def along(
    model: Model,
    ids: torch.Tensor,
    removed: Mapping[pruning.Head, Any],
    order: list[pruning.Head],
    steps: int,
    kept: _Kept,
    name: str,
) -> list[tuple[int, torch.Tensor]]:
    """(heads removed, loss of each text) at `steps` + 1 points along an order, none to all removed."""
    points = sorted({round(len(order) * step / steps) for step in range(steps + 1)})
    curve = []
    for count in track(points, f"{model.name}: {name}"):
        key = f"{name}:{count}"
        if key not in kept:
            edits = {f"{layer}.{head}": removed[layer, head] for layer, head in order[:count]}
            kept[key] = change.loss(model, ids, edits).tolist()
        curve.append((count, torch.tensor(kept[key], dtype=torch.float64)))
    return curve


class _Kept:
    """Measured losses by name, written to a JSON file after each so that a run goes on where it stopped; refuses another run's file."""

    def __init__(self, path: Path | None, run: dict[str, Any]) -> None:
        self.path, self.run, self.values = path, run, dict[str, list[float]]()
        if path is not None and path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))
            if different := [key for key in run if found.get("run", {}).get(key) != run[key]]:
                raise InterpError(f"{path} is of a run with another {different[0]}; give another file, or delete it")
            self.values = found["values"]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> list[float]:
        return self.values[name]

    def __setitem__(self, name: str, value: list[float]) -> None:
        self.values[name] = value
        if self.path is not None:
            work = self.path.with_name(f".{self.path.name}.part")
            work.write_text(json.dumps({"run": self.run, "values": self.values}), encoding="utf-8")
            os.replace(work, self.path)


def _signs(
    model: Model, texts: Any, bos: str, limit: int, max_tokens: int, means: Mapping[pruning.Head, torch.Tensor], ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What might tell which heads can go, [layer, head]: first_weight, entropy, and the mean norm of z about its mean."""
    total: dict[str, list[torch.Tensor]] = {"first_weight": [], "entropy": []}
    for _, made in material(model, texts, bos=bos, max_tokens=max_tokens, limit=limit):
        assert made.weights is not None
        assert made.visible is not None
        rows, _ = sinks.counted_rows(made.weights, made.visible)
        total["first_weight"].append(sinks.over_rows(sinks.first_weight(made.weights), rows))
        total["entropy"].append(heads.mean_rows(heads.entropy(made.weights), made.visible))
    sites = [f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)]
    with hooks.trace(model, sites) as seen:
        change.logits(model, ids)
    norms = torch.stack([(seen[site] - seen[site].mean((0, 1))).norm(dim=-1).mean((0, 1)).cpu().double() for site in sites])
    return {name: torch.stack(values).nanmean(0) for name, values in total.items()} | {"z_norm": norms}


def _report(
    model: Model,
    names: list[str],
    plain: torch.Tensor,
    rise: torch.Tensor,
    curves: Mapping[str, Any],
    signs: Any,
    replace: str,
    seed: int,
) -> Report:
    total, base = model.n_layers * model.n_heads, float(plain.mean())
    lines = []
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
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
        name: pruning.share_within([(count, float(losses.mean())) for count, losses in points], base, total)
        for name, points in curves.items()
    }
    gentle, control = within["gentlest first"], [share for name, share in within.items() if name != "gentlest first"]
    best = correlation.loc[correlation["rank_correlation"].abs().fillna(-1).idxmax()]
    low, high = pruning.interval(plain, seed=seed)
    table = Table("curve", "Loss against heads removed, in each order; intervals over texts.", curve, {"loss": "nats per token"})
    return Report(
        analysis="pruning",
        model=model.name,
        question="How many heads can go before the loss moves, and what tells which?",
        answer=(
            f"Removing the gentlest {gentle:.0%} of the {total} heads of {model.name} keeps the loss within 1 % of {base:.3f} nats per token; "
            f"in random orders {min(control, default=0):.0%} to {max(control, default=0):.0%} can go. "
            f"The best single predictor of a head's cost is {best['predictor']} (rank correlation {best['rank_correlation']:.2f})."
        ),
        numbers={
            "heads": total,
            "loss": base,
            "loss_low": low,
            "loss_high": high,
            "share_within_1_percent": gentle,
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
        claims=[
            Claim.judged(
                "pruning-many-heads", "003 Multi-head attention", "Many heads can be pruned with little loss.",
                expected="at least a fifth of the heads within 1 % of the loss, more than in a random order",
                measured=f"{gentle:.1%}; random {max(control, default=0):.1%}",
                holds=gentle >= 0.2 and gentle > max(control, default=0),
                model=model.name,
                why="what would count against it: fewer than a fifth, or no better than random",
            )
        ],
        notes=["The order is found and judged on the same texts; intervals are over texts, not over orders.",
               f"A removed head's z is replaced by {'its mean over these texts and positions' if replace == 'mean' else 'zero'}."],
        provenance=model.provenance() | {"seed": seed, "texts": names},
    )  # fmt: skip


if __name__ == "__main__":
    analysis_main(run)
