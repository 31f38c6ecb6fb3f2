"""Captures on disk: safetensors with JSON metadata, format `interp-capture/1`, never pickle.

A file may hold weights alone, scores + weights, or q + k + weights: what follows from what is there is computed and checked,
what does not stays absent. A foreign, truncated or tampered file is refused with the reason.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interp import attention
from interp.capturing.captured import TENSORS, Capture
from interp.capturing.checks import prove
from interp.errors import InterpError, NotFaithful

FORMAT = "interp-capture/1"
_RANK = {"q": 4, "k": 4, "v": 4, "scores": 4, "visible": 3, "weights": 4, "z": 4, "ids": 1, "sinks": 2, "bias": 4}


def save(capture: Capture, path: str | Path) -> Path:
    """Write the capture, bit for bit, to a temporary name and then to `path`. Missing tensors stay missing."""
    from safetensors.torch import save_file

    path = Path(path)
    names = (*TENSORS, "ids", "sinks", "bias")
    tensors = {name: kept.contiguous() for name in names if (kept := getattr(capture, name)) is not None}
    metadata = {
        "format": FORMAT,
        "tokens": json.dumps(capture.tokens, ensure_ascii=False),
        "layers": json.dumps(capture.layers),
        "text": capture.text,
        "model": capture.model,
        "bos": str(capture.provenance.get("bos", "keep")),
        "source": str(capture.provenance.get("source", "")),
        "scale": json.dumps(capture.scale),
        "softcap": json.dumps(capture.softcap),
        "provenance": json.dumps(dict(capture.provenance), sort_keys=True),
    }
    if not path.parent.is_dir():
        raise InterpError(f"no folder {path.parent} to write {path.name} into")
    handle, work = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        save_file(tensors, work, metadata)
        os.chmod(work, 0o644)
        os.replace(work, path)
    finally:
        Path(work).unlink(missing_ok=True)
    return path


def read(path: str | Path) -> Capture:
    """The capture in a file, completed where that is arithmetic (scores from q and k, weights from scores) and checked like any other."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise InterpError(f"no file {path}; give a capture written by `interp capture` or Capture.save")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys() if name in _RANK}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InterpError(f"{path} cannot be read as safetensors: {str(error).splitlines()[0][:120]}") from None
    found = metadata.get("format")
    if found != FORMAT:
        raise InterpError(f"{path} has format {found or 'none'!r}; this version reads {FORMAT}")
    try:
        capture = _assemble(tensors, metadata, path)
        prove(capture)
    except NotFaithful as error:
        raise InterpError(f"{path} contradicts itself: {str(error).partition(': ')[2]}") from None
    except (KeyError, ValueError, TypeError) as error:
        raise error if isinstance(error, InterpError) else InterpError(f"{path} is damaged: {error}") from None
    return capture


def _assemble(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> Capture:
    if not {"weights", "scores", "q"} & set(tensors):
        raise InterpError(f"{path} holds none of weights, scores, q; a capture needs one")
    for name, tensor in tensors.items():
        if tensor.ndim != _RANK[name]:
            raise InterpError(f"{path}: {name} has {tensor.ndim} axes, expected {_RANK[name]}")
    tokens = tuple(json.loads(metadata["tokens"]))
    n_layers = next(iter(tensors[name] for name in ("weights", "scores", "q") if name in tensors)).shape[0]
    layers = tuple(json.loads(metadata.get("layers", "null")) or range(n_layers))
    _agree(tensors, len(layers), len(tokens), path)
    provenance: dict[str, Any] = {
        "model": metadata.get("model", ""),
        "bos": metadata.get("bos", "keep"),
        "source": metadata.get("source", ""),
    }
    provenance |= json.loads(metadata.get("provenance", "{}"))
    scale = json.loads(metadata.get("scale", "null"))
    softcap = json.loads(metadata.get("softcap", "null"))
    if "visible" not in tensors:
        tensors["visible"] = attention.visible(len(tokens)).expand(len(layers), -1, -1).clone()
    if "scores" not in tensors and "q" in tensors and "k" in tensors:
        q, k = tensors["q"], tensors["k"]
        scale = scale or [q.shape[-1] ** -0.5] * len(layers)
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        tensors["scores"] = torch.stack([attention.scores(q[row], keys[row], scale[row]) for row in range(len(layers))])
    if "weights" not in tensors and "scores" in tensors:
        tensors["weights"] = attention.weights(tensors["scores"], tensors["visible"][:, None], empty="zero")
    return Capture(
        tokens=tokens,
        layers=layers,
        text=metadata.get("text", ""),
        scale=None if scale is None else tuple(scale),
        softcap=None if softcap is None else tuple(softcap),
        provenance=provenance,
        **tensors,
    )


def _agree(tensors: dict[str, Tensor], layers: int, tokens: int, path: Path) -> None:
    """Every tensor's axes fit the tokens, the layers and one another."""
    for name, tensor in tensors.items():
        expected = {"ids": (tokens,), "visible": (layers, tokens, tokens), "sinks": tuple(tensor.shape)}.get(name)
        if expected is None:
            tail = (tokens, tokens) if name in ("scores", "weights") else (tokens, tensor.shape[-1])
            expected = (layers, tensor.shape[1], *tail)
        if tuple(tensor.shape) != expected:
            raise InterpError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, but {layers} layers and {tokens} tokens need {expected}"
            )
    heads = {name: tensors[name].shape[1] for name in ("q", "scores", "weights", "z") if name in tensors}
    if len(set(heads.values())) > 1:
        raise InterpError(f"{path}: its tensors disagree about the number of heads: {heads}")
    shared = {name: tensors[name].shape[1] for name in ("k", "v") if name in tensors}
    if heads and any(next(iter(heads.values())) % count for count in shared.values()):
        raise InterpError(f"{path}: {next(iter(heads.values()))} heads cannot share {shared} key-value heads")
