"""Small trainable transformers with TransformerLens' hook names, so that capture treats them as any model.

Attention only, pre-norm, one residual stream; learned positions where `n_ctx` is given. Meant for tasks of a few dozen tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from interp import attention


@dataclass(frozen=True)
class Sizes:
    """What a small network is made of. `n_ctx` = learned positions, None = none: any length, and no order."""

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_value: int
    d_vocab: int
    n_ctx: int | None = None
    causal: bool = True


class Attention(nn.Module):
    """All heads of one layer up to z: q, k, v from x, scores / √d_head, the causal mask, softmax, weights · v. No bias."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        heads, width = sizes.n_heads, sizes.d_model
        self.causal = sizes.causal
        self.W_Q = nn.Parameter(torch.empty(heads, width, sizes.d_head))
        self.W_K = nn.Parameter(torch.empty(heads, width, sizes.d_head))
        self.W_V = nn.Parameter(torch.empty(heads, width, sizes.d_value))
        self.hook_q, self.hook_k, self.hook_v, self.hook_z = (HookPoint() for _ in range(4))
        self.hook_attn_scores, self.hook_pattern = HookPoint(), HookPoint()

    def forward(
        self, x: Float[Tensor, "batch pos d_model"]
    ) -> tuple[Float[Tensor, "batch pos head d_value"], Float[Tensor, "batch head query key"]]:
        """z and the weights it was made with."""
        q = self.hook_q(torch.einsum("bpm,hmd->bphd", x, self.W_Q))
        k = self.hook_k(torch.einsum("bpm,hmd->bphd", x, self.W_K))
        v = self.hook_v(torch.einsum("bpm,hmd->bphd", x, self.W_V))
        scores = attention.scores(q.transpose(1, 2), k.transpose(1, 2))
        if self.causal:
            scores = scores.masked_fill(~attention.visible(x.shape[1], device=x.device), -torch.inf)
        weights = self.hook_pattern(torch.softmax(self.hook_attn_scores(scores), dim=-1))
        return self.hook_z((weights @ v.transpose(1, 2)).transpose(1, 2)), weights


class Block(nn.Module):
    """x + W_O · attention(norm(x)): one layer of the residual stream."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(sizes.d_model)
        self.attn = Attention(sizes)
        self.W_O = nn.Linear(sizes.n_heads * sizes.d_value, sizes.d_model, bias=False)
        self.hook_resid_pre, self.hook_attn_out, self.hook_resid_post = (HookPoint() for _ in range(3))

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        x = self.hook_resid_pre(x)
        z, _ = self.attn(self.ln1(x))
        return self.hook_resid_post(x + self.hook_attn_out(self.W_O(z.flatten(-2))))


class Transformer(HookedRootModule):
    """Embedding (+ positions), blocks, a last norm, an output layer with bias. forward(tokens [batch, pos]) -> logits."""

    def __init__(self, sizes: Sizes, seed: int = 0, spread: float = 0.2) -> None:
        super().__init__()
        self.cfg = sizes
        self.W_E = nn.Parameter(torch.empty(sizes.d_vocab, sizes.d_model))
        self.hook_embed = HookPoint()
        if sizes.n_ctx is not None:
            self.W_pos = nn.Parameter(torch.empty(sizes.n_ctx, sizes.d_model))
            self.hook_pos_embed = HookPoint()
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.n_layers))
        self.ln_final = nn.LayerNorm(sizes.d_model)
        self.unembed = nn.Linear(sizes.d_model, sizes.d_vocab)
        self.hook_logits = HookPoint()
        draw(self, seed, spread)
        self.setup()

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        x = self.hook_embed(self.W_E[tokens])
        if self.cfg.n_ctx is not None:
            x = x + self.hook_pos_embed(self.W_pos[: tokens.shape[1]].expand(x.shape))
        for block in self.blocks:
            x = block(x)
        return self.hook_logits(self.unembed(self.ln_final(x)))


@torch.no_grad()
def draw(module: nn.Module, seed: int, spread: float) -> None:
    """Fresh starting values, the same for the same seed: matrices normal with standard deviation `spread`, biases zero, norms neutral."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
            continue
        for name, parameter in part.named_parameters(recurse=False):
            if name.startswith("b"):
                parameter.zero_()
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
