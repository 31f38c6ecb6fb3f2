"""A tiny random model of any causal LM type that transformers lists, shrunk from the type's own default configuration.

Sizes are distinct, so that no swapped axis can pass; primes but where an architecture needs a product (d_model = heads · d_head) or
an even number (rotary). Weights are drawn large enough that scores differ by whole units: a wrong scale or mask shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from interp.models import Model
from interp.models.pretrained import first_line, quiet

TOKENS = 11
IDS = (3, 71, 4, 15, 92, 65, 35, 89, 79, 23, 46)


@dataclass(frozen=True)
class Sizes:
    """What one attempt shrinks to."""

    layers: int = 2
    heads: int = 6
    kv_heads: int = 3
    d_head: int = 10
    d_model: int = 60
    d_mlp: int = 37
    vocab: int = 101
    positions: int = 67
    window: int = 5
    experts: int = 4


RECIPES = (
    Sizes(),
    Sizes(d_mlp=44),
    Sizes(heads=3, kv_heads=3, d_head=10, d_model=30),
    Sizes(heads=4, kv_heads=2, d_head=16, d_model=64, d_mlp=48, vocab=128),
    Sizes(layers=6, heads=4, kv_heads=4, d_head=16, d_model=64, d_mlp=64, vocab=128),
    Sizes(layers=8, heads=4, kv_heads=2, d_head=32, d_model=128, d_mlp=96, vocab=160),
)


# What a type needs besides sizes, so that a few layers hold each kind that it has.
OPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"]},
    "dots1": {"n_routed_experts": 4},
    "xmod": {"default_language": "en_XX"},
}


def _names(sizes: Sizes) -> dict[str, Any]:
    """The value for each name under which configurations know a size."""
    s = sizes
    groups: list[tuple[str, Any]] = [
        ("num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers encoder_layers", s.layers),
        ("num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads encoder_attention_heads", s.heads),
        ("num_decoder_attention_heads num_encoder_attention_heads swa_num_attention_heads", s.heads),
        ("num_key_value_heads num_kv_heads n_head_kv swa_num_key_value_heads num_global_key_value_heads", s.kv_heads),
        ("head_dim global_head_dim swa_head_dim attention_head_dim v_head_dim qk_nope_head_dim kv_channels d_head", s.d_head),
        ("swa_v_head_dim", s.d_head),
        ("qk_rope_head_dim", s.d_head - s.d_head % 4 if s.d_head % 4 == 0 else s.d_head - 4),
        ("rotary_dim", s.d_head - s.d_head % 4 if s.d_head % 4 == 0 else s.d_head - 4),
        ("hidden_size n_embd d_model embedding_size dim word_embed_proj_dim emb_dim embedding_dim", s.d_model),
        ("attention_hidden_size num_attention_channels", s.d_model),
        ("q_lora_rank", s.d_model // 2 + 1),
        ("kv_lora_rank", s.d_model // 2 - 1),
        ("intermediate_size n_inner ffn_dim decoder_ffn_dim encoder_ffn_dim dff ffn_hidden_size dim_ff d_inner", s.d_mlp),
        ("ffn_dim decoder_ffn_dim ffn_hidden_size d_ff num_encoder_ffn_dim num_decoder_ffn_dim", s.d_mlp),
        ("moe_intermediate_size shared_expert_intermediate_size intermediate_size_mlp", s.d_mlp + 4 - s.d_mlp % 4),
        ("moe_shared_expert_intermediate_size dense_intermediate_size shared_intermediate_size expert_ffn_hidden_size", s.d_mlp),
        ("block_ff_dim block_multiple_of", s.d_mlp),
        ("vocab_size vocab_size_per_layer_input n_words vocab_size_or_config_json_file", s.vocab),
        ("max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_length_positions", s.positions),
        ("sliding_window window_size local_attention sliding_window_size attention_window", s.window),
        ("num_experts num_local_experts n_routed_experts moe_num_experts", s.experts),
        ("num_experts_per_tok num_experts_per_token moe_k moe_topk top_k_experts moe_top_k", 2),
        ("n_shared_experts num_shared_experts moe_num_shared_experts n_group topk_group zero_expert_num", 1),
        ("hidden_size_per_layer_input", 13),
        ("num_kv_shared_layers first_k_dense_replace num_dense_layers", 0),
        ("pad_token_id bos_token_id eos_token_id decoder_start_token_id", 1),
        ("is_decoder", True),
        ("is_causal causal use_cache", True),
        ("num_mem_blocks num_nextn_predict_layers", 1),
        ("expert_capacity", 16),
        ("mamba_n_heads mamba_num_heads linear_num_key_heads linear_num_value_heads lightning_nope_heads", 4),
        ("mamba_d_head mamba_head_dim mamba_headdim linear_key_head_dim linear_value_head_dim", s.d_model // 2),
        ("mamba_n_groups mamba_ngroups n_groups n_mamba_heads", 2),
        ("mamba_d_state state_size ssm_state_size mamba_dt_rank", 8),
        ("mamba_chunk_size chunk_size", 8),
        ("index_topk", s.positions),
        ("index_n_heads", 2),
        ("index_head_dim", 16),
        ("router_hidden_size lru_width", s.d_model),
    ]
    return {name: value for names, value in groups for name in names.split()}


def configuration(model_type: str, sizes: Sizes, **options: Any) -> Any:
    """The type's configuration with every size that it has shrunk; `options` win. Nested text configurations are shrunk as well."""
    from transformers import CONFIG_MAPPING

    return _shrunk(CONFIG_MAPPING[model_type], sizes, options)


