"""How much of their attention do heads rest on the first token?

From the fourth token on: each head's weight on key 0, how often that weight is the row's largest and how often more than half; and
Gu et al.'s sink rate, the share of heads whose column 0 draws more than ε = 0.3. Each beside what even attention would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analyses import Material, material, opening
from interp.cli import analysis_main
from interp.errors import InterpError
from interp.measures.first_token import SHARES, Totals, tally
from interp.measures.sinks import EPSILON, FROM_QUERY
from interp.report import Report
from interp.results import Claim, Curve, Grid, Table

HEAD_MAPS = {
    "first_weight": "Mean weight on the first token, by head.",
    "first_argmax": "Share of rows whose largest weight is on the first token, by head.",
    "sink_rate": f"Share of texts in which the head is a sink: importance of key 0 above {EPSILON}.",
}


def run(
    model: Any = "toy",
    texts: Any = None,
    captures: Any = None,
    *,
    bos: str = "keep",
    layers: Sequence[int] | None = None,
    max_tokens: int | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    dtype: str = "float32",
    device: str = "auto",
) -> Report:
    """First-token measures of `model` on `texts`, or of recordings; one capture at a time."""
    options = {"bos": bos, "layers": layers, "max_tokens": max_tokens, "skip_bad": skip_bad, "dtype": dtype, "device": device}
    source = material(model, texts, captures, limit=limit, **options)
    totals, lines, shown = Totals(), [], []
    for name, capture in source:
        capture.need("weights", "visible")
        one = tally(capture.weights, capture.visible)
        totals.add(one)
        lines.append({"text": name, "tokens": capture.n_tokens, **_first_token(capture), **one.own})
        shown = shown or [opening(capture)]
    return _report(source, totals, lines, shown)


def _first_token(capture: Any) -> dict[str, Any]:
    return {"first_token_id": None if capture.ids is None else int(capture.ids[0]), "first_token": capture.tokens[0]}


def _report(source: Material, totals: Totals, lines: list[dict[str, Any]], shown: list[Any]) -> Report:
    overall, capture = totals.overall(), shown[0]
    if not overall["rows"]:
        raise InterpError(
            f"no row to measure from the fourth token on: the longest text has {max(line['tokens'] for line in lines)} tokens"
        )
    heads = _heads(totals, capture)
    positions = Table.of(
        "positions", "By place of the query, over all heads and texts; query 0 sees one key and is left out.", _positions(totals)
    )
    text_table = Table.of(
        "texts",
        "Each text, over all heads.",
        [
            {
                key: line[key]
                for key in ("text", "tokens", "first_token_id", "first_token", "first_weight", "first_argmax", "sink_rate")
            }
            for line in lines
        ],
    )
    numbers = {
        **{name: overall[name] for name in (*SHARES, "sink_rate")},
        "epsilon": EPSILON,
        "from_query": FROM_QUERY,
        "uniform_first_weight": overall["uniform_first_weight"],
        "uniform_importance": overall["uniform_importance"],
        "rows": int(overall["rows"]),
        "texts": totals.texts,
        "tokens": sum(line["tokens"] for line in lines),
    }
    return Report(
        analysis="sinks",
        model=source.model,
        question="How much of their attention do heads rest on the first token?",
        answer=_answer(source.model, numbers, heads),
        numbers=numbers,
        tables=[heads, positions, text_table],
        grids=_maps(heads, capture),
        curves=[
            Curve(
                "first_weight_by_position",
                "Mean weight on the first token by place of the query; dashed: spread evenly over the keys it sees.",
                positions,
                x="query",
                y=("first_weight", "first_argmax"),
                baseline="uniform_first_weight",
                x_label="query position",
                y_label="weight, share",
                y_limits=(0, 1),
            )
        ],
        claims=[] if capture.model == "toy" else [_half(source.model, numbers)],
        definitions=["first_weight", "first_argmax", "first_majority", "importance", "sink_rate", "uniform", "left_out"],
        notes=_notes(totals, lines),
        provenance=source.provenance(),
        captures=shown if capture.scores is not None else [],
    )


def _heads(totals: Totals, capture: Any) -> Table:
    columns = {name: values.tolist() for name, values in totals.heads().items()}
    order = ("rows", *SHARES, "importance", "sink_rate", "uniform_first_weight")
    rows = [
        {"layer": layer, "head": head, "kv_head": capture.kv_head(head)}
        | {name: int(columns[name][place][head]) if name == "rows" else columns[name][place][head] for name in order}
        for place, layer in enumerate(capture.layers)
        for head in range(capture.n_heads)
    ]
    return Table.of("heads", "Each head, over all texts.", rows)


def _positions(totals: Totals) -> list[dict[str, Any]]:
    columns = {name: values.tolist() for name, values in totals.queries().items()}
    return [
        {"query": query, "rows": int(rows)} | {name: columns[name][query] for name in columns if name != "rows"}
        for query, rows in enumerate(columns["rows"])
        if rows
    ]


def _maps(heads: Table, capture: Any) -> list[Grid]:
    rows, columns = tuple(map(str, capture.layers)), tuple(map(str, range(capture.n_heads)))
    return [
        Grid(
            name,
            caption,
            "share" if name != "first_weight" else "weight",
            heads.frame[name].to_numpy().reshape(len(rows), -1),
            rows,
            columns,
            limits=(0, 1),
        )
        for name, caption in HEAD_MAPS.items()
    ]


def _answer(model: str, numbers: dict[str, Any], heads: Table) -> str:
    most = heads.frame.loc[heads.frame["first_weight"].idxmax()]
    return (
        f"From the fourth token on, heads of {model} put {numbers['first_weight']:.1%} of their weight on the first token, against "
        f"{numbers['uniform_first_weight']:.1%} if they spread it evenly; it is the largest weight in {numbers['first_argmax']:.1%} of rows "
        f"and more than half in {numbers['first_majority']:.1%}. "
        f"The sink rate at ε = {EPSILON} is {numbers['sink_rate']:.1%}. "
        f"Head {most['layer']:.0f}.{most['head']:.0f} rests there most, with {most['first_weight']:.1%} of its weight."
    )


def _half(model: str, numbers: dict[str, Any]) -> Claim:
    return Claim.judged(
        "half-from-the-fourth-word",
        "001",
        "From the fourth word on, lots of heads put most of their attention on the first word: more than half the time.",
        expected="first_argmax above 0.5",
        measured=f"first_argmax {numbers['first_argmax']:.4f}; first_majority {numbers['first_majority']:.4f}",
        holds=numbers["first_argmax"] > 0.5,
        model=model,
        why="'Most' is read as the largest weight of the row; read as more than half of it, first_majority is the figure.",
    )


def _notes(totals: Totals, lines: list[dict[str, Any]]) -> list[str]:
    notes = []
    if short := sum(line["tokens"] <= 9 for line in lines):
        notes.append(
            f"{short} of {len(lines)} texts have 9 tokens or fewer: there even attention has an importance above ε = {EPSILON}."
        )
    if left := {reason: count for reason, count in totals.left_out.items() if count}:
        words = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in left.items())
        notes.append(f"Rows left out from the fourth token on: {words}.")
    notes.append("Figures with and without a BOS token, and of texts of other lengths, are different measurements.")
    return notes


if __name__ == "__main__":
    analysis_main(run)
