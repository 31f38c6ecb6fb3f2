"""Loss of each next token without the square of positions × vocabulary: the last hidden states go through the unembedding in pieces.

The logits of a text are by far its largest tensor; no piece here outgrows the processor's cache. Whether a model's logits are just
its unembedding of these states is tried once on its own logits; where they are not (a soft cap, a scale), whole logits are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.models.model import Model, evaluating

ROWS, WORDS = 1024, 2048  # positions and vocabulary entries a piece


def token_losses(logits: Float[Tensor, "text pos vocab"], ids: Int[Tensor, "text pos"]) -> Float[Tensor, "text pos_but_one"]:
    """−log p of each next token, in nats, float32: position i predicts token i + 1."""
    targets = ids[:, 1:].to(logits.device)
    each = [
        torch.nn.functional.cross_entropy(made[:-1].float(), target, reduction="none")
        for made, target in zip(logits, targets, strict=True)
    ]
    return torch.stack(each)


def hidden_losses(
    hidden: Float[Tensor, "text pos d_model"], ids: Int[Tensor, "text pos"], unembed: Any
) -> Float[Tensor, "text pos_but_one"]:
    """The same from the states that enter `unembed` (a linear layer): log Σ e^logit piece by piece, minus the target's logit."""
    states, targets = hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten().to(hidden.device)
    made = [
        _log_sums(rows, unembed) - _own(rows, target, unembed)
        for rows, target in zip(states.split(ROWS), targets.split(ROWS), strict=True)
    ]
    return torch.cat(made).view(len(ids), -1)


def _own(rows: Tensor, target: Tensor, unembed: Any) -> Tensor:
    own = (rows * unembed.weight[target]).sum(-1)
    return (own if unembed.bias is None else own + unembed.bias[target]).float()


def _log_sums(rows: Tensor, unembed: Any) -> Tensor:
    total = torch.full(rows.shape[:1], -torch.inf, device=rows.device)
    for start in range(0, len(unembed.weight), WORDS):
        part = rows @ unembed.weight[start : start + WORDS].T
        part = (part if unembed.bias is None else part + unembed.bias[start : start + WORDS]).float()
        # y − log softmax(y) is log Σ e^y, whichever entry is taken; torch's log_softmax is many times faster than its logsumexp.
        total = torch.logaddexp(total, part[:, 0] - part.log_softmax(-1)[:, 0])
    return total


@torch.no_grad()
def of_forward(
    model: Model, face: Any, ids: Int[Tensor, "text pos"], forward: Callable[[], Tensor]
) -> Float[Tensor, "text pos_but_one"]:
    """Loss of each token of one `forward() -> logits` of `face` (`model.module` or `model.bridge`), by the shorter way where it is the same."""
    if not model.is_transformers:
        return token_losses(forward(), ids)
    unembed = model.module.get_output_embeddings() if face is model.module else getattr(face, "unembed", None)
    if unembed is None or not _plain(model) or _watched(unembed):
        return token_losses(forward(), ids)
    with _handing_on(unembed):
        hidden = forward()
    return hidden_losses(hidden, ids, model.module.get_output_embeddings())


def _watched(unembed: Any) -> bool:
    """Whether somebody looks at, or edits, what goes in or comes out of the unembedding."""
    return any(getattr(point, "fwd_hooks", None) for point in unembed.modules())


@contextmanager
def _handing_on(unembed: Any) -> Iterator[None]:
    before = unembed.__dict__.get("forward")
    unembed.__dict__["forward"] = lambda states, *arguments, **options: states
    try:
        yield
    finally:
        if before is None:
            del unembed.__dict__["forward"]
        else:
            unembed.__dict__["forward"] = before


def _plain(model: Model) -> bool:
    """Whether logits are the unembedding of the last hidden states and nothing else; tried once a model, on two tokens."""
    if "plain_unembedding" not in model.extra:
        model.extra["plain_unembedding"] = _tried(model)
    return bool(model.extra["plain_unembedding"])


def _tried(model: Model) -> bool:
    unembed = model.module.get_output_embeddings()
    if not isinstance(unembed, torch.nn.Linear):
        return False
    ids = torch.arange(min(2, model.d_vocab), device=model.device)[None]

    def forward() -> Tensor:
        with evaluating(model.module):
            return model.module(ids, use_cache=False).logits

    logits = forward()
    with _handing_on(unembed):
        states = forward()
    if states.shape[-1] != unembed.weight.shape[1]:
        return False
    return torch.allclose(unembed(states).float(), logits.float(), rtol=1e-4, atol=1e-4)
