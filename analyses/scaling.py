"""Why are scores divided by √d_k?

Random queries and keys of growing width: the variance of their products, what softmax makes of it, and how much slope is left; then
the trained heads of a model, with the divisor and without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from analyses import material
from analyses._chapter import Beside
from interp import attention
from interp.cli import analysis_main
from interp.errors import InterpError, at_least
from interp.measures import saturation
from interp.models import Model
from interp.report import Report
from interp.results import Curve, Table

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def run(
    model: str | Model = "toy",
    texts: Any = None,
    *,
    widths: Sequence[int] = WIDTHS,
    rows: int = 2048,
    keys: int = 16,
    bos: str = "keep",
    limit: int = 1,
    max_tokens: int = 64,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "auto",
) -> Report:
    """Products of `rows` random queries with `keys` random keys each, for every width; and `model` on `limit` texts."""
    at_least(2, rows=rows, keys=keys)
    at_least(1, limit=limit, max_tokens=max_tokens)
    if rows < 2 or keys < 2 or not widths or min(widths) < 1:
        raise InterpError(f"at least 2 rows, 2 keys and widths of 1 or more are needed; got {rows}, {keys}, {list(widths)}")
    table = _table(widths, rows, keys, seed)
    sharper = _sharper(rows, keys, seed)
    trained, provenance, name = _trained(model, texts, bos, limit, max_tokens, dtype, device)
    beside = _claims(table, sharper, rows, keys, seed)
    widest = table.frame.iloc[-1]
    numbers = {
        "widest": int(widest["d_k"]),
        "variance_unscaled": float(widest["variance_unscaled"]),
        "variance_scaled": float(widest["variance_scaled"]),
        "saturated_unscaled": float(widest["saturated_unscaled"]),
        "slope_kept": float(widest["slope_unscaled"] / widest["slope_scaled"]),
        "model_median_variance_unscaled": float(trained.frame["variance_unscaled"].median()),
        "model_median_variance_scaled": float(trained.frame["variance_scaled"].median()),
        "chapter_numbers": len(beside.rows),
        "chapter_agreed": beside.agreed,
    }
    return Report(
        analysis="scaling",
        model=name,
        question="Why are scores divided by √d_k?",
        answer=(
            f"Products of random queries and keys have a variance close to their width: {numbers['variance_unscaled']:.0f} at "
            f"{numbers['widest']}, and {numbers['variance_scaled']:.2f} once divided by √d_k. Undivided, {numbers['saturated_unscaled']:.0%} "
            f"of the rows give one of {keys} keys over 99 % and {numbers['slope_kept']:.1%} of the slope is left. The trained heads of {name} "
            f"have a median variance of {numbers['model_median_variance_scaled']:.3g} after the divisor, so theirs are no random vectors."
        ),
        numbers=numbers,
        tables=[table, beside.table, sharper, trained],
        curves=[
            Curve(
                "variance_by_width",
                "Variance of the scores by width; dashed: the width itself.",
                table,
                "d_k",
                ("variance_unscaled", "variance_scaled"),
                baseline="d_k",
                log_x=True,
                log_y=True,
                y_label="variance",
            ),
            Curve(
                "slope_by_width",
                "How much the weights still move with the scores: ‖∂w/∂s‖, mean over rows.",
                table,
                "d_k",
                ("slope_unscaled", "slope_scaled"),
                log_x=True,
                log_y=True,
                y_label="slope",
            ),
            Curve(
                "weight_and_slope",
                "Rows of unit variance multiplied by a factor: softmax saturates and its slope goes.",
                sharper,
                "factor",
                ("largest_weight", "slope"),
                log_x=True,
                y_label="mean over rows",
            ),
        ],
        claims=beside.claims,
        definitions=[
            "scores",
            "slope: ‖diag(w) − w wᵀ‖, the size of the derivative of a row of weights by its scores.",
            "entropy",
        ],
        notes=[
            f"Random components are standard normal, {rows} rows of {keys} keys, seed {seed}: a variance measured from them is off by "
            f"about {100 * math.sqrt(2 / rows / keys):.0f} % or a little more.",
            "The slope is one factor of the gradient: what reaches the keys is also multiplied by queries, values and the loss.",
        ],
        provenance=provenance | {"seed": seed},
    )


def _table(widths: Sequence[int], rows: int, keys: int, seed: int) -> Table:
    lines = []
    for width in widths:
        raw = saturation.random_products(rows, keys, width, seed)
        plain, scaled = saturation.reading(raw), saturation.reading(raw / math.sqrt(width))
        lines.append(
            {"d_k": width, "standard_deviation": math.sqrt(plain["variance"])}
            | {f"{name}_unscaled": value for name, value in plain.items()}
            | {f"{name}_scaled": value for name, value in scaled.items()}
        )
    return Table.of(
        "widths",
        f"Random queries and keys by width: {rows} rows of {keys} keys, before and after division by √d_k.",
        lines,
        d_k="components of a query and a key",
        standard_deviation="of the undivided products; √d_k expected",
        saturated_unscaled="share of rows with a weight above 0.99",
        slope_unscaled="mean ‖∂w/∂s‖",
        entropy_unscaled=f"nats; {math.log(keys):.2f} where weights are even",
    )


def _sharper(rows: int, keys: int, seed: int) -> Table:
    unit = saturation.random_products(rows, keys, 64, seed) / 8
    lines = [{"factor": factor, **saturation.reading(unit * factor)} for factor in FACTORS]
    return Table.of(
        "sharper", "Scores of unit variance times a factor; 8 is what d_k = 64 without the divisor amounts to.", lines
    )


def _trained(
    model: str | Model, texts: Any, bos: str, limit: int, max_tokens: int, dtype: str, device: str
) -> tuple[Table, dict[str, Any], str]:
    """Every head: variance of its visible scores and the saturation of its rows, with the model's own scale and undone."""
    source = material(model, texts, bos=bos, max_tokens=max_tokens, limit=limit, dtype=dtype, device=device)
    lines: dict[tuple[int, int], list[dict[str, float]]] = {}
    for _, made in source:
        made.need("scores", "visible", "scale")
        assert made.scores is not None
        assert made.visible is not None
        assert made.scale is not None
        for place, layer in enumerate(made.layers):
            seen = made.visible[place]
            for head in range(made.n_heads):
                scaled = made.scores[place, head]
                raw = scaled / made.scale[place]
                line = {"scale": made.scale[place]}
                for name, scores in (("unscaled", raw), ("scaled", scaled)):
                    weights = attention.weights(scores, seen)[1:]
                    line |= {
                        f"variance_{name}": float(scores[seen].double().var(unbiased=False)),
                        f"largest_weight_{name}": float(weights.amax(-1).mean()),
                        f"slope_{name}": float(saturation.slope(weights).mean()),
                    }
                lines.setdefault((layer, head), []).append(line)
    rows = [
        {"layer": layer, "head": head} | {name: sum(one[name] for one in found) / len(found) for name in found[0]}
        for (layer, head), found in lines.items()
    ]
    table = Table.of(
        "heads",
        f"Every head of {source.model}: its visible scores as they are, and multiplied back by the divisor. Mean over texts.",
        rows,
        scale="what q·k is multiplied by: 1/√d_head in most models",
    )
    return table, source.provenance(), source.model


