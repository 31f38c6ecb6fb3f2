"""A small recurrent reader, trained beside small transformers: one state of fixed width has to hold everything it has read.

torch's GRU, an embedding and an output layer; hook points on the embedding, the states and the logits. No attention, so nothing to capture.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint


class Reader(HookedRootModule):
    """Embedding, GRU, output layer. forward(tokens [batch, pos]) -> logits [batch, pos, vocab]."""

    def __init__(self, d_vocab: int, d_model: int, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Embedding(d_vocab, d_model)
            self.gru = nn.GRU(d_model, d_model, batch_first=True)
            self.unembed = nn.Linear(d_model, d_vocab)
        self.hook_embed, self.hook_state, self.hook_logits = HookPoint(), HookPoint(), HookPoint()
        self.setup()

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        return self.hook_logits(self.unembed(self.hook_state(self.gru(self.hook_embed(self.embed(tokens)))[0])))
