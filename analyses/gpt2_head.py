"""What does one head do with the sentence about Mary and John, from scores to mask to weights?

All heads in the viewer; one head's last row, worked: two scores, their gap, e to it, and the ratio of the weights. On GPT-2 where it
can be loaded (then head 9.9, beside the chapter's digits), on any other model, and on recordings.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import interp
from analyses import material, opening
from analyses._chapter import Beside
from interp import models
from interp.capturing import Capture
from interp.cli import analysis_main
from interp.errors import InterpError, NotHere
from interp.interventions import logits
from interp.measures.worked import pairs_to_work
from interp.models import Model
from interp.report import Report
from interp.results import Claim, Grid, Table

SENTENCE = "When Mary and John went to the store, John gave a drink to"
NEEDS = "needs GPT-2's weights: interp run gpt2_head --model gpt2, where the hub or a folder has them"
# As printed: place in the sentence, score, weight in per cent.
PRINTED = {" Mary": (1, "4.25", "36"), " John": (3, "3.23", "13"), "When": (0, "4.24", "36")}


def run(
    model: str | Model = "auto",
    text: str = SENTENCE,
    captures: Any = None,
    *,
    head: str = "",
    bos: str = "none",
    dtype: str = "float32",
    device: str = "auto",
) -> Report:
    """One head on `text`: 9.9 of GPT-2, or `head`, or the one whose last row leans most on " Mary" (else one with a lead near 1).

    `model="auto"` takes gpt2 where its weights are here, else smollm2; with `captures` no model is run.
    """
    loaded = None if captures is not None else _loaded(model, dtype, device)
    source = material(loaded or "toy", None if captures is not None else [text], captures, bos=bos, limit=1)
    _, made = next(iter(source))
    made.need("scores", "weights", "visible")
    assert made.scores is not None
    assert made.weights is not None
    assert made.visible is not None
    is_gpt2 = source.model.rpartition("/")[2] == "gpt2"
    place, number, chosen = _chosen(made, head or ("9.9" if loaded and is_gpt2 and text == SENTENCE else ""))
    row = _row(made, place, number)
    pair = _pair(made, place, number, row)
    counts = _counts(made, loaded, source.model)
    outputs = None if loaded is None else concatenated(loaded, made)
    beside = Beside("gpt2-head", source.model)
    _claims(beside, made, is_gpt2, text, chosen, row, pair, counts, outputs)
    name = f"{made.layers[place]}.{number}"
    n = made.n_tokens
    return Report(
        analysis="gpt2_head",
        model=source.model,
        question="What does one head do with a sentence, from scores to mask to weights?",
        answer=(
            f"Head {name} of {source.model} scores all {n * n} pairs and the mask throws {n * (n - 1) // 2} away. In its last row "
            f"“{pair['token_a'].strip()}” scores {pair['score_a']:.2f} and “{pair['token_b'].strip()}” {pair['score_b']:.2f}, a gap of "
            f"{pair['delta']:.2f}; softmax makes {pair['weight_a']:.0%} and {pair['weight_b']:.0%} of it, {pair['weight_ratio']:.2f} times, "
            f"and e^Δ is {pair['exp_delta']:.2f}."
            + ("" if outputs is None else f" All heads side by side times W_O give the attention output to {outputs.frame['difference'].max():.1g}.")
        ),
        numbers={
            "head": name,
            "squares": n * n,
            "masked": n * (n - 1) // 2,
            **{key: pair[key] for key in ("score_a", "score_b", "delta", "exp_delta", "weight_a", "weight_b", "weight_ratio")},
            "heads": counts["heads"],
            "chapter_numbers": len(beside.rows),
            "chapter_agreed": beside.agreed,
        },
        tables=[
            Table.of("last_row", f"Head {name}, the last row: every token's score and weight.", row),
            Table.of("worked_pair", "Two scores of that row, worked through.", [pair]),
            *([beside.table] if beside.rows else []),
            Table.of("sizes", "Sizes, read from the model or the recording.", [{"what": k, "here": v} for k, v in counts.items()]),
            *([] if outputs is None else [outputs]),
        ],
        grids=_grids(made, place, number, name),
        claims=beside.claims,
        definitions=["scores", "visible", "weights", "lead"],
        notes=[
            f"Head {name}: {chosen}.",
            "Scores are shown for every pair, later tokens too; the mask hides those only after they were computed.",
        ],
        provenance=source.provenance(),
        captures=[opening(made)],
    )  # fmt: skip


def _loaded(model: str | Model, dtype: str, device: str) -> Model:
    if model != "auto":
        return models.load(model, dtype=dtype, device=device)
    try:
        return models.load("gpt2", dtype=dtype, device=device, local_only=True)
    except (NotHere, InterpError):
        return models.load("smollm2", dtype=dtype, device=device)


def _chosen(made: Capture, asked: str) -> tuple[int, int, str]:
    """(index of the layer, head, why that one)."""
    assert made.weights is not None
    if asked:
        layer, dot, number = asked.partition(".")
        if not (dot and layer.isdigit() and number.isdigit()) or int(number) >= made.n_heads:
            raise InterpError(f"no head {asked!r}; write layer.head, heads from 0 to {made.n_heads - 1}, as in 9.9")
        return made.row_of(int(layer)), int(number), "the chapter's" if asked == "9.9" else "as asked"
    if " Mary" in made.tokens[:-1]:
        on_mary = made.weights[:, :, -1, made.tokens.index(" Mary")]
        layer_, head = divmod(int(on_mary.argmax()), made.n_heads)
        return layer_, head, "of all heads the one whose last row leans most on “Mary”"
    found = _leads(made)
    return found[0], found[1], "of all heads the one whose last row has a lead nearest 1"


def _leads(made: Capture) -> Any:
    assert made.scores is not None
    assert made.weights is not None
    assert made.visible is not None
    pairs = pairs_to_work(made.scores, made.weights, made.visible, heads=1)
    if not pairs:
        raise InterpError(f"{made.n_tokens} token has no pair to work; give a text of two tokens or more")
    return pairs[-1]


def _row(made: Capture, place: int, number: int) -> list[dict[str, Any]]:
    assert made.scores is not None
    assert made.weights is not None
    scores, weights = made.scores[place, number, -1], made.weights[place, number, -1]
    ids = [None] * made.n_tokens if made.ids is None else made.ids.tolist()
    return [
        {"position": j, "id": ids[j], "token": made.tokens[j], "score": float(scores[j]), "weight": float(weights[j])}
        for j in range(made.n_tokens)
    ]


def _pair(made: Capture, place: int, number: int, row: list[dict[str, Any]]) -> dict[str, Any]:
    """Mary and the first John where they are there; else the row's two largest weights."""
    names = [made.tokens.index(name) for name in (" Mary", " John") if name in made.tokens[:-1]]
    a, b = names if len(names) == 2 else sorted(range(len(row)), key=lambda j: -row[j]["weight"])[:2]
    delta = row[a]["score"] - row[b]["score"]
    return {
        "layer": made.layers[place], "head": number, "query": len(row) - 1, "key_a": a, "key_b": b,
        "token_a": row[a]["token"], "token_b": row[b]["token"], "score_a": row[a]["score"], "score_b": row[b]["score"],
        "delta": delta, "exp_delta": math.exp(delta), "weight_a": row[a]["weight"], "weight_b": row[b]["weight"],
        "weight_ratio": row[a]["weight"] / row[b]["weight"] if row[b]["weight"] else math.inf,
    }  # fmt: skip


