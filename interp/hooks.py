"""trace() and edit(): context managers over a model's TransformerLens hook points.

Every name is resolved before anything is placed, so a typo leaves nothing behind; what was placed is taken away again, and
only that: hooks of the person's own stay, also after an exception and when blocks are nested. Limit: what runs inside the block
must run through `model.bridge` (or the toy itself), whose hook points these are.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from interp.errors import InterpError, UnknownName
from interp.models.model import Model

Edit = Callable[..., Tensor]
_HEAD = re.compile(r"(\d+)\.(\d+)")
# Where a head's own slice lies: [batch, head, query, key] for these, [batch, pos, head, d] for every other point of a head.
_SQUARES = ("hook_attn_scores", "hook_pattern")


def points(model: Model) -> dict[str, Any]:
    """All hook points of a model by name, aliases included."""
    return dict(model.bridge.hook_dict)


def resolve(model: Model, name: str) -> list[str]:
    """Hook point names that a name or glob stands for, in the model's order. Raises UnknownName with the nearest."""
    known = points(model)
    if name in known:
        return [name]
    if not (found := [one for one in known if fnmatch.fnmatchcase(one, name)]):
        raise UnknownName(f"hook in {model.name}:", name, known)
    return found


def head(model: Model, name: str) -> tuple[int, int]:
    """Layer and head of "9.9"; refused where the model has no such layer or head."""
    found = _HEAD.fullmatch(name)
    if not found:
        raise InterpError(f"{name!r} is no head; write layer.head, as in 9.9")
    layer, number = int(found[1]), int(found[2])
    if layer >= model.n_layers or number >= model.n_heads:
        raise InterpError(
            f"no head {name} in {model.name}: layers run from 0 to {model.n_layers - 1}, heads from 0 to {model.n_heads - 1}"
        )
    return layer, number


@contextmanager
def placed(hook_points: Iterable[tuple[Any, Callable[..., Tensor | None]]]) -> Iterator[None]:
    """Functions (tensor, hook) on hook points while the block runs; exactly these are removed afterwards."""
    with ExitStack() as stack:
        for point, function in hook_points:
            stack.callback(_remove, point, point.add_hook(function))
        yield


def _remove(point: Any, handle: Any) -> None:
    handle.hook.remove()
    point.fwd_hooks[:] = [kept for kept in point.fwd_hooks if kept is not handle]


@contextmanager
def trace(model: Model, names: str | Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """While the block runs, the tensors that pass the named hook points: {name: tensor}, the latest forward's, detached.

    Names are hook points, globs ("blocks.*.attn.hook_z") or heads: "9.9" gives that head's z, [batch, pos, d_v], under "9.9".

        with interp.trace(model, "blocks.*.attn.hook_pattern") as seen:
            model.bridge(ids)
    """
    wanted: list[tuple[Any, Callable[..., None]]] = []
    known = points(model)
    seen: dict[str, Tensor] = {}
    for name in [names] if isinstance(names, str) else names:
        if _HEAD.fullmatch(name):
            layer, number = head(model, name)
            wanted.append((known[f"blocks.{layer}.attn.hook_z"], _keep(seen, name, number)))
        else:
            wanted += [(known[one], _keep(seen, one, None)) for one in resolve(model, name)]
    with placed(wanted):
        yield seen


def _keep(seen: dict[str, Tensor], name: str, number: int | None) -> Callable[..., None]:
    def keep(tensor: Tensor, hook: Any) -> None:
        seen[name] = (tensor if number is None else tensor[:, :, number]).detach()

    return keep


@contextmanager
def edit(model: Model, edits: Mapping[str, Edit]) -> Iterator[None]:
    """While the block runs, each named tensor is replaced by what its function makes of it: function(tensor) -> tensor.

    Names are hook points or globs; a head "9.9" edits that head's z [batch, pos, d_v], and "9.9:hook_pattern" that head's slice
    of another point of its attention. A function that changes the shape is refused when it runs; it gets a copy, so writing into
    it is safe.

        with interp.edit(model, {"9.9": torch.zeros_like}):
            logits = model.bridge(ids)
    """
    known = points(model)
    wanted: list[tuple[Any, Callable[..., Tensor]]] = []
    for name, function in edits.items():
        if not callable(function):
            raise InterpError(f"the edit of {name} is {function!r:.60}; give a function of a tensor")
        where, _, point = name.partition(":")
        if _HEAD.fullmatch(where):
            layer, number = head(model, where)
            full = f"blocks.{layer}.attn.{point or 'hook_z'}"
            if full not in known:
                raise UnknownName(f"hook in {model.name}:", full, known)
            wanted.append((known[full], _change(name, function, number, 1 if full.endswith(_SQUARES) else 2)))
        else:
            wanted += [(known[one], _change(one, function, None, 0)) for one in resolve(model, name)]
    with placed(wanted):
        yield


def _change(name: str, function: Edit, number: int | None, axis: int) -> Callable[..., Tensor]:
    def change(tensor: Tensor, hook: Any) -> Tensor:
        if number is not None and number >= tensor.shape[axis]:
            raise InterpError(
                f"{name}: this point has {tensor.shape[axis]} heads (keys and values are shared between query heads)"
            )
        whole = tensor.clone()
        part = whole if number is None else whole.select(axis, number).clone()
        made = function(part)
        if not isinstance(made, torch.Tensor) or made.shape != part.shape:
            raise InterpError(f"the edit of {name} returned {tuple(getattr(made, 'shape', ()))}, expected {tuple(part.shape)}")
        if number is None:
            return made
        whole.select(axis, number).copy_(made)
        return whole

    return change
