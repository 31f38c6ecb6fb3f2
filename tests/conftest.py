"""What the tests share: the folder of recordings and small models, the toy, and one real model, each loaded once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings by others and small real models beside the checkout; INTERP_SHARED overrides the place."""
    place = Path(os.environ.get("INTERP_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (place / "data").is_dir() or not (place / "models").is_dir():
        pytest.skip(f"no recordings at {place}; set INTERP_SHARED to the folder that holds data/ and models/")
    return place


@pytest.fixture(scope="session")
def toy():
    import interp

    return interp.load("toy")


@pytest.fixture(scope="session")
def smollm2():
    import interp

    try:
        return interp.load("smollm2")
    except interp.InterpError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def gpt2():
    import interp

    try:
        return interp.load("gpt2", local_only=True)
    except interp.InterpError as missing:
        pytest.skip(f"GPT-2's weights are not in the hub's cache: {missing}")
