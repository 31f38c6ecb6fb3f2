"""`python -m benchmarks [--quick] [--sizes 512,2048] [--repeats 5] [--threads 2]`: the table of budgets, printed and written to reports/bench/."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import interp
from benchmarks import memory, timing
from benchmarks.ways import OURS, SQUARES, ids_of, square_bytes, way
from interp.batches import Batch, batches
from interp.corpus import passages
from interp.models import Model
from interp.report import Report
from interp.results import Curve, Table
from interp.rows import measure

SIZES = (512, 1024, 2048, 4096, 8192)
CUDA_SIZES = (2048, 8192, 32768)
TIME_BUDGET = {("first", 2048): 1.10, ("full", 2048): 1.35, ("first", 8192): 1.10, ("full", 8192): 1.5}
TIME_AIM = {("first", 2048): 1.00, ("full", 2048): 1.15, ("first", 8192): 1.00, ("full", 8192): 1.2}
MEMORY_BUDGET = {("first", 2048): 100, ("full", 2048): 400}  # MB above the plain forward's own
START_BUDGET = {"import interp": 0.5, "interp --help": 0.6}
MB = 1e6


def main() -> None:
    asked = _arguments()
    torch.set_num_threads(asked.threads)
    lines = []
    for device in ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]:
        model = interp.load("smollm2", device=device)
        for length in asked.sizes or (SIZES if device == "cpu" else CUDA_SIZES):
            lines += (found := _at_length(model, length, asked.repeats, asked.squares))
            _print(found)
    lines = _with_growth(lines)
    table = Table.of("forwards", "One text of random ids through smollm2, each way beside the plain forward.", lines)
    starts = Table.of("starts", "Seconds of a process, median of 5.", _starts())
    speed = Table.of(
        "corpus", "The built-in corpus, tokens a second.", _corpus(interp.load("smollm2", device="cpu"), asked.limit)
    )
    path = _report(table, starts, speed, asked).write(asked.out)
    _print(lines, starts.frame.to_dict("records"), speed.frame.to_dict("records"))
    Console().print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--sizes", type=lambda text: tuple(map(int, text.split(","))), help="tokens, such as 512,2048")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; their median counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--squares", type=int, default=4096, help="longest text for the ways that keep squares")
    parser.add_argument("--limit", type=int, help="passages of the built-in corpus; all unless given")
    parser.add_argument("--quick", action="store_true", help="512 tokens, three rounds, four passages: does it run?")
    parser.add_argument("--out", type=Path, default=Path("reports/bench"))
    asked = parser.parse_args()
    if asked.quick:
        asked.sizes, asked.repeats, asked.limit = asked.sizes or (512,), 3, 4
    return asked


def _wait(model: Model) -> Any:
    return torch.cuda.synchronize if model.device.type == "cuda" else lambda: None


def _at_length(model: Model, length: int, repeats: int, squares: int) -> list[dict[str, Any]]:
    ids = ids_of(length)
    # A model trained on fewer positions computes on more all the same; only the time is asked here.
    names = ["plain", *OURS]
    times = timing.rounds({name: way(name, model, ids) for name in names}, repeats, _wait(model))
    for name in SQUARES:
        if length <= squares and 1.5 * square_bytes(model, length) < _free(model):
            pair = {"plain": way("plain", model, ids), name: way(name, model, ids)}
            pair_times = timing.rounds(pair, max(1, repeats if length <= 1024 else 1), _wait(model))
            times[name] = [timing.ratio(pair_times, name) * plain for plain in times["plain"]]
    peaks = {name: memory.measured(name, length, model.device.type) for name in times}
    return [_line(model, length, name, times, peaks) for name in times]


def _line(model: Model, length: int, name: str, times: dict[str, list[float]], peaks: dict[str, int | None]) -> dict[str, Any]:
    plain, mine = peaks["plain"], peaks[name]
    spread = [mine / plain for mine, plain in zip(times[name], times["plain"], strict=True)]
    return {
        "device": model.device.type,
        "tokens": length,
        "way": name,
        "seconds": sorted(times[name])[len(times[name]) // 2],
        "time_ratio": timing.ratio(times, name),
        "lowest_ratio": min(spread),
        "highest_ratio": max(spread),
        "budget_ratio": TIME_BUDGET.get((name, length)),
        "aim_ratio": TIME_AIM.get((name, length)),
        "peak_mb": None if mine is None else mine / MB,
        "above_plain_mb": None if mine is None or plain is None else (mine - plain) / MB,
        "budget_mb": MEMORY_BUDGET.get((name, length)),
    }


def _with_growth(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Growth of the extra memory from half the length; where half is under 10 MB there is nothing to compare."""
    at = {(line["device"], line["way"], line["tokens"]): line["above_plain_mb"] for line in lines}
    for line in lines:
        before = at.get((line["device"], line["way"], line["tokens"] // 2))
        now = line["above_plain_mb"]
        line["memory_growth"] = now / before if now is not None and before is not None and before > 10 else None
    return lines


def _free(model: Model) -> float:
    if model.device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    found = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
    return int(found[0].split()[1]) * 1024


def _starts() -> list[dict[str, Any]]:
    return [{"what": what, "seconds": value, "budget": START_BUDGET[what]} for what, value in timing.start_times().items()]


def _corpus(model: Model, limit: int | None) -> list[dict[str, Any]]:
    texts = passages()[:limit]
    made = list(batches(model, texts, max_tokens=512))
    tokens = sum(batch.tokens for batch in made)
    measure(model, made[-1:])

    def plain() -> None:
        with torch.no_grad():
            for batch in made:
                model.module.base_model(batch.ids, use_cache=False)

    rates = {}
    for name, call in (("plain", plain), *((detail, _measuring(model, made, detail)) for detail in OURS)):
        start = time.perf_counter()
        call()
        rates[name] = tokens / (time.perf_counter() - start)
    return [{"way": name, "tokens_a_second": rate, "time_ratio": rates["plain"] / rate} for name, rate in rates.items()]


def _measuring(model: Model, made: list[Batch], detail: str) -> Any:
    return lambda: measure(model, made, detail)


def _report(table: Table, starts: Table, speed: Table, asked: argparse.Namespace) -> Report:
    frame = table.frame[table.frame["budget_ratio"].notna()]
    kept = [f"{line.way} at {line.tokens}: {line.time_ratio:.2f} (budget {line.budget_ratio:.2f})" for line in frame.itertuples()]
    provenance = {"threads": asked.threads, "rounds": asked.repeats, "torch": torch.__version__}
    return Report(
        analysis="bench",
        model="smollm2",
        question="What does measuring attention cost beside the plain forward?",
        answer=("Time over the plain forward, median of paired rounds: " + "; ".join(kept) + ".")
        if kept
        else "No length with a budget was run.",
        numbers={"rounds": asked.repeats, "threads": asked.threads},
        tables=[table, starts, speed],
        curves=[
            Curve(
                "time_by_length",
                "Time over the plain forward by length.",
                table,
                x="tokens",
                y=("time_ratio",),
                group="way",
                log_x=True,
            ),
        ],
        definitions=["time_ratio: median over rounds of the time of a way over the plain forward's in the same round"],
        notes=[
            "Logits are computed by no way; with them every ratio would be nearer to 1.",
            "Ways that keep squares are run once at more than 1,024 tokens, and not at all where memory would not hold them.",
            "Texts longer than the 2,048 positions that the model was trained on are computed all the same: only their cost is asked.",
        ],
        provenance=provenance,
        command="python -m benchmarks",
    )


def _print(*tables: list[dict[str, Any]]) -> None:
    from rich.table import Table as Shown

    for lines in filter(None, tables):
        shown = Shown(*lines[0])
        for line in lines:
            shown.add_row(
                *(f"{value:.3f}" if isinstance(value, float) else str("" if value is None else value) for value in line.values())
            )
        Console(width=200).print(shown)


if __name__ == "__main__":
    main()
