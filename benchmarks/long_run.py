"""A long corpus, killed and resumed: `python -m benchmarks.long_run MODEL [--texts 20000] [--kills 3]`.

Measures the corpus once without interruption, and once killed (SIGKILL) at random moments and resumed; asks whether the statistics are
the same and whether memory is flat. The texts are words of the built-in passages in random order, about 200 tokens each.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import interp
from interp.corpus import Text, passages
from interp.rows import RowStatistics, measure

WORDS = 70  # about 200 tokens of a vocabulary of 512 pieces
SETTLED = 60.0  # seconds after which memory must be flat


def texts(count: int) -> Iterator[Text]:
    """The same texts in every process, made one at a time."""
    words = " ".join(text.text for text in passages()).split()
    draw = random.Random(0)
    for number in range(count):
        yield Text(" ".join(draw.choices(words, k=draw.randint(WORDS - 20, WORDS + 20))), f"text {number}", f"made:{number}")


def child(model: str, detail: str, count: int, path: Path) -> None:
    """What is killed: one run that resumes where it can."""
    measure(interp.load(model), texts(count), detail, bos="keep", max_tokens=512, save=path, every=16, resume=True)


def watched(arguments: list[str], stop_after: float | None) -> tuple[bool, list[tuple[float, int]]]:
    """Run the child; (whether it ended by itself, [(seconds, resident bytes)])."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.long_run", *arguments])
    start, sizes = time.monotonic(), []
    while process.poll() is None:
        passed = time.monotonic() - start
        if stop_after is not None and passed > stop_after:
            process.kill()
            process.wait()
            return False, sizes
        if (size := resident(process.pid)) is not None:
            sizes.append((passed, size))
        time.sleep(1)
    if process.returncode:
        raise SystemExit(f"the run failed with {process.returncode}")
    return True, sizes


def resident(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
    except (OSError, StopIteration):
        return None


def same(one: RowStatistics, other: RowStatistics) -> bool:
    """Every sum and every line of a text, bit for bit."""
    pairs = [(one.sums[name], other.sums[name]) for name in other.sums]
    pairs += [(one.per_text[name], other.per_text[name]) for name in other.per_text]
    return one.about() == other.about() and one.names == other.names and all(torch.equal(x, y) for x, y in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--detail", default="first", choices=("first", "full"))
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=Path)
    asked = parser.parse_args()
    if asked.child:
        return child(asked.model, asked.detail, asked.texts, asked.child)
    draw = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder) / "whole", Path(folder) / "killed"
        call = [asked.model, "--detail", asked.detail, "--texts", str(asked.texts), "--child"]
        start = time.monotonic()
        _, sizes = watched([*call, str(paths[0])], None)
        took = time.monotonic() - start
        settled = [size for passed, size in sizes if passed > min(SETTLED, took / 4)]
        for number in range(asked.kills):
            done, _ = watched([*call, str(paths[1])], draw.uniform(0.08, 0.2) * took)
            kept = RowStatistics.read(paths[1]).texts if paths[1].exists() else 0
            print(f"kill {number + 1}: {'too late' if done else 'done'}; {kept} texts kept", flush=True)
        watched([*call, str(paths[1])], None)
        whole, resumed = (RowStatistics.read(path) for path in paths)
    print(
        f"{whole.texts} texts, {whole.tokens} tokens, {took:.0f} s; {whole.tokens / took:.0f} tokens a second with loading and saving"
    )
    print(f"resident after it settled: {min(settled) / 1e6:.0f} to {max(settled) / 1e6:.0f} MB")
    print(f"killed and resumed equals uninterrupted, bit for bit: {same(whole, resumed)}")
    return None


if __name__ == "__main__":
    main()
