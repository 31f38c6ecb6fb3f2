"""Which heads have a job one can name, and which have none?

Previous-token, duplicate-token and induction scores come from random ids that repeat once; the rest (first token, itself, newlines,
punctuation, entropy, distance) from texts. A head is labelled where one score passes the threshold, and only there.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import torch

from analyses import material
from analyses._stated import stated
from interp import models
from interp.capturing import Capture, capture
from interp.cli import analysis_main
from interp.errors import at_least
from interp.measures import heads, sinks
from interp.models import Model
from interp.progress import track
from interp.report import Report
from interp.results import Claim, Grid, Table

JOBS = {
    "previous_token": "previous token",
    "duplicate_token": "duplicate token",
    "induction": "induction",
    "self_weight": "itself",
    "first_weight": "first token",
    "newline_mass": "newlines",
    "punctuation_mass": "punctuation",
}


def run(
    model: str | Model = "toy",
    texts: Any = None,
    *,
    bos: str = "keep",
    limit: int = 12,
    max_tokens: int = 128,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "auto",
    period: int = 100,
    threshold: float = heads.THRESHOLD,
) -> Report:
    """Scores of every head of a model, a label where one passes `threshold`, and the share of heads that get none."""
    at_least(1, limit=limit)
    at_least(2, max_tokens=max_tokens, period=period)
    model = models.load(model, dtype=dtype, device=device)
    period = min(period, (model.n_positions or 2 * period) // 2)
    from_texts, rows = on_texts(model, texts, bos, limit, max_tokens)
    scores = repeated(model, period, seed) | from_texts
    loss, said = stated(model, rows, seed)
    frame = _frame(model, scores, threshold)
    unnamed = float((frame["label"] == "").mean())
    resting = float((frame["label"] == JOBS["first_weight"]).mean())
    named = frame[frame["label"] != ""]
    counts = {f"heads_{name.replace(' ', '_')}": int((frame["label"] == name).sum()) for name in JOBS.values()}
    return Report(
        analysis="heads",
        model=model.name,
        question="Which heads have a job one can name, and which have none?",
        answer=_answer(model, frame, unnamed, resting, threshold),
        numbers={
            "heads": len(frame),
            "share_without_label": unnamed,
            "share_first_token": resting,
            "threshold": threshold,
            "period": period,
            "texts": len(rows),
            **loss,
            **counts,
        },
        tables=[
            Table("heads", "Every head, its scores, and its label where one passes the threshold.", frame, _meanings()),
            Table("labelled", "The heads with a job, strongest first.", named.sort_values("score", ascending=False), {}),
        ],
        grids=[_grid(model, name, scores[name]) for name in ("previous_token", "induction", "duplicate_token", "first_weight")],
        claims=_claims(model, frame, unnamed, threshold),
        definitions=["previous_score", "duplicate_score", "induction_score", "first_weight", "entropy"],
        notes=[
            f"A label says that a score is above {threshold:g}, not that the head does nothing else; no label says that none of these "
            "seven scores is, not that the head has no job.",
            said,
            f"What would have counted against it: no head above {threshold:g} on the previous token, or fewer than a quarter without a label.",
            f"The repeated ids are random, seed {seed}, period {period}; they look like no text, which is what makes the diagonal scores clean.",
        ],
        provenance=model.provenance()
        | {"seed": seed, "bos": bos, "texts": len(rows), "ids_of_first": rows[0].tolist() if rows else []},
    )


def repeated(model: Model, period: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """The three diagonal scores [layer, head] on two rows of repeated random ids."""
    ids = heads.repeated_random(model.d_vocab, 2, period, seed)
    made = []
    for row in track(list(ids), "repeated ids"):
        weights = _weights(capture(model, row))
        made.append((heads.previous_token(weights), heads.duplicate_token(weights, period), heads.induction(weights, period)))
    previous, duplicate, induction = (torch.stack(scores).mean(0) for scores in zip(*made, strict=True))
    return {"previous_token": previous, "duplicate_token": duplicate, "induction": induction}


def on_texts(
    model: Model, texts: Any, bos: str, limit: int, max_tokens: int
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """The scores [layer, head] that need text, means over the texts, and the texts' ids. NaN for a model with neither tokenizer nor texts."""
    if model.tokenizer is None and texts is None:
        missing = torch.full((model.n_layers, model.n_heads), torch.nan, dtype=torch.float64)
        return dict.fromkeys(
            ("first_weight", "self_weight", "newline_mass", "punctuation_mass", "entropy", "distance"), missing
        ), []
    most = min(max_tokens, model.n_positions or max_tokens)
    total: dict[str, list[torch.Tensor]] = {}
    rows = []
    for _, made in material(model, texts, bos=bos, max_tokens=most, limit=limit):
        for name, value in _of_text(made).items():
            total.setdefault(name, []).append(value)
        rows += [] if made.ids is None else [made.ids]
    return {name: torch.stack(values).nanmean(0) for name, values in total.items()}, rows


