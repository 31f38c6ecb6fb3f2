"""Tiny models of single families, from configurations written by hand: sizes all distinct, and prime but where a product must be.

Layers 2, heads 3 (6 over 3 where keys are shared), d_head 5 or 10 (rotary turns pairs), tokens 11, vocabulary 101.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from interp.families.tiny import IDS, randomised
from interp.models import Model
from interp.models.pretrained import quiet

LAYERS, HEADS, VOCAB, MLP, POSITIONS, TOKENS = 2, 3, 101, 37, 67, len(IDS)
_ENDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
_GPT2: dict[str, Any] = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": 15, "n_inner": MLP, "n_positions": POSITIONS}
_PLAIN: dict[str, Any] = {
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_size": 30,
    "intermediate_size": MLP,
    "max_position_embeddings": POSITIONS,
}
_SHARED = {**_PLAIN, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10, "hidden_size": 66}
_LATENT: dict[str, Any] = {
    "kv_lora_rank": 17, "q_lora_rank": 19, "qk_nope_head_dim": 7, "qk_rope_head_dim": 6, "v_head_dim": 5, "head_dim": 6,
}  # fmt: skip

# What each family needs to be tiny, and nothing else.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", _GPT2),
    "gpt2-inverse-layer": ("gpt2", {**_GPT2, "scale_attn_by_inverse_layer_idx": True}),
    "gpt2-upcast": ("gpt2", {**_GPT2, "reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True}),
    "gpt2-unscaled": ("gpt2", {**_GPT2, "scale_attn_weights": False}),
    "opt": ("opt", {**_PLAIN, "hidden_size": 15, "ffn_dim": MLP, "word_embed_proj_dim": 15}),
    "gpt_neo": (
        "gpt_neo",
        {**_PLAIN, "num_layers": LAYERS, "num_heads": HEADS, "hidden_size": 15, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "gptj": ("gptj", {**_GPT2, "n_embd": 30, "rotary_dim": 4}),
    "gpt_neox": ("gpt_neox", _PLAIN),
    "llama": ("llama", _SHARED),
    "mistral": ("mistral", {**_SHARED, "sliding_window": 3}),
    "qwen2": ("qwen2", {**_SHARED, "hidden_size": 60}),
    "qwen3": ("qwen3", _SHARED),
    "gemma2": ("gemma2", {**_SHARED, "sliding_window": 3, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 2.0}),
    "phi": ("phi", {**_PLAIN, "partial_rotary_factor": 0.4}),
    "bloom": ("bloom", {"n_layer": LAYERS, "n_head": HEADS, "hidden_size": 15}),
    "falcon-alibi": ("falcon", {**_PLAIN, "alibi": True, "multi_query": False, "bias": True, "attn_implementation": "eager"}),
    "falcon-rotary": ("falcon", {**_PLAIN, "alibi": False, "multi_query": False, "parallel_attn": False}),
    "falcon-multi-query": ("falcon", {**_PLAIN, "alibi": False, "multi_query": True}),
    "gpt_oss": ("gpt_oss", {**_SHARED, "hidden_size": 60, "intermediate_size": 44, "num_local_experts": 5, "sliding_window": 3}),
    "deepseek_v3": (
        "deepseek_v3",
        {
            **_PLAIN, **_LATENT, "num_key_value_heads": HEADS, "moe_intermediate_size": 44, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
            "num_experts_per_tok": 2, "first_k_dense_replace": 2,
        },
    ),
}  # fmt: skip


def tiny(case: str, seed: int = 0, **options: Any) -> Model:
    """The tiny model of one case, random and seeded; it takes ids. Asserts that no two sizes are equal."""
    kind, settings = CASES[case]
    with quiet():
        torch.manual_seed(seed)
        config = CONFIG_MAPPING[kind](**{**settings, "vocab_size": VOCAB, **_ENDS, **options})
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomised(module, seed)
    model = Model.of_transformers(f"tiny-{case}", module.eval(), None, f"seed-{seed}", "random weights")
    sizes = [model.n_layers, model.n_heads, model.d_head, model.d_model, MLP, TOKENS, VOCAB]
    assert len(set(sizes)) == len(sizes), f"two sizes of {case} are equal: {sizes}"
    return model
