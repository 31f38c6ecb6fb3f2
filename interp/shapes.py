"""The axes, named once. Every array in `interp` is annotated with these words, and the test run checks them.

| axis | meaning |
|---|---|
| layer | 0-based; a filtered view keeps the original numbers beside the array |
| head | query heads; `kv_head` where keys and values are shared, query head h reads kv head h // (head / kv_head) |
| query, key | row and column of the square, always in that order |
| pos | positions of one text, 0-based; T of them |
| d | components of a query or key (`d_v` of a value, where it differs) |
| n, m | queries and keys of one bare attention, any count |
| *lead | any leading axes, the same on every argument |

Glossary against TransformerLens: its `pattern` is our weights; its `hook_attn_scores` is taken after the mask,
ours before it; its `hook_q`/`hook_k` are before rotary, our q and k after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Bool, Float, Int

if TYPE_CHECKING:
    from torch import Tensor
else:
    import torch

    Tensor = torch.Tensor

Queries = Float[Tensor, "layer head pos d"]
Keys = Float[Tensor, "layer kv_head pos d"]
Values = Float[Tensor, "layer kv_head pos d_v"]
Contexts = Float[Tensor, "layer head pos d_v"]
Square = Float[Tensor, "layer head query key"]
Visible = Bool[Tensor, "layer query key"]
Ids = Int[Tensor, " pos"]
