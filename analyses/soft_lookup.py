"""What does attention compute, with one query and a table of two entries, and what is it the soft form of?

Runs on the chapter's table unless given another: a query, keys and values, as sequences or as text ("1,0; -1,0").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from analyses._chapter import Beside
from interp import attention
from interp.cli import analysis_main
from interp.errors import InterpError
from interp.measures import lookup
from interp.report import Report
from interp.results import Curve, Table

Numbers = str | Sequence | Tensor
QUERY, KEYS, VALUES = "1,0", "1,0; -1,0", "2,0; 0,4"
FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 50.0)


def run(query: Numbers = QUERY, keys: Numbers = KEYS, values: Numbers = VALUES) -> Report:
    """The lookup of `query` in the table, its limits and its kin; every number that the chapter prints, beside ours."""
    q, k, v = _rows(query, "query")[0], _rows(keys, "keys"), _rows(values, "values")
    if k.shape[1] != len(q) or len(k) != len(v):
        raise InterpError(
            f"query of {len(q)}, keys {tuple(k.shape)}, values {tuple(v.shape)}: keys need {len(q)} components and a value each"
        )
    beside = _chapter()
    scores, weights, z = attention.soft_lookup(q, k, v)
    sharp = _sharpening(q, k, v)
    kernel, kernel_error = _kernel(q, k)
    line = _smoothing()
    top = int(weights.argmax())
    return Report(
        analysis="soft_lookup",
        model="by hand",
        question="What does attention compute, with one query and a small table of keys and values?",
        answer=(
            f"The query scores {_vector(scores)} against the {len(k)} keys, which softmax turns into weights {_vector(weights)} "
            f"and the values into z = {_vector(z)}: entry {top + 1} counts most. With scores 50 times as large, z is within "
            f"{sharp.frame['distance_to_hard'].iloc[-1]:.1g} of a hard lookup. {beside.agreed} of the {len(beside.rows)} "
            "numbers that the chapter prints came out to its digits."
        ),
        numbers={
            "scores": scores.tolist(),
            "weights": weights.tolist(),
            "z": z.tolist(),
            "hard_lookup": lookup.hard_lookup(q, k, v).tolist(),
            "kernel_identity_error": kernel_error,
            "chapter_numbers": len(beside.rows),
            "chapter_agreed": beside.agreed,
        },
        tables=[_lookup_table(k, v, scores, weights), beside.table, sharp, kernel, line],
        curves=[
            Curve(
                "growing_scores",
                "The weights as all scores are multiplied by one factor: from the plain average to the hard lookup.",
                sharp, "factor", tuple(f"weight_{number + 1}" for number in range(len(k))),
                x_label="factor on the scores", y_label="weight", y_limits=(0, 1),
            ),
            Curve(
                "smoothers",
                "Four ways to answer a query from the same five stored points: nearest neighbours, and averages with weights.",
                line, "query", ("nearest_1", "nearest_2", "gaussian", "dot_product"), y_label="answer",
            ),
        ],
        claims=beside.claims,
        definitions=["scores", "weights", "z"],
        notes=[
            "The scores here are plain dot products, not divided by √d: the chapter brings the divisor in later.",
            "The dot-product smoother of the last figure puts its stored points on a circle, where all keys have one length.",
        ],
        provenance={"torch": torch.__version__, "query": q.tolist(), "keys": k.tolist(), "values": v.tolist()},
    )  # fmt: skip


def _chapter() -> Beside:
    """Every number of 15.1, on the chapter's own table."""
    q, k, v = _rows(QUERY, "query")[0], _rows(KEYS, "keys"), _rows(VALUES, "values")
    beside = Beside("lookup")
    scores, weights, z = attention.soft_lookup(q, k, v)
    _, even, average = attention.soft_lookup(torch.zeros(2), k, v)
    _, turned, turned_z = attention.soft_lookup(-q, k, v)
    same_scores, same_weights, moved = attention.soft_lookup(q, k, torch.tensor([[3.0, 2.0], [0.0, 4.0]]))
    for id, section, what, printed, here in (
        ("score", "15.1.1", "score of key", ("1", "-1"), scores),
        ("weight", "15.1.1", "weight of entry", ("0.881", "0.119"), weights),
        ("z", "15.1.1", "z, component", ("1.762", "0.477"), z),
        ("code-weight", "15.1.2", "printed weight of entry", ("0.8808", "0.1192"), weights),
        ("code-z", "15.1.2", "printed z, component", ("1.7616", "0.4768"), z),
        ("zero-weight", "15.1.2", "q = (0, 0): weight of entry", ("0.5", "0.5"), even),
        ("zero-z", "15.1.2", "q = (0, 0): z, component", ("1", "2"), average),
        ("reversed-weight", "15.1.2", "q = (−1, 0): weight of entry", ("0.119", "0.881"), turned),
    ):
        for place in (0, 1):
            beside.add(f"{id}-{place + 1}", f"000 §{section}", f"{what} {place + 1}", printed[place], float(here[place]))
    beside.judge(
        "reversed", "000 §15.1.2", "q = (−1, 0) reverses the weights, so the second value counts most", "the weights in reverse",
        f"weights {_vector(turned)}, z = {_vector(turned_z)}", torch.equal(turned, weights.flip(0)),
    )  # fmt: skip
    beside.judge(
        "value-alone", "000 §15.1.2", "v₁ = (3, 2) changes z and neither scores nor weights", "equal scores and weights, another z",
        f"z = {_vector(moved)}", torch.equal(same_scores, scores) and torch.equal(same_weights, weights) and not torch.equal(moved, z),
    )  # fmt: skip
    error = lookup.kernel_parts(q, k).error
    gap = float((attention.gaussian_weights(q, k) - weights).abs().max())
    beside.judge(
        "kernel-identity", "000 §15.1.3", "−½‖q − k‖² = q·k − ½‖k‖² − ½‖q‖²", "equal to rounding", f"{error:.1e}", error <= 1e-6
    )
    beside.judge(
        "kernel-weights", "000 §15.1.3", "keys of one length: the Gaussian kernel gives the softmax weights of q·k",
        "equal to rounding", f"{gap:.1e}", gap <= 1e-6,
    )  # fmt: skip
    top = float(attention.soft_lookup(q, k, v, scale=50.0)[1][0])
    beside.judge(
        "hard-limit",
        "003",
        "a score much larger than the rest takes nearly all the weight",
        "more than 0.999",
        f"{top:.6f}",
        top > 0.999,
    )
    return beside


