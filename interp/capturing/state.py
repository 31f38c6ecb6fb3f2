"""What capturing must leave as it was: hooks, modes, attention implementation, parameters; and the settings that a model was built with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from interp.capturing.checks import TOLERANCE, Check
from interp.capturing.recording import record
from interp.capturing.registry import layer_of
from interp.models.model import Model, evaluating

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Planted(Exception):
    """Raised on purpose inside a capture, to see that nothing is left behind."""


def snapshot(model: Model) -> dict[str, Any]:
    """{what: value} of both faces of a model: a second one, taken later, must be equal."""
    trees = {"": model.module} | ({"bridge ": model.bridge} if "bridge" in model.__dict__ and model.is_transformers else {})
    found: dict[str, Any] = {}
    for tree, root in trees.items():
        for path, part in root.named_modules():
            found[f"{tree}{path or 'root'}: mode"] = part.training
            found[f"{tree}{path or 'root'}: hooks"] = [list(getattr(part, kind)) for kind in _HOOKS]
            if isinstance(points := part.__dict__.get("fwd_hooks"), list):
                found[f"{tree}{path}: hook point"] = len(points)
            config: Any = getattr(part, "config", None)
            found[f"{tree}{path or 'root'}: attention implementation"] = getattr(config, "_attn_implementation", None)
        for path, parameter in root.named_parameters():
            found[f"{tree}{path}: values"] = (parameter.data_ptr(), parameter._version)
    return found


def restored(name: str, before: dict[str, Any], after: dict[str, Any]) -> tuple[Check, str]:
    """(the check that nothing differs but what is new, the first thing that does)."""
    wrong = [what for what, value in before.items() if after.get(what, value) != value]
    return Check(name, float(len(wrong)), 0.0, layer_of(wrong[0].partition(":")[0]) if wrong else None), "; ".join(wrong[:1])


def interrupted(model: Model, ids: Tensor, layers: tuple[int, ...], route: str) -> bool:
    """Run a capture that fails in its last layer, at the latest at its end; whether the planted error came out of it."""
    root = model.bridge if route == "hooks" else model.module
    last = [part for path, part in root.named_modules() if path.endswith(f".{model.n_layers - 1}")][:1]
    with ExitStack() as stack:
        for part in (*last, root):
            stack.callback(part.register_forward_hook(_fail).remove)
        try:
            record(model, ids, layers, route)
        except Planted:
            return True
    return False


def _fail(*args: Any) -> None:
    raise Planted


@contextmanager
def visited(module: nn.Module) -> Iterator[list[int]]:
    """A person's own hook on the module while the block runs: its calls, counted."""
    calls: list[int] = []
    handle = module.register_forward_hook(lambda *_: calls.append(1))
    try:
        yield calls
    finally:
        handle.remove()


def training_parts(model: Model) -> tuple[Check, str]:
    """No part of the model is in training mode during a capture: dropout would be part of the weights."""
    with evaluating(model.module):
        still = [path or "root" for path, part in model.module.named_modules() if part.training]
    return Check("evaluation mode while captured", float(len(still)), 0.0, layer_of(still[0]) if still else None), "; ".join(
        still[:1]
    )


def later_tokens(model: Model, ids: Tensor) -> Check:
    """Earlier logits do not move when the last token is another one, relative to the largest: no mask is trusted for it."""
    other = ids.clone()
    other[-1] = (other[-1] + 1) % model.d_vocab
    before, after = (model.logits(row)[:-1].double() for row in (ids, other))
    keep = torch.isfinite(before)
    size = torch.where(keep, before, 0.0).abs().max().clamp_min(1.0)
    moved = torch.where(keep, (before - after).abs() / size, 0.0).nan_to_num(nan=torch.inf).amax(-1)
    row = int(moved.argmax())
    return Check("earlier logits blind to later tokens", float(moved.max()), 10 * TOLERANCE[model.dtype], row=row)


def settings(model: Model) -> tuple[Check, str] | None:
    """Scale, causality, window, cap and dropout of each attention module are those that its configuration gives when built anew.

    None for what is no transformers model, or cannot be built again.
    """
    if not model.is_transformers:
        return None
    try:
        with torch.device("meta"):
            fresh = dict(type(model.module)(model.module.config).named_modules())
    except Exception:  # some families need more than a configuration
        return None
    wrong: list[tuple[str, str]] = []
    for path, part in model.module.named_modules():
        if path in fresh and ("attn" in path.lower() or "attention" in type(part).__name__.lower()):
            given, built = _plain(part), _plain(fresh[path])
            wrong += [
                (path, f"{path}.{key} is {given[key]}, {built[key]} by its configuration")
                for key in given
                if key in built and given[key] != built[key]
            ]
    where = layer_of(wrong[0][0]) if wrong else None
    return Check("attention settings are the configuration's", float(len(wrong)), 0.0, where), wrong[0][1] if wrong else ""


def _plain(part: nn.Module) -> dict[str, Any]:
    """Numbers and truths that a module keeps, but for its mode."""
    return {key: value for key, value in vars(part).items() if isinstance(value, (bool, int, float)) and key != "training"}
