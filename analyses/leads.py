"""Does softmax turn a small lead in score into a big lead in weight?

For every row of attention: the lead Δ of its largest score over the next, and the ratio of the two weights, which should be e^Δ.
Read while the model runs, over any corpus; no square matrix is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from analyses import texts_of
from interp.cli import analysis_main
from interp.distributed import measuring
from interp.errors import InterpError
from interp.measures.ratio import TOLERANCE
from interp.report import Report
from interp.results import Claim, Curve, Grid, Table
from interp.rows import RowStatistics

QUESTION = "Does softmax turn a small lead in score into a big lead in weight?"


def run(
    model: Any = "toy",
    texts: Any = None,
    *,
    bos: str = "keep",
    layers: Sequence[int] | None = None,
    max_tokens: int | None = None,
    limit: int | None = None,
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
    """Leads and weight ratios of all rows of `texts`. `save` keeps the statistics in a file every few batches; `resume` takes them up.

    `engine` "ray" measures on the cluster at `address`, or on this machine's cores: see docs/ray.md.
    """
    import interp

    measure = measuring(engine, address, workers, gpus_per_worker)
    loaded = interp.load(model, dtype=dtype, device=device)
    source = texts_of(loaded, texts, limit, skip_bad)
    return report(
        measure(loaded, source, "full", bos=bos, max_tokens=max_tokens, layers=layers, save=save, resume=resume),
    )


def report(statistics: RowStatistics) -> Report:
    """The report of statistics that were measured before (detail "full")."""
    by_lead, heads, positions = _leads(statistics), _heads(statistics), _positions(statistics)
    numbers = _numbers(statistics, by_lead, heads)
    return Report(
        analysis="leads",
        model=statistics.model,
        question=QUESTION,
        answer=_answer(statistics.model, numbers),
        numbers=numbers,
        tables=[by_lead, heads, positions],
        grids=[_map(statistics, heads)],
        curves=_curves(by_lead, positions),
        claims=[_claim(statistics, numbers)],
        definitions=["lead", "ratio_residual", "entropy", "scores", "weights"],
        notes=_notes(statistics, numbers),
        provenance={**statistics.provenance, **statistics.options, "texts": statistics.texts, "tokens": statistics.tokens},
    )


def _leads(statistics: RowStatistics) -> Table:
    frame = statistics.lead_table()
    if not len(frame):
        raise InterpError("no row sees two keys; give a text of two tokens or more")
    return Table(
        "leads",
        "Rows by the lead Δ of their largest score over the next, all heads together.",
        frame,
        {
            "lead_from": "lower end of the step in Δ, 1/4 wide; the last takes all above",
            "share": "of all rows that have two keys and a ratio",
            "lead": "mean Δ in the step",
            "weight_ratio": "largest over second largest weight, geometric mean in the step",
            "e_to_the_lead": "e to the mean Δ",
        },
    )


def _heads(statistics: RowStatistics) -> Table:
    sums, rows = statistics.sums, statistics.sums["lead_bins"].sum(-1)
    columns = {
        "rows": rows,
        "lead": statistics.lead(0),
        "largest_weight": statistics.largest(1),
        "entropy": statistics.entropy(1),
        "residual_rms": (sums["residual_square"] / rows).sqrt(),
        "residual_max": sums["residual_max"],
        "no_ratio": sums["underflow"],
    }
    lines = [
        {"layer": layer, "head": head}
        | {name: (int if name in ("rows", "no_ratio") else float)(values[place, head]) for name, values in columns.items()}
        for place, layer in enumerate(statistics.layers)
        for head in range(statistics.n_heads)
    ]
    return Table.of(
        "heads", "Each head, over all rows that see two keys or more.", lines, no_ratio="rows whose second weight underflows to 0"
    )


def _positions(statistics: RowStatistics) -> Table:
    rows = statistics.sums["lead_rows"].sum((0, 1))
    columns = {name: statistics.sums[name].sum((0, 1)) for name in ("lead", "largest", "entropy")}
    lines = [
        {"query": query, "rows": int(rows[query])}
        | {name: float(values[query] / rows[query]) for name, values in columns.items()}
        for query in range(len(rows))
        if rows[query]
    ]
    return Table.of("positions", "By place of the query, over all heads and texts.", lines)


def _numbers(statistics: RowStatistics, by_lead: Table, heads: Table) -> dict[str, Any]:
    frame, rows = by_lead.frame, heads.frame["rows"].sum()
    beyond = frame.loc[frame["lead_from"] >= 1, "rows"].sum() / frame["rows"].sum()
    half = int((frame["share"].cumsum() >= 0.5).to_numpy().argmax())
    squares = float(statistics.sums["residual_square"].sum())
    return {
        "rows": int(rows),
        "texts": statistics.texts,
        "mean_lead": float((frame["lead"] * frame["rows"]).sum() / frame["rows"].sum()),
        "median_lead_in": f"{frame['lead_from'][half]:g} to {frame['lead_from'][half] + 0.25:g}",
        "typical_ratio": math.exp(float((frame["weight_ratio"].map(math.log) * frame["rows"]).sum() / frame["rows"].sum())),
        "share_of_leads_above_1": float(beyond),
        "residual_rms": math.sqrt(squares / rows),
        "residual_max": float(heads.frame["residual_max"].max()),
        "rows_without_ratio": int(heads.frame["no_ratio"].sum()),
    }


def _map(statistics: RowStatistics, heads: Table) -> Grid:
    values = heads.frame["lead"].to_numpy().reshape(len(statistics.layers), -1)
    return Grid(
        "mean_lead",
        "Mean lead of the largest score over the next, by head.",
        "Δ",
        values,
        statistics.layers,
        range(statistics.n_heads),
    )


def _curves(by_lead: Table, positions: Table) -> list[Curve]:
    return [
        Curve(
            "weight_ratio_by_lead",
            "Ratio of a row's two largest weights by the lead of its largest score; dashed: e^Δ.",
            by_lead,
            x="lead",
            y=("weight_ratio",),
            baseline="e_to_the_lead",
            x_label="lead Δ",
            y_label="weight ratio",
            log_y=True,
        ),
        Curve(
            "rows_by_lead",
            "How large leads are.",
            by_lead,
            x="lead_from",
            y=("share",),
            kind="bars",
            x_label="lead Δ, from",
            y_label="share of rows",
        ),
        Curve(
            "lead_by_position",
            "Mean lead by place of the query.",
            positions,
            x="query",
            y=("lead",),
            x_label="query position",
            y_label="lead Δ",
        ),
    ]


def _answer(model: str, numbers: dict[str, Any]) -> str:
    return (
        f"Yes, by the exponential of the lead: in {numbers['rows']:,} rows of {model} the two largest scores are {numbers['mean_lead']:.2f} apart on "
        f"average, and their weights stand as {numbers['typical_ratio']:.3g} to 1 (geometric mean). "
        f"A lead of 1 or more, a ratio of at least {math.e:.2f}, is found in {numbers['share_of_leads_above_1']:.1%} of rows. "
        f"The logarithm of the ratio differs from the lead by {numbers['residual_max']:.1e} at most."
    )


def _claim(statistics: RowStatistics, numbers: dict[str, Any]) -> Claim:
    tolerance = TOLERANCE[torch.float32]  # rows are read in float32 whatever the model's dtype is
    return Claim.judged(
        "small-lead-big-lead",
        "001",
        "A small lead in score becomes a big lead in weight: the ratio of two weights is e to the gap of their scores.",
        expected=f"ln of the ratio equals the lead within {tolerance:.1e}",
        measured=f"largest difference {numbers['residual_max']:.1e}, RMS {numbers['residual_rms']:.1e}",
        holds=numbers["residual_max"] <= tolerance,
        model=statistics.model,
        why="Both weights of a row share one normaliser, which cancels in their ratio.",
    )


def _notes(statistics: RowStatistics, numbers: dict[str, Any]) -> list[str]:
    notes = [
        "Scores and weights of a row are computed in float32 blocks, the weights as powers of 2; lead and ratio are read from them separately.",
        "Rows that see one key have no lead; rows whose second weight is 0 in float32 have a lead and no ratio "
        f"({numbers['rows_without_ratio']:,}).",
    ]
    if statistics.broken:
        text, layer, head, query = statistics.broken[0]
        notes.append(f"Rows that are not finite are left out, the first in text {text}, head {layer}.{head}, query {query}.")
    return [*notes, *statistics.notes]


if __name__ == "__main__":
    analysis_main(run)
