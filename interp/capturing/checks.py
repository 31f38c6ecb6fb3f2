"""The proof of a capture: each check compares two computations and says its worst figure and where it stands.

A check that fails makes `capture` refuse (NotFaithful) and `audit` exit with 1. Rows without a visible key, and rows that are not finite
in the model itself, are left out; `left_out` names and counts them. Every comparison is made in float32 at least, a layer at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from interp import attention
from interp.capturing.captured import Capture, dtype_of
from interp.errors import NotFaithful
from interp.measures import ratio

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
Rows = Bool[Tensor, "layer head query"]


@dataclass(frozen=True)
class Check:
    """One comparison: the worst figure, its tolerance, where it stands (layer, head, row, where they apply), and whether it held."""

    name: str
    worst: float
    tolerance: float
    layer: int | None = None
    head: int | None = None
    row: int | None = None

    @property
    def passed(self) -> bool:
        return self.worst <= self.tolerance  # NaN never passes

    @property
    def where(self) -> str:
        """ "9.9 row 4", or less where less is known."""
        unit = "" if self.layer is None else f"layer {self.layer}" if self.head is None else f"{self.layer}.{self.head}"
        return " ".join(part for part in (unit, "" if self.row is None else f"row {self.row}") if part)

    def __str__(self) -> str:
        return f"{self.name}: {self.worst:.3g} > {self.tolerance:.3g}{' at ' + self.where if self.where else ''}"


def checks(capture: Capture) -> Iterator[Check]:
    """Every check that the tensors present allow, in the order of the computation."""
    good = ~excluded_rows(capture)
    for check in (finite_scores, products, not_negative, causal, unseen, row_sums, softmax, contexts):
        if (made := check(capture, good)) is not None:
            yield made


def prove(capture: Capture, *more: Check) -> None:
    """Raise NotFaithful with every check that failed; silence is the proof."""
    if failed := [str(check) for check in (*checks(capture), *more) if not check.passed]:
        raise NotFaithful(f"the capture of {capture.model or 'this file'} is not what the model computed: {'; '.join(failed)}")


def finite_scores(capture: Capture, good: Rows) -> Check | None:
    """No score is infinite or NaN, later keys' neither; pairs whose query or key is not finite in the model are left out."""
    s = capture.scores
    if s is None:
        return None
    return _worst(
        "scores are finite", capture, 0.0, lambda i: (~torch.isfinite(s[i]) & good[i][..., None] & _pairs(capture, i)).float()
    )


def products(capture: Capture, good: Rows) -> Check | None:
    """cap(scale · q·k) + bias = scores. Each is a sum rounded in the model's dtype: the error counts against the row's largest score."""
    s = capture.scores
    if s is None or capture.q is None or capture.k is None:
        return None

    def wrong(i: int) -> Tensor:
        made = _scores(capture, i)
        keep = good[i][..., None] & _pairs(capture, i)
        size = torch.where(keep, made, 0.0).abs().amax(-1, keepdim=True).clamp_min(1.0)
        return torch.where(keep, (made - s[i]).abs() / size, 0.0)

    return _worst("scale · q·k = scores", capture, _tolerance(capture), wrong)


def not_negative(capture: Capture, good: Rows) -> Check | None:
    w = capture.weights
    if w is None:
        return None
    return _worst("weights are not negative", capture, 0.0, lambda i: torch.where(good[i][..., None], -w[i], 0.0).clamp_min(0))


def causal(capture: Capture, good: Rows) -> Check | None:
    """No weight on a later token, whatever the mask says. Not asked of a model whose own mask shows later tokens (provenance: causal)."""
    w = capture.weights
    if w is None or capture.provenance.get("causal") is False:
        return None
    return _worst("nothing above the diagonal", capture, 0.0, lambda i: torch.where(good[i][..., None], w[i], 0.0).abs().triu(1))


def unseen(capture: Capture, good: Rows) -> Check | None:
    """No weight outside what the mask shows: window and padding."""
    w, seen = capture.weights, capture.visible
    if w is None or seen is None:
        return None
    return _worst("no weight on unseen keys", capture, 0.0, lambda i: torch.where(good[i][..., None] & ~seen[i], w[i].abs(), 0.0))


