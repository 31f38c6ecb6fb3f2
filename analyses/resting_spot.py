"""Is the first token a resting spot, where heads park their weight when there is nothing useful to find? Tested by intervening.

Norms of what the sink holds; the first key hidden and its value zeroed; tokens and places exchanged; spikes of the residual cut;
induction heads with and without their pattern; first tokens evicted from a window. Each beside a control, with the loss in nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from scipy.stats import spearmanr

from analyses import _eviction as eviction
from analyses import _resting as tests
from analyses import _spikes as spiking
from analyses._predictions import predictions
from interp import corpus, models
from interp import interventions as change
from interp.cli import analysis_main
from interp.errors import at_least
from interp.measures import pruning, sinks
from interp.models import Model
from interp.models.tokens import Tokens
from interp.report import Report
from interp.results import Claim, Curve, Grid, Table

EVICT_FROM = 128  # texts shorter than this evict nothing worth measuring


def run(
    model: str | Model = "toy",
    texts: Any = None,
    *,
    bos: str = "keep",
    limit: int = 6,
    max_tokens: int = 64,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "auto",
    period: int = 50,
    evict_length: int = 1024,
    evict_texts: int = 2,
    windows: Sequence[int] = (64, 128, 256, 512),
    kept: Sequence[int] = (0, 1, 2, 4, 8),
) -> Report:
    """All tests of the account on `limit` pieces of `max_tokens`; evictions on `evict_texts` of `evict_length`, 0 leaves them out.

    Where no text is as long as `evict_length`, all of them end to end are cut into pieces.
    """
    at_least(1, limit=limit, evict_texts=evict_texts)
    at_least(2, max_tokens=max_tokens, period=period)
    at_least(0, evict_length=evict_length)
    model = models.load(model, dtype=dtype, device=device)
    ids, names = change.windows(model, corpus.texts(texts), max_tokens, limit, bos)
    plain = tests.observe(model, ids)
    sinking = sinks.is_sink(tests.importance(plain).mean(0))
    found: dict[str, pd.DataFrame] = {
        "norms": tests.norms(model, ids, plain),
        "hidden": tests.masked(model, ids, plain, sinking),
        "place_or_token": tests.place_or_token(model, ids, plain),
    }
    shares: dict[str, float] = {}
    if spiking.after_layers(model):
        pieces = [_pieces(model, row) for row in ids]
        found["spikes"], spiked = spiking.spikes(model, ids, plain)
        found["spikes_cut"] = spiking.cut(model, ids, plain)
        found["secondary"], shares = spiking.secondary(model, ids, pieces, plain, spiked)
    if model.is_transformers and model.n_positions is not None and model.n_positions >= 2 * period:
        found["own_pattern"] = tests.own_pattern(model, period, seed)
    if model.is_transformers and evict_length >= EVICT_FROM and (model.n_positions or evict_length) >= EVICT_FROM:
        long = eviction.long_texts(model, corpus.texts(texts), evict_length, evict_texts, bos)
        if some := [size for size in windows if size < long.shape[1]]:
            found["evicted"], found["evicted_places"] = eviction.evicted(model, long, some, kept)
    return _report(model, names, ids.shape[1], plain, sinking, found, shares, seed)


def _pieces(model: Model, row: torch.Tensor) -> Sequence[str]:
    tokens: Tokens = model.tokens(row, "none") if model.bos_id is None else model.tokens(row)
    return tokens.pieces


CAPTIONS = {
    "norms": "Each head: norms of the first key and value beside the later ones', and of what each side adds to z.",
    "hidden": "The first key hidden or its value taken away, beside controls: loss, and where the weight of rows from the fourth on lies.",
    "place_or_token": "Tokens and places exchanged: mean weight of all heads on the first place and on the other one.",
    "spikes": f"Residuals after each layer; a spike is above {tests.SPIKE:g} times the median; sinks are those of the layer that reads it.",
    "spikes_cut": "Spikes set to the mean of their dimension over the text's other tokens, after every layer.",
    "secondary": f"Later tokens whose importance is above {tests.SECONDARY:g} in some layer (mean over heads); the last {spiking.LATE} keys are left out.",
    "own_pattern": "The same rows with and without an earlier occurrence of their token.",
    "evicted": "Loss where rows see a window and some first tokens alone, over the rows after the window was filled.",
    "evicted_places": "The same by place of the query.",
}
UNITS = {"loss": "nats per token", "rise": "nats per token", "low": "95 % interval over texts", "high": "the same"}


def _report(
    model: Model, names: list[str], length: int, plain: tests.Seen, sinking: torch.Tensor, found: dict[str, pd.DataFrame],
    shares: dict[str, float], seed: int,
) -> Report:  # fmt: skip
    tables = [
        Table(name, CAPTIONS[name], frame, {key: said for key, said in UNITS.items() if key in frame})
        for name, frame in found.items()
    ]
    claims = predictions(model.name, sinking, found)
    rates = plain.on(0)
    low, high = pruning.interval(plain.loss, seed=seed)
    numbers: dict[str, Any] = {
        "loss": float(plain.loss.mean()),
        "loss_low": low,
        "loss_high": high,
        "first_weight": float(rates.mean()),
        "sinking_heads": int(sinking.sum()),
        "texts": len(names),
        **shares,
    }
    if "own_pattern" in found:
        frame = found["own_pattern"]
        if frame["fall"].nunique() > 1 and frame["induction"].nunique() > 1:
            numbers["fall_against_induction"] = float(spearmanr(frame["fall"], frame["induction"]).statistic)
    return Report(
        analysis="resting_spot",
        model=model.name,
        question="Is the first token a resting spot for heads that find nothing useful?",
        answer=_answer(model.name, claims),
        numbers=numbers,
        tables=tables,
        grids=[Grid("first_weight", "Mean weight on the first token, from the fourth row on.", "weight", rates.numpy(),
                    tuple(map(str, range(model.n_layers))), tuple(map(str, range(model.n_heads))), limits=(0.0, 1.0))],
        curves=_curves(found),
        claims=claims,
        definitions=["first_weight", "importance"],
        notes=[
            f"Loss with nothing changed: {numbers['loss']:.3f} nats per token ({low:.3f} to {high:.3f}, 95 % over {len(names)} texts of {length} tokens).",
            f"A sinking head is one whose importance of key 0 is above {sinks.EPSILON:g} on average over the texts: {int(sinking.sum())} of {sinking.numel()}.",
            "Each claim says under `expected` what the account predicts; the contrary result would have counted against it.",
            *_secondary_note(found, shares),
            "Hidden keys keep all other scores: the row's weights are those of the softmax over what is left.",
        ],
        provenance=model.provenance() | {"seed": seed, "texts": names},
    )  # fmt: skip


def _secondary_note(found: Mapping[str, pd.DataFrame], shares: Mapping[str, float]) -> list[str]:
    if "secondary" not in found or not len(found["secondary"]):
        return []
    frame = found["secondary"]
    common = "; ".join(
        f"{shares[f'{kind}_among_secondary']:.0%} {said} (all later tokens: {shares[f'{kind}_among_all']:.0%})"
        for kind, said in (
            ("spiked", "have a spike"),
            ("marks", "are marks or blanks"),
            ("seen_before", "stood in the text before"),
        )
    )
    often = ", ".join(repr(token) for token in frame["token"].value_counts().index[:3])
    return [
        f"Secondary sinks: {len(frame)} later tokens draw more than {tests.SECONDARY:g} in some layer, most often {often}. Of them {common}."
    ]


def _answer(name: str, claims: Sequence[Claim]) -> str:
    held, failed = ([claim for claim in claims if claim.verdict == verdict] for verdict in ("holds", "fails"))
    if not held and not failed:
        return f"{name} has no head that rests on the first token, so the account cannot be tested on it."
    said = f"{len(held)} of {len(held) + len(failed)} predictions of the account hold on {name}."
    return said + (f" What does not: {' '.join(claim.claim for claim in failed)}" if failed else "")


def _curves(found: Mapping[str, pd.DataFrame]) -> list[Curve]:
    if "evicted" not in found:
        return []
    windowed = found["evicted"][found["evicted"]["kept"] != "full"].astype({"kept": int})
    places = found["evicted_places"]
    narrow = int(places["window"].min())
    return [
        Curve("evicted", "Loss by how many first tokens are kept beside the window, for each size of window.",
              Table("evicted_windows", "", windowed), "kept", ("loss",), group="window",
              x_label="first tokens kept", y_label="loss, nats per token"),
        Curve("evicted_places", f"Loss by place of the query where rows see the last {narrow} keys and some first ones.",
              Table("evicted_narrow", "", places[places["window"] == narrow]), "query", ("loss",), group="kept",
              x_label="query position", y_label="loss, nats per token"),
    ]  # fmt: skip


if __name__ == "__main__":
    analysis_main(run)
