"""The numbers of heads as text for the viewer: quantised, deflated, base64, each kind with its error stated. Nothing here is HTML.

| kind | travels | error of what the page makes of it |
|---|---|---|
| rest | q and k in 2·LEVELS steps, and what each score holds beyond their product | scores 1/512, hidden ones 1/128 |
| qk | q and k in 2·WIDE steps (long texts) | scores 0.008, weights 0.0008, checked head by head |
| scores | scores, where they are no product of q and k alone; q and k for their bars | as rest |
| weights | weights, where there are no scores | 1/131,068 |

A score off by 1/512 moves a weight by less than 0.001. Heads beyond MOST bytes stay out, by whole layers.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from interp.capturing import Capture

STEP, COARSE, LEVELS, WIDE = 256, 64, 31, 32767
MOST = 8_000_000
_NOT_FINITE = -(2**30)


def of_heads(arrays: dict[str, Any], capture: Capture, seen: Any) -> dict[str, Any]:
    """What the page needs to draw each head: `kind`, and `data`, `q`, `k` [layer][head] as text; None for heads left out."""
    kinds = _kinds(arrays, capture)
    for kind in kinds:
        made = _of_kind(kind, arrays, capture, seen)
        if made is not None:
            return made | {"plain": kinds[-1] == "rest", "d": None if arrays["q"] is None else arrays["q"].shape[-1]}
    raise AssertionError("the last kind always holds")


def _kinds(arrays: dict[str, Any], capture: Capture) -> list[str]:
    """The kinds to try in turn; the last always holds."""
    q, k, scores = arrays["q"], arrays["k"], arrays["scores"]
    if scores is None:
        return ["weights"]
    plain = q is not None and k is not None and capture.scale is not None
    if not plain or any(_beyond(arrays, capture, row) > 0.02 for row in range(len(capture.layers))):
        return ["scores"]
    long = capture.n_tokens > 2 * q.shape[-1] and capture.sinks is None
    return ["qk", "rest"] if long else ["rest"]


def _of_kind(kind: str, arrays: dict[str, Any], capture: Capture, seen: Any) -> dict[str, Any] | None:
    """All heads of one kind, as far as they fit; None where the kind is not close enough."""
    heads, total = capture.n_heads, len(capture.layers) * capture.n_heads
    levels = WIDE if kind == "qk" else LEVELS
    both = arrays["q"] is not None and arrays["k"] is not None
    data: list[list[str | None]] = [[None] * heads for _ in capture.layers]
    made: dict[str, Any] = {"kind": kind, "data": data, "q": [], "k": [], "bytes": 0}
    for row in range(len(capture.layers)):
        steps = {name: _steps(arrays[name][row], levels) for name in ("q", "k") if both}
        whole = {name: np.round(np.nan_to_num(arrays[name][row]) / step) for name, step in steps.items()}
        values = arrays["weights" if kind == "weights" else "scores"][row]
        if kind in ("rest", "qk"):
            near = _product(whole["q"] * steps["q"], whole["k"] * steps["k"], capture, row)
            if kind == "qk" and not _close(near - values, arrays["weights"][row], seen[row]):
                return None
            values = values - near
        vectors = {name: [_vectors(*pair) for pair in zip(steps[name], whole[name], strict=True)] for name in steps}
        one = [""] * heads if kind == "qk" else [_head(kind, value, seen[row]) for value in values]
        made["bytes"] += sum(map(len, one)) + sum(len(text) for texts in vectors.values() for text in texts)
        if made["bytes"] > MOST and row:
            made["notice"] = (
                f"{row * heads} of {total} heads can be opened here, those of layers "
                f"{', '.join(map(str, capture.layers[:row]))}: at {capture.n_tokens} tokens all of them would not fit into "
                f"{MOST // 1_000_000} MB. The measures cover all heads; pages of other layers are made with --layers."
            )
            break
        data[row] = list(one)
        for name, texts in vectors.items():
            made[name].append(texts)
    return made


def _head(kind: str, values: Any, seen: Any) -> str:
    return _weights(values) if kind == "weights" else _scores(values, seen, smooth=kind == "scores")


def _product(q: Any, k: Any, capture: Capture, row: int) -> Any:
    """scale · q·k of one layer [head, query, key], capped where the model caps."""
    assert capture.scale is not None
    made = capture.scale[row] * (q @ np.repeat(k, len(q) // len(k), 0).transpose(0, 2, 1))
    cap = capture.softcap[row] if capture.softcap else None
    return cap * np.tanh(made / cap) if cap else made


def _beyond(arrays: dict[str, Any], capture: Capture, row: int) -> float:
    """What the scores of a layer hold beyond the product, at most; infinite where that is no number."""
    off = _product(arrays["q"][row], arrays["k"][row], capture, row) - arrays["scores"][row]
    most = float(np.abs(off, out=off).max())
    return most if np.isfinite(most) else np.inf


def _close(off: Any, weights: Any, seen: Any) -> bool:
    """Whether scores that are `off` are near enough and leave the weights near enough: w moves to w·e^off ÷ Σ w·e^off."""
    if not np.abs(off).max() < 0.008:
        return False
    shifted = weights * np.exp(off) * seen
    shifted /= np.maximum(shifted.sum(-1, keepdims=True), 1e-30)
    return bool(np.abs(shifted - weights).max() < 0.0008)


def _steps(x: Any, levels: int) -> Any:
    """The step of each position [head, pos, 1], so that its largest component is at most `levels` of them: rounded up to 16 bits of a float32."""
    step = np.maximum(np.abs(np.nan_to_num(x)).max(-1, keepdims=True), 1e-30).astype("<f4") / np.float32(levels)
    return ((step.view("<u4") + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view("<f4")


def _vectors(step: Any, whole: Any) -> str:
    """[pos, d] as one step a position (the upper half of a float32), then whole numbers of steps: one byte each, or two planes of bytes."""
    wide = np.abs(whole).max() > 127
    kept = whole.astype("<i2").view(np.uint8).reshape(-1, 2).T if wide else whole.astype("i1")
    return blob((step.view("<u4") >> 16).astype("<u2").tobytes() + np.ascontiguousarray(kept).tobytes())


def _scores(scores: Any, seen: Any, smooth: bool) -> str:
    """Visible scores in 1/STEP, then hidden ones in 1/COARSE, each key's column downwards, in four byte planes. `smooth`: as differences."""
    return blob(_planes(scores.T[seen.T], STEP, smooth) + _planes(scores.T[~seen.T], COARSE, smooth))


def _planes(values: Any, step: int, smooth: bool) -> bytes:
    bounded = np.clip(np.round(values.astype(np.float64) * step), -(2**29), 2**29)
    whole = np.where(np.isfinite(values), bounded, _NOT_FINITE).astype(np.int64)
    change: Any = np.diff(whole, prepend=0) if smooth else whole
    folded = ((change << 1) ^ (change >> 63)).astype("<u4")
    return folded.view(np.uint8).reshape(-1, 4).T.tobytes()


def _weights(weights: Any) -> str:
    whole = np.where(np.isfinite(weights), np.round(np.clip(weights, 0, 1) * 65534), 65535).astype("<u2")
    return blob(whole.view(np.uint8).reshape(-1, 2).T.tobytes())


def blob(raw: bytes) -> str:
    """Base64 of the bytes: z = deflated, r = as they are, whichever is shorter."""
    packed = zlib.compress(raw, 9 if len(raw) < 32_000 else 6)
    kind, kept = ("z", packed) if len(packed) < len(raw) else ("r", raw)
    return kind + base64.b64encode(kept).decode()
