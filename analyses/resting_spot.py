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

from analyses import _resting as tests
from analyses import _spikes as spiking
from interp import corpus, models
from interp import interventions as change
from interp.cli import analysis_main
from interp.measures import sinks
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
    evict_length: int = 512,
    windows: Sequence[int] = (64, 256),
    kept: Sequence[int] = (0, 1, 2, 4, 8),
) -> Report:
    """All tests of the account on `limit` texts of `max_tokens`; `evict_length` 0 leaves the eviction out."""
    model = models.load(model, dtype=dtype, device=device)
    ids, names = change.windows(model, corpus.texts(texts), max_tokens, limit, bos)
    plain = tests.observe(model, ids)
    sinking = sinks.is_sink(tests.importance(plain).mean(0))
    found: dict[str, pd.DataFrame] = {
        "norms": tests.norms(model, ids, plain),
        "hidden": tests.masked(model, ids, plain, sinking),
        "place_or_token": tests.place_or_token(model, ids, plain),
    }
    notes = [
        f"A sinking head is one whose importance of key 0 is above {sinks.EPSILON:g} on average over the texts: {int(sinking.sum())} here."
    ]
    marks: dict[str, float] = {}
    if spiking.after_layers(model):
        pieces = [_pieces(model, row) for row in ids]
        found |= {"spikes": spiking.spikes(model, ids, plain), "spikes_cut": spiking.cut(model, ids, plain)}
        found["secondary"], marks = spiking.secondary(model, ids, pieces, plain)
    if model.is_transformers and model.n_positions is not None and model.n_positions >= 2 * period:
        found["own_pattern"] = tests.own_pattern(model, period, seed)
    if model.is_transformers and evict_length >= EVICT_FROM and (model.n_positions or evict_length) >= EVICT_FROM:
        found["evicted"], found["evicted_places"] = _evicted(model, texts, bos, evict_length, windows, kept)
    if missing := [name for name in ("spikes", "own_pattern", "evicted") if name not in found]:
        notes.append(f"Not measured on {model.name}, whose size or shape does not allow it: {', '.join(missing)}.")
    return _report(model, names, plain, sinking, found, marks, notes, seed)


def _pieces(model: Model, row: torch.Tensor) -> Sequence[str]:
    tokens: Tokens = model.tokens(row, "none") if model.bos_id is None else model.tokens(row)
    return tokens.pieces


