"""Model: one loaded network with its sizes, its tokens and two faces that share parameters.

`module` is the network as transformers runs it (or the toy); `bridge` is the TransformerLens object with hook points, built
when first asked for from a second tree of modules over the same parameters, so neither face disturbs the other.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from interp.errors import InterpError
from interp.models.pretrained import first_line, quiet
from interp.models.tokens import Tokens, tokenise


@dataclass(eq=False)
class Model:
    """A causal language model. Sizes are read from its configuration; `n_positions` is None where nothing bounds the length."""

    name: str
    module: Any
    tokenizer: Any
    revision: str
    source: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    d_vocab: int
    n_positions: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_transformers(cls, name: str, module: Any, tokenizer: Any, revision: str, source: str) -> Model:
        """Around a transformers causal LM already in memory."""
        config = module.config.get_text_config(decoder=True)
        heads = _size(config, "num_attention_heads") or 0
        width = _size(config, "hidden_size") or 0
        positions = _size(config, "max_position_embeddings")
        return cls(
            name=name,
            module=module,
            tokenizer=tokenizer,
            revision=revision,
            source=source,
            n_layers=config.num_hidden_layers,
            n_heads=heads,
            n_kv_heads=_size(config, "num_key_value_heads") or heads,
            d_head=_size(config, "head_dim") or (width // heads if heads else 0),
            d_model=width,
            d_vocab=config.vocab_size,
            n_positions=positions if positions and positions > 0 else None,
        )

    @property
    def is_transformers(self) -> bool:
        return hasattr(self.module, "config") and hasattr(self.module.config, "model_type")

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def bos_id(self) -> int | None:
        return None if self.tokenizer is None else self.tokenizer.bos_token_id

    @cached_property
    def bridge(self) -> Any:
        """The TransformerLens object: hook points by their own names, parameters shared with `module`, weights unprocessed."""
        return _bridge(self.module) if self.is_transformers else self.module

    def tokens(self, text: str | Sequence[int] | Tensor | Tokens, bos: str = "keep") -> Tokens:
        """The exact ids of one text; see `interp.models.tokens.tokenise`. Refuses ids outside the vocabulary."""
        tokens = tokenise(self.tokenizer, text, bos, self.name)
        low, high = int(tokens.ids.min()), int(tokens.ids.max())
        if low < 0 or high >= self.d_vocab:
            raise InterpError(
                f"id {low if low < 0 else high} is not in the vocabulary of {self.name}: ids run from 0 to {self.d_vocab - 1}"
            )
        return tokens

    def fits(self, tokens: Tokens, max_tokens: int | None = None) -> Tokens:
        """`tokens` cut to the first `max_tokens` where asked; refused where they are still more than the model's positions."""
        tokens = tokens.cut(max_tokens)
        if self.n_positions is not None and len(tokens) > self.n_positions:
            raise InterpError(
                f"{len(tokens)} tokens, but {self.name} has {self.n_positions} positions; "
                f"pass --max-tokens {self.n_positions} to keep the first {self.n_positions}"
            )
        return tokens

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Float[Tensor, "pos vocab"]:
        """Logits of a plain forward on ids [pos], in evaluation mode (the mode is put back); in the model's dtype and device."""
        with evaluating(self.module):
            out = self.module(ids[None].to(self.device), **({"use_cache": False} if self.is_transformers else {}))
        return (out if isinstance(out, Tensor) else out.logits)[0]

    def provenance(self) -> dict[str, Any]:
        """What a report must say of the model: name, revision, where from, dtype, device, library versions."""
        import transformers

        return {
            "model": self.name,
            "revision": self.revision,
            "source": self.source,
            "model_type": self.module.config.model_type if self.is_transformers else type(self.module).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        heads = f"{self.n_layers} layers × {self.n_heads} heads" + (
            f" ({self.n_kv_heads} kv)" if self.n_kv_heads != self.n_heads else ""
        )
        return f"Model({self.name}: {heads}, d_head {self.d_head}, {dtype} on {self.device})"


def _size(config: Any, name: str) -> int | None:
    """A size that the configuration states; the largest of its layers' where they differ; None where it states none."""
    try:
        return getattr(config, name, None)
    except Exception:  # transformers refuses to give one size where layers differ
        return max((getattr(layer, name, None) or 0 for layer in config.per_layer_config), default=0) or None


class evaluating:
    """A block in which `module` and all its parts are in evaluation mode; every part's own mode is put back."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __enter__(self) -> None:
        self._training = [part for part in self._module.modules() if part.training]
        self._module.eval()

    def __exit__(self, *exc: object) -> None:
        for part in self._training:
            part.training = True


def twin(module: nn.Module) -> Any:
    """A second tree of modules over the same parameters and buffers: nothing is copied but the tree, and the configuration."""
    kept = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, kept)


def _bridge(module: Any) -> Any:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    architecture = type(module).__name__
    with quiet():
        try:
            second = twin(module)
            second.set_attn_implementation("eager")
            return build_bridge_from_module(second, architecture, hf_config=second.config, tokenizer=None)
        except Exception as error:  # the bridge raises many kinds for architectures it does not know
            raise InterpError(f"TransformerLens cannot bridge {architecture}: {first_line(error)}") from error
