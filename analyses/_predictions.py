"""What the resting-spot account predicts of each test, said beforehand, and whether it came so. For `resting_spot`.

A prediction whose test could not be made on a model is not measured; nothing is inferred from its absence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from torch import Tensor

from analyses._resting import OTHER, SPIKE
from interp.results import Claim

SOURCE = "001: the resting spot"
INDUCTION = 0.5  # an induction head is one whose score is above this


def predictions(model: str, sinking: Tensor, found: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """One claim a prediction, from the tables of `resting_spot`; `sinking` [layer, head] are the heads that rest on the first token."""
    if not bool(sinking.any()):
        return [
            Claim.unmeasured("resting-spot", SOURCE, "The first token is a resting spot.", expected="heads that rest on it", model=model,
                             why=f"no head of {model} rests on the first token: interp run resting_spot --model smollm2")
        ]  # fmt: skip
    every = [*_held(found, sinking), *_moved(found), *_fires(found), *_spikes(found), *_evicted(found)]
    return [
        Claim.judged(
            f"resting-{id}", SOURCE, claim, expected=expected, measured=measured, holds=bool(holds), model=model, why=why
        )
        if measured
        else Claim.unmeasured(f"resting-{id}", SOURCE, claim, expected=expected, model=model, why=why)
        for id, claim, expected, measured, holds, why in every
    ]


_Said = tuple[str, str, str, str, bool, str]  # id, claim, expected, measured ("" = not), holds, why


def _row(frame: pd.DataFrame, condition: str) -> Any:
    return frame[frame["condition"] == condition].iloc[0]


def _range(row: Any) -> str:
    return f"{row['rise']:+.3f} nats ({row['low']:+.3f} to {row['high']:+.3f})"


def _held(found: Mapping[str, pd.DataFrame], sinking: Tensor) -> list[_Said]:
    heads, hidden = found["norms"][sinking.flatten().numpy()], found["hidden"]
    ratio = float((heads["v_first"] / heads["v_others"]).median())
    without, control = (_row(hidden, f"key {key} hidden from the sinking heads") for key in (0, OTHER))
    silent, other = (_row(hidden, f"value {key} withheld from later rows") for key in (0, OTHER))
    before, gone = _row(hidden, "nothing changed"), _row(hidden, "key 0 hidden from all heads")
    return [
        ("small-value", "The first token's value is small: weight parked there adds little.", "less than half of the other values' norm",
         f"{ratio:.2f} of it, median of {len(heads)} sinking heads", ratio < 0.5, ""),
        ("needed", "Sinking heads need the spot: without it the model is worse.", f"a larger rise of the loss than from hiding key {OTHER} from them",
         f"{_range(without)} against {_range(control)}", without["low"] > control["high"], ""),
        ("value-unused", "What is parked on the first token fetches nothing: later rows can do without its value.",
         f"no larger a rise than from withholding the value of key {OTHER}", f"{_range(silent)} against {_range(other)}",
         silent["low"] <= other["high"], "the weight stays where it was; only weight times value is taken out of later rows"),
        ("any-first", "Any token will do: with the first one hidden from every head, the next becomes the spot.",
         "key 1 draws at least half of what key 0 drew", f"{gone['on_key_1']:.3f} on key 1, where key 0 drew {before['on_key_0']:.3f}",
         gone["on_key_1"] >= 0.5 * before["on_key_0"], f"the loss: {_range(gone)}; then no row knows the first token at all"),
    ]  # fmt: skip


def _moved(found: Mapping[str, pd.DataFrame]) -> list[_Said]:
    places = found["place_or_token"]
    swapped = _row(places, f"tokens 0 and {OTHER} exchanged")
    said: list[_Said] = [
        ("place", "The sink is the first place, whatever token stands there.", "more weight on place 0 after tokens are exchanged",
         f"{swapped['on_first_place']:.3f} on place 0, {swapped['on_other_place']:.3f} on place {OTHER}",
         swapped["on_first_place"] > swapped["on_other_place"], "")
    ]  # fmt: skip
    if len(rows := places[places["condition"] == f"position rows 0 and {OTHER} exchanged"]):
        row = rows.iloc[0]
        said.append(
            ("position-row", "Where places are learned, the sink goes with the first place's vector.",
         f"more weight on place {OTHER} after the rows are exchanged",
             f"{row['on_other_place']:.3f} on place {OTHER}, {row['on_first_place']:.3f} on place 0",
             row["on_other_place"] > row["on_first_place"], "Gu et al. 2410.10781 on GPT2-XL")
        )  # fmt: skip
    return said


def _fires(found: Mapping[str, pd.DataFrame]) -> list[_Said]:
    said = ("fires", "A head leaves the spot where its own pattern fires.", "a larger fall in induction heads than in the others")
    if "own_pattern" not in found:
        return [(*said, "", False, "needs a transformers model with room for a repeated half")]
    frame = found["own_pattern"]
    induction, rest = frame[frame["induction"] > INDUCTION], frame[frame["induction"] <= INDUCTION]
    if not len(induction):
        return [(*said, "", False, f"no head has an induction score above {INDUCTION:g}")]
    measured = f"{induction['fall'].mean():.3f} in {len(induction)} induction heads, {rest['fall'].mean():.3f} elsewhere"
    return [
        (
            *said,
            measured,
            induction["fall"].mean() > max(0.0, rest["fall"].mean()),
            "repeated random ids against fresh ones, same rows",
        )
    ]


def _spikes(found: Mapping[str, pd.DataFrame]) -> list[_Said]:
    same = (
        "spikes",
        "Tokens with massive activations are the sink tokens.",
        "a median overlap above one half over layers with either",
    )
    makes = (
        "spikes-make",
        "The spikes make the sink: cut, heads leave the first token.",
        "half of first_weight or less, and no such fall from the control",
    )
    if "spikes" not in found or not found["spikes"]["spike_tokens"].any():
        why = f"no residual above {SPIKE:g} times its layer's median"
        return [(*same, "", False, why), (*makes, "", False, why)]
    overlap = found["spikes"]["overlap"].dropna()
    plain, cut, control = (found["spikes_cut"].iloc[place] for place in range(3))
    first = "first_weight"
    return [
        (*same, f"{overlap.median():.2f}, from {overlap.min():.2f} to {overlap.max():.2f} over {len(overlap)} layers", overlap.median() > 0.5,
         "claimed for pre-norm models: Sun, Canziani, LeCun 2026"),
        (*makes, f"{cut[first]:.3f} from {plain[first]:.3f}; control {control[first]:.3f}; the loss: {_range(cut)}",
         cut[first] <= 0.5 * plain[first] < control[first], ""),
    ]  # fmt: skip


def _evicted(found: Mapping[str, pd.DataFrame]) -> list[_Said]:
    said = (
        "evict",
        "A window works again once a few first tokens are kept.",
        "four kept close at least half of the gap to full attention",
    )
    frame = found.get("evicted")
    if frame is None or not {"0", "4"} <= set(frame["kept"]):
        return [(*said, "", False, "needs texts and positions of 128 tokens or more, and 0 and 4 first tokens kept")]
    narrow = int(frame["window"].min())
    loss = frame[frame["window"] == narrow].set_index("kept")["loss"]
    measured = f"window {narrow}: full {loss['full']:.3f}, none kept {loss['0']:.3f}, four kept {loss['4']:.3f}"
    return [(*said, measured, loss["0"] - loss["4"] > 0.5 * (loss["0"] - loss["full"]) > 0,
             "Xiao et al. 2309.17453: Llama-2-7B perplexity 3,360 with none, 9.6 with four")]  # fmt: skip