def row_sums(capture: Capture, good: Rows) -> Check | None:
    """Rows sum to 1, in float64; where sinks are learned, to at most 1: what is missing is the sink's share."""
    w = capture.weights
    if w is None:
        return None
    tolerance = 2 * _tolerance(capture)
    if capture.sinks is None:
        wrong: Callable[[int], Tensor] = lambda i: torch.where(good[i], (1 - w[i].double().sum(-1)).abs(), 0.0)[..., None]  # noqa: E731
        return _worst("rows sum to 1", capture, tolerance, wrong)
    above: Callable[[int], Tensor] = lambda i: torch.where(good[i], w[i].double().sum(-1) - 1, 0.0).clamp_min(0)[..., None]  # noqa: E731
    return _worst("rows sum to at most 1 (learned sinks)", capture, tolerance, above)


def softmax(capture: Capture, good: Rows) -> Check | None:
    """Softmax of the visible scores = weights, computed here from the scores."""
    s, w, seen = capture.scores, capture.weights, capture.visible
    if s is None or w is None or seen is None:
        return None

    def wrong(i: int) -> Tensor:
        sink = None if capture.sinks is None else capture.sinks[i][:, None].expand(s.shape[1:3])
        made = attention.weights(torch.nan_to_num(s[i]), seen[i].expand(s[i].shape), sink=sink, empty="zero")
        return torch.where(good[i][..., None], (made - w[i]).abs(), 0.0)

    return _worst("softmax(scores) = weights", capture, _softmax_tolerance(capture), wrong)