def _evicted(
    model: Model, texts: Any, bos: str, length: int, windows: Sequence[int], kept: Sequence[int]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """On long texts: the corpus end to end, cut to `length`, two of them at most."""
    whole = corpus.Text("\n\n".join(text.text for text in corpus.texts(texts)), "corpus", "corpus")
    known = len(model.tokens(whole.text, bos))
    length = min(length, model.n_positions or length, known)
    ids, _ = change.windows(model, [whole], length, 2, bos)
    return tests.evicted(model, ids, [size for size in windows if size < length], kept)


def _row(frame: pd.DataFrame, condition: str) -> Any:
    return frame[frame["condition"] == condition].iloc[0]


def _claims(model: Model, sinking: torch.Tensor, found: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """What each test would say if the account held, and what was measured."""

    def judged(id: str, claim: str, expected: str, measured: str, holds: bool, why: str = "") -> Claim:
        return Claim.judged(
            f"resting-{id}",
            "001: the resting spot",
            claim,
            expected=expected,
            measured=measured,
            holds=bool(holds),
            model=model.name,
            why=why,
        )

    if not bool(sinking.any()):
        why = f"no head of {model.name} rests on the first token; interp run resting_spot --model smollm2"
        return [
            Claim.unmeasured(
                "resting-spot",
                "001: the resting spot",
                "The first token is a resting spot.",
                expected="heads that rest on it",
                model=model.name,
                why=why,
            )
        ]
    heads = found["norms"][sinking.flatten().numpy()]
    ratio = float((heads["v_first"] / heads["v_others"]).median())
    hidden = found["hidden"]
    without, control = (
        _row(hidden, "key 0 hidden from the sinking heads"),
        _row(hidden, f"key {tests.OTHER} hidden from all heads"),
    )
    silent = _row(hidden, "value 0 set to zero")
    swapped = _row(found["place_or_token"], f"tokens 0 and {tests.OTHER} exchanged")
    claims = [
        judged("small-value", "The first token's value is small: weight parked there adds little.", "less than half of the other values' norm",
               f"{ratio:.2f} of it, median of {len(heads)} sinking heads", ratio < 0.5),
        judged("needed", "Heads need the spot: without it the model is worse.", "a larger rise of the loss than from hiding another key",
               f"{without['rise']:+.3f} nats against {control['rise']:+.3f}", without["low"] > control["high"]),
        judged("value-unused", "What matters is the weight parked, not the value fetched: a zero value there costs less than hiding the key.",
               "a smaller rise than from hiding key 0", f"{silent['rise']:+.3f} nats against {without['rise']:+.3f}", silent["rise"] < without["rise"]),
        judged("place", "The sink is the first place, whatever token stands there.", "more weight on place 0 after tokens are exchanged",
               f"{swapped['on_first_place']:.3f} on place 0, {swapped['on_other_place']:.3f} on place {tests.OTHER}",
               swapped["on_first_place"] > swapped["on_other_place"]),
    ]  # fmt: skip
    if "own_pattern" in found:
        frame = found["own_pattern"]
        induction, rest = frame[frame["induction"] > 0.5], frame[frame["induction"] <= 0.5]
        if len(induction):
            claims.append(judged("fires", "A head leaves the spot where its own pattern fires.", "a larger fall in induction heads than in the others",
                                 f"{induction['fall'].mean():.3f} in {len(induction)} induction heads, {rest['fall'].mean():.3f} elsewhere",
                                 induction["fall"].mean() > max(0.0, rest["fall"].mean())))  # fmt: skip
    if "spikes" in found:
        overlap = found["spikes"]["overlap"].median()
        claims.append(judged("spikes", "Tokens with massive activations are the sink tokens.", "a median overlap above one half over layers",
                             f"{overlap:.2f}", overlap > 0.5, "claimed for pre-norm models: Sun, Canziani, LeCun 2026"))  # fmt: skip
    if "evicted" in found:
        frame = found["evicted"][found["evicted"]["window"] == found["evicted"]["window"].min()].set_index("kept")["loss"]
        claims.append(judged("evict", "A window works again once a few first tokens are kept.", "four kept closes at least half of the gap to full attention",
                             f"full {frame['full']:.3f}, none kept {frame['0']:.3f}, four kept {frame.get('4', float('nan')):.3f}",
                             frame["0"] - frame.get("4", float("nan")) > 0.5 * (frame["0"] - frame["full"]) > 0,
                             "Xiao et al. 2309.17453: Llama-2-7B perplexity 3,360 with none, 9.6 with four"))  # fmt: skip
    return claims


CAPTIONS = {
    "norms": "Each head: norms of the first key and value beside the later ones', and of what each side adds to z.",
    "hidden": "The first key hidden or its value zeroed, beside controls: loss, and where the weight of rows from the fourth on lies.",
    "place_or_token": "Tokens and places exchanged: mean weight of all heads on the first place and on the other one.",
    "spikes": f"Residuals after each layer; a spike is above {tests.SPIKE:g} times the median; sinks are those of the layer that reads it.",
    "spikes_cut": "Spikes set to their dimension's mean, after every layer.",
    "secondary": f"Later tokens whose importance is above {tests.SECONDARY:g}, mean over a layer's heads.",
    "own_pattern": "The same rows with and without an earlier occurrence of their token.",
    "evicted": "Loss where rows see a window and some first tokens alone, over the rows after the window was filled.",
    "evicted_places": "The same by place of the query.",
}
UNITS = {"loss": "nats per token", "rise": "nats per token", "low": "95 % interval over texts", "high": "the same"}


def _report(
    model: Model, names: list[str], plain: tests.Seen, sinking: torch.Tensor, found: dict[str, pd.DataFrame], marks: dict[str, float],
    notes: list[str], seed: int,
) -> Report:  # fmt: skip
    tables = [
        Table(name, CAPTIONS[name], frame, {key: said for key, said in UNITS.items() if key in frame})
        for name, frame in found.items()
    ]
    claims = _claims(model, sinking, found)
    held = [claim for claim in claims if claim.verdict == "holds"]
    rates = plain.on(0)
    numbers: dict[str, Any] = {
        "loss": float(plain.loss.mean()),
        "first_weight": float(rates.mean()),
        "sinking_heads": int(sinking.sum()),
        "texts": len(names),
        **{f"marks_among_{name}": share for name, share in marks.items()},
    }
    if "own_pattern" in found:
        frame = found["own_pattern"]
        if frame["fall"].nunique() > 1 and frame["induction"].nunique() > 1:
            numbers["fall_against_induction"] = float(spearmanr(frame["fall"], frame["induction"]).statistic)
    curves = [
        Curve("evicted", "Loss by place of the query, by first tokens kept, for each window.", next(t for t in tables if t.name == "evicted_places"),
              "query", ("loss",), group="kept", x_label="query position", y_label="loss, nats per token"),
    ] if "evicted" in found and found["evicted_places"]["window"].nunique() == 1 else []  # fmt: skip
    failed = [claim for claim in claims if claim.verdict == "fails"]
    said = f"{len(held)} of {len(claims)} predictions of the account hold on {model.name}"
    return Report(
        analysis="resting_spot",
        model=model.name,
        question="Is the first token a resting spot for heads that find nothing useful?",
        answer=(
            f"{said}. " + (f"What does not: {'; '.join(claim.claim.rstrip('.').lower() for claim in failed)}. " if failed else "")
            if any(claim.verdict in ("holds", "fails") for claim in claims)
            else f"{model.name} has no head that rests on the first token, so the account cannot be tested on it."
        ).strip(),
        numbers=numbers,
        tables=tables,
        grids=[Grid("first_weight", "Mean weight on the first token, from the fourth row on.", "weight", rates.numpy(),
                    tuple(map(str, range(model.n_layers))), tuple(map(str, range(model.n_heads))), limits=(0.0, 1.0))],
        curves=curves,
        claims=claims,
        definitions=["first_weight", "importance"],
        notes=[*notes, "Each claim says beforehand what the account predicts; the contrary result would have counted against it.",
               "Hidden keys keep all other scores: the row's weights are those of the softmax over what is left."],
        provenance=model.provenance() | {"seed": seed, "texts": names},
    )  # fmt: skip


if __name__ == "__main__":
    analysis_main(run)