def _counts(made: Capture, model: Model | None, name: str) -> dict[str, Any]:
    n = made.n_tokens
    counts: dict[str, Any] = {
        "model": name, "layers": len(made.layers), "heads_in_a_layer": made.n_heads, "heads": len(made.layers) * made.n_heads,
        "tokens": n, "squares": n * n, "masked": n * (n - 1) // 2, "scores_kept": n * (n + 1) // 2,
    }  # fmt: skip
    if made.q is not None:
        counts["d_head"] = made.q.shape[-1]
    if made.scale is not None and len(set(made.scale)) == 1:
        counts["divisor"] = 1 / made.scale[0]
    if model is not None:
        counts |= {"d_model": model.d_model, "places": model.n_positions, "d_vocab": model.d_vocab}
        if model.n_positions:
            counts["scores_in_a_full_window"] = model.n_positions * (model.n_positions + 1) // 2
    return counts


@torch.no_grad()
def concatenated(model: Model, made: Capture) -> Table | None:
    """Per layer: z of all heads side by side times W_O (+ bias), from the capture, beside what the running model's attention gave."""
    if not model.is_transformers or made.z is None or made.ids is None:
        return None
    with interp.trace(model, "blocks.*.hook_attn_out") as seen:
        logits(model, made.ids[None])
    rows = []
    for place, layer in enumerate(made.layers):
        attention = model.bridge.blocks[layer].attn
        mixed = torch.einsum("hpd,hdm->pm", made.z[place].to(model.device, model.dtype), attention.W_O)
        own = mixed if attention.b_O is None else mixed + attention.b_O
        there: Tensor = seen[f"blocks.{layer}.hook_attn_out"][0]
        rows.append({"layer": layer, "difference": float((own - there).abs().max()), "largest_output": float(there.abs().max())})
    return Table.of(
        "outputs", "Heads side by side, times W_O, beside the output of the running model's attention, layer by layer.", rows,
        difference="largest difference of any component",
    )  # fmt: skip