def _lookup_table(keys: Tensor, values: Tensor, scores: Tensor, weights: Tensor) -> Table:
    rows = [
        {
            "entry": number + 1,
            "key": _vector(keys[number]),
            "value": _vector(values[number]),
            "score": float(scores[number]),
            "weight": float(weights[number]),
            "contribution": _vector(weights[number] * values[number]),
        }
        for number in range(len(keys))
    ]
    return Table.of(
        "lookup", "The lookup, entry by entry: z is the sum of the contributions.", rows, contribution="weight × value"
    )


def _sharpening(q: Tensor, k: Tensor, v: Tensor) -> Table:
    hard = lookup.hard_lookup(q, k, v)
    rows = []
    for factor in FACTORS:
        _, weights, z = attention.soft_lookup(q, k, v, scale=factor)
        shares = {f"weight_{number + 1}": float(weight) for number, weight in enumerate(weights)}
        rows.append({"factor": factor, **shares, "z": _vector(z), "distance_to_hard": float((z - hard).norm())})
    return Table.of(
        "sharpening",
        "Scores multiplied by a factor: 0 gives the plain average of the values, large factors the hard lookup.",
        rows,
        distance_to_hard="‖z − z of the hard lookup‖",
    )


def _kernel(q: Tensor, k: Tensor) -> tuple[Table, float]:
    """The Gaussian kernel taken apart, for the keys as given and for keys whose lengths differ."""
    rows = []
    lengths = torch.linspace(1, 2, len(k))[:, None]
    for name, keys in (("as given", k), ("lengths differ", k * lengths)):
        parts = lookup.kernel_parts(q, keys)
        gaussian, dot = attention.gaussian_weights(q, keys), attention.weights((keys @ q)[None])[0]
        mended = attention.weights((parts.dot + parts.key_term)[None])[0]
        rows += [
            {
                "keys": name,
                "entry": number + 1,
                "exponent": float(parts.exponent[number]),
                "dot": float(parts.dot[number]),
                "key_term": float(parts.key_term[number]),
                "query_term": float(parts.query_term[number]),
                "gaussian_weight": float(gaussian[number]),
                "dot_weight": float(dot[number]),
                "dot_and_key_weight": float(mended[number]),
            }
            for number in range(len(keys))
        ]
    table = Table.of(
        "kernel",
        "The Gaussian kernel taken apart. Where keys differ in length, the dot product alone leaves out −½‖k‖²; with it the weights are equal again.",
        rows,
        exponent="−½‖q − k‖²",
        key_term="−½‖k‖²",
        query_term="−½‖q‖², the same for every entry: cancels",
        dot_and_key_weight="softmax of q·k − ½‖k‖²",
    )
    frame = table.frame
    return table, float((frame["exponent"] - frame["dot"] - frame["key_term"] - frame["query_term"]).abs().max())


