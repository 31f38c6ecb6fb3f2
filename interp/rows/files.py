"""RowStatistics on disk: one safetensors file with JSON metadata, format `interp-rows/2`, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from torch import Tensor

from interp.errors import InterpError
from interp.rows.statistics import RowStatistics, check
from interp.tensorfile import opened

FORMAT = "interp-rows/2"


def save(statistics: RowStatistics, path: str | Path) -> Path:
    """Write to a temporary name in the same folder, flush to the disk, then rename: a kill or a full disk leaves the file that was there."""
    from safetensors.torch import save_file

    path = Path(path)
    if not path.parent.is_dir():
        raise InterpError(f"no folder {path.parent} to write {path.name} into; make it, or give another path")
    tensors: dict[str, Tensor] = {f"sum.{name}": values.contiguous() for name, values in statistics.sums.items()}
    tensors |= {f"text.{name}": values.contiguous() for name, values in statistics.per_text.items()}
    names = json.dumps(statistics.names, ensure_ascii=False).encode("utf-8", "surrogatepass")
    tensors["names"] = torch.frombuffer(bytearray(names), dtype=torch.uint8)  # metadata has a limit of size, tensors none
    keep = {name: getattr(statistics, name) for name in ("model", "detail", "layers", "n_heads", "broken", "notes")}
    keep |= {"options": dict(statistics.options), "provenance": dict(statistics.provenance)}
    work = path.with_name(f".{path.name}.part")  # always the same name: what a kill left behind is written over
    try:
        save_file(tensors, work, {"format": FORMAT, "about": json.dumps(keep, sort_keys=True)})
        with open(work, "rb") as written:
            os.fsync(written.fileno())
        os.replace(work, path)
    except Exception as error:  # safetensors reports a full disk as an error of its own
        work.unlink(missing_ok=True)
        raise InterpError(
            f"{path} could not be written ({str(error).splitlines()[0][:120]}); what was there is as it was"
        ) from error
    return path


def read(path: str | Path) -> RowStatistics:
    """The statistics in a file; refused, with the reason, where it is none or damaged."""
    path = Path(path)
    metadata, tensors = opened(path, FORMAT, "one written by RowStatistics.save or measure(…, save=…)")
    try:
        about = json.loads(metadata["about"])
        statistics = RowStatistics(
            model=about["model"],
            detail=about["detail"],
            layers=tuple(about["layers"]),
            n_heads=about["n_heads"],
            options=about["options"],
            provenance=about["provenance"],
            sums={name.removeprefix("sum."): values for name, values in tensors.items() if name.startswith("sum.")},
            per_text={name.removeprefix("text."): values for name, values in tensors.items() if name.startswith("text.")},
            names=tuple(json.loads(bytes(tensors["names"].tolist()).decode("utf-8", "surrogatepass"))),
            broken=tuple((row[0], row[1], row[2], row[3]) for row in about["broken"]),
            notes=tuple(about["notes"]),
        )
        check(statistics)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InterpError(f"{path} is damaged: {error}") from None
    return statistics
