"""One layer's worth of a capture, as every route hands it over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.capturing.captured import Capture
from interp.errors import InterpError
from interp.models.tokens import Tokens


@dataclass
class Part:
    """q [head, pos, d], k, v [kv_head, pos, d], scores and weights [head, query, key], visible [query, key], z [head, pos, d_v].

    `bias` broadcasts to scores: what was added after scaling (ALiBi, relative positions).
    """

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    visible: Tensor
    weights: Tensor
    z: Tensor
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Tensor | None = None


def assemble(parts: Sequence[Part], tokens: Tokens, provenance: Mapping[str, Any]) -> Capture:
    """Parts stacked into a Capture on the CPU, in float32 (float64 stays). Layers of different shapes are refused by name."""
    shapes = {(tuple(part.q.shape), tuple(part.k.shape), tuple(part.z.shape)) for part in parts}
    if len(shapes) > 1:
        kinds = "; ".join(sorted(f"q {q}, k {k}" for q, k, _ in shapes))
        raise InterpError(f"the layers differ in shape ({kinds}) and cannot stand in one capture; pass --layers of one kind")
    stacked = {
        name: torch.stack([_kept(getattr(part, name)) for part in parts])
        for name in ("q", "k", "v", "scores", "visible", "weights", "z")
    }
    sinks = [part.sinks for part in parts]
    biased = any(part.bias is not None for part in parts)
    return Capture(
        tokens=tokens.pieces,
        layers=tuple(part.layer for part in parts),
        ids=tokens.ids,
        scale=tuple(part.scale for part in parts),
        softcap=tuple(part.softcap for part in parts),
        sinks=torch.stack([_kept(one) for one in sinks if one is not None]) if all(one is not None for one in sinks) else None,
        bias=torch.stack([_kept(_bias(part)) for part in parts]) if biased else None,
        text=tokens.text,
        provenance={
            **provenance,
            "bos": tokens.bos,
            "first_is_bos": tokens.first_is_bos,
        },
        **stacked,
    )


def _bias(part: Part) -> Tensor:
    return torch.zeros_like(part.scores) if part.bias is None else part.bias.expand(part.scores.shape)


def _kept(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().to("cpu")
    return tensor if tensor.dtype in (torch.bool, torch.float64) else tensor.float()
