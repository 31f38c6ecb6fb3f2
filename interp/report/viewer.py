"""The interactive viewer: a capture as one offline page, or as a part of another page, several of which never clash.

Scores travel as `viewer_data` says, within 0.01, and weights are made in the page by the same masked softmax, within 0.001. Heads that do
not fit stay out, with a notice; their measures stay in. Needs a browser with DecompressionStream.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from scipy.special import xlogy

from interp.report import text, viewer_data
from interp.report.definitions import definitions

if TYPE_CHECKING:
    from interp.capturing import Capture

FOLDER = Path(__file__).parent / "viewer"
PARTS = ("data.js", "draw.js", "page.js", "overview.js", "panel.js", "ways.js", "start.js")
FROM_QUERY = 3


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
        "masks": [viewer_data.blob(mask) for mask in masks],
        "maskOf": mask_of,
        "step": viewer_data.STEP,
        "coarse": viewer_data.COARSE,
        "levels": viewer_data.LEVELS,
        "provenance": {name: str(value) for name, value in dict(capture.provenance).items() if value not in (None, "")},
        "from": min(FROM_QUERY, n - 1),
    }
    data["measures"], data["meanings"] = _measures(arrays["weights"], data["from"])
    return data | viewer_data.of_heads(arrays, capture, seen)


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
    n = weights.shape[-1]
    at = np.arange(first, n)
    kept: dict[str, list[Any]] = {}
    for layer in weights:  # one at a time: a square a head in float64 is much
        rows = layer[:, first:].astype(np.float64)
        for name, values in (
            ("first_weight", rows[..., 0]),
            ("largest_weight", rows.max(-1)),
            ("entropy", -xlogy(rows, rows).sum(-1)),
            ("self_weight", rows[:, at - first, at]),
            ("previous_weight", rows[:, at - first, np.maximum(at - 1, 0)]),
        ):
            kept.setdefault(name, []).append(np.round(values.mean(-1), 5).tolist())
    where = f"mean over the query rows from row {first} on"
    meanings = {
        "first_weight": f"Weight on the first token, {where}.",
        "largest_weight": f"Largest weight of a row, {where}.",
        "entropy": f"{definitions['entropy']} Here the {where}.",
        "self_weight": f"Weight on the query's own token, {where}.",
        "previous_weight": f"Weight on the token before the query, {where}.",
    }
    return kept, meanings
