"""Small tasks that one layer cannot do, and small transformers trained on them, several starts at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from interp.models import Model
from interp.models.names import small_model
from interp.models.small import Sizes, Transformer
from interp.models.toy import WordTokenizer
from interp.models.training import IGNORED, batched, fit

WORDS = (
    "The", "team", "colour", "is", "red", "blue", "black", ".", "game", "starting", "players", "So", "the", "wear",
    "teams", "referees", "officials", "white", "green",
)  # fmt: skip
COLOURS = ("red", "blue", "black", "white", "green")
BETWEEN = ("", "The game is starting. ")
GROUPS = {"players": "teams", "officials": "referees"}
LONGEST = 28


@dataclass(frozen=True)
class Example:
    """A prefix, the word that follows, and whether it is held out."""

    text: str
    target: str
    held: bool


def recent() -> list[Example]:
    """Two colours are stated; the answer is the later one. Held out: a quarter, so that each pair and each place is seen, but not together."""
    made = []
    for place, (first, second) in enumerate(itertools.permutations(COLOURS, 2)):
        for pattern, (before, between) in enumerate(itertools.product(BETWEEN, BETWEEN)):
            text = f"{before}The team colour is {first}. {between}The team colour is {second}. So the players wear"
            made.append(Example(text, second, (place + pattern) % 4 == 0))
    return made


def who() -> list[Example]:
    """Teams and referees wear two colours, told in either order; players wear the teams', officials the referees'. Held out: a fifth."""
    made = []
    for place, (first, second) in enumerate(itertools.permutations(COLOURS, 2)):
        for turn, group in itertools.product((False, True), GROUPS):
            told = [("teams", first), ("referees", second)]
            told = told[::-1] if turn else told
            story = " ".join(f"The {subject} wear {colour}." for subject, colour in told)
            held = (place + turn + 2 * (group == "players")) % 5 == 0
            made.append(Example(f"{story} So the {group} wear", dict(told)[GROUPS[group]], held))
    return made


@dataclass(frozen=True, eq=False)
class Trained:
    """Starts of one shape on one task: the loss of each at every update and the share right on training and held-out prefixes."""

    name: str
    sizes: Sizes
    modules: Sequence[Transformer]
    losses: Tensor
    learned: Tensor
    held: Tensor

    @property
    def best(self) -> int:
        """The start with most held-out prefixes right; of equals the one with the lowest last loss."""
        return max(range(len(self.modules)), key=lambda start: (float(self.held[start]), -float(self.losses[-1, start])))

    def model(self) -> Model:
        """The best start as a Model, for captures."""
        return small_model(self.name, self.modules[self.best], WordTokenizer(WORDS), f"seed-{self.best}")


def train(
    name: str, examples: Sequence[Example], *, layers: int, heads: int, places: bool, starts: int, updates: int, rate: float
) -> Trained:
    """Train `starts` transformers of one shape on the examples that are not held out; the loss is on the last word alone."""
    sizes = Sizes(layers, heads, 32, 8, 8, len(WORDS), LONGEST if places else None)
    modules = [Transformer(sizes, seed) for seed in range(starts)]
    tokens, last = batched([WordTokenizer(WORDS).encode(example.text) for example in examples])
    wanted = torch.tensor([WORDS.index(example.target) for example in examples])
    row, held = torch.arange(len(examples)), torch.tensor([example.held for example in examples])
    targets = torch.full_like(tokens, IGNORED)
    targets[row, last] = wanted
    losses = fit(modules, tokens[~held], targets[~held], updates, rate, f"training {name}")
    with torch.no_grad():
        right = torch.stack([module(tokens)[row, last].argmax(-1) == wanted for module in modules]).double()
    return Trained(name, sizes, modules, losses, right[:, ~held].mean(1), right[:, held].mean(1))