def _smoothing() -> Table:
    """Answers to queries along a line, from five stored points; for the dot product the line is laid on a circle of radius 2."""
    stored, outputs = torch.tensor([0.0, 1.0, 2.0, 3.5, 5.0]), torch.tensor([1.0, 3.0, 2.0, 4.0, 0.5])
    keys, values = stored[:, None], outputs[:, None]
    rows = []
    for query in torch.linspace(0, 5, 51):
        at = query[None]
        _, _, soft = attention.soft_lookup(_circle(at)[0], _circle(stored), values)
        rows.append(
            {
                "query": round(float(query), 6),
                "nearest_1": float(lookup.nearest(at, keys, values, 1)),
                "nearest_2": float(lookup.nearest(at, keys, values, 2)),
                "gaussian": float(attention.gaussian_weights(at, keys, 0.5) @ outputs),
                "dot_product": float(soft),
            }
        )
    return Table.of(
        "smoothing",
        "One query at a time, answered from the points (0, 1), (1, 3), (2, 2), (3.5, 4), (5, 0.5).",
        rows,
        nearest_1="output of the nearest point",
        nearest_2="mean output of the two nearest",
        gaussian="weights exp(−½((q − x) / 0.5)²), normalised",
        dot_product="softmax of q·k for points laid on a circle of radius 2",
    )


def _circle(places: Tensor) -> Tensor:
    angle = places / 2
    return 2 * torch.stack([angle.cos(), angle.sin()], dim=-1)


def _rows(given: Numbers, name: str) -> Tensor:
    """Rows of numbers from text ("1,0; -1,0"), from a sequence or from a tensor; one row may stand alone."""
    try:
        if isinstance(given, str):
            given = [[float(part) for part in row.split(",")] for row in given.split(";")]
        rows = torch.as_tensor(given, dtype=torch.float32)
    except (ValueError, TypeError, RuntimeError):
        raise InterpError(f"{name} {given!r} are no rows of numbers; write 1,0; -1,0") from None
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not rows.numel() or not bool(rows.isfinite().all()):
        raise InterpError(f"{name} must be rows of finite numbers of one length; got shape {tuple(rows.shape)}")
    return rows


def _vector(numbers: Tensor) -> str:
    return "(" + ", ".join(f"{float(number):.4g}" for number in numbers) + ")"


if __name__ == "__main__":
    analysis_main(run)
