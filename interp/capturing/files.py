"""Captures on disk: safetensors with JSON metadata, format `interp-capture/1`, never pickle.

A file may hold weights alone, scores + weights, or q + k + weights: what follows from what is there is computed and checked,
what does not stays absent. A foreign, truncated or tampered file is refused with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interp import attention
from interp.capturing.captured import TENSORS, Capture
from interp.capturing.checks import prove
from interp.errors import InterpError, NotFaithful
from interp.tensorfile import opened

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
    metadata["sha256"] = _digest(tensors, metadata)
    if not path.parent.is_dir():
        raise InterpError(f"no folder {path.parent} to write {path.name} into")
    handle, work = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(handle)
    try:
        save_file(tensors, work, metadata)
        _order(work)
        os.chmod(work, 0o644)
        os.replace(work, path)
    finally:
        Path(work).unlink(missing_ok=True)
    return path


def _order(path: str) -> None:
    """The header's words in the order of their names, where the library writes them in any: the same capture gives the same bytes."""
    with open(path, "r+b") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(ordered) <= size:
            stream.seek(8)
            stream.write(ordered.ljust(size))


def read(path: str | Path) -> Capture:
    """The capture in a file, completed where that is arithmetic (scores from q and k, weights from scores) and checked like any other."""
    path = Path(path)
    metadata, tensors = opened(path, FORMAT, "a capture written by `interp capture` or Capture.save", _RANK.__contains__)
    if (said := metadata.get("sha256")) is not None and said != _digest(tensors, metadata):
        raise InterpError(f"{path} was changed after it was written: its SHA-256 is not the one it holds")
    try:
        capture = _assemble(tensors, metadata, path)
        prove(capture)
    except NotFaithful as error:
        raise InterpError(f"{path} contradicts itself: {str(error).partition(': ')[2]}") from None
    except (KeyError, ValueError, TypeError, AttributeError) as error:
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
    more = json.loads(metadata.get("provenance", "{}"))
    if not isinstance(more, dict):
        raise InterpError(f"{path}: its provenance is no object")
    provenance |= more
    scale = json.loads(metadata.get("scale", "null"))
    softcap = json.loads(metadata.get("softcap", "null"))
    if "visible" not in tensors:
        tensors["visible"] = attention.visible(len(tokens)).expand(len(layers), -1, -1).clone()
    _sound(tokens, layers, scale, softcap, path)
    if "scores" not in tensors and "q" in tensors and "k" in tensors:
        q, k = tensors["q"], tensors["k"]
        scale = scale or [q.shape[-1] ** -0.5] * len(layers)
        keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        tensors["scores"] = torch.stack(
            [
                attention.scores(q[row], keys[row], scale[row], None if softcap is None else softcap[row])
                for row in range(len(layers))
            ]
        )
        if "bias" in tensors:
            tensors["scores"] = tensors["scores"] + tensors["bias"]
    if "weights" not in tensors and "scores" in tensors:
        sink = tensors["sinks"][:, :, None].expand(tensors["scores"].shape[:3]) if "sinks" in tensors else None
        seen = tensors["visible"][:, None].expand(tensors["scores"].shape)
        tensors["weights"] = attention.weights(tensors["scores"], seen, sink=sink, empty="zero")
    return Capture(
        tokens=tokens,
        layers=layers,
        text=metadata.get("text", ""),
        scale=None if scale is None else tuple(scale),
        softcap=None if softcap is None else tuple(softcap),
        provenance=provenance,
        **tensors,
    )


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over everything a file says, tensors and words, but for the digest itself."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    for name in sorted(metadata):
        if name != "sha256":
            digest.update(f"{name}={metadata[name]}\0".encode())
    return digest.hexdigest()


def _sound(tokens: Any, layers: Any, scale: Any, softcap: Any, path: Path) -> None:
    """The words beside the tensors are of the kinds they should be, and as many as there are layers."""
    if not all(isinstance(token, str) for token in tokens):
        raise InterpError(f"{path}: its tokens are not all text")
    if not all(isinstance(layer, int) and layer >= 0 for layer in layers) or len(set(layers)) < len(layers):
        raise InterpError(f"{path}: its layers {layers} are not distinct numbers from 0")
    for name, values in (("scale", scale), ("softcap", softcap)):
        if values is not None and len(values) != len(layers):
            raise InterpError(f"{path}: {len(values)} numbers of {name} for {len(layers)} layers")


def _agree(tensors: dict[str, Tensor], layers: int, tokens: int, path: Path) -> None:
    """Every tensor's axes fit the tokens, the layers and one another."""
    for name, tensor in tensors.items():
        wrong = {"ids": tensor.is_floating_point(), "visible": tensor.dtype != torch.bool}.get(
            name, not tensor.is_floating_point()
        )
        if wrong:
            raise InterpError(f"{path}: {name} holds {str(tensor.dtype).removeprefix('torch.')}")
        expected = {"ids": (tokens,), "visible": (layers, tokens, tokens), "sinks": (layers, tensor.shape[-1])}.get(name)
        if expected is None:
            tail = (tokens, tokens) if name in ("scores", "weights", "bias") else (tokens, tensor.shape[-1])
            expected = (layers, tensor.shape[1], *tail)
        if tuple(tensor.shape) != expected:
            raise InterpError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, but {layers} layers and {tokens} tokens need {expected}"
            )
    heads = {name: tensors[name].shape[1] for name in ("q", "scores", "weights", "z", "sinks", "bias") if name in tensors}
    if len(set(heads.values())) > 1:
        raise InterpError(f"{path}: its tensors disagree about the number of heads: {heads}")
    shared = {name: tensors[name].shape[1] for name in ("k", "v") if name in tensors}
    if heads and any(next(iter(heads.values())) % count for count in shared.values()):
        raise InterpError(f"{path}: {next(iter(heads.values()))} heads cannot share {shared} key-value heads")