def _grids(made: Capture, place: int, number: int, name: str) -> list[Grid]:
    assert made.scores is not None
    assert made.weights is not None
    assert made.visible is not None
    seen, tokens = made.visible[place], made.tokens
    scores = made.scores[place, number].double()
    hidden = scores.masked_fill(~seen, torch.nan)
    weights = made.weights[place, number].double().masked_fill(~seen, torch.nan)
    axes: dict[str, Any] = {"rows": tokens, "columns": tokens, "row_axis": "query", "column_axis": "key"}
    return [
        Grid(
            "head_scores",
            f"Head {name}: the score of every pair, later tokens too.",
            "score",
            scores.numpy(),
            signed=True,
            **axes,
        ),
        Grid("head_masked", f"Head {name}: the scores that the mask leaves.", "score", hidden.numpy(), signed=True, **axes),
        Grid("head_weights", f"Head {name}: softmax of each row of them.", "weight", weights.numpy(), limits=(0, 1), **axes),
    ]


def _claims(
    beside: Beside, made: Capture, is_gpt2: bool, text: str, chosen: str, row: list[dict[str, Any]], pair: dict[str, Any],
    counts: dict[str, Any], outputs: Table | None,
) -> None:  # fmt: skip
    worked = is_gpt2 and text == SENTENCE and made.n_tokens == 14 and chosen == "the chapter's"
    for token, (place, score, percent) in PRINTED.items():
        name = token.strip()
        for what, printed, here in (
            ("score", score, row[place]["score"] if worked else 0),
            ("weight", percent, 100 * row[place]["weight"] if worked else 0),
        ):
            claim = f"head 9.9, last row: {what} of “{name}”" + (" in per cent" if what == "weight" else "")
            if worked:
                beside.add(f"{name.lower()}-{what}", "001", claim, printed, here)
            else:
                _missing(beside, f"{name.lower()}-{what}", claim, printed)
    if worked:
        beside.add("ratio", "001", "e to the gap of the scores of “Mary” and “John”", "2.8", pair["exp_delta"])
    else:
        _missing(beside, "ratio", "e to the gap of head 9.9's scores of “Mary” and “John” by the model's own scores", "2.8")
    off = abs(math.log(pair["weight_ratio"]) - pair["delta"])
    beside.judge(
        "pair", "001", "Two scores of a row that differ by Δ get weights in the ratio e^Δ.", f"{pair['exp_delta']:.4f}",
        f"{pair['weight_ratio']:.4f}", off < 1e-4, f"layer {pair['layer']}, head {pair['head']}: {pair['token_a']!r} and {pair['token_b']!r}",
    )  # fmt: skip
    if made.n_tokens == 14:
        beside.add("squares", "001", "squares of the grid for the sentence", "196", counts["squares"])
        beside.add("masked", "001", "squares that look ahead", "91", counts["masked"])
    for id, what, printed, key in (
        ("heads", "heads of GPT-2", "144", "heads"),
        ("heads-in-layer", "heads in each layer of GPT-2", "12", "heads_in_a_layer"),
        ("d-head", "numbers in each key of GPT-2", "64", "d_head"),
        ("divisor", "what GPT-2's scores are divided by", "8", "divisor"),
        ("width", "numbers in each token vector of GPT-2", "768", "d_model"),
        ("places", "places of GPT-2's window", "1024", "places"),
        ("vocabulary", "rows of GPT-2's table of token vectors", "50257", "d_vocab"),
        ("full-window", "scores a head of GPT-2 needs for a full window", "524800", "scores_in_a_full_window"),
    ):  # fmt: skip
        if is_gpt2 and counts.get(key) is not None:
            beside.add(id, "001", what, printed, float(counts[key]))
        else:
            _missing(beside, id, what, printed)
    if outputs is not None:
        worst = float((outputs.frame["difference"] / outputs.frame["largest_output"]).max())
        beside.judge(
            "output", "001; 003 Multi-head attention", "The heads' outputs side by side, times W_O, are the attention output.",
            "equal to rounding", f"largest relative difference {worst:.1g} over {len(outputs.frame)} layers", worst < 1e-4,
        )  # fmt: skip


def _missing(beside: Beside, id: str, what: str, printed: str) -> None:
    beside.claims.append(Claim.unmeasured(f"{beside.prefix}-{id}", "001", what, expected=printed, model="gpt2", why=NEEDS))


if __name__ == "__main__":
    analysis_main(run)