def _shrunk(kind: Any, sizes: Sizes, options: dict[str, Any]) -> Any:
    plain = kind()
    aliases = dict(getattr(kind, "attribute_map", {}))
    stated = {name: value for name, value in vars(plain).items() if not isinstance(value, (list, tuple, dict))}
    chosen: dict[str, Any] = {}
    for name, value in _names(sizes).items():
        real = aliases.get(name, name)
        if real in stated and (stated[real] is not None or real in ("num_key_value_heads", "head_dim")):
            chosen.setdefault(real, value)
    if "kv_lora_rank" in chosen:  # latent attention: every head has keys of its own, and head_dim is what rotary turns
        chosen.update({name: sizes.heads for name in ("num_key_value_heads",) if name in chosen})
        chosen.update({name: chosen["qk_rope_head_dim"] for name in ("head_dim",) if name in chosen})
    for name in getattr(kind, "sub_configs", {}):
        if (sub := stated.get(name)) is not None:
            chosen[name] = _shrunk(type(sub), sizes, {})
    for name, have in vars(plain).items():
        if isinstance(have, (list, tuple)) and len(have) == stated.get("num_hidden_layers", stated.get("n_layer", -1)):
            chosen[name] = _cut(list(have), sizes.layers)
    return kind(**{**chosen, **OPTIONS.get(kind.model_type, {}), **options})


def _cut(values: list[Any], layers: int) -> list[Any]:
    """`layers` entries in which the kinds that occur in the whole all occur, in their order, as far as there is room."""
    kinds: list[Any] = []
    for value in values:
        if value not in kinds:
            kinds.append(value)
    first = values[:layers]
    return first if all(kind in first for kind in kinds) or len(kinds) > layers else (kinds + first)[:layers]


def randomised(module: Any, seed: int) -> None:
    """Weights drawn anew: matrices with unit gain, vectors moved off their start, so nothing is accidentally 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter.dtype)
            if parameter.ndim >= 2:
                parameter.copy_(noise * 1.3 / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(noise * 0.2)


def tiny(model_type: str, sizes: Sizes | None = None, seed: int = 0, *, random: bool = True, **options: Any) -> Model:
    """A tiny model of a type, seeded, in evaluation mode. It has no tokenizer: give ids. Raises what the family raises."""
    from transformers import AutoModelForCausalLM

    with quiet():
        torch.manual_seed(seed)
        config = configuration(model_type, sizes or Sizes(), **options)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        if random:
            randomised(module, seed)
    return Model.of_transformers(f"tiny-{model_type}", module, None, f"seed-{seed}", "random weights")


def attempts(model_type: str) -> Iterator[tuple[Model | None, Sizes, str]]:
    """(model or None, its sizes, the error) for each recipe in turn; a model has run once with finite logits."""
    for sizes in RECIPES:
        for random in (True, False):
            try:
                model = tiny(model_type, sizes, random=random)
                logits = model.logits(torch.tensor(IDS))
            except Exception as error:  # families raise everything there is
                yield None, sizes, f"{type(error).__name__}: {first_line(error)}"
                break
            if bool(torch.isfinite(logits).all()) and logits.shape[0] == TOKENS:
                yield model, sizes, ""
                break
            if not random:
                yield None, sizes, "logits are not finite numbers for each token"
