"""How much of their attention do heads rest on the first token?

From the fourth token on: each head's weight on key 0, how often that weight is the row's largest and how often more than half; and
Gu et al.'s sink rate, the share of heads whose column 0 draws more than ε = 0.3. Each beside what even attention would give, with an
interval over texts. Read while the model runs, over any corpus; recordings (`captures`) are read as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analyses import _sinks, material, texts_of
from analyses._first_token import GU_TOKENS, Case, Plan, from_captures
from interp.cli import analysis_main
from interp.distributed import measuring
from interp.errors import InterpError, UnknownName
from interp.measures.bootstrap import DRAWS
from interp.measures.first_token import SHARES
from interp.measures.sinks import EPSILON, FROM_QUERY
from interp.report import Report
from interp.results import Claim, Table


def run(
    model: Any | Sequence[Any] = "toy",  # several: side by side
    texts: Any = None,
    captures: Any = None,
    *,
    bos: str | Sequence[str] = "keep",
    protocol: str = "all",
    layers: Sequence[int] | None = None,
    max_tokens: int | None = None,
    overlap: int | None = None,
    limit: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    skip_bad: bool = False,
    dtype: str = "float32",
    device: str = "auto",
    save: str | None = None,
    resume: bool = False,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    gpus_per_worker: float = 0.0,
) -> Report:
    """First-token measures of `model`, or of several, on `texts` with each treatment of BOS; or of recordings.

    `protocol`: all = whole texts (cut by max_tokens, in windows by overlap); gu = Gu et al.'s: texts of 64 tokens or more, their first 64,
    beside random tokens and one token repeated. `save` keeps the statistics in a file every few batches; `resume` takes them up.
    `engine` "ray" measures on the cluster at `address`, or on this machine's cores: see docs/ray.md.
    """
    measure = measuring(engine, address, workers, gpus_per_worker)
    if captures is not None:
        return _report(
            [from_captures(material("", texts, captures, bos=str(bos), layers=layers, max_tokens=max_tokens, limit=limit))]
        )
    if protocol not in ("all", "gu"):
        raise UnknownName("protocol", protocol, ["all", "gu"])
    if protocol == "gu" and (max_tokens is not None or overlap is not None):
        raise InterpError(f"--protocol gu fixes {GU_TOKENS} tokens a text; leave out --max-tokens and --overlap")
    import interp

    models: list[Any] = list(model) if isinstance(model, (list, tuple)) else [model]
    treatments = [bos] if isinstance(bos, str) else list(bos)
    options = {"protocol": protocol, "limit": limit, "sample": sample, "seed": seed, "skip_bad": skip_bad}
    plan = Plan(layers, max_tokens, overlap, protocol, seed, options, save, resume, measure)
    cases: list[Case] = []
    skipped: list[str] = []
    for each in models:
        loaded = interp.load(each, dtype=dtype, device=device)
        corpus = texts_of(loaded, texts, limit, skip_bad, sample=sample, seed=seed)
        if texts == "-" and len(models) * len(treatments) > 1:
            texts = list(corpus)  # stdin is read once
        cases += plan.cases(loaded, corpus if texts is None or isinstance(texts, str) else texts_of(loaded, texts), treatments)
        skipped = skipped or corpus.skipped
    bad = [f"{len(skipped)} bad lines were passed over; the first: {skipped[0]}."] if skipped else []
    return _report(cases, seed, bad)


def _report(cases: list[Case], seed: int = 0, notes: Sequence[str] = ()) -> Report:
    main = cases[0]
    if not main.overall["rows"]:
        raise InterpError(f"no row to measure from the fourth token on: the longest text has {main.texts['tokens'].max()} tokens")
    model = ", ".join(dict.fromkeys(case.model for case in cases))
    several = len(cases) > 1
    headline = Table.of(
        "headline",
        f"Headline figures with the central 95 % of {DRAWS} resamples of the texts.",
        [{**case.which, **line} for case in cases for line in case.headline(seed)],
    )
    positions = _stacked(
        "positions", "By place of the query, over all heads and texts; query 0 sees one key.", cases, _sinks.by_position
    )
    lengths = _stacked("lengths", "By length of the text: groups of about as many texts each.", cases, _sinks.by_length)
    tables = [
        headline,
        _stacked("heads", "Each head, over all texts.", cases, _sinks.by_head),
        positions,
        lengths,
        _stacked("texts", "Each text, over all heads.", cases, lambda case: case.texts[TEXT_COLUMNS]),
    ]
    for name, caption in (
        ("sink_tokens", "Tokens that draw most weight: share of all weight, mean weight by row, heads in which one is a sink."),
        (
            "sink_positions",
            "Positions that draw most weight: share of all weight, mean weight by row, heads in which one is a sink.",
        ),
    ):
        if all(getattr(case, name) is not None for case in cases):
            tables.append(_stacked(name, caption, cases, lambda case, name=name: getattr(case, name)))  # type: ignore[misc]
    numbers = _numbers(main)
    return Report(
        analysis="sinks",
        model=model,
        question="How much of their attention do heads rest on the first token?",
        answer=_answer(main, numbers, headline.frame, cases),
        numbers=numbers,
        tables=tables,
        grids=[grid for place, case in enumerate(cases) for grid in _sinks.maps(case, place, several)],
        curves=_sinks.curves(positions, lengths, headline, several),
        claims=[_half(case) for case in cases if case.input in ("texts", "recordings") and case.model != "toy"],
        definitions=["first_weight", "first_argmax", "first_majority", "importance", "sink_rate", "uniform", "left_out"],
        notes=[*dict.fromkeys(note for case in cases for note in _notes(case)), *notes, OTHER],
        provenance=main.provenance,
        captures=main.shown,
    )


TEXT_COLUMNS = ["text", "tokens", "first_token_id", "first_token", "first_weight", "first_argmax", "sink_rate"]
OTHER = "Figures with and without a BOS token, and of texts of other lengths, are different measurements."


def _stacked(name: str, caption: str, cases: list[Case], frame_of: Any) -> Table:
    """One table for all cases; with several, the columns that tell them apart stand first, and `case` says them in one."""
    frames = [pd.DataFrame(frame_of(case)) for case in cases]
    if len(cases) > 1:
        frames = [frame.assign(**case.which, case=_label(case, cases)) for frame, case in zip(frames, cases, strict=True)]
        first = [*cases[0].which, "case"]
        frames = [frame[[*first, *(column for column in frame if column not in first)]] for frame in frames]
    return Table(name, caption, pd.concat(frames, ignore_index=True))


def _label(case: Case, cases: list[Case]) -> str:
    """What tells this case from the others, in a few words."""
    told = [value for name, value in case.which.items() if len({other.which[name] for other in cases}) > 1]
    return " · ".join(f"bos {value}" if value == case.bos else value for value in told) or case.model


def _numbers(case: Case) -> dict[str, Any]:
    return {
        **{name: case.overall[name] for name in (*SHARES, "sink_rate")},
        "epsilon": EPSILON,
        "from_query": FROM_QUERY,
        "uniform_first_weight": case.overall["uniform_first_weight"],
        "uniform_importance": case.overall["uniform_importance"],
        "rows": int(case.overall["rows"]),
        "texts": len(case.texts),
        "tokens": case.tokens,
    }


def _answer(case: Case, numbers: dict[str, Any], headline: pd.DataFrame, cases: list[Case]) -> str:
    heads = case.heads["first_weight"].nan_to_num()
    layer, head = divmod(int(heads.argmax()), case.n_heads)
    first = headline.iloc[0]
    interval = f" (95 % over texts: {first['low']:.1%} to {first['high']:.1%})" if len(case.texts) > 1 else ""
    said = (
        f"From the fourth token on, heads of {case.model} put {numbers['first_weight']:.1%}{interval} of their weight on the first token, against "
        f"{numbers['uniform_first_weight']:.1%} if they spread it evenly; it is the largest weight in {numbers['first_argmax']:.1%} of rows "
        f"and more than half in {numbers['first_majority']:.1%}. "
        f"The sink rate at ε = {EPSILON} is {numbers['sink_rate']:.1%}; head {case.layers[layer]}.{head} rests there most, "
        f"with {float(heads.max()):.1%} of its weight."
    )
    if len(cases) == 1:
        return said
    others = "; ".join(
        f"{_label(other, cases)} {other.overall['first_weight']:.1%} and {other.overall['sink_rate']:.1%}" for other in cases
    )
    return f"{said} Weight and sink rate side by side: {others}."


def _half(case: Case) -> Claim:
    return Claim.judged(
        "half-from-the-fourth-word",
        "001",
        "From the fourth word on, lots of heads put most of their attention on the first word: more than half the time.",
        expected="first_argmax above 0.5",
        measured=f"first_argmax {case.overall['first_argmax']:.4f}; first_majority {case.overall['first_majority']:.4f}",
        holds=case.overall["first_argmax"] > 0.5,
        model=case.model,
        why="'Most' is read as the largest weight of the row; read as more than half of it, first_majority is the figure.",
    )


def _notes(case: Case) -> list[str]:
    notes = list(case.notes)
    if short := int((case.texts["tokens"] <= 9).sum()):
        notes.append(
            f"{short} of {len(case.texts)} texts have 9 tokens or fewer: there even attention has an importance above ε = {EPSILON}."
        )
    if left := {reason: count for reason, count in case.left_out.items() if count}:
        words = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in left.items())
        notes.append(f"Rows left out from the fourth token on: {words}.")
    return notes


if __name__ == "__main__":
    analysis_main(run)
