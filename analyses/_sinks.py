"""The tables, maps and curves of the analysis `sinks`, each from one Case; nothing is measured here but intervals over texts."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

from analyses._first_token import Case
from interp.measures import spread
from interp.measures.first_token import BY_PLACE, SHARES
from interp.measures.sinks import EPSILON
from interp.results import Curve, Grid, Table

HEAD_MAPS = {
    "first_weight": "Mean weight on the first token, by head.",
    "first_argmax": "Share of rows whose largest weight is on the first token, by head.",
    "sink_rate": f"Share of texts in which the head is a sink: importance of key 0 above {EPSILON}.",
}
LENGTHS = 8
LENGTH_MEASURES = ("first_weight", "first_argmax", "sink_rate")
BANDS = "Bands: 95 % interval over texts (texts as the unit, Student's t); none where a single text reaches."
PLACE_COLUMNS = [
    *(f"{name}{end}" for name in BY_PLACE for end in ("", "_low", "_high")),
    "uniform_first_weight",
]


def by_head(case: Case) -> list[dict[str, Any]]:
    columns = {name: values.tolist() for name, values in case.heads.items()}
    order = ("rows", *SHARES, "importance", "sink_rate", "uniform_first_weight")
    return [
        {"layer": layer, "head": head, "kv_head": head // case.group}
        | {name: int(columns[name][place][head]) if name == "rows" else columns[name][place][head] for name in order}
        for place, layer in enumerate(case.layers)
        for head in range(case.n_heads)
    ]


def by_position(case: Case) -> list[dict[str, Any]]:
    columns = {name: case.queries[name].tolist() for name in PLACE_COLUMNS}
    texts = case.queries["texts"].tolist()
    return [
        {"query": query, "texts": int(texts[query]), "rows": int(rows)}
        | {name: values[query] for name, values in columns.items()}
        for query, rows in enumerate(case.queries["rows"].tolist())
        if rows
    ]


def by_length(case: Case) -> list[dict[str, Any]]:
    """Texts by length, in at most eight groups of about as many, four or more where there are; rows count once, as in the headline."""
    ordered = case.texts.sort_values("tokens", kind="stable")
    groups = min(LENGTHS, max(2, len(ordered) // 4))
    group = pd.qcut(ordered["tokens"], groups, labels=False, duplicates="drop").fillna(0)
    lines = []
    for _, texts in ordered.groupby(group):
        if not texts["rows"].sum():
            continue
        line = {"mean_tokens": texts["tokens"].mean(), "tokens_from": texts["tokens"].min(), "tokens_to": texts["tokens"].max()}
        means = [_mean(texts, name, "heads" if name == "sink_rate" else "rows") for name in LENGTH_MEASURES]
        lines.append({**line, "texts": len(texts)} | {name: value for mean in means for name, value in mean.items()})
    return lines


def _mean(texts: pd.DataFrame, name: str, count: str) -> dict[str, float]:
    """A share over some texts, each weighing as its rows (or heads), with its interval over them."""
    n = torch.tensor(texts[count].to_numpy(float))
    x = torch.tensor(texts[name].to_numpy(float)).nan_to_num() * n
    low, high = spread.interval(x.sum(), n.sum(), (x * x).sum(), (x * n).sum(), (n * n).sum(), torch.tensor(float(len(texts))))
    return {name: float(x.sum() / n.sum()), f"{name}_low": float(low), f"{name}_high": float(high)}


def maps(case: Case, place: int, several: bool) -> list[Grid]:
    rows, columns = tuple(map(str, case.layers)), tuple(map(str, range(case.n_heads)))
    said = " (" + ", ".join((case.model, f"bos {case.bos}", case.input)) + ")" if several else ""
    wanted = HEAD_MAPS if not place else {"first_weight": HEAD_MAPS["first_weight"]}
    return [
        Grid(
            f"{name}_{place + 1}" if place else name,
            caption.removesuffix(".") + said + ".",
            "weight" if name == "first_weight" else "share",
            case.heads[name].numpy(),
            rows,
            columns,
            limits=(0, 1),
        )
        for name, caption in wanted.items()
    ]


def curves(positions: Table, lengths: Table, headline: Table, several: bool) -> list[Curve]:
    group = "case" if several else None
    made = [
        Curve(
            "first_weight_by_position",
            f"By place of the query: mean weight on the first token{', and share of rows whose largest weight is there' * (not several)}; "
            f"dashed: spread evenly over the keys it sees. {BANDS}",
            positions,
            x="query",
            y=("first_weight",) if several else ("first_weight", "first_argmax"),
            baseline="uniform_first_weight",
            band=[(f"{name}_low", f"{name}_high") for name in BY_PLACE],
            group=group,
            x_label="query position",
            y_label="weight" if several else "weight, share",
            y_limits=(0, 1),
        )
    ]
    if len(lengths.frame) > 1:
        made.append(
            Curve(
                "first_weight_by_length",
                f"By length of the text, from the fourth token on; texts of about one length together. {BANDS}",
                lengths,
                x="mean_tokens",
                y=("first_weight",) if several else LENGTH_MEASURES,
                band=[(f"{name}_low", f"{name}_high") for name in LENGTH_MEASURES],
                group=group,
                kind="line",
                x_label="tokens of the text",
                y_label="weight" if several else "weight, share",
                y_limits=(0, 1),
            )
        )
    return made
