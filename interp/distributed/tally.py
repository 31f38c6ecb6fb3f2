"""What has come in so far: each part once, its sums in the fold, its texts' lines in a list, its worker's time in the books."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import ray

from interp.distributed.fold import Fold
from interp.distributed.worker import Result
from interp.errors import InterpError
from interp.rows import RowStatistics
from interp.rows.measuring import Run
from interp.rows.statistics import differences
from interp.rows.sums import NAMED, merged


class Tally:
    """Around a Run that measures nothing itself: it holds what a file brought, checks the corpus against it, and makes the whole of both."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._brought = {name: values.cpu() for name, values in run.sums.tensors.items()}
        self._about = run.statistics().about()
        self._fold = Fold()
        self._workers: dict[str, dict[str, Any]] = {}
        self._refused: dict[int, str] = {}
        self._retries = 0
        self._span = (0.0, 0.0)  # when the first part was begun, and when the last came in

    def add(self, result: Result) -> bool:
        """Take one part's result. True where it brought texts that are new; a part that is in already, or was refused, changes nothing."""
        if result.refused is not None:
            self._refused[result.number] = result.refused
            return False
        made = result.statistics
        if made is not None and (difference := differences(made.about(), self._about)):
            raise InterpError(
                f"worker {result.worker} measures otherwise than asked: {difference}; is it of this version of interp?"
            )
        if not self._fold.add(result.number, None if made is None else made.sums):
            return False
        run = self.run
        if twice := run.met.intersection(result.met):
            raise InterpError(f"text number {min(twice)} comes twice; each text of a corpus has a number of its own")
        run.met.update(result.met)
        self._book(result)
        if made is not None:
            run.lines.append(dict(made.per_text))
            run.names += made.names
            run.texts.update(zip(made.per_text["index"].tolist(), made.per_text["digest"].tolist(), strict=True))
            run.sums.broken = sorted({*run.sums.broken, *made.broken})[:NAMED]
            run.notes = tuple(dict.fromkeys((*run.notes, *made.notes)))
            run.provenance["device"] = made.provenance["device"]
        return made is not None

    def _book(self, result: Result) -> None:
        now = time.monotonic()
        self._span = (self._span[0] or now - result.seconds, now)
        self._retries += result.attempt - 1
        empty = {"node": result.node, "device": result.device, "parts": 0, "texts": 0, "tokens": 0, "seconds": 0.0}
        line = self._workers.setdefault(result.worker, empty)
        made = result.statistics
        line["parts"] += 1
        line["texts"] += 0 if made is None else made.texts
        line["tokens"] += 0 if made is None else made.tokens
        line["seconds"] += result.seconds

    def refuse(self) -> None:
        """Raise the first refusal in the order of the corpus, if there was one."""
        if self._refused:
            raise InterpError(self._refused[min(self._refused)])

    def statistics(self) -> RowStatistics:
        """All that is in, with what the file brought; texts in the order of their numbers."""
        new = self._fold.total()
        self.run.sums.tensors = dict(self._brought) if new is None else merged(self._brought, new)
        made = self.run.statistics()
        return replace(made, provenance={**made.provenance, "engine": self.report()})

    def report(self) -> dict[str, Any]:
        """Ray's version, parts and retries of this run, its seconds from the first part's beginning, and each worker with its throughput."""
        workers = []
        for line in self._workers.values():
            rate = round(line["tokens"] / line["seconds"], 1) if line["seconds"] else 0.0
            workers.append({**line, "seconds": round(line["seconds"], 3), "tokens_a_second": rate})
        return {
            "name": "ray",
            "version": ray.__version__,
            "parts": len(self._fold.taken),
            "retries": self._retries,
            "seconds": round(self._span[1] - self._span[0], 3),
            "workers": workers,
        }
