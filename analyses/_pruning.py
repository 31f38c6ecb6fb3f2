"""The sweep of `pruning`: losses of the same texts with heads removed, each kept in a file as it is measured.

What lies below the lowest head changed is computed once and handed to the blocks above it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from interp import attention, attribution, hooks
from interp import interventions as change
from interp.errors import InterpError
from interp.measures import heads, pruning, sinks
from interp.models import Model
from interp.progress import track

AT_ONCE = 1024  # tokens a forward


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
    means: dict[pruning.Head, torch.Tensor] = {}
    norms = []
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


def removal(replace: str, mean: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.zeros_like if replace == "zero" else lambda z: mean.expand_as(z)


def _at_once(ids: torch.Tensor) -> int:
    """Texts a forward: more would make its largest tensors outgrow the processor's cache."""
    return max(1, AT_ONCE // ids.shape[1])


class Sweep:
    """Losses of the same texts with heads removed, of those in `removed`. `plain` [text] is the loss with all heads, nats per token."""

    def __init__(self, model: Model, ids: torch.Tensor, removed: Mapping[pruning.Head, Any], kept: Kept, mark: str = "") -> None:
        self.model, self.removed, self.kept, self.mark = model, removed, kept, mark
        self.parts = ids.split(_at_once(ids))
        self.below = [change.residuals(model, part, range(model.n_layers)) for part in self.parts]
        self.plain = self._losses([])

    def one_by_one(self) -> torch.Tensor:
        """Rise of each text's loss, [layer, head, text] in nats per token, with that head alone removed; NaN for heads not tried."""
        model = self.model
        rise = torch.full((model.n_layers, model.n_heads, len(self.plain)), torch.nan, dtype=torch.float64)
        for layer, head in track(list(self.removed), f"{model.name}: heads removed one by one"):
            rise[layer, head] = self._kept_losses(f"{layer}.{head}", [(layer, head)]) - self.plain
        return rise

    def along(self, order: list[pruning.Head], steps: int, name: str) -> list[tuple[int, torch.Tensor]]:
        """(heads removed, loss of each text) at `steps` + 1 points along an order, none to all removed."""
        points = sorted({round(len(order) * step / steps) for step in range(steps + 1)})
        shared = {0: "none", len(order): "all"}  # the same in every order
        return [
            (count, self._kept_losses(shared.get(count, f"{name}:{count}"), order[:count]))
            for count in track(points, f"{self.model.name}: {name}")
        ]

    def _kept_losses(self, name: str, gone: Sequence[pruning.Head]) -> torch.Tensor:
        name = self.mark + name
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


class Kept:
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
