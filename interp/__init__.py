"""Capture, measure and report what attention does inside a language model.

    model   = interp.load("smollm2")                     a toy, a hub id, a folder
    capture = interp.capture(model, "The cat sat down")  q, k, v, scores, weights, z: proved against the model
    with interp.trace(model, "blocks.*.attn.hook_z") as seen: ...
    with interp.edit(model, {"9.9": silence}): ...
    total   = interp.rows.measure(model, batches)        exact row statistics of a corpus, no square matrix kept

Everything is imported when first used: `import interp` costs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp import attention, corpus, measures, rows
    from interp.capturing import Capture, capture, captures, read
    from interp.errors import InterpError
    from interp.hooks import edit, trace
    from interp.models import Model, load
    from interp.report import Report, view
    from interp.results import Claim, Curve, Grid, Table
    from interp.rows import RowStatistics

_HOME = {
    "load": "interp.models",
    "Model": "interp.models",
    "capture": "interp.capturing",
    "captures": "interp.capturing",
    "Capture": "interp.capturing",
    "read": "interp.capturing",
    "trace": "interp.hooks",
    "edit": "interp.hooks",
    "RowStatistics": "interp.rows",
    "Table": "interp.results",
    "Grid": "interp.results",
    "Curve": "interp.results",
    "Claim": "interp.results",
    "Report": "interp.report",
    "view": "interp.report",
    "InterpError": "interp.errors",
    "attention": "",
    "corpus": "",
    "measures": "",
    "rows": "",
}
__all__ = [
    "Capture",
    "Claim",
    "Curve",
    "Grid",
    "InterpError",
    "Model",
    "Report",
    "RowStatistics",
    "Table",
    "attention",
    "capture",
    "captures",
    "corpus",
    "edit",
    "load",
    "measures",
    "read",
    "rows",
    "trace",
    "view",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'interp' has no attribute {name!r}")
    home = _HOME[name]
    value = getattr(importlib.import_module(home), name) if home else importlib.import_module(f"interp.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
