"""Which claims of the three chapters hold, on what, and by how much?

Runs the other analyses with small settings and collects what they settle, adds pronoun puzzles and a few counts, and says of what was
not measured what would make it so. An analysis whose report has claims adds its rows by itself; nothing to register.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import analyses
from analyses import _puzzles
from analyses._facts import facts
from analyses._textbook import LARGEST, counted, left_out, listed, puzzle_claims, without_gpt2
from interp import models
from interp.cli import analysis_main
from interp.errors import InterpError, UnknownName
from interp.models import Model
from interp.progress import track
from interp.report import Report
from interp.results import Claim, Curve, Table

# What keeps each analysis short. Whatever is not listed here runs with `SHORT`, as far as it takes such options.
SHORT = {"limit": 4, "max_tokens": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "colour_recall": {"seeds": 20},
    "one_layer_limits": {"starts": 2, "updates": 150},
    "cost": {"sizes": (256, 512, 1024), "repeats": 1, "max_tokens": 128, "lengths": (4, 16), "updates": 100},
    "heads": {"limit": 4, "max_tokens": 64, "period": 50},
    "pruning": {"limit": 4, "max_tokens": 24, "steps": 6, "orders": 1, "every": 3},
    "resting_spot": {"limit": 3, "max_tokens": 48, "period": 32, "evict_length": 256, "windows": (64,), "kept": (0, 4)},
    "scaling": {"rows": 1024, "limit": 1},
    "circuits": {"limit": 8},
    "score_shift": {"max_tokens": 8, "deltas": (-8.0, 0.0, 8.0)},
}
# The chapter's own kind of text: short sentences, as in its viewer.
SENTENCES = (
    "When Mary and John went to the store, John gave a drink to",
    "The dog chased the cat because it was too loud in the garden.",
    "The trophy stood on the shelf until the movers came for it.",
    "As the spaceship was approaching the station, the crew went quiet.",
)
OWN_TEXTS = {"sinks": list(SENTENCES), "ratio_rule": list(SENTENCES)}


def run(
    model: str | Model = "smollm2",
    captures: Any = None,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    puzzles: bool = True,
    pages: bool = False,
    dtype: str = "float32",
    device: str = "auto",
) -> Report:
    """The ledger on `model`, and on `captures` of other models where given; `only` and `skip` name analyses, `pages` writes their reports."""
    loaded = models.load(model, dtype=dtype, device=device)
    names = _names(only, skip)
    claims: list[Claim] = []
    lines = []
    for name in track(names, "the ledger"):
        found, line = _settled(name, loaded, pages)
        claims += found
        lines.append(line)
    if captures is not None and "sinks" in names:
        claims += [
            _renamed(claim, "recorded")
            for claim in _run("sinks", {"captures": captures, "limit": None, "max_tokens": None}).claims
        ]
    tables = []
    accuracy: dict[str, Any] = {}
    if puzzles and loaded.tokenizer is not None and loaded.is_transformers:
        answered = _puzzles.answered(loaded)
        accuracy, more = puzzle_claims(answered, loaded.name)
        claims += more
        tables.append(answered)
    if not only:
        claims += counted(loaded)
        claims += facts(loaded)
        claims += without_gpt2(claims, loaded)
        claims += left_out(loaded, names)
    claims = _once(claims)
    count = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in ("holds", "fails", "not measured here")}
    by_source = _by_source(claims)
    return Report(
        analysis="textbook",
        model=loaded.name,
        question="Which claims of the three chapters hold, on what, and by how much?",
        answer=_answer(claims, count, accuracy),
        numbers={
            "claims": len(claims),
            "holds": count["holds"],
            "fails": count["fails"],
            "not_measured": count["not measured here"],
            "analyses": sum(line["claims"] > 0 for line in lines),
            **accuracy,
        },
        tables=[listed(lines), by_source, *tables],
        curves=[Curve("verdicts", "Claims by chapter and verdict.", by_source, "chapter", ("holds", "fails", "not_measured"), kind="bars")],
        claims=claims,
        definitions=[
            "holds: measured in this run and within the tolerance, or judged so by the comparison that `expected` names.",
            "fails: measured in this run and not so, on the model named; a finding, not an error.",
            "not measured here: nothing was computed for it in this run; `why` says what would make it measurable.",
        ],
        notes=[
            *([f"Left out: {', '.join(skip)}; without --skip all run."] if skip and not only else []),
            "Every analysis ran here with small settings (few texts, short ones); its own report takes larger ones.",
            "A claim about GPT-2 that was measured on another model stands under that model's name; GPT-2's own line stays not measured here.",
            *[f"{line['analysis']} could not run here: {line['note']}" for line in lines if line["note"]],
        ],
        provenance=loaded.provenance(),
    )  # fmt: skip


def _names(only: Sequence[str], skip: Sequence[str]) -> list[str]:
    """Every analysis but this one, by its file's name."""
    there = sorted(one.name for one in pkgutil.iter_modules(analyses.__path__) if not one.name.startswith("_"))
    for name in (*only, *skip):
        if name not in there:
            raise UnknownName("analysis", name, there)
    return [name for name in there if name != "textbook" and (name in only if only else name not in skip)]


