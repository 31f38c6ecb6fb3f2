"""Claims of the chapters that a few lines settle, beside those of the analyses: what attention has no need of, and the parts around it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from analyses._chapter import Beside
from interp import attention
from interp.models import Model, toy
from interp.models.model import evaluating
from interp.results import Claim

DEPTH, WIDTH, STEPS = 24, 16, 80


def facts(model: Model) -> list[Claim]:
    """Every claim here is computed in this run; those on the model's own parts are left out where it is not of transformers."""
    beside = Beside("textbook", "by hand")
    _task(beside)
    _function(beside)
    _residuals(beside)
    if model.is_transformers:
        beside.model = model.name
        with torch.no_grad(), evaluating(model.module):
            _start(beside, model)
            _feed_forward(beside, model)
    return beside.claims


def _task(beside: Beside) -> None:
    """The colour task of the first chapter, counted from the toy's own data."""
    prefixes, encode = toy.prefixes(), toy.WordTokenizer().encode
    beside.model = "toy"
    held = [prefix for prefix in prefixes if prefix.validation]
    beside.add("tokens-17", "000 §15.2", "tokens of the colour task", "17", len(toy.WORDS))
    beside.add("training-prefixes", "000 §15.2", "prefixes to train on", "9", len(prefixes) - len(held))
    beside.add("validation-prefixes", "000 §15.2", "prefixes held out", "3", len(held))
    lengths = sorted({len(encode(prefix.text)) for prefix in prefixes if not prefix.validation})
    beside.judge(
        "wear-places",
        "000 §15.2",
        "In training 'wear' stands at positions 10, 15 and 16.",
        "10, 15, 16",
        str(lengths)[1:-1],
        lengths == [10, 15, 16],
    )
    far = sorted({len(encode(prefix.text)) for prefix in held})
    beside.judge(
        "wear-held",
        "000 §15.2",
        "In validation 'wear' stands at position 21, where it never stood before.",
        "21",
        str(far)[1:-1],
        far == [21],
    )
    beside.model = "by hand"


