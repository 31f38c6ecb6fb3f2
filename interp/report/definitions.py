"""The definitions printed in every report that uses them, by key. Words and symbols are those of the rest of the toolkit.

T is the number of tokens of a text, A[i, j] the weight that query i gives key j; both count from 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from interp.errors import UnknownName

definitions: dict[str, str] = {
    "first_weight": "Mean of A[i, 0], the weight on the first token, over query rows i ≥ `from_query`, which is 3 unless said "
    "otherwise, so from the fourth token on. In 0..1.",
    "first_argmax": "Share of query rows i ≥ `from_query` whose largest weight is on key 0. Where weights tie, the lower key counts. "
    "In 0..1.",
    "first_majority": "Share of query rows i ≥ `from_query` with A[i, 0] > ½: the first token draws more than all other keys together. "
    "In 0..1.",
    "importance": "importance_k of key k is the sum of A[i, k] over the rows i ≥ k, divided by T − k; the diagonal is included "
    "(Gu et al., arXiv 2410.10781). In 0..1.",
    "sink_rate": "Mean over texts, layers and heads of the indicator importance_0 > ε, with ε = 0.3 and the indicator taken for each "
    "text first (Gu et al., arXiv 2410.10781, who fix T = 64). In 0..1.",
    "uniform": "What the same measure would be if every query spread its weight evenly over the keys it may see: the mean of "
    "1/(i + 1) for first_weight, H_T/T for importance_0, where H_T = 1 + ½ + … + 1/T. For T ≤ 9 the latter is above ε = 0.3 by itself.",
    "left_out": "Rows in which key 0 is not visible, padded rows and rows that see a single key are left out and counted.",
    "ratio_residual": "For two visible keys of one row, log(w_j / w_r) − (s_j − s_r), where r is the key with the row's largest weight. "
    "0 where weights are the softmax of the scores. Given as the largest size and the root mean square of each head, with the pairs "
    "tested and the pairs excluded (weights that underflow to 0, rows with a single key). Tolerance by dtype: 1e-5 in float32, "
    "1e-3 in float16, 8e-3 in bfloat16, wider where rounding of large scores dominates.",
    "lead": "The gap Δ between two scores of one row, s_j − s_r. By the ratio rule the two weights stand as e^Δ to 1.",
    "shifted_weight": "The weight w' of a key after its score alone is raised by δ: w' = w·e^δ / (1 + w·(e^δ − 1)). All other weights "
    "of the row shrink by one common factor, so their ratios stay.",
    "previous_score": "Mean of A on the diagonal key = query − 1, on random tokens that are repeated once. In 0..1.",
    "duplicate_score": "Mean of A on the diagonal key = query − period, on random tokens repeated with that period: attention to the "
    "same token, one period earlier. In 0..1.",
    "induction_score": "Mean of A on the diagonal key = query − (period − 1), on random tokens repeated with that period: attention to "
    "the token that followed last time. In 0..1.",
    "scores": "What enters the softmax, but for the mask: q·k times the scale, with any bias or soft cap. Finite for every pair.",
    "visible": "Which keys a query may see: under a causal mask those at or before it, in a window the latest of them, never padding.",
    "weights": "Softmax of the visible scores of one row. At least 0; a row sums to 1, but for models with learned sinks, where the "
    "missing share is reported.",
    "entropy": "−Σ_j A[i, j]·ln A[i, j] of one row, in nats: 0 where one key has it all, ln of the number of visible keys where it is "
    "spread evenly.",
    "z": "The context rows: the average of the value vectors v, weighted by one row of weights.",
}
# Other names under which figures show the same measures.
definitions |= {
    "ratio residual": definitions["ratio_residual"],
    "max_residual": definitions["ratio_residual"],
    "previous_token": definitions["previous_score"],
    "duplicate_token": definitions["duplicate_score"],
    "induction": definitions["induction_score"],
    "head_scores": definitions["scores"],
    "head_masked": definitions["visible"],
    "head_weights": definitions["weights"],
}


def explained(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Each key with its text, once, in the order asked. A text "term: meaning" of the report's own passes as it is.

    >>> explained(["share: part of a whole"])
    [('share', 'part of a whole')]
    """
    found: dict[str, str] = {}
    for key in keys:
        term, colon, meaning = key.partition(": ")
        if key not in definitions and not colon:
            raise UnknownName("definition", key, definitions, hint="or give your own as 'term: meaning'")
        found.setdefault(term if colon else key, meaning if colon else definitions[key])
    return list(found.items())
