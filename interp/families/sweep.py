"""All types examined, each in a process of its own with a time limit; rows are kept as they come, so a stopped sweep goes on."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from interp.families.examine import COLUMNS, examine
from interp.families.tiny import IDS, tiny


def types() -> list[str]:
    """Every model type for which the installed transformers lists a causal LM."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def sweep(names: Iterable[str], kept: Path | None = None, *, processes: int = 2, seconds: float = 60) -> Iterator[dict[str, Any]]:
    """Rows as they are done, first those that `kept` (one JSON a line) holds already; each new one is added to it at once."""
    names = list(names)
    done = {row["model_type"]: row for row in _read(kept) if row["model_type"] in names}
    yield from done.values()
    for row in _run([name for name in names if name not in done], processes, seconds):
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with kept.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
        yield row


def _read(kept: Path | None) -> list[dict[str, Any]]:
    if kept is None or not kept.is_file():
        return []
    return [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _run(names: list[str], processes: int, seconds: float) -> Iterator[dict[str, Any]]:
    forking = "fork" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("fork" if forking else "spawn")
    if forking and names:  # the libraries are imported once, for all
        torch.set_num_threads(1)
        model = tiny("llama")
        model.logits(torch.tensor(IDS))
        _ = model.bridge
    waiting = list(names)
    running: dict[Any, tuple[str, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            name = waiting.pop(0)
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(name, there))
            process.start()
            there.close()
            running[here] = (name, process, time.monotonic())
        ready: list[Any] = wait(list(running), timeout=0.5)
        late = [pipe for pipe, (_, _, start) in running.items() if time.monotonic() - start > seconds and pipe not in ready]
        for pipe in [*ready, *late]:
            name, process, _ = running.pop(pipe)
            yield _received(name, pipe, seconds, pipe in late)
            process.kill()
            process.join()


def _received(name: str, pipe: Connection, seconds: float, late: bool) -> dict[str, Any]:
    failed = {**dict.fromkeys(COLUMNS), "model_type": name, "status": "not buildable"}
    if late:
        return {**failed, "reason": f"not done in {seconds:g} s"}
    try:
        return pipe.recv()
    except EOFError:
        return {**failed, "reason": "the process ended without an answer"}


def _child(name: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    pipe.send(examine(name))
