"""What does attention cost as the text grows, what do exact and approximate ways save, and what did recurrent nets pay instead?

Counts; time and peak memory of the full square, row blocks and torch's fused kernel; windows and random features, error against
saving, on random vectors and on a model's own; heads; gradients over distance and one fixed vector over length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from analyses import material
from analyses._cost_claims import settled
from analyses._recurrence import gradients, recall
from interp import growth, ways
from interp.cli import analysis_main
from interp.errors import InterpError, at_least
from interp.models import Model
from interp.progress import track
from interp.report import Report
from interp.results import Curve, Table

WAYS: dict[str, Callable[..., Tensor]] = {"full": ways.full, "row_blocks": ways.row_blocks, "fused": ways.fused}
COLUMNS = {"time": "seconds", "memory": "peak_bytes", "work": "work"}
APPROXIMATIONS = (
    *(("window", width, first) for width in (16, 64, 128) for first in (0, 4)),
    *(("random_features", features, 0) for features in (64, 256)),
)


def run(
    model: str | Model = "smollm2",
    texts: Any = None,
    *,
    sizes: Sequence[int] = (256, 512, 1024, 2048),
    repeats: int = 2,
    max_tokens: int = 256,
    lengths: Sequence[int] = (4, 8, 16, 32),
    updates: int = 150,
    bos: str = "keep",
    seed: int = 0,
    dtype: str = "float32",
    device: str = "auto",
) -> Report:
    """Costs over `sizes` tokens, `max_tokens` of one text of `model` for the approximations, readers trained on `lengths` words."""
    at_least(1, repeats=repeats, max_tokens=max_tokens, updates=updates)
    if len(set(sizes)) < 2 or min(sizes) < 2:
        raise InterpError(f"growth needs two sizes or more, of 2 tokens or more; got {list(sizes)}")
    sizes = sorted(sizes)
    measured, differences = _measured(sizes, repeats, seed)
    exponents = _exponents(measured)
    approximate, provenance, name = _approximate(model, texts, max_tokens, bos, seed, dtype, device)
    heads, decay, readers = _heads(), gradients(), recall(lengths, updates, seed)
    beside = settled(differences, exponents, heads, decay, readers)
    own = approximate.frame[approximate.frame["vectors"] == name]
    fits = exponents.frame.set_index("way")
    plain = _of(own, "window", 64, 0)
    numbers = {
        **{f"memory_exponent_{way}": float(fits.loc[way, "memory_exponent"]) for way in WAYS},
        **{f"time_exponent_{way}": float(fits.loc[way, "time_exponent"]) for way in WAYS},
        "largest_difference": max(differences.values()),
        "window_64_error": plain,
        "window_64_error_with_first_4": _of(own, "window", 64, 4),
        "random_features_256_error": _of(own, "random_features", 256, 0),
        "gradient_at_38_recurrent": float(decay.frame.set_index("distance")["recurrent"][38]),
        "gradient_at_38_attention": float(decay.frame.set_index("distance")["attention"][38]),
        "chapter_numbers": len(beside.rows),
        "chapter_agreed": beside.agreed,
    }
    return Report(
        analysis="cost",
        model=name,
        question="What does attention cost as the text grows, and what would be cheaper?",
        answer=(
            f"Memory grows as n^{numbers['memory_exponent_full']:.2f} for the full square, as n^{numbers['memory_exponent_row_blocks']:.2f} in row "
            f"blocks and n^{numbers['memory_exponent_fused']:.2f} in the fused kernel, with outputs equal to {numbers['largest_difference']:.0g}. "
            f"A window of 64 keys is off by {plain:.0%} on {name} and by {numbers['window_64_error_with_first_4']:.0%} once it also sees the first "
            f"4 tokens; 256 random features are off by {numbers['random_features_256_error']:.0%}. Over 38 steps a recurrent net keeps "
            f"{numbers['gradient_at_38_recurrent']:.0e} of its gradient, attention {numbers['gradient_at_38_attention']:.0%}."
        ),
        numbers=numbers,
        tables=[_counts(), beside.table, measured, exponents, approximate, heads, decay, readers],
        curves=_curves(name, measured, approximate, decay, readers),
        claims=beside.claims,
        definitions=[
            "work: multiply-adds for scores and contexts, softmax left out.",
            "error: ‖z̃ − z‖ / ‖z‖ over all rows of a head; median over heads.",
        ],
        notes=[
            "Seconds depend on the machine and on what else it does; they are shown and fitted, and no claim rests on them.",
            "A fused kernel without a square is exact: it saves memory and time, and only half of the work (the masked half).",
            f"Both readers had {updates} updates; a recurrent reader that trains longer or is wider gets further, at every length.",
        ],
        provenance=provenance | {"seed": seed, "threads": torch.get_num_threads()},
    )


def _curves(name: str, measured: Table, approximate: Table, decay: Table, readers: Table) -> list[Curve]:
    by_way: dict[str, Any] = {"group": "way", "log_x": True, "log_y": True}
    return [
        Curve(
            "memory_by_length",
            "Peak bytes of tensors of one head of width 64, by number of tokens.",
            measured, "tokens", ("peak_bytes",), **by_way,
        ),
        Curve(
            "time_by_length",
            "Seconds of the same, on this machine, shortest of a few runs.",
            measured, "tokens", ("seconds",), **by_way,
        ),
        Curve(
            "error_by_work",
            f"Approximations on {name} and on random vectors: error against the work of the exact causal computation.",
            approximate, "work", ("error",), kind="points", group="vectors",
        ),
        Curve(
            "gradient",
            "Gradient of the last output by the input a distance back, as a share of that one step back.",
            decay, "distance", ("recurrent", "attention"), log_y=True,
        ),
        Curve(
            "recall",
            "Right answers about one of the words read, by how many were read; dashed: chance.",
            readers, "length", ("fixed_vector", "attention"), baseline="chance", log_x=True, y_limits=(0, 1),
        ),
    ]  # fmt: skip


def _counts() -> Table:
    rows = [
        {
            "tokens": n,
            "squares": n * n,
            "scores": n * (n + 1) // 2,
            "masked": n * (n - 1) // 2,
            "in_144_heads": 144 * n * (n + 1) // 2,
        }
        for n in (14, 512, 1024, 2048, 100_000)
    ]
    return Table.of("counts", "Scores of one head on n tokens: all squares, the visible n(n + 1)/2, and the masked rest.", rows)


def _measured(sizes: Sequence[int], repeats: int, seed: int) -> tuple[Table, dict[str, float]]:
    """One line a size and way; and the largest difference of each way's output from the full square's, over all sizes."""
    generator = torch.Generator().manual_seed(seed)
    rows, differences = [], dict.fromkeys(WAYS, 0.0)
    for n in track(sizes, "measuring"):
        q, k, v = (torch.randn(1, n, 64, generator=generator) for _ in range(3))
        reference = ways.full(q, k, v)
        for way, attend in WAYS.items():
            call = partial(attend, q, k, v)
            differences[way] = max(differences[way], float((call() - reference).abs().max()))
            taken = growth.seconds(call, repeats)
            held = growth.peak_bytes(call)
            rows.append({"tokens": n, "way": way, "seconds": taken, "peak_bytes": held, "work": ways.work(n, 64, way)})
    caption = "One head of width 64, causal, float32: shortest time, most bytes held at once, multiply-adds."
    return Table.of(
        "measured", caption, rows, peak_bytes="tensors allocated in the call, the result and kernels' workspace included"
    ), differences


def _exponents(measured: Table) -> Table:
    rows = []
    for way, lines in measured.frame.groupby("way", sort=False):
        sizes = lines["tokens"].tolist()
        fits = {
            f"{kind}_exponent": growth.exponent(sizes, lines[column].tolist())
            for kind, column in (("time", "seconds"), ("memory", "peak_bytes"), ("work", "work"))
        }
        rows.append({"way": way, **fits, "last_doubling": lines["peak_bytes"].iloc[-1] / lines["peak_bytes"].iloc[-2]})
    return Table.of(
        "exponents",
        "Exponent e of cost ≈ c·nᵉ, fitted over all sizes.",
        rows,
        last_doubling="peak bytes at the largest size over those at the one before",
    )


def _approximate(
    model: str | Model, texts: Any, max_tokens: int, bos: str, seed: int, dtype: str, device: str
) -> tuple[Table, dict[str, Any], str]:
    """Error and work of each approximation, on random vectors and on three layers of a model."""
    source = material(model, texts, bos=bos, max_tokens=max_tokens, limit=1, dtype=dtype, device=device)
    _, made = next(iter(source))
    made.need("q", "k", "v", "scale")
    assert made.q is not None
    assert made.k is not None
    assert made.v is not None
    assert made.scale is not None
    group, width = made.n_heads // made.n_kv_heads, made.q.shape[-1]
    own = []
    for place in sorted({0, len(made.layers) // 2, len(made.layers) - 1}):
        k, v = (tensor[place].float().repeat_interleave(group, 0) for tensor in (made.k, made.v))
        own.append((made.q[place].float() * (made.scale[place] * math.sqrt(width)), k, v))
    generator = torch.Generator().manual_seed(seed)
    drawn = [tuple(torch.randn(8, made.n_tokens, width, generator=generator) for _ in range(3))]
    rows = []
    for vectors, layers in ((source.model, own), ("random", drawn)):
        for way, size, first in APPROXIMATIONS:
            errors = torch.cat([_errors(q, k, v, way, size, first, seed) for q, k, v in layers])
            share = ways.work(made.n_tokens, width, way, size, first) / ways.work(made.n_tokens, width, "fused")
            rows.append(
                {"vectors": vectors, "way": way, "size": size, "first_tokens": first, "work": share, "saving": 1 - share,
                 "error": float(errors.median()), "worst_head": float(errors.max())}
            )  # fmt: skip
    table = Table.of(
        "approximations",
        f"{made.n_tokens} tokens: how far each approximation is from exact causal attention, and what it saves; "
        f"three layers of {source.model}, and random vectors.",
        rows,
        size="keys in the window, or random features",
        first_tokens="tokens at the start of the text that every query may see",
        work="share of the exact causal multiply-adds; above 1 it costs more",
        error="‖z̃ − z‖ / ‖z‖, median over heads",
    )
    return table, source.provenance(), source.model


def _errors(q: Tensor, k: Tensor, v: Tensor, way: str, size: int, first: int, seed: int) -> Tensor:
    exact = ways.full(q, k, v)
    near = ways.window(q, k, v, size, first) if way == "window" else ways.random_features(q, k, v, size, seed)
    return (near - exact).flatten(1).norm(dim=-1) / exact.flatten(1).norm(dim=-1)


def _of(frame: Any, way: str, size: int, first: int) -> float:
    return float(frame.query("way == @way and size == @size and first_tokens == @first")["error"].iloc[0])


def _heads(d_model: int = 512, n: int = 256) -> Table:
    """Parameters and multiply-adds of one layer cut into more and more heads."""
    rows = []
    for heads in (1, 2, 4, 8, 16):
        width = d_model // heads
        rows.append(
            {"heads": heads, "d_head": width, "parameters": ways.head_parameters(d_model, heads), "multiply_adds": ways.counted_work(d_model, heads, n),
             "weights_stored": heads * n * n}
        )  # fmt: skip
    return Table.of(
        "heads", f"One layer of width {d_model} on {n} tokens, cut into heads: counted by torch on the running layer.", rows,
        weights_stored="what does grow: one square a head, and its softmax",
    )  # fmt: skip


if __name__ == "__main__":
    analysis_main(run)
