"""The chapter's printed numbers beside ours: one table `chapter.csv` and one claim a line, to the digits that are printed."""

from __future__ import annotations

from dataclasses import dataclass, field

from interp.results import Claim, Table


@dataclass
class Beside:
    """Collects comparisons. `printed` is the number as the chapter prints it: "0.881" is met by what rounds to 0.881."""

    prefix: str
    model: str = "by hand"
    rows: list[dict[str, object]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def add(self, id: str, source: str, what: str, printed: str, here: float, within: float | None = None, why: str = "") -> None:
        """`within` is for what is drawn at random or rounded by more than the last digit; else the printed digits decide."""
        digits = len(printed.partition(".")[2])
        half = 0.5 * 10**-digits if within is None else within
        # Half of the last digit, and a hair for halves that float32 puts on the other side.
        claim = Claim.number(
            f"{self.prefix}-{id}",
            source,
            what,
            expected=float(printed),
            measured=here,
            tolerance=half * (1 + 1e-4),
            model=self.model,
            why=why,
        )
        self.claims.append(claim)
        self.rows.append(
            {"id": claim.id, "source": source, "what": what, "chapter": printed, "here": here, "agrees": claim.verdict == "holds"}
        )

    def judge(self, id: str, source: str, what: str, expected: str, measured: str, holds: bool, why: str = "") -> None:
        """A claim of another kind: an equality, an order, a share."""
        made = Claim.judged(
            f"{self.prefix}-{id}",
            source,
            what,
            expected=expected,
            measured=measured,
            holds=bool(holds),
            model=self.model,
            why=why,
        )
        self.claims.append(made)

    @property
    def table(self) -> Table:
        return Table.of(
            "chapter",
            "Each number the chapter prints, beside the one computed here.",
            self.rows,
            chapter="as printed",
            here="computed in this run",
            agrees="rounds to the printed digits",
        )

    @property
    def agreed(self) -> int:
        return sum(bool(row["agrees"]) for row in self.rows)

    @property
    def held(self) -> int:
        return sum(claim.verdict == "holds" for claim in self.claims)
