"""A model as one object of Ray's store: the weights once a node, shared by its workers as they lie there, in no task.

Pickle moves the rest within one run, as Ray itself does; no file of anybody's is unpickled.
"""

from __future__ import annotations

import io
import pickle
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from ray.cloudpickle import CloudPickler
from torch import Tensor, nn

from interp.models import Model


@dataclass(frozen=True)
class Packed:
    """`skeleton`: the pickled Model with a number where each tensor was; `arrays`: their bytes, which Ray's store hands out uncopied."""

    skeleton: bytes
    arrays: list[np.ndarray]
    kinds: list[tuple[torch.dtype, tuple[int, ...], bool]]


class _Pickler(CloudPickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.number: dict[int, int] = {}
        self.tensors: list[Tensor] = []

    def persistent_id(self, item: Any) -> int | None:
        if not isinstance(item, Tensor):
            return None
        if id(item) not in self.number:  # tied weights are one tensor and stay one
            self.number[id(item)] = len(self.tensors)
            self.tensors.append(item)
        return self.number[id(item)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: Any) -> Tensor:
        return self._tensors[number]


def pack(model: Model) -> Packed:
    """`model` in a form whose arrays `ray.put` stores once; its own TransformerLens object, where it has one, stays behind."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(replace(model))
    plain = [tensor.detach().cpu().contiguous() for tensor in pickler.tensors]
    return Packed(
        file.getvalue(),
        [tensor.reshape(-1).view(torch.uint8).numpy() for tensor in plain],
        [(tensor.dtype, tuple(tensor.shape), isinstance(tensor, nn.Parameter)) for tensor in pickler.tensors],
    )


def unpack(packed: Packed, device: str) -> Model:
    """The model on `device`. On the CPU its weights are the store's own memory, which is read-only: it can be run, not trained."""
    tensors = []
    for array, (dtype, shape, learned) in zip(packed.arrays, packed.kinds, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that the memory is read-only
            values = torch.from_numpy(array).view(dtype).reshape(shape).to(device)
        tensors.append(nn.Parameter(values, requires_grad=False) if learned else values)
    return _Unpickler(io.BytesIO(packed.skeleton), tensors).load()