def _of_text(made: Capture) -> dict[str, torch.Tensor]:
    weights, visible = _weights(made), made.visible
    assert visible is not None
    rows, _ = sinks.counted_rows(weights, visible)
    newline = torch.tensor(["\n" in token for token in made.tokens])
    point = torch.tensor(
        [bool(token.strip()) and all(mark in string.punctuation for mark in token.strip()) for token in made.tokens]
    )
    return {
        "first_weight": sinks.over_rows(sinks.first_weight(weights), rows),
        "self_weight": heads.self_weight(weights),
        "newline_mass": heads.mean_rows(heads.mass_on(weights, newline), visible),
        "punctuation_mass": heads.mean_rows(heads.mass_on(weights, point), visible),
        "entropy": heads.mean_rows(heads.entropy(weights), visible),
        "distance": heads.mean_rows(heads.distance(weights), visible),
    }


def _weights(made: Capture) -> torch.Tensor:
    made.need("weights", "visible")
    assert made.weights is not None
    return made.weights


def _frame(model: Model, scores: dict[str, torch.Tensor], threshold: float) -> Any:
    rows = []
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            values = {name: float(score[layer, head]) for name, score in scores.items()}
            jobs = {JOBS[name]: values[name] for name in JOBS if np.isfinite(values[name])}
            job = heads.label(jobs, threshold)
            best = max(jobs.values())
            kv_head = head // (model.n_heads // model.n_kv_heads)
            rows.append({"layer": layer, "head": head, "kv_head": kv_head, **values, "label": job, "score": best})
    return Table.of("heads", "", rows).frame


def _answer(model: Model, frame: Any, unnamed: float, resting: float, threshold: float) -> str:
    named = {name: int((frame["label"] == name).sum()) for name in JOBS.values()}
    listed = ", ".join(f"{count} {name}" for name, count in named.items() if count)
    return (
        f"{unnamed:.0%} of the {len(frame)} heads of {model.name} pass no threshold of {threshold:g} and get no label. "
        + (f"The labels given: {listed}. " if listed else "No label was given. ")
        + f"{resting:.0%} of the heads are labelled by the first token they rest on."
    )


def _grid(model: Model, name: str, values: torch.Tensor) -> Grid:
    return Grid(
        name=name,
        caption=f"{JOBS[name].capitalize()} score of every head.",
        unit="mean weight",
        values=values.numpy(),
        rows=tuple(map(str, range(model.n_layers))),
        columns=tuple(map(str, range(model.n_heads))),
        limits=(0.0, 1.0),
    )


def _claims(model: Model, frame: Any, unnamed: float, threshold: float) -> list[Claim]:
    previous = frame["previous_token"].max()
    return [
        Claim.judged(
            "heads-previous-token",
            "003 Multi-head attention",
            "Some heads attend to the previous token.",
            expected=f"a head above {threshold:g}",
            measured=f"largest previous-token score {previous:.3f}",
            holds=bool(previous > threshold),
            model=model.name,
        ),
        Claim.judged(
            "heads-without-a-job",
            "001 and 003",
            "Many heads have no job one can name.",
            expected="at least a quarter of the heads without a label",
            measured=f"{unnamed:.1%} without one",
            holds=unnamed >= 0.25,
            model=model.name,
            why=f"seven scores, threshold {threshold:g}; resting on the first token counts as a label here",
        ),
    ]


def _meanings() -> dict[str, str]:
    weight = "mean weight, 0 to 1"
    return {
        "previous_token": f"{weight}, key = query − 1, repeated random ids",
        "duplicate_token": f"{weight}, key = query − period",
        "induction": f"{weight}, key = query − (period − 1)",
        "first_weight": f"{weight} on the first token, from the fourth row on, texts",
        "self_weight": f"{weight} of a query on itself, texts",
        "newline_mass": f"{weight} on tokens that hold a line end, texts",
        "punctuation_mass": f"{weight} on tokens that are punctuation only, texts",
        "entropy": "nats, mean over rows",
        "distance": "tokens, mean over rows",
        "label": "the job whose score is largest and above the threshold",
        "score": "the largest of the seven job scores",
    }


if __name__ == "__main__":
    analysis_main(run)
