"""Direct logit attribution: what each head's z adds to a logit difference, through W_O, the final norm and the unembedding.

The final norm is taken as the field takes it: its scale is the one of the whole residual, held fixed, so that contributions add up.
The sum of all parts is checked against the model's own logits. Limit: what a head does by way of later layers is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InterpError
from interp.hooks import points, trace
from interp.interventions import logits
from interp.models.model import Model, evaluating


@dataclass(frozen=True)
class Attribution:
    """`heads` [text, layer, head]: each head's share of `difference` [text] = logit(right) − logit(wrong) at the last position.

    `error` is the largest |Σ of all parts − difference|: the parts are the heads and everything else the residual holds.
    """

    heads: Float[Tensor, "text layer head"]
    difference: Float[Tensor, " text"]
    error: float


@torch.no_grad()
def head_contributions(
    model: Model, ids: Int[Tensor, "text pos"], right: Int[Tensor, " text"], wrong: Int[Tensor, " text"]
) -> Attribution:
    """Of every head, at the last position of texts of one length. Raises InterpError where the model has no such path to follow."""
    final = _final_norm(model)
    sites = [f"blocks.{layer}.attn.hook_z" for layer in range(model.n_layers)]
    with trace(model, [*sites, "ln_final.hook_in"]) as seen, evaluating(model.bridge):
        last = logits(model, ids)[:, -1].float()
    difference = (last.gather(1, right[:, None]) - last.gather(1, wrong[:, None])).squeeze(1)
    residual = seen["ln_final.hook_in"][:, -1]
    unembed = model.module.get_output_embeddings()
    direction = (unembed.weight[right] - unembed.weight[wrong]).float()
    gain, centred = _frozen(final, residual)

    def through(part: Tensor) -> Tensor:
        """[text, …, d_model] into its part of the difference [text, …]."""
        part = part.float()
        part = part - part.mean(-1, keepdim=True) if centred else part
        return torch.einsum("t...d,td,td->t...", part, gain, direction)

    heads = torch.stack([through(written(model, at, seen[site][:, -1])) for at, site in enumerate(sites)], 1)
    offset = (final(torch.zeros_like(residual)).float() * direction).sum(-1)  # the norm's own bias
    if unembed.bias is not None:
        offset = offset + unembed.bias[right] - unembed.bias[wrong]
    error = float((through(residual) + offset - difference).abs().max())
    if error > 1e-2 * max(1.0, float(difference.abs().max())):
        raise InterpError(
            f"{model.name}: the residual through the final norm gives logit differences that are off by {error:.2g}; "
            "its logits are made in another way (a cap or a scale), so contributions would not add up"
        )
    return Attribution(heads.double().cpu(), difference.double().cpu(), error)


def _final_norm(model: Model) -> Any:
    if not model.is_transformers or "ln_final.hook_in" not in points(model):
        raise InterpError(
            f"{model.name} has no final norm to follow heads through; direct attribution needs a transformers model"
        )
    return model.bridge.ln_final.original_component


def written(model: Model, layer: int, z: Float[Tensor, "row head d_v"]) -> Float[Tensor, "row head d_model"]:
    """What each head of a layer alone writes: the output projection of its z with the other heads at zero, without the bias.

    z itself where the model has no output projection of the usual kind (the toy hands z to its output layer).
    """
    attention = model.bridge.blocks[layer].attn
    if not hasattr(attention, "o"):
        return z
    output = attention.o.original_component
    rows, heads, width = z.shape
    alone = torch.zeros(rows, heads, heads, width, dtype=z.dtype, device=z.device)
    alone[:, range(heads), range(heads)] = z
    with torch.no_grad():
        return output(alone.flatten(2)) - output(torch.zeros_like(alone.flatten(2)[:1, :1]))


def _frozen(norm: Any, residual: Float[Tensor, "text d"]) -> tuple[Float[Tensor, "text d"], bool]:
    """The factor by which `norm` multiplies each component of this residual, and whether it subtracts the mean first.

    Found by trying what norms do (gain w or 1 + w, centred or not) and keeping what gives the norm's own output.
    """
    made = norm(residual).float() - norm(torch.zeros_like(residual)).float()
    x = residual.float()
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", 1e-5))
    weight = norm.weight.float()
    for centred in (False, True):
        part = x - x.mean(-1, keepdim=True) if centred else x
        scale = part.pow(2).mean(-1, keepdim=True).add(epsilon).rsqrt()
        for gain in (weight, 1 + weight):
            if torch.allclose(part * scale * gain, made, atol=1e-3, rtol=1e-3):
                return scale * gain, centred
    raise InterpError(
        f"the final norm {type(norm).__name__} is neither a layer norm nor a root-mean-square norm; it cannot be followed"
    )
