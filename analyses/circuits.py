"""Which heads write the answer? Direct logit contributions on sentences where the indirect object is the answer (IOI).

"When Mary and John went to the store, John gave a drink to": the logit of the indirect object (Mary) minus that of the subject
(John), split over heads by what each one's z writes through W_O, the final norm and the unembedding; and where the last token looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from analyses._stated import stated
from interp import attribution, hooks, models
from interp import interventions as change
from interp.cli import analysis_main
from interp.errors import InterpError, at_least
from interp.measures import pruning
from interp.models import Model
from interp.report import Report
from interp.results import Claim, Grid, Table

NAMES = (
    "Mary",
    "John",
    "Tom",
    "James",
    "Dan",
    "Sarah",
    "Anna",
    "Paul",
    "Mark",
    "Peter",
    "Kate",
    "Laura",
    "Simon",
    "Alice",
    "Martin",
    "Robert",
)
PLACES = ("store", "park", "school", "station", "office", "house", "garden")
THINGS = ("drink", "book", "ring", "bone", "ball", "letter")
PUBLISHED = ("9.9", "9.6", "10.0", "10.7", "11.10")  # GPT-2 small: name movers and negative name movers, Wang et al. 2211.00593


@dataclass(frozen=True)
class Prompt:
    """A sentence with its two names, and where they stand among its tokens: IO (the answer), S1 and S2 (the subject, twice)."""

    text: str
    ids: torch.Tensor
    io: int
    subject: int

    def places(self) -> dict[str, int]:
        twice = (self.ids == self.subject).nonzero().flatten().tolist()
        return {"IO": int((self.ids == self.io).nonzero()[0]), "S1": twice[0], "S2": twice[1]}


def run(
    model: str | Model = "smollm2",
    *,
    limit: int = 32,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "auto",
    top: int = 10,
) -> Report:
    """`limit` sentences made by a template from names, places and things of one token each; both orders of the two names."""
    at_least(1, limit=limit, top=top)
    model = models.load(model, dtype=dtype, device=device)
    made = prompts(model, limit, seed)
    ids = torch.stack([one.ids for one in made])
    right, wrong = (torch.tensor([getattr(one, name) for one in made]) for name in ("io", "subject"))
    found = attribution.head_contributions(model, ids, right, wrong)
    looks = last_looks(model, ids, made)
    mean, share = float(found.difference.mean()), found.heads.mean(0) / found.difference.mean()
    lines = [
        {
            "layer": layer,
            "head": head,
            "contribution": float(found.heads[:, layer, head].mean()),
            "share": float(share[layer, head]),
            **{f"to_{name}": float(values[layer, head]) for name, values in looks.items()},
        }
        for layer in range(model.n_layers)
        for head in range(model.n_heads)
    ]
    frame = pd.DataFrame(lines)
    return _report(model, made, found, frame, mean, seed, top)


def prompts(model: Model, limit: int, seed: int) -> list[Prompt]:
    """Sentences whose names are one token in this model and which all have one length; names take turns at coming first."""
    if model.tokenizer is None:
        raise InterpError(f"{model.name} has no tokenizer; the sentences cannot be made")
    names = [name for name in NAMES if _single(model, name) is not None]
    places = [place for place in PLACES if _single(model, place) is not None]
    things = [thing for thing in THINGS if _single(model, thing) is not None]
    if len(names) < 2 or not places or not things:
        raise InterpError(f"{model.name} has {len(names)} of the template's names as single tokens; two or more are needed")
    draw = torch.Generator().manual_seed(seed)

    def pick(many: list[str]) -> str:
        return many[int(torch.randint(len(many), (1,), generator=draw))]

    made = []
    for number in range(limit):
        one, other = (names[int(at)] for at in torch.randperm(len(names), generator=draw)[:2])
        first, second = (one, other) if number % 2 else (other, one)
        text = f"When {first} and {second} went to the {pick(places)}, {other} gave a {pick(things)} to"
        io, subject = _single(model, one), _single(model, other)
        assert io is not None
        assert subject is not None
        made.append(Prompt(text, model.tokens(text).ids, io, subject))
    if len({len(one.ids) for one in made}) > 1:
        raise InterpError(
            f"{model.name} splits the template's sentences into different numbers of tokens; they cannot be averaged"
        )
    return made


def _single(model: Model, word: str) -> int | None:
    ids = model.tokens(f"to {word}", "none").ids
    start = model.tokens("to", "none").ids
    return int(ids[-1]) if len(ids) == len(start) + 1 else None


def last_looks(model: Model, ids: torch.Tensor, made: list[Prompt]) -> dict[str, torch.Tensor]:
    """Mean weight [layer, head] of the last token on IO, S1, S2 and the first token."""
    sites = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.n_layers)]
    with hooks.trace(model, sites) as seen:
        change.logits(model, ids)
    rows = torch.stack([seen[site][:, :, -1] for site in sites], 1).cpu().double()  # [text, layer, head, key]
    at = {name: [one.places()[name] for one in made] for name in ("IO", "S1", "S2")} | {"first": [0] * len(made)}
    return {name: torch.stack([rows[text, ..., key] for text, key in enumerate(keys)]).mean(0) for name, keys in at.items()}


def _report(
    model: Model, made: list[Prompt], found: attribution.Attribution, frame: pd.DataFrame, mean: float, seed: int, top: int
) -> Report:
    low, high = pruning.interval(found.difference, seed=seed)
    loss, said = stated(model, [one.ids for one in made], seed)
    strongest = frame.sort_values("contribution", key=abs, ascending=False, kind="stable").head(top)
    names = [f"{line.layer}.{line.head}" for line in strongest.itertuples()]
    accuracy = float((found.difference > 0).double().mean())
    meanings = {
        "contribution": "logits, mean over sentences: what the head writes towards IO minus S",
        "share": "of the mean logit difference",
        "to_IO": "mean weight of the last token on the indirect object",
        "to_S1": "on the subject's first mention",
        "to_S2": "on its second",
        "to_first": "on the first token",
    }
    sentences = Table.of(
        "sentences",
        "Each sentence and its logit difference.",
        [{"text": one.text, "logit_difference": float(value)} for one, value in zip(made, found.difference, strict=True)],
    )
    grid = Grid(
        "contribution", "What each head writes towards the indirect object and away from the subject.", "logits",
        found.heads.mean(0).numpy(), tuple(map(str, range(model.n_layers))), tuple(map(str, range(model.n_heads))), signed=True,
    )  # fmt: skip
    return Report(
        analysis="circuits",
        model=model.name,
        question="Which heads write the indirect object's name?",
        answer=(
            f"{model.name} prefers the indirect object in {accuracy:.0%} of {len(made)} sentences, by {mean:.2f} logits on average "
            f"({low:.2f} to {high:.2f}). The heads that write most of it directly: {', '.join(names[:5])}. "
            f"The strongest looks at the indirect object with {strongest['to_IO'].iloc[0]:.2f} of its weight."
        ),
        numbers={"logit_difference": mean, "low": low, "high": high, "accuracy": accuracy, "sentences": len(made),
                 "sum_error": found.error, "heads_sum": float(found.heads.sum((1, 2)).mean()), **loss},
        tables=[Table("strongest", "The heads that contribute most, either way.", strongest, meanings),
                Table("heads", "Every head.", frame, meanings), sentences],
        grids=[grid],
        claims=[*_own_claims(model, mean, (low, high), frame), *_claims(model, names)],
        definitions=["logit difference: logit of the indirect object minus logit of the subject, at the last position",
                     "contribution: (z·W_O) through the final norm, its scale held at that of the whole residual, on the difference of "
                     "the two unembedding rows"],
        notes=[said, "What would have counted against the account of name movers: an interval of the logit difference that reaches 0, or a "
               "strongest head that looks less at the indirect object than at the subject.",
               "Direct effects only: what a head does by way of later layers is not counted.",
               f"All parts of the residual together give the model's own logit difference to {found.error:.1e}."],
        provenance=model.provenance() | {"seed": seed, "ids_of_first": made[0].ids.tolist()},
    )  # fmt: skip


def _own_claims(model: Model, mean: float, interval: tuple[float, float], frame: pd.DataFrame) -> list[Claim]:
    """The account of name movers (Wang et al. 2211.00593), on the model at hand."""
    mover: Any = frame.iloc[int(frame["contribution"].to_numpy().argmax())]
    subject = max(mover["to_S1"], mover["to_S2"])
    return [
        Claim.judged("circuits-prefers-io", "001: Mary and John", "The model prefers the indirect object to the subject.", expected="an interval above 0",
                     measured=f"{mean:.2f} logits ({interval[0]:.2f} to {interval[1]:.2f})", holds=interval[0] > 0, model=model.name),
        Claim.judged("circuits-mover-looks", "001: Mary and John", "The head that writes most towards the name looks at the name.",
                     expected="more weight on the indirect object than on either mention of the subject",
                     measured=f"{mover['layer']:.0f}.{mover['head']:.0f}: {mover['to_IO']:.2f} on it, {subject:.2f} on the subject",
                     holds=bool(mover["to_IO"] > subject), model=model.name),
    ]  # fmt: skip


def _claims(model: Model, names: list[str]) -> list[Claim]:
    said = "The heads that write most towards or against the indirect object in GPT-2 are 9.9, 9.6, 10.0, 10.7 and 11.10."
    wanted = f"{', '.join(PUBLISHED)} among the ten strongest"
    if not (model.name.startswith("gpt2") and (model.n_layers, model.n_heads) == (12, 12)):
        return [
            Claim.unmeasured("circuits-name-movers", "NUMBERS: IOI", said, expected=wanted, model="gpt2",
                             why="needs GPT-2's weights: interp run circuits --model gpt2"),
        ]  # fmt: skip
    missing = [name for name in PUBLISHED if name not in names[:10]]
    return [
        Claim.judged("circuits-name-movers", "NUMBERS: IOI", said, expected=wanted, measured=", ".join(names[:10]),
                     holds=not missing, model=model.name),
    ]  # fmt: skip


if __name__ == "__main__":
    analysis_main(run)
