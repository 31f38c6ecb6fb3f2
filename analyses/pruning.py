"""How many heads can go before the loss moves, and what tells which?

Each head's z is zeroed, or replaced by its mean over the texts, alone; then heads go one after another, gentlest first, beside
random orders as a control. What lies below the lowest head changed is computed once. `save` keeps what was measured; `resume` goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from scipy.stats import spearmanr

from interp import attention, attribution, corpus, hooks, models
from interp import interventions as change
from interp.cli import analysis_main
from interp.errors import InterpError, UnknownName
from interp.measures import heads, pruning, sinks
from interp.models import Model
from interp.progress import track
from interp.report import Report
from interp.results import Claim, Curve, Grid, Table

REPLACEMENTS = ("zero", "mean")
AT_ONCE = 1024  # tokens a forward


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
    save: str | Path | None = None,
    resume: bool = False,
) -> Report:
    """Loss with each head removed, the curve of loss against share removed, and rank correlations with what might predict it.

    Of `texts`, the first `limit` pieces of `max_tokens`. `save` names a file that keeps each loss as it is measured; `resume` takes
    up what is in it. All heads of a model of 135 million parameters on 32 pieces of 128 tokens are some 200 · 10¹² operations.
    """
    if replace not in REPLACEMENTS:
        raise UnknownName("replacement", replace, REPLACEMENTS)
    model = models.load(model, dtype=dtype, device=device)
    ids, names = change.windows(model, corpus.texts(texts), max_tokens, limit, bos)
    means, signs = looked_at(model, ids)
    removed = {head: _removal(replace, means[head]) for head in means}
    kept = _Kept(None if save is None else Path(save), {"model": model.revision, "ids": ids.tolist(), "replace": replace}, resume)
    sweep = Sweep(model, ids, removed, kept)
    rise = sweep.one_by_one()
    order = pruning.gentlest_first(rise.mean(-1))
    curves = {"gentlest first": sweep.along(order, steps, "gentlest")}
    for draw in range(orders):
        shuffled = pruning.random_order(model.n_layers, model.n_heads, seed + draw)
        curves[f"random {draw}"] = sweep.along(shuffled, steps, f"random-{seed + draw}")
    return _report(model, names, sweep.plain, rise, curves, signs, replace, seed)


def looked_at(model: Model, ids: torch.Tensor) -> tuple[dict[pruning.Head, torch.Tensor], dict[str, torch.Tensor]]:
    """Each head's z averaged over all texts and positions, [d_v]; and what might tell which heads can go, [layer, head].

    first_weight, entropy, and output_norm: how far from its mean a head writes into the residual stream, ‖(z − mean z)·W_O‖ on average
    (on a model whose W_O cannot be had by head, of z itself).
    """
    sites = [f"blocks.{layer}.attn.{name}" for layer in range(model.n_layers) for name in ("hook_z", "hook_pattern")]
    found: dict[str, list[torch.Tensor]] = {}
    visible = attention.visible(ids.shape[1])
    for part in ids.split(_at_once(ids)):
        with hooks.trace(model, sites) as seen:
            change.logits(model, part)
        for site in sites:
            found.setdefault(site, []).append(
                seen[site].float().cpu() if site.endswith("hook_z") else _of_rows(seen[site], visible)
            )
    means, norms = {}, []
    for layer in range(model.n_layers):
        z = torch.cat(found[f"blocks.{layer}.attn.hook_z"]).flatten(0, 1)  # [row, head, d_v]
        means |= {(layer, head): z[:, head].mean(0).to(model.device, model.dtype) for head in range(model.n_heads)}
        about = (z - z.mean(0)).to(model.device, model.dtype).split(256)
        size = torch.cat([attribution.written(model, layer, part).norm(dim=-1) for part in about])  # [row, head]
        norms.append(size.double().mean(0).cpu())
    rows = torch.stack([torch.cat(found[f"blocks.{layer}.attn.hook_pattern"]).mean(0) for layer in range(model.n_layers)])
    return means, {"first_weight": rows[..., 0], "entropy": rows[..., 1], "output_norm": torch.stack(norms)}


def _of_rows(weights: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """first_weight and mean entropy of each text and head, [text, head, 2]."""
    whole = weights.float().cpu()
    rows, _ = sinks.counted_rows(whole, visible.expand(len(whole), -1, -1))
    first = sinks.over_rows(sinks.first_weight(whole), rows)
    return torch.stack((first, heads.mean_rows(heads.entropy(whole), visible.expand(len(whole), -1, -1))), -1)


def _removal(replace: str, mean: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.zeros_like if replace == "zero" else lambda z: mean.expand_as(z)


def _at_once(ids: torch.Tensor) -> int:
    """Texts a forward: more would make its largest tensors outgrow the processor's cache."""
    return max(1, AT_ONCE // ids.shape[1])


class Sweep:
    """Losses of the same texts with heads removed. `plain` [text] is the loss with all heads, in nats per token."""

    def __init__(self, model: Model, ids: torch.Tensor, removed: Mapping[pruning.Head, Any], kept: _Kept) -> None:
        self.model, self.removed, self.kept = model, removed, kept
        self.parts = ids.split(_at_once(ids))
        self.below = [change.residuals(model, part, range(model.n_layers)) for part in self.parts]
        self.plain = self._losses([])

    def one_by_one(self) -> torch.Tensor:
        """Rise of each text's loss, [layer, head, text] in nats per token, with that head alone removed."""
        model = self.model
        every = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
        rise = [
            self._kept_losses(f"{layer}.{head}", [(layer, head)]) - self.plain
            for layer, head in track(every, f"{model.name}: heads removed one by one")
        ]
        return torch.stack(rise).view(model.n_layers, model.n_heads, -1)

    def along(self, order: list[pruning.Head], steps: int, name: str) -> list[tuple[int, torch.Tensor]]:
        """(heads removed, loss of each text) at `steps` + 1 points along an order, none to all removed."""
        points = sorted({round(len(order) * step / steps) for step in range(steps + 1)})
        shared = {0: "none", len(order): "all"}  # the same in every order
        return [
            (count, self._kept_losses(shared.get(count, f"{name}:{count}"), order[:count]))
            for count in track(points, f"{self.model.name}: {name}")
        ]

    def _kept_losses(self, name: str, gone: Sequence[pruning.Head]) -> torch.Tensor:
        if name not in self.kept:
            self.kept[name] = self._losses(gone).tolist()
        return torch.tensor(self.kept[name], dtype=torch.float64)

    def _losses(self, gone: Sequence[pruning.Head]) -> torch.Tensor:
        lowest = min((layer for layer, _ in gone), default=0)
        edits = {f"{layer}.{head}": self.removed[layer, head] for layer, head in gone}
        made = []
        for part, below in zip(self.parts, self.below, strict=True):
            with change.above(self.model, lowest, below.get(lowest)):
                made.append(change.loss(self.model, part, edits))
        return torch.cat(made)


class _Kept:
    """Measured losses by name, written to a JSON file after each so that a run goes on where it stopped; refuses another run's file."""

    def __init__(self, path: Path | None, run: dict[str, Any], resume: bool) -> None:
        self.path, self.run, self.values = path, run, dict[str, list[float]]()
        if resume and path is None:
            raise InterpError("resume needs the file that an earlier run saved; pass --save FILE with it")
        if path is not None and path.is_file():
            if not resume:
                raise InterpError(f"{path} is there already; pass --resume to go on with it, or give another file")
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
