"""The chapters' claims on cost, settled by what `cost` measured in this run. No claim rests on a time."""

from __future__ import annotations

import torch

from analyses._chapter import Beside
from interp.results import Table


def settled(differences: dict[str, float], exponents: Table, heads: Table, decay: Table, readers: Table) -> Beside:
    beside = Beside("cost", "counted")
    beside.add(
        "scores-1024",
        "001",
        "scores a head needs on 1,024 tokens, n(n + 1)/2",
        "524800",
        float(torch.ones(1024, 1024).tril().sum()),
    )
    beside.add("squares-14", "001", "squares of the grid on 14 tokens", "196", 14 * 14)
    beside.add(
        "masked-14", "001", "squares on 14 tokens that the mask throws away", "91", float(torch.ones(14, 14).triu(1).sum())
    )
    cut = heads.frame.set_index("heads")
    beside.add(
        "d-head-512",
        "003 Multi-head attention",
        "dimensions of each of 8 heads of a layer of width 512",
        "64",
        float(cut["d_head"][8]),
    )
    numbers, work = (cut[name][8] / cut[name][1] for name in ("parameters", "multiply_adds"))
    beside.judge(
        "heads-free", "003 Multi-head attention", "Many heads cost about what one full-width head costs.",
        "as many parameters, as many multiply-adds", f"8 heads: {numbers:.3f} × and {work:.3f} ×",
        bool(numbers == 1 and abs(work - 1) < 0.01),
        "the squares of weights and their softmax do grow with the number of heads",
    )  # fmt: skip
    fits = exponents.frame.set_index("way")
    beside.model = "random vectors"
    grown = fits.loc["full", "last_doubling"]
    beside.judge(
        "quadratic", "003 The cost of attention", "Double the length, quadruple the memory (full square).",
        "4 × within 10 %", f"{grown:.2f} ×; exponent {fits.loc['full', 'memory_exponent']:.2f}; time exponent here {fits.loc['full', 'time_exponent']:.2f}",
        bool(abs(grown / 4 - 1) < 0.1),
    )  # fmt: skip
    beside.judge(
        "quadratic-work", "003 The cost of attention", "Double the length, quadruple the compute, in whichever exact way.",
        "exponent 2 within 0.05", ", ".join(f"{way} {fits.loc[way, 'work_exponent']:.2f}" for way in fits.index),
        bool((fits["work_exponent"] - 2).abs().max() < 0.05),
        "multiply-adds counted; seconds are in measured.csv",
    )  # fmt: skip
    worst = max(differences.values())
    beside.judge(
        "exact", "003 The cost of attention", "Attention can be computed exactly without ever writing the full matrix.",
        "outputs equal to rounding, memory far below n²",
        f"largest difference {worst:.1g}; memory exponents {fits.loc['row_blocks', 'memory_exponent']:.2f} and {fits.loc['fused', 'memory_exponent']:.2f}",
        bool(worst < 1e-5 and fits.loc["fused", "memory_exponent"] < 1.5 and fits.loc["row_blocks", "memory_exponent"] < 1.5),
    )  # fmt: skip
    steps = decay.frame.set_index("distance")
    beside.model = "small networks"
    beside.judge(
        "gradient-decays", "003 The problem with this", "From word 40 to word 2 the signal of a recurrent net passes 38 steps and its gradient vanishes.",
        "below 1/1,000 of one step", f"{steps['recurrent'][38]:.1e} of it", bool(steps["recurrent"][38] < 1e-3), "untrained GRUs",
    )  # fmt: skip
    beside.judge(
        "one-step", "003 Self-attention", "With attention any position reaches any other in one step, without decay.",
        "at least half of one step's gradient at 38", f"{steps['attention'][38]:.2f} of it", bool(steps["attention"][38] > 0.5), "untrained attention layers",
    )  # fmt: skip
    short, long = readers.frame.iloc[0], readers.frame.iloc[-1]
    beside.judge(
        "bottleneck", "003 The problem with this", "One fixed vector is a bottleneck: the longer the text, the worse the answers.",
        "right answers fall with length", f"{short['fixed_vector']:.0%} at {short['length']:.0f} words, {long['fixed_vector']:.0%} at {long['length']:.0f}",
        bool(long["fixed_vector"] < short["fixed_vector"] - 0.1),
    )  # fmt: skip
    beside.judge(
        "all-states", "003 Why attention", "Keeping all states and choosing among them mends it.",
        "at the longest at least twice the fixed vector's share", f"{long['attention']:.0%} beside {long['fixed_vector']:.0%}",
        bool(long["attention"] > 2 * long["fixed_vector"]),
    )  # fmt: skip
    return beside
