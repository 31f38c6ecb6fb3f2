"""What every report on heads and interventions states of its texts: the loss in nats per token, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from interp import interventions as change
from interp.losses import of_forward, token_losses
from interp.measures import pruning
from interp.models import Model
from interp.models.model import evaluating


@torch.no_grad()
def each_loss(model: Model, ids: Tensor) -> Tensor:
    """Loss of each token of one text [pos] but the first, in nats, float64."""
    if not model.is_transformers:
        return token_losses(model.logits(ids)[None], ids[None])[0].double().cpu()
    here = ids[None].to(model.device)
    with evaluating(model.module):
        made = of_forward(model, model.module, here, lambda: model.module(here, use_cache=False).logits)
    return made[0].double().cpu()


def stated(model: Model, rows: Sequence[Tensor], seed: int = 0) -> tuple[dict[str, float], str]:
    """Numbers `loss`, `loss_low`, `loss_high`, and a sentence that says them; ({}, …) where nothing can be predicted.

    The interval is over texts; of one text alone, over its tokens. A model that answers only at the end of its texts (the toy) is
    judged by its answers to its own texts.
    """
    if model.extra.get("loss_on") == "last":
        ids, _ = change.windows(model, [], 1)
        losses, over = change.loss(model, ids), f"{len(ids)} texts, their last token alone"
    else:
        tokens = [each_loss(model, row) for row in rows if len(row) > 1]
        if not tokens:
            return {}, "No text was given whose loss could be stated."
        losses = tokens[0] if len(tokens) == 1 else torch.stack([one.mean() for one in tokens])
        over = f"the {len(losses)} predicted tokens of one text" if len(tokens) == 1 else f"{len(tokens)} texts"
    low, high = pruning.interval(losses, seed=seed)
    loss = float(losses.mean())
    said = f"Loss of {model.name}: {loss:.3f} nats per token ({low:.3f} to {high:.3f}, 95 % over {over})."
    return {"loss": loss, "loss_low": low, "loss_high": high}, said
