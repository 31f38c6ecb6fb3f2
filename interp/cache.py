"""Where `interp` keeps what it made or fetched once: the user's cache, or the folder that INTERP_CACHE names."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """The cache folder; created when something is first put there."""
    if place := os.environ.get("INTERP_CACHE"):
        return Path(place)
    import platformdirs

    return Path(platformdirs.user_cache_dir("interp"))


@contextmanager
def built_whole(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that becomes `target` when the block ends well, and vanishes when it does not.

    Where another process was quicker, its result stays and ours is dropped: both were made from the same input.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield work
        try:
            work.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
