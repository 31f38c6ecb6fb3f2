"""A recurrent reader beside one attention layer: how far a gradient reaches, and what one fixed vector keeps. For `cost`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformer_lens import HookedRootModule

from interp.models.recurrent import Reader
from interp.models.small import Sizes, Transformer
from interp.models.training import Adam
from interp.progress import track
from interp.results import Table

WORDS = 8
WIDTH = 32


def gradients(reach: int = 40, networks: int = 8) -> Table:
    """How strongly the last output depends on the input `distance` steps back: norm of the gradient of a random direction of it."""
    rows: dict[str, list[Tensor]] = {"recurrent": [], "attention": []}
    for seed in range(networks):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, WORDS, (16, reach + 1), generator=generator)
        direction = torch.randn(WORDS, generator=generator)
        layer = Transformer(Sizes(1, 1, WIDTH, WIDTH, WIDTH, WORDS), seed)
        for name, network in (("recurrent", Reader(WORDS, WIDTH, seed)), ("attention", layer)):
            kept: list[Tensor] = []

            def keep(tensor: Tensor, hook: object, kept: list[Tensor] = kept) -> None:
                kept.append(tensor)

            network.hook_embed.add_hook(keep)
            last = network(ids)[:, -1] @ direction
            network.reset_hooks()
            (gradient,) = torch.autograd.grad(last.sum(), kept)
            # The last input feeds its own output directly too; from distance 1 on only the step under test carries it.
            rows[name].append(gradient.norm(dim=-1).mean(0).flip(0)[1:])
    lines = {name: torch.stack(found).mean(0) for name, found in rows.items()}
    return Table.of(
        "gradient_by_distance",
        f"Gradient of the last output by the input `distance` steps back, as a share of that one step back; mean of {networks} untrained networks.",
        [{"distance": step + 1, **{name: float(line[step] / line[0]) for name, line in lines.items()}} for step in range(reach)],
        recurrent=f"a GRU of width {WIDTH}",
        attention=f"one attention layer of width {WIDTH} without places",
    )


def recall(lengths: Sequence[int], updates: int, seed: int = 0) -> Table:
    """Read `length` random words, then be asked for one by its place: share answered rightly by each reader after the same training."""
    rows = []
    for length in track(lengths, "training readers"):
        words = WORDS + length  # the words, and one question for each place
        readers: dict[str, HookedRootModule] = {
            "fixed_vector": Reader(words, WIDTH, seed),
            "attention": Transformer(Sizes(1, 1, WIDTH, WIDTH, WIDTH, words, n_ctx=length + 1), seed),
        }
        line: dict[str, float] = {"length": length}
        for name, reader in readers.items():
            line[name] = trained(reader, length, updates, seed)
        rows.append(line | {"chance": 1 / WORDS, "numbers_in_the_vector": WIDTH})
    return Table.of(
        "recall_by_length",
        f"Asked at the end for one of the words read: share of right answers after {updates} updates of 64 sequences each.",
        rows,
        fixed_vector=f"a GRU whose last state, {WIDTH} numbers at every length, is all that is kept",
        attention="one attention layer over what stands at every position",
    )


def trained(reader: HookedRootModule, length: int, updates: int, seed: int) -> float:
    """Share of 1,024 fresh questions answered rightly after `updates` updates, in place."""
    generator = torch.Generator().manual_seed(seed)
    parameters: dict[str, Tensor] = dict(reader.named_parameters())
    adam = Adam(parameters, 0.01)

    def questions(count: int) -> tuple[Tensor, Tensor]:
        read = torch.randint(0, WORDS, (count, length), generator=generator)
        asked = torch.randint(0, length, (count,), generator=generator)
        return torch.cat([read, (WORDS + asked)[:, None]], dim=1), read[torch.arange(count), asked]

    for _ in range(updates):
        ids, answers = questions(64)
        loss = torch.nn.functional.cross_entropy(reader(ids)[:, -1, :WORDS], answers)
        adam.step(torch.autograd.grad(loss, list(parameters.values())))
    with torch.no_grad():
        ids, answers = questions(1024)
        return float((reader(ids)[:, -1, :WORDS].argmax(-1) == answers).double().mean())
