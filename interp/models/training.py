"""Training of small models, many starts at once: parameters carry a leading axis `seed`, one Adam for all.

Adam works entry by entry, so the sum of the starts' losses trains each start exactly as it would be trained alone. Full batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from interp.errors import InterpError
from interp.progress import track

Record = TypeVar("Record")
Parameters = dict[str, Tensor]
IGNORED = -100


def stacked(modules: Sequence[nn.Module]) -> Parameters:
    """The parameters of like modules, stacked on a new first axis `seed`, ready to be trained."""
    first = dict(modules[0].named_parameters())
    every = [dict(module.named_parameters()) for module in modules]
    return {name: torch.stack([one[name].detach() for one in every]).requires_grad_() for name in first}


def taken(parameters: Parameters, seed: int) -> Parameters:
    """One start's own parameters, detached: for `module.load_state_dict(…)`."""
    return {name: tensor[seed].detach().clone() for name, tensor in parameters.items()}


def calls(module: nn.Module, **options: Any) -> Callable[[Parameters, Tensor], Any]:
    """forward(parameters, tokens) of all starts at once: what `module(tokens, **options)` returns, with `seed` in front."""

    def one(parameters: Parameters, tokens: Tensor) -> Any:
        return torch.func.functional_call(module, parameters, (tokens,), options)

    return torch.func.vmap(one, in_dims=(0, None))


def batched(texts: Sequence[Sequence[int]], fill: int = 0) -> tuple[Tensor, Tensor]:
    """Ids padded on the right [batch, pos], and the position of each text's last token [batch].

    Under a causal mask no real position sees a pad, so what stands there is of no account.
    """
    longest = max(map(len, texts))
    rows = torch.tensor([[*text, *[fill] * (longest - len(text))] for text in texts])
    return rows, torch.tensor([len(text) - 1 for text in texts])


def descend(
    parameters: Parameters,
    step: Callable[[Parameters], tuple[Tensor, Record]],
    updates: int,
    lr: float,
    title: str = "training",
) -> list[Record]:
    """Adam for `updates` full-batch updates, in place. `step` gives (loss [seed], record); the records of updates 0 … `updates`.

    The record of update u is taken before the step that follows it, so 0 is the start and the last is the trained model.
    """
    adam = Adam(parameters, lr)
    records: list[Record] = []
    for update in track(range(updates + 1), title):
        with torch.set_grad_enabled(update < updates):
            losses, record = step(parameters)
        records.append(record)
        if update < updates:
            adam.step(torch.autograd.grad(losses.sum(), list(parameters.values())))
    return records


class Adam:
    """Adam (Kingma and Ba 2014) with torch's defaults, entry by entry. torch.optim's first use imports the compiler: two seconds."""

    def __init__(self, parameters: Parameters, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        self.parameters, self.lr, self.betas, self.eps, self.steps = parameters, lr, betas, eps, 0
        self.mean = [torch.zeros_like(parameter) for parameter in parameters.values()]
        self.square = [torch.zeros_like(parameter) for parameter in parameters.values()]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Change the parameters in place, by gradients in their order."""
        self.steps += 1
        slow, fast = (1 - beta**self.steps for beta in self.betas)
        for parameter, gradient, mean, square in zip(self.parameters.values(), gradients, self.mean, self.square, strict=True):
            mean.lerp_(gradient, 1 - self.betas[0])
            square.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
            parameter.addcdiv_(mean, (square.sqrt() / math.sqrt(fast)).add_(self.eps), value=-self.lr / slow)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of logits [seed, batch, pos, vocab] against targets [batch, pos], nats; 0 where a target is IGNORED."""
    wanted = targets.expand(logits.shape[:-1])
    flat = nn.functional.cross_entropy(logits.flatten(0, -2), wanted.flatten(), ignore_index=IGNORED, reduction="none")
    return flat.view(wanted.shape)


def fit(
    modules: Sequence[nn.Module], tokens: Tensor, targets: Tensor, updates: int, lr: float, title: str = "training"
) -> Tensor:
    """Train like modules at once to predict `targets` [batch, pos] from `tokens`; they hold the trained parameters afterwards.

    Returns the mean loss of each at every update, [update, seed], nats a target; positions whose target is IGNORED do not count.
    """
    if not modules or updates < 1:
        raise InterpError(f"training needs at least one start and one update; got {len(modules)} and {updates}")
    parameters, forward = stacked(modules), calls(modules[0])
    count = (targets != IGNORED).sum()

    def step(current: Parameters) -> tuple[Tensor, Tensor]:
        losses = token_losses(forward(current, tokens), targets).flatten(1).sum(1) / count
        return losses, losses.detach()

    losses = torch.stack(descend(parameters, step, updates, lr, title))
    for place, module in enumerate(modules):
        module.load_state_dict(taken(parameters, place))
        module.eval()
    return losses
