"""Models by name: the toy, SmolLM2, any hub id, any folder. `load(name)` returns a Model that knows its sizes and its tokens."""

from __future__ import annotations

from interp.models.model import Model
from interp.models.names import available, load
from interp.models.tokens import Tokens

__all__ = ["Model", "Tokens", "available", "load"]