def _function(beside: Beside) -> None:
    """The calculation itself: similarity, no parameters, no order of computing."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(12, 64, generator=generator, dtype=torch.float64) for _ in range(3))
    across = k - (k @ q[0])[:, None] * q[0] / q[0].square().sum()
    scores = attention.scores(torch.stack([q[0], q[0]]), torch.cat([across, q[:1], -q[:1]]), 1.0)[0]
    beside.judge(
        "similarity", "003 Scaled dot-product attention", "A dot product is large along, near zero across, and negative against.",
        "positive; 0 to rounding; negative", f"{float(scores[-2]):.3g}; {float(scores[:-2].abs().max()):.1g}; {float(scores[-1]):.3g}",
        bool(scores[-2] > 1 and scores[:-2].abs().max() < 1e-12 and scores[-1] < -1),
    )  # fmt: skip
    many, others = (torch.randn(200_000, 64, generator=generator) for _ in range(2))
    products = (many * others).sum(-1)
    error = float(products.std()) / len(products) ** 0.5
    beside.add(
        "mean-0", "003 Why divide by the square root of d_k?", "mean of q·k of independent components, d_k = 64, 200,000 pairs", "0",
        float(products.mean()), 4 * error, "within four standard errors",
    )  # fmt: skip
    seen = attention.visible(12)
    whole = attention.attend(attention.weights(attention.scores(q, k), seen), v)
    rows = [attention.attend(attention.weights(attention.scores(q[[i]], k), seen[[i]]), v)[0] for i in reversed(range(12))]
    off = float((whole - torch.stack(rows[::-1])).abs().max())
    beside.judge(
        "parallel", "003 Self-attention", "Every position is computed independently of the others' results, so all can be computed at once.",
        "one at a time, last first, gives the same rows", f"{off:.1g} apart", off < 1e-12,
    )  # fmt: skip
    scaled = nn.functional.layer_norm(1000 * q + 5, (64,))
    mean, variance = float(scaled.mean(-1).abs().max()), scaled.var(-1, unbiased=False)
    beside.judge(
        "layer-norm", "003 Attention inside a transformer block", "Layer normalisation keeps activations at a sane scale, whatever comes in.",
        "mean 0 and variance 1 of each position, from inputs a thousand times as large", f"mean {mean:.1g}, variance {float(variance.mean()):.4f}",
        bool(mean < 1e-6 and (variance - 1).abs().max() < 1e-4),
    )  # fmt: skip


class _Stack(nn.Module):
    """DEPTH two-layer nets, one after another, with or without x + f(x)."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self.residual = residual
        self.parts = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(DEPTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = x + part(x) if self.residual else part(x)
        return x


def _residuals(beside: Beside) -> None:
    """The same deep stack with and without its residual connections, on a task that one layer could do."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn(128, WIDTH)
        wanted = x @ torch.randn(WIDTH, WIDTH) / WIDTH**0.5
        left = {residual: _trained(_Stack(residual), x, wanted) for residual in (True, False)}
    beside.judge(
        "residuals", "003 Attention inside a transformer block", "Without residual connections a deep stack does not train.",
        "with them less than half of the variance is left, without more than nine tenths",
        f"{left[True]:.0%} and {left[False]:.0%} left", left[True] < 0.5 and left[False] > 0.9, f"{DEPTH} two-layer nets, {STEPS} updates",
    )  # fmt: skip


def _trained(stack: _Stack, x: Tensor, wanted: Tensor) -> float:
    """Share of the target's variance that is left after training."""
    optimizer = torch.optim.Adam(stack.parameters(), lr=3e-3)
    with torch.enable_grad():
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = (stack(x) - wanted).square().mean()
            loss.backward()
            optimizer.step()
    return float(loss.detach() / wanted.var())


def _start(beside: Beside, model: Model) -> None:
    """What enters the first layer: the token's vector, with a vector of its place where the model has such a table."""
    ids = torch.arange(5, 11, device=model.device) % model.d_vocab
    entering = model.module(ids[None], use_cache=False, output_hidden_states=True).hidden_states[0][0]
    tokens = model.module.get_input_embeddings()(ids)
    table = next((part for name, part in model.module.named_modules() if name.rpartition(".")[2] == "wpe"), None)
    if isinstance(table, nn.Embedding):
        off = float((entering - tokens - table.weight[: len(ids)]).abs().max())
        beside.judge(
            "starts-from-sum",
            "001",
            "The first layer starts from the token's vector plus its place's vector.",
            "no difference",
            f"{off:.1g}",
            off < 1e-6,
        )
        return
    off = float((entering - tokens).abs().max())
    beside.judge(
        "no-places-added", "001", "Newer models such as Llama add no position vectors.", "what enters the first layer is the token's vector",
        f"{off:.1g} apart", off == 0, "" if off == 0 else "this family scales or shifts its token vectors",
    )  # fmt: skip


def _feed_forward(beside: Beside, model: Model) -> None:
    """The first block's feed-forward part on positions in another order, and its non-linearity."""
    found = [part for name, part in model.module.named_modules() if name.endswith(".0.mlp")]
    if not found:
        return
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 7, model.d_model, generator=generator).to(model.device, model.dtype)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4], device=model.device)
    out = found[0](x)
    if not isinstance(out, Tensor):
        return
    off = float((found[0](x[:, order]) - out[:, order]).abs().max() / out.abs().max())
    beside.judge(
        "feed-forward-each", "003 Attention inside a transformer block", "The feed-forward net treats each position separately, with the same weights.",
        "positions in another order give the same outputs in that order", f"{off:.1g} apart", off < 1e-4, "relative to the largest output",
    )  # fmt: skip
    bent = float((found[0](2 * x) - 2 * out).abs().max() / out.abs().max())
    beside.judge(
        "feed-forward-bends", "003 Attention inside a transformer block", "The feed-forward net is where a block transforms non-linearly.",
        "doubling the input does not double the output", f"off by {bent:.2g} of the largest output", bent > 0.01,
    )  # fmt: skip