def _settled(name: str, model: Model, pages: bool) -> tuple[list[Claim], dict[str, Any]]:
    """The claims of one analysis on `model`, and its line in the list; bad input to it is a note, a defect is not hidden."""
    try:
        report = _run(name, {"model": model, **({"texts": OWN_TEXTS[name]} if name in OWN_TEXTS else {})})
    except InterpError as error:
        return [], {"analysis": name, "claims": 0, "holds": 0, "fails": 0, "not_measured": 0, "page": "", "note": str(error)}
    again = shlex.join(["interp", "run", "textbook", "--model", model.name, "--only", name, "--pages"])
    report = dataclasses.replace(report, command=again)
    verdicts = [claim.verdict for claim in report.claims]
    page = f"../{report.write().parent.name}/index.html" if pages else f"interp run {name}"
    line = {"analysis": name, "claims": len(verdicts), "holds": verdicts.count("holds"), "fails": verdicts.count("fails")}
    return list(report.claims), line | {"not_measured": verdicts.count("not measured here"), "page": page, "note": ""}


def _run(name: str, given: dict[str, Any]) -> Report:
    module = importlib.import_module(f"analyses.{name}")
    known = inspect.signature(module.run).parameters
    options = SETTINGS.get(name, SHORT) | given
    return module.run(**{key: value for key, value in options.items() if key in known})


def _renamed(claim: Claim, mark: str) -> Claim:
    return Claim(**{**vars(claim), "id": f"{claim.id}-{mark}"})


def _once(claims: Iterable[Claim]) -> list[Claim]:
    """One line an id and model; what was measured goes before what was not."""
    kept: dict[tuple[str, str], Claim] = {}
    for claim in claims:
        key = (claim.id, claim.model)
        if key not in kept or kept[key].verdict == "not measured here":
            kept[key] = claim
    return list(kept.values())


def _by_source(claims: Sequence[Claim]) -> Table:
    rows = []
    for chapter in sorted({claim.source[:3] for claim in claims}):
        verdicts = [claim.verdict for claim in claims if claim.source[:3] == chapter]
        counts = {
            "holds": verdicts.count("holds"),
            "fails": verdicts.count("fails"),
            "not_measured": verdicts.count("not measured here"),
        }
        rows.append({"chapter": chapter, **counts})
    return Table.of(
        "by_chapter",
        "Claims by the chapter they come from.",
        rows or [{"chapter": "none", "holds": 0, "fails": 0, "not_measured": 0}],
    )


def _answer(claims: Sequence[Claim], count: dict[str, int], accuracy: dict[str, Any]) -> str:
    failed = [claim for claim in claims if claim.verdict == "fails"]
    text = f"Of {len(claims)} claims {count['holds']} hold, {count['fails']} fail and {count['not measured here']} were not measured here. "
    if failed:
        names = "; ".join(f"{claim.claim.rstrip('.')} ({claim.model})" for claim in failed[:3])
        text += f"What fails: {names}{'; and others' if len(failed) > 3 else ''}. "
    if accuracy:
        text += (
            f"Of {accuracy['puzzles']} pronoun puzzles {accuracy['puzzle_accuracy']:.1%} are answered rightly "
            f"({accuracy['puzzle_low']:.1%} to {accuracy['puzzle_high']:.1%}), beside {_puzzles.CHANCE:.0%} by chance and {LARGEST:.2%} "
            "published for the largest GPT-2."
        )
    return text.strip()


if __name__ == "__main__":
    analysis_main(run)
