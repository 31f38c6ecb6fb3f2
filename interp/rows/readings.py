"""What goes into the reading of one layer's rows, beside q, k and v, and what comes out: shared by every way of reading them."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Masking:
    """What stands between raw scores and softmax in one layer, beyond the scale. `visible` None = causal and nothing more."""

    visible: Bool[Tensor, "text one query key"] | None = None
    bias: Tensor | None = None  # added to the scores, [text or 1, head or 1, query, key]
    softcap: float | None = None
    sinks: Float[Tensor, " head"] | None = None

    @property
    def plain(self) -> bool:
        """Whether a fused kernel computes exactly this."""
        return self.visible is None and self.bias is None and self.softcap is None and self.sinks is None


@dataclass(frozen=True)
class Readings:
    """What one layer's rows say, a number each [text, head, query]; the fields after `broken` are None where only `first` was asked."""

    first: Tensor  # weight on key 0
    broken: Tensor  # not finite: to be named, never averaged
    first_is_top: Tensor | None = None  # no score is larger than key 0's, i.e. argmax 0 with ties to the lower index
    largest: Tensor | None = None  # the row's largest weight
    entropy: Tensor | None = None  # −Σ w ln w in nats
    lead: Tensor | None = None  # gap Δ of the two largest scores; NaN where the row sees one key
    second: Tensor | None = None  # the row's second largest weight, read from the weights
    mass: Tensor | None = None  # [text, head, key], float64: Σ over real rows of the weight on each key; NaN where a row is
