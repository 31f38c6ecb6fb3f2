"""The proof of a capture: each check compares two computations and says its worst figure and where it stands.

A check that fails makes `capture` refuse (NotFaithful) and `audit` exit with 1. Rows without a visible key, and rows that are NaN in
the model itself, are left out and counted by `excluded_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from interp import attention
from interp.capturing.captured import Capture, dtype_of
from interp.errors import NotFaithful

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True)
class Check:
    """One comparison: the worst figure, its tolerance, where it stands ("9.9 row 4"), and whether it held."""

    name: str
    worst: float
    tolerance: float
    where: str = ""

    @property
    def passed(self) -> bool:
        return self.worst <= self.tolerance  # NaN never passes

    def __str__(self) -> str:
        return f"{self.name}: {self.worst:.3g} > {self.tolerance:.3g}{' at ' + self.where if self.where else ''}"


def checks(capture: Capture) -> Iterator[Check]:
    """Every check that the tensors present allow, in the order of the computation."""
    kind = dtype_of(capture)
    tolerance = TOLERANCE[kind]
    good = ~excluded_rows(capture)
    seen = None if capture.visible is None else capture.visible[:, None]
    q, k, v, s, w, z = (getattr(capture, name) for name in ("q", "k", "v", "scores", "weights", "z"))
    if s is not None:
        wrong = (~torch.isfinite(s)).float() * good[..., None]
        yield _worst("scores are finite", capture, wrong, 0.0)
    if q is not None and k is not None and s is not None and not capture.provenance.get("bias"):
        made = torch.stack([_scores(capture, row) for row in range(len(capture.layers))])
        # Each score is a sum rounded in the model's dtype: what counts is the error against the size of the row's scores.
        size = made.abs().amax(-1, keepdim=True).clamp_min(1.0)
        yield _worst("scale · q·k = scores", capture, (made - s).abs() / size * good[..., None], tolerance)
    if w is None:
        return
    yield _worst("weights are not negative", capture, (-w).clamp_min(0) * good[..., None], 0.0)
    if seen is not None:
        yield _worst("no weight on unseen keys", capture, w.abs() * ~seen * good[..., None], 0.0)
    missing = 1 - w.double().sum(-1)
    if capture.sinks is None:
        yield _worst("rows sum to 1", capture, (missing.abs() * good)[..., None], 2 * tolerance)
    else:
        yield _worst("rows sum to at most 1 (learned sinks)", capture, ((-missing).clamp_min(0) * good)[..., None], 2 * tolerance)
    if s is not None and seen is not None:
        sink = None if capture.sinks is None else capture.sinks[:, :, None]
        made = attention.weights(torch.nan_to_num(s), seen.expand(s.shape), sink=sink, empty="zero")
        yield _worst("softmax(scores) = weights", capture, (made - w).abs() * good[..., None], _softmax_tolerance(s, kind))
    if v is not None and z is not None:
        values = v.repeat_interleave(w.shape[1] // v.shape[1], 1)
        size = values.abs().amax((-1, -2), keepdim=True).clamp_min(1.0)
        yield _worst("weights · v = z", capture, (w.to(values.dtype) @ values - z).abs() / size * good[..., None], tolerance)


def logits_check(captured: Tensor, plain: Tensor, kind: torch.dtype) -> Check:
    """Largest change of a logit against a plain forward, relative to the largest logit: eager and fused kernels round differently."""
    size = plain.double().abs().max().clamp_min(1.0)
    difference = (captured.double() - plain.double()).abs().amax(-1) / size
    row = int(difference.argmax())
    return Check("logits are those of a plain forward", float(difference.max()), 10 * TOLERANCE[kind], f"row {row}")


def prove(capture: Capture, *more: Check) -> None:
    """Raise NotFaithful with every check that failed; silence is the proof."""
    if failed := [str(check) for check in (*checks(capture), *more) if not check.passed]:
        raise NotFaithful(f"the capture of {capture.model or 'this file'} is not what the model computed: {'; '.join(failed)}")


def excluded_rows(capture: Capture) -> Tensor:
    """[layer, head, query] True for rows that cannot be tested: no visible key, or not finite in the model itself."""
    square = capture.weights if capture.weights is not None else capture.scores
    if square is None:
        return torch.zeros(len(capture.layers), capture.n_heads, capture.n_tokens, dtype=torch.bool)
    bad = ~torch.isfinite(square).all(-1)
    if capture.visible is not None:
        bad = bad | ~capture.visible.any(-1)[:, None]
    return bad


def _scores(capture: Capture, row: int) -> Tensor:
    assert capture.q is not None
    assert capture.k is not None
    q, k = capture.q[row], capture.k[row].repeat_interleave(capture.q.shape[1] // capture.k.shape[1], 0)
    scale = None if capture.scale is None else capture.scale[row]
    return attention.scores(q, k, scale, None if capture.softcap is None else capture.softcap[row])


def _softmax_tolerance(scores: Tensor, kind: torch.dtype) -> float:
    """A weight moves by at most w · |error of its score|: the dtype's own rounding, plus the scores' where they were kept in that dtype."""
    if kind in (torch.float32, torch.float64):
        size = float(torch.nan_to_num(scores).abs().max())
        return max(TOLERANCE[kind], 8 * torch.finfo(kind).eps * size)
    return TOLERANCE[kind] + torch.finfo(kind).eps * float(torch.nan_to_num(scores).abs().max())


def _worst(name: str, capture: Capture, wrong: Tensor, tolerance: float) -> Check:
    """The largest entry of `wrong` [layer, head, query, any], NaN first."""
    flat = torch.nan_to_num(wrong.double(), nan=torch.inf).flatten()
    if not len(flat):
        return Check(name, 0.0, tolerance)
    place = int(flat.argmax())
    if flat[place] == 0:
        return Check(name, 0.0, tolerance)
    layer, head, row, _ = (int(axis) for axis in torch.unravel_index(torch.tensor(place), wrong.shape))
    return Check(name, float(flat[place]), tolerance, f"{capture.layers[layer]}.{head} row {row}")
