"""The interactive viewer: a capture as one offline page, or as a part of another page, several of which never clash.

Scores travel rounded to 1/256 (weights follow within 0.001), long texts as q and k in 16 bits; weights are made in the page by the
same masked softmax. Heads beyond MOST bytes stay out, with a notice; their measures stay in. Needs a browser with DecompressionStream.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
import zlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from interp.report import text
from interp.report.definitions import definitions

if TYPE_CHECKING:
    from interp.capturing import Capture

FOLDER = Path(__file__).parent / "viewer"
PARTS = ("data.js", "draw.js", "page.js", "overview.js", "panel.js", "ways.js", "start.js")
STEP, COARSE, LEVELS, WIDE, FROM_QUERY = 256, 64, 63, 32767, 3
MOST = 8_000_000
_IN_PAGE = (
    0.0015  # scores made in the page from rounded q and k may be off by this much, as 1/512 moves a weight by 0.001 at most
)


@lru_cache
def style() -> str:
    return (FOLDER / "viewer.css").read_text(encoding="utf-8").strip()


@lru_cache
def script() -> str:
    """The modules of the folder as one: imports among them go, exports become plain names."""
    joined = "\n".join((FOLDER / name).read_text(encoding="utf-8").strip() for name in PARTS)
    return re.sub(r"(?m)^import .*\n|^export ", "", joined)


def page(capture: Capture, title: str = "") -> str:
    """The whole document. Its policy names its own script and style by digest; nothing else runs and nothing is fetched."""
    shown = title or " ".join(capture.text.split())[:80] or "Attention"
    own = f"script-src {_digest(script())}; style-src {_digest(style())}"
    policy = f"default-src 'none'; img-src data:; {own}; base-uri 'none'; form-action 'none'"
    return str(
        Markup(
            '<!doctype html>\n<html lang="en" class="interp-alone">\n<head>\n<meta charset="utf-8">\n'
            '<meta http-equiv="Content-Security-Policy" content="{}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
            '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n<title>{}</title>\n<style>{}</style>\n'
            '</head>\n<body>\n<main>\n<h1>{}</h1>\n{}\n</main>\n<script type="module">{}</script>\n</body>\n</html>\n'
        ).format(
            Markup(policy),
            text.html(shown),
            Markup(style()),
            text.html(shown),
            Markup(_root(capture, "viewer")),
            Markup(script()),
        )
    )


def embed(capture: Capture, id: str = "") -> str:
    """The viewer as a part of a page: its own style and script; run twice, the script leaves finished viewers alone."""
    root = _root(capture, id)
    return f'<style>{style()}</style>\n{root}\n<script type="module">{script()}</script>'


def _digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _root(capture: Capture, id: str) -> str:
    data = _data(capture)
    id = id or "viewer-" + hashlib.sha256(text.to_json(data).encode()).hexdigest()[:8]
    return str(
        Markup(
            '<section class="interp-viewer" id="{}" aria-label="Attention of every head">\n'
            '<script type="application/json">{}</script>\n<noscript>{}</noscript>\n</section>'
        ).format(id, text.script_data(data), _plain(data))
    )


def _plain(data: dict[str, Any]) -> Markup:
    """The measures of every head as a table, for a page whose scripts are off."""
    names = list(data["measures"])
    rows = Markup("").join(
        Markup("<tr><th scope=row>{}.{}</th>{}</tr>\n").format(
            layer, head, Markup("").join(Markup("<td>{}</td>").format(_number(data["measures"][n][row][head])) for n in names)
        )
        for row, layer in enumerate(data["layers"])
        for head in range(data["heads"])
    )
    words = Markup(" ").join(Markup("<bdi>{}</bdi>").format(text.cell(token)) for token in data["tokens"])
    meanings = Markup("").join(Markup("<dt>{}</dt><dd>{}</dd>").format(n, data["meanings"][n]) for n in names)
    heads = Markup("").join(Markup("<th scope=col>{}</th>").format(name) for name in names)
    return Markup(
        "<p>Scripts are off: the maps need them. The numbers of every head (layer.head, from 0) do not.</p><p>{}</p><dl>{}</dl>\n"
        "<table><thead><tr><th scope=col>head</th>{}</tr></thead><tbody>\n{}</tbody></table>"
    ).format(words, meanings, heads, rows)


def _number(value: float | None) -> str:
    return "–" if value is None else text.number(value)


def _data(capture: Capture) -> dict[str, Any]:
    arrays = {name: _array(getattr(capture, name)) for name in ("q", "k", "scores", "weights", "visible", "sinks")}
    n, count = capture.n_tokens, capture.n_heads
    seen = arrays["visible"]
    if seen is None:
        seen = np.broadcast_to(np.tril(np.ones((n, n), bool)), (len(capture.layers), n, n))
    masks: dict[bytes, int] = {}
    mask_of = [masks.setdefault(np.packbits(seen[row]).tobytes(), len(masks)) for row in range(len(capture.layers))]
    tokens = [text.visible(token) for token in capture.tokens]
    data: dict[str, Any] = {
        "model": text.model_name(capture.model),
        "text": text.visible(capture.text),
        "tokens": tokens,
        "codes": {i: codes for i, token in enumerate(capture.tokens) if (codes := _codes(token))},
        "ids": None if capture.ids is None else capture.ids.tolist(),
        "layers": list(capture.layers),
        "heads": count,
        "kv": capture.n_kv_heads,
        "scale": capture.scale,
        "cap": capture.softcap,
        "sinks": None if arrays["sinks"] is None else arrays["sinks"].tolist(),
        "masks": [_blob(mask) for mask in masks],
        "maskOf": mask_of,
        "step": STEP,
        "coarse": COARSE,
        "levels": LEVELS,
        "provenance": {name: str(value) for name, value in dict(capture.provenance).items() if value not in (None, "")},
        "from": min(FROM_QUERY, n - 1),
    }
    data["measures"], data["meanings"] = _measures(arrays["weights"], data["from"])
    return data | _heads(arrays, capture, seen)


def _array(tensor: Any) -> Any:
    if tensor is None:
        return None
    tensor = tensor.detach().cpu()
    return tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()


def _codes(token: str) -> str:
    """The code points of a token that the eye could take for another; "" for plain ones."""
    plain = token.isascii() and token.isprintable()
    kinds = {unicodedata.category(character)[0] for character in token}
    return "" if plain or (token and kinds <= {"L", "P", "N"}) else " ".join(f"U+{ord(c):04X}" for c in token)


def _measures(weights: Any, first: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Means over rows ≥ `first` for each head, and what they mean. Empty where there are no weights."""
    if weights is None:
        return {}, {}
    rows = weights[:, :, first:].astype(np.float64)
    n = rows.shape[-1]
    at = np.arange(first, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(rows > 0, rows * np.log(rows), np.where(np.isnan(rows), np.nan, 0)).sum(-1)
    kept = {
        "first_weight": rows[..., 0].mean(-1),
        "largest_weight": rows.max(-1).mean(-1),
        "entropy": entropy.mean(-1),
        "self_weight": rows[:, :, at - first, at].mean(-1),
        "previous_weight": rows[:, :, at - first, np.maximum(at - 1, 0)].mean(-1),
    }
    where = f"mean over the query rows from row {first} on"
    meanings = {
        "first_weight": f"Weight on the first token, {where}.",
        "largest_weight": f"Largest weight of a row, {where}.",
        "entropy": f"{definitions['entropy']} Here the {where}.",
        "self_weight": f"Weight on the query's own token, {where}.",
        "previous_weight": f"Weight on the token before the query, {where}.",
    }
    return {name: np.round(values, 5).tolist() for name, values in kept.items()}, meanings


def _heads(arrays: dict[str, Any], capture: Capture, seen: Any) -> dict[str, Any]:
    """What the page needs to draw each head: kind scores, qk or weights; `data` [layer][head], None beyond MOST bytes."""
    q, k, scores, weights = (arrays[name] for name in ("q", "k", "scores", "weights"))
    both = q is not None and k is not None
    kind = "weights" if scores is None else "scores"
    plain = both and scores is not None and capture.scale is not None and _off(arrays, capture)[0] < 0.02
    if plain and capture.n_tokens > 2 * q.shape[-1] and capture.sinks is None:
        off, moved = _off(arrays, capture, WIDE)
        kind = "qk" if off < 0.008 and moved < 0.0008 else kind
    made: dict[str, Any] = {"kind": kind, "plain": bool(plain), "d": q.shape[-1] if both else None}
    levels = WIDE if kind == "qk" else LEVELS
    size, total = 0, len(capture.layers) * capture.n_heads
    data: list[list[str | None]] = [[None] * capture.n_heads for _ in capture.layers]
    vectors: dict[str, list[list[str | None]]] = {"q": [], "k": []}
    for row in range(len(capture.layers)):
        here = {name: [_vectors(x, levels) for x in arrays[name][row]] if both else [] for name in ("q", "k")}
        one = (
            [""] * capture.n_heads
            if kind == "qk"
            else [
                _scores(scores[row, head], seen[row]) if kind == "scores" else _weights(weights[row, head])
                for head in range(capture.n_heads)
            ]
        )
        size += sum(map(len, one)) + sum(len(x) for name in here for x in here[name])
        if size > MOST and row:
            made["notice"] = (
                f"{row * capture.n_heads} of {total} heads can be opened here, those of layers "
                f"{', '.join(map(str, capture.layers[:row]))}: at {capture.n_tokens} tokens all of them would not fit into "
                f"{MOST // 1_000_000} MB. The measures cover all heads; pages of other layers are made with --layers."
            )
            break
        data[row] = list(one)
        for name in here:
            vectors[name].append(list(here[name]))
    return made | {"data": data, **vectors, "bytes": size}


def _off(arrays: dict[str, Any], capture: Capture, levels: int | None = None) -> tuple[float, float]:
    """How far scores are from scale · q·k, capped where the model caps, and how far weights move by it; q and k exact or rounded."""
    worst, moved = 0.0, 0.0
    for row in range(len(capture.layers)):
        q, k = (x if levels is None else _rounded(x, levels) for x in (arrays["q"][row], arrays["k"][row]))
        made = (capture.scale or ())[row] * (q @ np.repeat(k, len(q) // len(k), 0).transpose(0, 2, 1))
        cap = capture.softcap[row] if capture.softcap else None
        off = (cap * np.tanh(made / cap) if cap else made) - arrays["scores"][row]
        worst = max(worst, float(np.abs(off).max()))
        if levels is not None:
            # w moves to w·e^off ÷ Σ w·e^off: the shifted row, without another softmax.
            shifted = arrays["weights"][row] * np.exp(off)
            shifted /= np.maximum(shifted.sum(-1, keepdims=True), 1e-30)
            moved = max(moved, float(np.abs(shifted - arrays["weights"][row]).max()))
        if not np.isfinite(worst) or (levels is not None and worst > 0.01):
            return np.inf, np.inf
    return worst, moved


def _steps(x: Any, levels: int) -> Any:
    return np.maximum(np.abs(x).max(-1, keepdims=True), 1e-30).astype(np.float32) / levels


def _rounded(x: Any, levels: int) -> Any:
    return np.round(x / _steps(x, levels)) * _steps(x, levels)


def _vectors(x: Any, levels: int) -> str:
    """[pos, d] as one step a position (float32), then whole numbers of steps in one or two bytes."""
    x = np.nan_to_num(x)
    step = _steps(x, levels)
    whole = np.round(x / step).astype("<i2" if levels > 127 else "i1")
    return _blob(step.astype("<f4").tobytes() + whole.tobytes())


def _scores(scores: Any, seen: Any) -> str:
    """Visible scores in 1/STEP, then hidden ones in 1/COARSE, each key's column downwards, as differences in four byte planes."""
    return _blob(_planes(scores.T[seen.T], STEP) + _planes(scores.T[~seen.T], COARSE))


def _planes(values: Any, step: int) -> bytes:
    whole = np.where(np.isfinite(values), np.clip(np.round(values.astype(np.float64) * step), -(2**29), 2**29), -(2**30))
    change: Any = np.diff(whole.astype(np.int64), prepend=0)
    folded = ((change << 1) ^ (change >> 63)).astype("<u4")
    return folded.view(np.uint8).reshape(-1, 4).T.tobytes()


def _weights(weights: Any) -> str:
    whole = np.where(np.isfinite(weights), np.round(np.clip(weights, 0, 1) * 65534), 65535).astype("<u2")
    return _blob(whole.view(np.uint8).reshape(-1, 2).T.tobytes())


def _blob(raw: bytes) -> str:
    """Base64 of the bytes: z = deflated, r = as they are, whichever is shorter."""
    packed = zlib.compress(raw, 9)
    kind, kept = ("z", packed) if len(packed) < len(raw) else ("r", raw)
    return kind + base64.b64encode(kept).decode()
