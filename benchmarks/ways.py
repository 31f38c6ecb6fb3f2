"""The ways that are compared. Each is a function of nothing that does one whole forward of the same ids; none computes logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from interp.batches import Batch
from interp.capturing.registry import implementation
from interp.models import Model
from interp.rows.measuring import Run

Way = Callable[[], Any]
OURS = ("first", "full")
SQUARES = ("eager weights", "TransformerLens cache")  # these keep [layer, head, query, key] in float32


def ids_of(length: int) -> Tensor:
    """The protocol's ids: drawn from 1000..39999 by a generator of seed 0."""
    return torch.randint(1000, 40000, (1, length), generator=torch.Generator().manual_seed(0))


def way(name: str, model: Model, ids: Tensor) -> Way:
    """One of: plain, first, full, eager weights, TransformerLens cache."""
    ids = ids.to(model.device)
    if name in OURS:
        run = Run(model, name == "full", tuple(range(model.n_layers)), {}, None)
        batch = Batch.of([ids[0].cpu()], [0], ["ids"])
        return lambda: run.forward(batch)
    if name == "plain":
        return _forward(model, ids)
    if name == "eager weights":
        run_eager = _forward(model, ids, output_attentions=True)

        def eager() -> Any:
            with implementation(model.module, "eager"):
                return run_eager()

        return eager
    return _cache(model, ids)


def _forward(model: Model, ids: Tensor, **options: Any) -> Way:
    @torch.no_grad()
    def forward() -> Any:
        return model.module.base_model(ids, use_cache=False, **options)

    return forward


def _cache(model: Model, ids: Tensor) -> Way:
    bridge = model.bridge

    @torch.no_grad()
    def cached() -> Any:
        return bridge.run_with_cache(ids, names_filter=lambda name: name.endswith("hook_pattern"), output_attentions=False)[1]

    return cached


def square_bytes(model: Model, length: int) -> int:
    """What all layers' weights take."""
    return model.n_layers * model.n_heads * length * length * 4
