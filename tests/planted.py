"""A GPT-2 of one layer whose two heads are set by hand: head 0 looks at the previous token, head 1 rests on the first."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from interp.models import Model

POSITIONS = 16
IDS = torch.stack([torch.arange(POSITIONS), torch.arange(20, 20 + POSITIONS)])
TEXTS = [" ".join(map(str, row)) for row in IDS.tolist()]


def planted(previous: bool = True, sink: bool = True, strength: float = 40.0) -> Model:
    """Token vectors are tiny; position i is the unit vector e_i, which the layer norm only shifts and scales.

    Head 0: q_i reads e_i shifted down by one, k_j reads e_j, so q_i·k_j is large at j = i − 1 alone. Head 1: q is constant and
    meets the e_0 part of every key, so key 0 draws the weight whatever the query. A head that is not planted scores 0 for all keys.
    """
    width = 2 * POSITIONS
    config = GPT2Config(
        n_layer=1, n_head=2, n_embd=width, n_positions=POSITIONS, vocab_size=53, n_inner=8, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = GPT2LMHeadModel(config).eval()
    block = module.transformer.h[0].attn.c_attn
    with torch.no_grad():
        module.transformer.wte.weight.mul_(0.01)
        module.transformer.wpe.weight.zero_()
        module.transformer.wpe.weight[:, :POSITIONS] = torch.eye(POSITIONS)
        block.weight[:, : 2 * width].zero_()
        block.bias.zero_()
        if previous:
            for component in range(POSITIONS - 1):
                block.weight[component + 1, component] = strength
            block.weight[:POSITIONS, width : width + POSITIONS] = torch.eye(POSITIONS)
        if sink:
            block.bias[POSITIONS] = strength
            block.weight[0, width + POSITIONS] = 1.0
    return Model.of_transformers("planted", module, None, "by hand", "tests")


def drawn(kind: str = "gpt2") -> Model:
    """A random GPT-2 of three layers or Llama of two, whose heads share keys: nothing is planted."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "gpt2":
            config = GPT2Config(
                n_layer=3, n_head=3, n_embd=21, n_positions=37, vocab_size=53, n_inner=11, bos_token_id=0, eos_token_id=0
            )
            module = GPT2LMHeadModel(config)
            for parameter in module.parameters():
                parameter.data.normal_(0, 0.3)
        else:
            llama = LlamaConfig(
                hidden_size=24, intermediate_size=13, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=53,
                max_position_embeddings=37, bos_token_id=0, eos_token_id=0,
            )  # fmt: skip
            module = LlamaForCausalLM(llama)
    return Model.of_transformers(f"tiny-{kind}", module.eval(), None, "drawn", "tests")
