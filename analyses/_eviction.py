"""Window attention with and without its first tokens, by a mask: what a model loses when the first token is evicted. For `resting_spot`.

StreamingLLM's experiment (Xiao et al., arXiv 2309.17453). Places keep their numbers, and an evicted key stays evicted for all later rows,
as where keys and values are dropped while a text is generated.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import torch
from torch import Tensor

from interp import corpus
from interp import interventions as change
from interp.errors import InterpError
from interp.losses import of_forward
from interp.measures import pruning
from interp.models import Model
from interp.models.model import evaluating
from interp.progress import track

BINS = 16


def long_texts(model: Model, texts: Iterable[corpus.Text], length: int, most: int, bos: str) -> Tensor:
    """At most `most` pieces of `length` tokens, [text, pos]: of texts that are as long, else of all texts end to end; shorter if need be."""
    length = min(length, model.n_positions or length)
    every = list(texts)
    if not any(len(model.tokens(text.text, bos)) >= length for text in every):
        every = [corpus.Text("\n\n".join(text.text for text in every), "corpus", "corpus")]
        length = min(length, len(model.tokens(every[0].text, bos)))
    return change.windows(model, every, length, most, bos)[0]


@torch.no_grad()
def evicted(model: Model, ids: Tensor, windows: Iterable[int], kept: Iterable[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Loss where a row sees the last `window` keys and the first `kept` ones alone, beside full attention; and by place of the query.

    The mean is over the rows after the window was filled. Raises InterpError for a model that does not take such a mask.
    """
    length = ids.shape[1]
    row, column = torch.arange(length)[:, None], torch.arange(length)
    causal = column <= row
    full = _losses(model, ids, causal)
    if not torch.allclose(full.mean(-1), change.loss(model, ids), atol=1e-3):
        raise InterpError(f"{model.name} does not take a mask of its own: full attention by mask gives another loss")
    conditions = {(size, "full"): full for size in windows}
    asked = [(size, first) for size in windows for first in kept]
    for size, first in track(asked, f"{model.name}: windows"):
        conditions[size, str(first)] = _losses(model, ids, causal & ((row - column < size) | (column < first)))
    lines, places = [], []
    for (size, name), loss in sorted(conditions.items(), key=lambda item: item[0][0]):
        late = loss[:, size:].mean(-1)
        low, high = pruning.interval(late)
        mean = float(late.mean())
        lines.append(
            {"window": size, "kept": name, "loss": mean, "low": low, "high": high, "perplexity": float(late.mean().exp())}
        )
        start = 0
        for part in loss.mean(0).split(max(1, length // BINS)):
            places.append({"window": size, "kept": name, "query": start, "loss": float(part.mean())})
            start += len(part)
    return pd.DataFrame(lines), pd.DataFrame(places)


def _losses(model: Model, ids: Tensor, visible: Tensor) -> Tensor:
    """Loss of each token, [text, pos − 1], float64, where row i sees the keys that `visible` [query, key] names."""
    mask = (
        torch.zeros(visible.shape, dtype=model.dtype)
        .masked_fill(~visible, torch.finfo(model.dtype).min)[None, None]
        .to(model.device)
    )

    def of_text(one: Tensor) -> Tensor:
        here = one[None].to(model.device)
        return of_forward(model, model.module, here, lambda: model.module(here, attention_mask=mask, use_cache=False).logits)

    with evaluating(model.module):
        return torch.cat([of_text(one) for one in ids]).double().cpu()
