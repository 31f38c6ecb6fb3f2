"""Reading a safetensors file of a stated format: the refusals that captures and row statistics share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from interp.errors import InterpError


def opened(path: Path, form: str, what: str, wanted: Callable[[str], bool] = bool) -> tuple[dict[str, str], dict[str, Tensor]]:
    """(metadata, tensors whose name is wanted) of the file at `path`.

    Raises InterpError, one line, where there is no file, where it is no safetensors file or was cut, or where its format is not `form`;
    `what` says what would do.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InterpError(f"no file {path}; give {what}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys() if wanted(name)}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InterpError(f"{path} cannot be read as safetensors: {str(error).splitlines()[0][:120]}") from None
    if (found := metadata.get("format")) != form:
        raise InterpError(f"{path} has format {found or 'none'!r}; this version reads {form}")
    return metadata, tensors
