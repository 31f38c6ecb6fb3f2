"""Interventions: run a model with one thing changed and see what it costs. Built on hook points; the model is as it was afterwards.

`loss` is the mean negative log-likelihood of the next token, in nats. `above` runs only what lies above a layer, from a residual
stream computed once: what a change in layer L cannot touch is not computed again. Limit: texts of one length in a batch, no padding.
What makes the loss from the last hidden states lies in `interp.losses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.corpus import Text
from interp.errors import InterpError
from interp.hooks import edit, placed, points
from interp.losses import of_forward
from interp.models.model import Model, evaluating


@torch.no_grad()
def logits(model: Model, ids: Int[Tensor, "text pos"]) -> Float[Tensor, "text pos vocab"]:
    """Logits of `model.bridge` on a batch of texts of one length: the face on which edits act."""
    with evaluating(model.bridge):
        out = model.bridge(ids.to(model.device))
    return out if isinstance(out, Tensor) else out.logits


def loss(
    model: Model, ids: Int[Tensor, "text pos"], edits: Mapping[str, Callable[..., Tensor]] | None = None
) -> Float[Tensor, " text"]:
    """Mean loss of each text in nats per token, with `edits` (see `interp.edit`) in place; float64."""
    with edit(model, edits or {}):
        each = of_forward(model, model.bridge, ids, lambda: logits(model, ids)).double().cpu()
    return each[:, -1] if model.extra.get("loss_on") == "last" else each.mean(-1)


def windows(
    model: Model, texts: Iterable[Text], length: int, limit: int | None = None, bos: str = "keep"
) -> tuple[Int[Tensor, "text pos"], list[str]]:
    """At most `limit` pieces of exactly `length` tokens, cut from the texts one after another, and their names; short ends are left.

    A model that answers only at the end of a text (the toy) gets its own texts with their answers instead, those of the shortest
    length. Raises InterpError where no text is long enough.
    """
    if model.extra.get("loss_on") == "last":
        from interp.models.toy import prefixes

        if getattr(texts, "source", None) is not None:
            raise InterpError(f"{model.name} is tried on its own prefixes and their answers; leave out --texts")
        whole = [(prefix.text, model.tokens(f"{prefix.text} {prefix.target}", bos).ids) for prefix in prefixes()]
        shortest = min(len(ids) for _, ids in whole)
        kept = [(name, ids) for name, ids in whole if len(ids) == shortest][:limit]
        return torch.stack([ids for _, ids in kept]), [name for name, _ in kept]
    length = min(length, model.n_positions or length)
    rows: list[Tensor] = []
    names: list[str] = []
    longest = 0
    for text in texts:
        ids = model.tokens(text.text, bos).ids
        longest = max(longest, len(ids))
        for start in range(0, len(ids) - length + 1, length):
            if limit is not None and len(rows) == limit:
                return torch.stack(rows), names
            rows.append(ids[start : start + length])
            names.append(f"{text.name}:{start}")
    if not rows:
        raise InterpError(
            f"no text has {length} tokens (the longest has {longest}); pass --max-tokens {max(2, longest)} or longer texts"
        )
    return torch.stack(rows), names


@torch.no_grad()
def residuals(model: Model, ids: Int[Tensor, "text pos"], layers: Sequence[int]) -> dict[int, Tensor]:
    """The residual stream entering each of `layers` but the first, [text, pos, d_model], in one forward: layer 0 needs none."""
    known = points(model)
    kept: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def store(tensor: Tensor, hook: Any) -> None:
            kept[layer] = tensor.detach()

        return store

    names = {layer: name for layer, name in entries(model).items() if layer in layers}
    with placed([(known[name], keep(layer)) for layer, name in names.items()]):
        logits(model, ids)
    return kept


def entries(model: Model) -> dict[int, str]:
    """The hook point on the residual stream entering each layer but the first. Raises InterpError where a layer has none."""
    known, found = points(model), {}
    for layer in range(1, model.n_layers):
        names = [name for name in (f"blocks.{layer}.hook_resid_pre", f"blocks.{layer}.hook_in") if name in known]
        if not names:
            raise InterpError(f"{model.name} has no hook on the residual stream entering layer {layer}")
        found[layer] = names[0]
    return found


@contextmanager
def above(model: Model, layer: int, residual: Float[Tensor, "text pos d"] | None) -> Iterator[None]:
    """Forwards of `model.bridge` inside the block start at `layer` from `residual`; the layers below hand on what they get.

    Same bits as the whole forward where nothing below is edited. Limits: hooks below do not fire, caches are not used.
    """
    if layer and residual is None:
        raise InterpError(f"to start at layer {layer} its residual stream is needed; interventions.residuals gives it")
    blocks = list(model.bridge.blocks)[:layer]
    before = [block.__dict__.get("forward") for block in blocks]
    as_tuple = layer > 0 and _blocks_give_tuples(model)
    try:
        for block in blocks:
            # Into its own dictionary: setting the attribute would reach through to transformers' layer inside.
            block.__dict__["forward"] = _hand_on(residual, as_tuple)
        yield
    finally:
        for block, kept in zip(blocks, before, strict=True):
            if kept is None:
                del block.__dict__["forward"]
            else:
                block.__dict__["forward"] = kept


def _hand_on(residual: Tensor | None, as_tuple: bool) -> Callable[..., Any]:
    def forward(*arguments: Any, **options: Any) -> Any:
        return (residual,) if as_tuple else residual

    return forward


def _blocks_give_tuples(model: Model) -> bool:
    """Whether this architecture's blocks return a tuple: asked once a model, of a forward on one token."""
    if "blocks_give_tuples" not in model.extra:
        kept: list[bool] = []
        handle = model.bridge.blocks[0].register_forward_hook(lambda block, given, made: kept.append(isinstance(made, tuple)))
        try:
            logits(model, torch.zeros(1, 1, dtype=torch.int64))
        finally:
            handle.remove()
        model.extra["blocks_give_tuples"] = kept[0]
    return model.extra["blocks_give_tuples"]
