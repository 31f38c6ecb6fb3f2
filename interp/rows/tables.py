"""RowStatistics as data frames: by text, by token, by place, by lead. For CSVs; nothing is measured here."""

from __future__ import annotations

import pandas as pd
import torch

from interp.measures.sinks import EPSILON
from interp.rows.statistics import RowStatistics
from interp.rows.sums import BIN


def of_texts(statistics: RowStatistics) -> pd.DataFrame:
    """One line a text: its name, tokens, first token's id, and its own means over its layers and heads (from query 3 on)."""
    kept = {name: values.numpy() for name, values in statistics.per_text.items()}
    frame = pd.DataFrame({"text": list(statistics.names), "tokens": kept["length"], "first_token_id": kept["first_token_id"]})
    rows = pd.Series(kept["rows"]).where(kept["rows"] > 0)
    for name in ("first_weight", "first_argmax", "first_majority"):
        if name in statistics.sums:
            frame[name] = kept[name] / rows
    frame["sink_rate"] = kept["sinks"] / pd.Series(kept["heads"]).where(kept["heads"] > 0)
    return frame


def of_tokens(statistics: RowStatistics, count: int = 20) -> pd.DataFrame:
    """The token ids that draw most weight, as first token and elsewhere: their share of all weight, the mean weight that each row which
    sees one gives it, and the mean number of heads in which one is a sink (importance above 0.3, of keys that 16 rows or more see)."""
    mass, rows = statistics.need("token_mass"), statistics.need("token_rows")
    top = mass.flatten().topk(min(count, int((mass > 0).sum()))).indices
    place, token = top // mass.shape[1], top % mass.shape[1]
    heads = len(statistics.layers) * statistics.n_heads
    sinks = statistics.sums["token_sinks"][place, token] / statistics.sums["token_count"][place, token] * heads
    return pd.DataFrame(
        {
            "place": ["first" if not at else "later" for at in place.tolist()],
            "token_id": token.numpy(),
            "share_of_weight": (mass[place, token] / mass.sum()).numpy(),
            "importance": (mass[place, token] / rows[place, token]).numpy(),
            "sink_heads": sinks.numpy(),
        }
    )


def of_positions(statistics: RowStatistics, count: int = 20) -> pd.DataFrame:
    """The positions that draw most weight: their share of all weight, their importance, and the heads in which that is above 0.3."""
    by_head = statistics.need("mass")
    mass = by_head.sum((0, 1))
    top = mass.topk(min(count, len(mass))).indices
    importance = statistics.key_importance()
    return pd.DataFrame(
        {
            "position": top.numpy(),
            "share_of_weight": (mass[top] / mass.sum()).numpy(),
            "importance": (mass[top] / statistics.sums["mass_rows"].sum((0, 1))[top]).numpy(),
            "sink_heads": (importance[..., top] > EPSILON).sum((0, 1)).numpy(),
        }
    )


def of_leads(statistics: RowStatistics) -> pd.DataFrame:
    """Rows by lead Δ between their two largest scores, in steps of 1/4 (the last line: 20 and more): how many, their mean Δ, the geometric mean
    of the ratio of their two largest weights, and e to the mean Δ."""
    rows, lead, ratio = (statistics.need(name).sum((0, 1)) for name in ("lead_bins", "lead_sum", "ratio_sum"))
    some = rows > 0
    mean, log_ratio = lead[some] / rows[some], ratio[some] / rows[some]
    return pd.DataFrame(
        {
            "lead_from": (torch.arange(len(rows))[some] * BIN).numpy(),
            "rows": rows[some].long().numpy(),
            "share": (rows[some] / rows.sum()).numpy(),
            "lead": mean.numpy(),
            "weight_ratio": log_ratio.exp().numpy(),
            "e_to_the_lead": mean.exp().numpy(),
        }
    )