def _claims(table: Table, sharper: Table, rows: int, keys: int, seed: int) -> Beside:
    beside = Beside("scaling", "random vectors")
    frame = table.frame.set_index("d_k")
    off = (frame["variance_unscaled"] / frame.index - 1).abs().max()
    beside.judge(
        "variance", "000 §15.4.1; 003 Why divide", "A dot product of d_k independent unit components has variance d_k.",
        "variance/d_k within 8 % of 1 at every width", f"off by at most {off:.1%}, d_k {frame.index.min()} to {frame.index.max():,}",
        bool(off < 0.08),
    )  # fmt: skip
    products = saturation.random_products(rows, keys, 64, seed)
    variance, largest = float(products.double().var()), products.abs().amax(-1)
    beside.add(
        "variance-64", "003 Why divide", "variance of undivided products, d_k = 64", "64", variance, 0.08 * 64, "drawn at random"
    )
    tens = float((largest >= 10).double().mean())
    beside.judge(
        "tens", "003 Why divide", "With d_k = 64 the scores are routinely in the tens.",
        f"most rows of {keys} keys hold a score of 10 or more",
        f"{tens:.1%} of rows do; {float((products.abs() >= 10).double().mean()):.1%} of all scores", tens > 0.5,
    )  # fmt: skip
    at_64 = saturation.reading(products)
    beside.judge(
        "saturates-64", "003 Why divide", "Scores of that size, at d_k = 64, already saturate softmax: one weight about 1, the rest about 0.",
        "most rows with a weight above 0.99", f"{at_64['saturated']:.1%} of rows", at_64["saturated"] > 0.5,
        f"mean largest weight {at_64['largest_weight']:.2f}: many rows, not most; wider vectors get there",
    )  # fmt: skip
    off = (frame["variance_scaled"] - 1).abs().max()
    beside.judge(
        "divided", "000 §15.4.1; 003 Why divide", "Divided by √d_k, scores have variance 1 at any width.",
        "1 within 8 %", f"off by at most {off:.1%}", bool(off < 0.08),
    )  # fmt: skip
    last, first = frame.iloc[-1], frame.iloc[0]
    beside.judge(
        "saturates", "003 Why divide", "Undivided scores of wide vectors saturate softmax: one weight goes to about 1.",
        "mean largest weight above 0.9 undivided, below 0.6 divided",
        f"{last['largest_weight_unscaled']:.3f} undivided, {last['largest_weight_scaled']:.3f} divided at {frame.index[-1]:,}",
        bool(last["largest_weight_unscaled"] > 0.9 and last["largest_weight_scaled"] < 0.6),
        f"at d_k = {frame.index[0]} it is {first['largest_weight_unscaled']:.3f} undivided",
    )  # fmt: skip
    kept = last["slope_unscaled"] / last["slope_scaled"]
    beside.judge(
        "gradient", "003 Why divide", "In that flat region the gradient is vanishingly small.",
        "less than a quarter of the slope with the divisor", f"{kept:.1%} of it at {frame.index[-1]:,}", bool(kept < 0.25),
        "measured as ‖∂w/∂s‖, mean over rows; a few rows whose two best keys nearly tie keep most of what is left",
    )  # fmt: skip
    beside.model = "by hand"
    beside.add("divisor-4", "000 §15.4.1", "divisor of four-component queries and keys", "2", math.sqrt(4))
    beside.add("divisor-64", "001", "divisor of 64-component queries and keys", "8", math.sqrt(64))
    return beside


if __name__ == "__main__":
    analysis_main(run)
