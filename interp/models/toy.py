"""The toy: a one-layer, one-head model of colour recall, small enough to read. Trained on first use, then kept in the user's cache.

Seventeen words, embeddings of 8, queries and keys of 4, values of 8, an output layer with bias; no positions and no residual
stream, so a prediction reads the context row alone.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from interp.cache import built_whole, cache_dir
from interp.errors import InterpError
from interp.models.small import Attention, Sizes, draw
from interp.models.training import Parameters, batched, calls, descend, stacked, taken

COLOURS = ("red", "blue", "black")
INSERTIONS = ("", " The game is starting.", " The players are on court.", " The game is starting. The players are on court.")
WORDS = (
    "The", "team", "colour", "is", "red", "blue", "black", ".", "game", "starting", "players", "are", "on", "court", "So", "the", "wear",
)  # fmt: skip
COLOUR_AT = 4
DEFAULT_SEED = 186
SPREAD = 0.25
UPDATES, RATE = 200, 0.03
FILE = "model.safetensors"


class WordTokenizer:
    """Words and punctuation marks of a fixed vocabulary; nothing is added in front. A word outside it is refused by name."""

    bos_token_id: int | None = None

    def __init__(self, words: Sequence[str] = WORDS) -> None:
        self.words = tuple(words)
        self._ids = {word: number for number, word in enumerate(self.words)}

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of the words of `text`, split at spaces and around punctuation."""
        pieces = re.findall(r"\w+|[^\w\s]", text)
        for piece in pieces:
            if piece not in self._ids:
                raise InterpError(f"{piece!r} is none of the {len(self.words)} words of this model: {' '.join(self.words)}")
        return [self._ids[piece] for piece in pieces]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`: spaces between words, none before punctuation."""
        words = []
        for number in map(int, ids):
            if not 0 <= number < len(self.words):
                raise InterpError(f"no word has id {number}; ids run from 0 to {len(self.words) - 1}")
            words.append(self.words[number])
        return re.sub(r" (?=[^\w\s])", "", " ".join(words))

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True)
class Prefix:
    """One prefix of the task with its target, the stated colour, and whether it is held out for validation."""

    text: str
    target: str
    validation: bool


def prefixes() -> list[Prefix]:
    """The nine training prefixes, colour by colour, then the three for validation, which carry both inserted sentences."""
    made = [
        Prefix(f"The team colour is {colour}.{between} So the players wear", colour, between == INSERTIONS[-1])
        for colour in COLOURS
        for between in INSERTIONS
    ]
    return sorted(made, key=lambda prefix: prefix.validation)


class Block(nn.Module):
    """The one layer: attention and nothing else, under the name that TransformerLens gives it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attn = Attention(sizes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.attn(x)


class ColourRecall(HookedRootModule):
    """logits = z W_U + b_U, where z is one causal attention head over the embeddings. The last row sees everything anyway."""

    def __init__(self, seed: int = DEFAULT_SEED, words: int = len(WORDS)) -> None:
        super().__init__()
        self.cfg = Sizes(n_layers=1, n_heads=1, d_model=8, d_head=4, d_value=8, d_vocab=words)
        self.W_E = nn.Parameter(torch.empty(words, self.cfg.d_model))
        self.hook_embed = HookPoint()
        self.blocks = nn.ModuleList([Block(self.cfg)])
        self.W_U = nn.Parameter(torch.empty(self.cfg.d_value, words))
        self.b_U = nn.Parameter(torch.empty(words))
        draw(self, seed, SPREAD)
        self.setup()

    def forward(self, tokens: Int[Tensor, "batch pos"], rows: bool = False):  # type: ignore[no-untyped-def]
        """Logits [batch, pos, vocab]; with `rows`, (logits, weights [batch, head, query, key])."""
        z, weights = self.blocks[0](self.hook_embed(self.W_E[tokens]))
        logits = z[:, :, 0] @ self.W_U + self.b_U
        return (logits, weights) if rows else logits


@dataclass(frozen=True, eq=False)
class Course:
    """One training run, at every update from 0 (the start) on: what the last row of each of the twelve prefixes saw and predicted.

    `rows`: its weights, 0 beyond the prefix. `log_p`: its log-probabilities of the next token, nats.
    """

    seed: int
    lr: float
    start: Parameters
    end: Parameters
    rows: Float[Tensor, "update prefix pos"]
    log_p: Float[Tensor, "update prefix vocab"]

    @cached_property
    def losses(self) -> Float[Tensor, "update prefix"]:
        """Negative log-probability of each prefix's target, nats."""
        at = _targets()[None, :, None].expand(len(self.log_p), -1, 1)
        return -self.log_p.gather(-1, at)[..., 0]

    @cached_property
    def correct(self) -> Float[Tensor, "update prefix"]:
        """1 where the likeliest token is the target, else 0."""
        return (self.log_p.argmax(-1) == _targets()).float()

    def module(self, end: bool = True) -> ColourRecall:
        """The model at the end of the run, or at its start."""
        module = ColourRecall(self.seed)
        module.load_state_dict(self.end if end else self.start)
        return module.eval()


def train(seed: int = DEFAULT_SEED, updates: int = UPDATES, lr: float = RATE) -> Course:
    """Train one start on the nine prefixes: Adam, full batch, loss on the last position alone."""
    return courses([seed], updates, lr)[0]


def courses(seeds: Sequence[int], updates: int = UPDATES, lr: float = RATE) -> list[Course]:
    """Train many starts at once; each course is the one that `train` would give, to rounding."""
    if not seeds or updates < 1:
        raise InterpError(f"training needs at least one seed and one update; got {len(seeds)} and {updates}")
    modules = [ColourRecall(seed) for seed in seeds]
    start = stacked(modules)
    end = {name: tensor.detach().clone().requires_grad_() for name, tensor in start.items()}
    forward = calls(modules[0], rows=True)
    tokens, last = batched([WordTokenizer().encode(prefix.text) for prefix in prefixes()])
    prefix = torch.arange(len(last))
    at = _targets().expand(len(seeds), -1)[..., None]
    learned = [place for place, one in enumerate(prefixes()) if not one.validation]

    def step(parameters: Parameters) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        logits, weights = forward(parameters, tokens)
        log_p = logits[:, prefix, last].log_softmax(-1)
        losses = -log_p.gather(-1, at)[..., 0]
        return losses[:, learned].mean(1), (weights[:, prefix, 0, last].detach(), log_p.detach())

    records = descend(end, step, updates, lr, f"training {len(seeds)} toys" if len(seeds) > 1 else "training the toy")
    rows, log_p = (torch.stack(kind, dim=1) for kind in zip(*records, strict=True))
    return [
        Course(seed, lr, taken(start, place), taken(end, place), rows[place], log_p[place]) for place, seed in enumerate(seeds)
    ]


def _targets() -> Int[Tensor, " prefix"]:
    return torch.tensor([WORDS.index(prefix.target) for prefix in prefixes()])


def load(seed: int = DEFAULT_SEED) -> tuple[ColourRecall, WordTokenizer]:
    """The trained toy of that seed and its tokenizer: from the user's cache, else trained now and put there.

    A file that is damaged, or was made by another recipe, is made anew; a cache that cannot be written is done without.
    """
    folder = cache_dir() / "toy" / f"colour-recall-seed-{seed}"
    module = ColourRecall(seed)
    parameters = _kept(folder / FILE, module)
    if parameters is None:
        parameters = train(seed).end
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError, SafetensorError), built_whole(folder) as work:
            save_file({name: tensor.contiguous() for name, tensor in parameters.items()}, work / FILE, _recipe())
    module.load_state_dict(parameters)
    return module.eval(), WordTokenizer()


def _recipe() -> dict[str, str]:
    return {"recipe": f"colour-recall/1 words={' '.join(WORDS)} spread={SPREAD} updates={UPDATES} lr={RATE}"}


def _kept(path: Path, module: ColourRecall) -> Parameters | None:
    wanted = {name: parameter.shape for name, parameter in module.named_parameters()}
    try:
        with safe_open(path, "pt") as file:
            if file.metadata() != _recipe():
                return None
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
    except (OSError, SafetensorError):
        return None
    whole = {name: tensor.shape for name, tensor in found.items()} == wanted
    return found if whole and all(bool(tensor.isfinite().all()) for tensor in found.values()) else None
