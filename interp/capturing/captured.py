"""Capture: q, k, v, scores, visible, weights and z of one text through one model, in one object that checks itself.

One text, one rank, no batch axis. Tensors may be missing where a file holds only some of them; what follows from what is
there is computed by `read`, what does not stays None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interp.errors import InterpError, UnknownName
from interp.shapes import Contexts, Ids, Keys, Queries, Square, Values, Visible

TENSORS = ("q", "k", "v", "scores", "visible", "weights", "z")


@dataclass(frozen=True, eq=False)
class Capture:
    """What the attention of `layers` computed on one text of T tokens; every tensor on the CPU, layers in the order of `layers`.

    | field | shape | what |
    |---|---|---|
    | q | [layer, head, pos, d] | as it enters q·k: after bias, norm, rotary |
    | k, v | [layer, kv_head, pos, d] | the same; v may have its own width |
    | scores | [layer, head, query, key] | scaled, with bias and soft cap, before the mask; finite for every pair |
    | visible | [layer, query, key] | True = the query may see the key |
    | weights | [layer, head, query, key] | softmax of the visible scores; exactly 0 where unseen |
    | z | [layer, head, pos, d_v] | weights · v |
    | scale | [layer] | what q·k was multiplied by |
    | sinks | [layer, head] or None | learned sink logits: rows then sum to less than 1 |
    | bias | as scores, or None | what was added to scale · q·k (ALiBi, relative positions); part of the scores |
    """

    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    ids: Ids | None = None
    q: Queries | None = None
    k: Keys | None = None
    v: Values | None = None
    scores: Square | None = None
    visible: Visible | None = None
    weights: Square | None = None
    z: Contexts | None = None
    scale: tuple[float, ...] | None = None
    softcap: tuple[float | None, ...] | None = None
    sinks: Tensor | None = None
    bias: Square | None = None
    text: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def n_heads(self) -> int:
        return self._any().shape[1]

    @property
    def n_kv_heads(self) -> int:
        return self.n_heads if self.k is None else self.k.shape[1]

    @property
    def model(self) -> str:
        """Name of the model as it was asked for; "" where a file does not say."""
        return str(self.provenance.get("model", ""))

    def row_of(self, layer: int) -> int:
        """Index along the first axis of an original layer number; refused where that layer was not captured."""
        if layer not in self.layers:
            raise UnknownName("captured layer", str(layer), map(str, self.layers))
        return self.layers.index(layer)

    def kv_head(self, head: int) -> int:
        """The key-value head that query head `head` reads."""
        return head // (self.n_heads // self.n_kv_heads)

    def save(self, path: str | Path) -> Path:
        """Write to a safetensors file, bit for bit; `interp.read` gives it back."""
        from interp.capturing.files import save

        return save(self, path)

    def _repr_html_(self) -> str:
        from interp.report.viewer import embed

        return embed(self)

    def need(self, *names: str) -> tuple[Any, ...]:
        """The fields of these names; refuses, by name, an analysis whose tensors this capture lacks."""
        if missing := [name for name in names if getattr(self, name) is None]:
            have = [name for name in TENSORS if getattr(self, name) is not None]
            raise InterpError(f"this needs {', '.join(missing)}, but the capture holds only {', '.join(have)}")
        return tuple(getattr(self, name) for name in names)

    def _any(self) -> Tensor:
        for name in ("weights", "scores", "q", "z"):
            if (tensor := getattr(self, name)) is not None:
                return tensor
        raise InterpError("a capture needs at least one of weights, scores, q, z")

    def __repr__(self) -> str:
        have = ", ".join(name for name in TENSORS if getattr(self, name) is not None)
        return f"Capture({self.model or 'unnamed model'}: {len(self.layers)} layers × {self.n_heads} heads, {self.n_tokens} tokens; {have})"


def dtype_of(capture: Capture) -> torch.dtype:
    """The dtype the model computed in, by provenance; float32 where it is not said."""
    return getattr(torch, str(capture.provenance.get("dtype", "float32")))
