"""Causal LMs from a local folder, the hub's cache or the hub, as transformers loads them. Never runs remote code, never unpickles.

Limits: encoder-decoder models and folders that hold only pickled weights are refused by name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from interp.errors import InterpError, NotHere

_WAYS = "needs a network, a copy in the hub's cache, or a local folder: interp.load('/path/to/folder')"


def load_folder(folder: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """(model, tokenizer or None) from a transformers folder; no network call is made."""
    if not (folder / "config.json").is_file():
        raise NotHere(f"{folder} holds no config.json; give a folder written by save_pretrained")
    if not any(folder.glob("*.safetensors")):
        pickled = ", pickled ones are not read" if any(folder.glob("*.bin")) else ""
        raise NotHere(f"{folder} holds no weights (*.safetensors{pickled}); write them with save_pretrained")
    return _from_pretrained(str(folder), None, dtype, local=True)


def load_hub(name: str, revision: str | None, dtype: torch.dtype, local_only: bool = False) -> tuple[Any, Any, str]:
    """(model, tokenizer, resolved commit) of a hub id: the hub's local cache first, then one short question to the hub."""
    cached = cached_commit(name, revision)
    commit = cached if cached or local_only or _offline() else _ask_hub(name, revision)
    if commit is None:
        raise NotHere(f"no copy of {name!r} in the hub's cache, and the network is not to be used; {_WAYS}")
    model, tokenizer = _from_pretrained(name, commit, dtype, local=cached is not None)
    return model, tokenizer, commit


def cached_commit(name: str, revision: str | None = None) -> str | None:
    """The commit of a hub id whose config and safetensors weights lie in the hub's local cache; None where they do not."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder.name if any(folder.glob("*.safetensors")) else None


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _ask_hub(name: str, revision: str | None) -> str:
    """The resolved commit, asked once with a short wait: no retry storm where there is no network."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return HfApi().model_info(name, revision=revision, timeout=4).sha or "main"
    except GatedRepoError:
        raise NotHere(f"{name!r} is gated: accept its terms on the hub and log in, or give a local folder") from None
    except RevisionNotFoundError:
        raise NotHere(f"{name!r} has no revision {revision!r} on the hub") from None
    except RepositoryNotFoundError:
        raise NotHere(f"no model {name!r} here or on the hub; `interp list` shows what can be loaded") from None
    except Exception as error:
        raise NotHere(
            f"{name!r} is not in the hub's cache and the hub did not answer ({type(error).__name__}); {_WAYS}"
        ) from None


def _from_pretrained(place: str, commit: str | None, dtype: torch.dtype, local: bool) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {"revision": commit or "main", "local_files_only": local, "trust_remote_code": False}
    with quiet():
        try:
            config = AutoConfig.from_pretrained(place, **options)
        except (OSError, ValueError) as error:
            raise InterpError(f"{place}: its config cannot be used: {first_line(error)}") from None
        if getattr(config, "is_encoder_decoder", False):
            raise InterpError(f"{place} is an encoder-decoder ({config.model_type}); interp captures causal language models")
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise InterpError(f"{place}: its weights cannot be loaded: {first_line(error)}") from None
        model, report = loaded
        if missing := sorted(report["missing_keys"]):
            raise InterpError(f"{place}: {len(missing)} tensors are not in its files, first {missing[0]!r}; they would be random")
        return model.eval(), _tokenizer(place, options)


def _tokenizer(place: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    if Path(place).is_dir() and not any(Path(place).glob("*token*")) and not any(Path(place).glob("vocab*")):
        return None
    try:
        return AutoTokenizer.from_pretrained(place, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InterpError(f"{place}: its tokenizer cannot be loaded: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 160 characters: what fits into one line of ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Loading without the library's progress bars, log lines and warnings, whose settings are put back."""
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.CRITICAL)
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
