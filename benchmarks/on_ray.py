"""The same texts by the local engine, by one worker of Ray and by two: `python -m benchmarks.on_ray MODEL [--texts 16000] [--words 10]`.

Prints texts a second, start-up apart, and simulates 1 to 1,000 workers from what a part, its reading and its folding took here.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import interp
from benchmarks.__main__ import _print
from benchmarks.scaling import Costs, lines, reach
from interp.corpus import Text, passages, texts
from interp.distributed import measuring
from interp.distributed.parts import cut, dumps
from interp.models import Model
from interp.rows import measure
from interp.rows.measuring import Run


def made(count: int, words: int) -> Iterator[Text]:
    """Words of the built-in passages in random order, the same in every call."""
    known = " ".join(text.text for text in passages()).split()
    draw = random.Random(0)
    for number in range(count):
        yield Text(" ".join(draw.choices(known, k=draw.randint(words // 2, words + words // 2))), f"text {number}", "")


def speeds(model: Model, corpus: list[Text], workers: list[int], detail: str) -> Iterator[dict[str, Any]]:
    """Local on one thread, as a worker has; then Ray. Seconds of Ray run from the first part's beginning to the last part's arrival."""
    measure(model, corpus[:64], detail)
    start = time.perf_counter()
    local = measure(model, corpus, detail)
    yield (first := _speed("local", 1, local.texts, local.tokens, time.perf_counter() - start, None)) | {"of_local": 1.0}
    for count in workers:
        start = time.perf_counter()
        one = measuring("ray", workers=count)(model, corpus, detail)
        whole = time.perf_counter() - start
        seconds = one.provenance["engine"]["seconds"]
        line = _speed("ray", count, one.texts, one.tokens, seconds, whole - seconds)
        yield line | {"of_local": line["texts_a_second"] / first["texts_a_second"]}


def _speed(engine: str, workers: int, texts: int, tokens: int, seconds: float, start_up: float | None) -> dict[str, Any]:
    rates = {"texts_a_second": texts / seconds, "tokens_a_second": tokens / seconds}
    return {"engine": engine, "workers": workers, "texts": texts, "seconds": seconds, "start_up": start_up, **rates}


def costs(model: Model, corpus: list[Text], detail: str, parts: int, groups: int = 1) -> tuple[Costs, int]:
    """Seconds of `parts` parts on one thread, of reading one from a .jsonl file, and of folding one; bytes of one part's sums."""
    from interp.distributed.tally import Tally
    from interp.distributed.worker import Result

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.jsonl"
        file.write_text("\n".join(json.dumps({"text": text.text}) for text in corpus), encoding="utf-8")
        start = time.perf_counter()
        read = [dumps(part) for part in cut(model, texts(str(file)), {}, groups=groups)]
        reading = (time.perf_counter() - start) / len(read)
    took, results = [], []
    for row in read[:parts]:
        part = pickle.loads(row)
        run = Run(model, detail == "full", tuple(range(model.n_layers)), {}, None)
        start = time.perf_counter()
        for batch in part.batches(model, "keep", None):
            run.forward(batch)
        seconds = time.perf_counter() - start
        took.append(seconds)
        met = tuple(range(part.start, part.start + len(part.texts)))
        results.append(dumps(Result(part.number, met, run.statistics(), None, "w", "n", "cpu", seconds, 1)))
    tally = Tally(Run(model, detail == "full", tuple(range(model.n_layers)), {}, None))
    folding = []
    for row in results:
        start = time.perf_counter()
        tally.add(pickle.loads(row))
        folding.append(time.perf_counter() - start)
    return Costs(took, reading, statistics.mean(folding)), len(results[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_ray", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=16000)
    parser.add_argument("--words", type=int, default=10)
    parser.add_argument("--workers", type=lambda given: [int(part) for part in given.split(",") if part], default=[1, 2])
    parser.add_argument("--detail", default="full", choices=("first", "full"))
    parser.add_argument("--parts", type=int, default=8, help="parts that are timed for the simulation; 0 = none")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = interp.load(asked.model)
    corpus = list(made(asked.texts, asked.words))
    if asked.workers:
        for line in speeds(model, corpus, asked.workers, asked.detail):
            print(json.dumps(line), flush=True)
    if asked.parts:
        found, size = costs(model, corpus, asked.detail, asked.parts)
        tokens = sum(len(model.tokens(text.text)) for text in corpus[:512])
        print(
            f"a part of 512 texts, {tokens} tokens: {found.mean:.3f} s on a worker ({min(found.parts):.3f} to {max(found.parts):.3f}), "
            f"{found.read:.4f} s to read, {found.fold:.4f} s to fold, {size / 1e6:.2f} MB"
        )
        print(
            "the driver is busy all the time at "
            + ", ".join(f"{count:.0f} workers ({name})" for name, count in reach(found).items())
        )
        _print(lines(found))


if __name__ == "__main__":
    main()