def contexts(capture: Capture, good: Rows) -> Check | None:
    """Weights · v = z, against the layer's largest value. A value that is not finite in the model spoils its column of z: left out."""
    w, v, z = capture.weights, capture.v, capture.z
    if w is None or v is None or z is None:
        return None

    def wrong(i: int) -> Tensor:
        values = v[i].repeat_interleave(w.shape[1] // v.shape[1], 0)
        size = torch.nan_to_num(values, posinf=0.0, neginf=0.0).abs().amax((-1, -2), keepdim=True).clamp_min(1.0)
        made = w[i].to(values.dtype) @ values
        keep = good[i][..., None] & (torch.isfinite(made) | torch.isfinite(z[i]))
        return torch.where(keep, (made - z[i]).abs() / size, 0.0)

    return _worst("weights · v = z", capture, _tolerance(capture), wrong)


def ratio_rule(capture: Capture) -> Check | None:
    """Two visible keys of a row have weights in the ratio e^Δ of their scores; residuals in nats, by `measures.ratio`."""
    if capture.scores is None or capture.weights is None or capture.visible is None:
        return None
    s, w, seen, kind = capture.scores, capture.weights, capture.visible, dtype_of(capture)
    worst = torch.stack([ratio.residuals(s[i, None], w[i, None], seen[i, None], kind).max[0] for i in range(len(capture.layers))])
    place = int(worst.argmax())
    layer, head = divmod(place, worst.shape[1])
    return Check("ratio rule", float(worst.max()), ratio.tolerance(s, seen, kind), capture.layers[layer], head)


def logits_check(captured: Tensor, plain: Tensor, kind: torch.dtype, lost: Tensor | None = None) -> Check:
    """Largest change of a logit against a plain forward, relative to the largest logit: eager and fused kernels round differently.

    Rows that are not finite in the plain forward, and those of `lost` [pos], are the model's own and are left out.
    """
    keep = torch.isfinite(plain).all(-1)
    if lost is not None:
        keep = keep & ~lost.to(keep.device)
    wide, other = captured.double(), plain.double()
    size = torch.where(keep[:, None], other, 0.0).abs().max().clamp_min(1.0)
    difference = torch.where(keep, (wide - other).abs().amax(-1) / size, 0.0).nan_to_num(nan=torch.inf)
    row = int(difference.argmax())
    return Check("logits are those of a plain forward", float(difference.max()), 10 * TOLERANCE[kind], row=row)


def excluded_rows(capture: Capture) -> Rows:
    """[layer, head, query] True for rows that cannot be tested: no visible key, or not finite in the model itself."""
    bad = _not_finite(capture)
    if capture.visible is not None:
        bad = bad | ~capture.visible.any(-1)[:, None]
    return bad


def left_out(capture: Capture, most: int = 8) -> dict[str, Any]:
    """What the checks leave out, by count and by name: {"not_finite": n, "first": ["0.1 row 3", …], "no_visible_key": n}; {} for nothing."""
    bad = not_finite(capture)
    empty = torch.zeros_like(bad) if capture.visible is None else (~capture.visible.any(-1))[:, None].expand(bad.shape)
    bad = bad & ~empty
    named = [f"{capture.layers[layer]}.{head} row {row}" for layer, head, row in bad.nonzero()[:most].tolist()]
    found = {"not_finite": int(bad.sum()), "first": named} if named else {}
    return {**found, **({"no_visible_key": int(empty.sum())} if bool(empty.any()) else {})}


def not_finite(capture: Capture) -> Rows:
    """[layer, head, query] True where the model itself has a NaN or an infinity in a row's weights or z."""
    bad = _not_finite(capture)
    return bad if capture.z is None else bad | ~torch.isfinite(capture.z).all(-1)


def _not_finite(capture: Capture) -> Rows:
    square = capture.weights if capture.weights is not None else capture.scores
    if square is None:
        return torch.zeros(len(capture.layers), capture.n_heads, capture.n_tokens, dtype=torch.bool)
    return torch.stack([~torch.isfinite(layer).all(-1) for layer in square])


def _pairs(capture: Capture, i: int) -> Tensor:
    """[head, query, key] True where query and key are finite in the model; everything where a capture holds none."""
    if capture.q is None or capture.k is None:
        return torch.ones((), dtype=torch.bool)
    q, k = torch.isfinite(capture.q[i]).all(-1), torch.isfinite(capture.k[i]).all(-1)
    return q[:, :, None] & k.repeat_interleave(q.shape[0] // k.shape[0], 0)[:, None, :]


def _scores(capture: Capture, i: int) -> Tensor:
    assert capture.q is not None
    assert capture.k is not None
    q, k = capture.q[i], capture.k[i].repeat_interleave(capture.q.shape[1] // capture.k.shape[1], 0)
    scale = None if capture.scale is None else capture.scale[i]
    made = attention.scores(q, k, scale, None if capture.softcap is None else capture.softcap[i])
    return made if capture.bias is None else made + capture.bias[i]


def _tolerance(capture: Capture) -> float:
    return TOLERANCE[dtype_of(capture)]


def _softmax_tolerance(capture: Capture) -> float:
    """A weight moves by at most w · |error of its score|: the dtype's own rounding, plus the scores' where they were kept in that dtype."""
    assert capture.scores is not None
    kind = dtype_of(capture)
    size = max(float(torch.nan_to_num(layer, posinf=0.0, neginf=0.0).abs().max()) for layer in capture.scores)
    if kind in (torch.float32, torch.float64):
        return max(TOLERANCE[kind], 8 * torch.finfo(kind).eps * size)
    return TOLERANCE[kind] + torch.finfo(kind).eps * size


def _worst(name: str, capture: Capture, tolerance: float, wrong: Callable[[int], Tensor]) -> Check:
    """The largest entry of `wrong(place of a layer)` [head, query, any] over all layers, NaN first."""
    found = Check(name, 0.0, tolerance)
    for i, layer in enumerate(capture.layers):
        square = torch.nan_to_num(wrong(i), nan=torch.inf)
        place = int(square.argmax())
        if (figure := float(square.flatten()[place])) > found.worst:
            head, row, _ = (int(axis) for axis in torch.unravel_index(torch.tensor(place), square.shape))
            found = Check(name, figure, tolerance, layer, head, row)
    return found
