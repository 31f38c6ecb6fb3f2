"""Forty pairs of pronoun puzzles written for this project: one word of each sentence decides whom the pronoun means.

`{who}` stands where the pronoun stood and `{word}` for the deciding word: with the first word the first candidate is meant, with the
second the second. A model answers by which candidate makes the rest of the sentence after it likelier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Puzzle(NamedTuple):
    """One sentence of a pair; `right` is the index of the candidate that is meant."""

    pair: int
    before: str
    after: str
    candidates: tuple[str, str]
    right: int


PAIRS = (
    ("The kettle would not go into the drawer because {who} was too {word}.", "the kettle", "the drawer", "big", "small"),
    ("The nurse called the plumber because {who} had to {word} the pipe.", "the nurse", "the plumber", "report", "mend"),
    ("The ladder leaned on the fence until {who} was {word}.", "the ladder", "the fence", "carried away", "torn down"),
    ("The baker sold bread to the teacher because {who} had {word} too much.", "the baker", "the teacher", "baked", "ordered"),
    ("The dog ran after the rabbit, but {who} was too {word}.", "the dog", "the rabbit", "slow", "fast"),
    ("The captain thanked the sailor because {who} had been {word}.", "the captain", "the sailor", "rescued", "helpful"),
    ("The guests left the hosts early because {who} had a train to {word}.", "the guests", "the hosts", "catch", "meet"),
    ("The stone broke the window because {who} was so {word}.", "the stone", "the window", "hard", "thin"),
    ("The pupil asked the teacher a question, and {who} {word} the answer.", "the pupil", "the teacher", "heard", "gave"),
    ("The farmer paid the builder after {who} had {word} the bill.", "the farmer", "the builder", "received", "sent"),
    ("The truck passed the bicycle because {who} was going so {word}.", "the truck", "the bicycle", "fast", "slowly"),
    ("The soup was put beside the salad because {who} was too {word}.", "the soup", "the salad", "hot to hold", "near the edge"),
    ("The judge warned the witness that {who} would {word}.", "the judge", "the witness", "fine her", "be fined"),
    ("The cat hid from the child because {who} was so {word}.", "the cat", "the child", "frightened", "loud"),
    ("The letter lay under the book, so {who} was {word}.", "the letter", "the book", "hidden", "on top"),
    ("The aunt gave the boy a coin because {who} was {word}.", "the aunt", "the boy", "generous", "poor"),
    ("The goalkeeper blamed the striker because {who} had {word}.", "the goalkeeper", "the striker", "lost his temper", "missed the goal"),
    ("The boat followed the ship because {who} had {word} the way.", "the boat", "the ship", "lost", "shown"),
    ("The carpet did not cover the floor because {who} was too {word}.", "the carpet", "the floor", "small", "large"),
    ("The patient trusted the doctor although {who} was so {word}.", "the patient", "the doctor", "ill", "young for the job"),
    ("The singer hired the drummer because {who} needed a {word}.", "the singer", "the drummer", "band", "job"),
    ("The rope held the crate because {who} was very {word}.", "the rope", "the crate", "strong", "light"),
    ("The thief escaped the guard because {who} was {word}.", "the thief", "the guard", "quick", "asleep"),
    ("The mayor invited the painter because {who} wanted to {word} a picture.", "the mayor", "the painter", "buy", "sell"),
    ("The lamp fell on the vase and {who} {word}.", "the lamp", "the vase", "fell off its hook", "was crushed"),
    ("The grandmother read to the girl until {who} was {word}.", "the grandmother", "the girl", "hoarse", "asleep"),
    ("The wolf watched the sheep because {who} was {word}.", "the wolf", "the sheep", "hungry", "tasty"),
    ("The tailor measured the lawyer because {who} was {word} a suit.", "the tailor", "the lawyer", "sewing", "buying"),
    ("The water filled the bucket until {who} {word}.", "the water", "the bucket", "ran over the edge", "was full"),
    ("The tenant called the owner because {who} had not {word} the heating.", "the tenant", "the owner", "understood", "repaired"),
    ("The runner beat the swimmer because {who} had trained {word}.", "the runner", "the swimmer", "harder", "too little"),
    ("The waiter served the woman after {who} had {word}.", "the waiter", "the woman", "cleared the table", "ordered"),
    ("The hammer would not drive the nail because {who} was too {word}.", "the hammer", "the nail", "light", "thick"),
    ("The coach praised the player because {who} was {word} with the game.", "the coach", "the player", "pleased", "first to help"),
    ("The student borrowed a pen from the clerk because {who} had {word}.", "the student", "the clerk", "forgotten hers", "two of them"),
    ("The sun melted the snow because {who} was so {word}.", "the sun", "the snow", "hot", "thin"),
    ("The pilot told the passenger that {who} could {word}.", "the pilot", "the passenger", "land soon", "undo the belt"),
    ("The bee stung the gardener because {who} felt {word}.", "the bee", "the gardener", "trapped in the glove", "for weeds in its nest"),
    ("The shop refused the customer because {who} had {word}.", "the shop", "the customer", "closed for the day", "forgotten the money"),
    ("The uncle waited for the nephew because {who} was {word}.", "the uncle", "the nephew", "early", "late"),
)  # fmt: skip


def puzzles() -> Iterator[Puzzle]:
    """All eighty sentences, two a pair."""
    for number, (template, first, second, *words) in enumerate(PAIRS):
        before, after = template.split("{who}")
        for right, word in enumerate(words):
            yield Puzzle(number, before.rstrip(), after.format(word=word), (first, second), right)
