"""What may be claimed of the evidence of a run: counts of slides by rule and network, and the sentence that follows.

  both        the patches are sufficient and necessary (Definitions 1 and 2 of the paper), which every rule can be
  rival       a ranking made from a host alone, attention among them; random and oracle are controls, never rivals
  interval    the 95 % Wilson interval of a share
  chance      the sign test over slides on which only one of two rules holds, two-sided

Report, terminal and viewer use these sentences. The best rival is chosen after the fact, which favours the rival and
not the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import binomtest

from gcemil.findings import read_finding
from gcemil.rules import CONTROLS, RULES, find_rule, order_rules
from gcemil.runs.folder import Run

Record = dict[str, Any]
CHANCE = 0.05
ORACLE_MEANING = (
    "The oracle takes annotated patches first, as many as the evidence has: what a pathologist marked, not what the model "
    "uses. A rule that asks the model can do better than the oracle."
)
SAME_NETWORK_MEANING = "The wrapper left the host as it was: the plain host and the wrapped one are the same network, so each rule is shown once."


@dataclass(frozen=True)
class Count:
    """So many of so many."""

    held: int
    of: int

    @property
    def share(self) -> float:
        """NaN without observations."""
        return self.held / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share; everything is possible without observations."""
        if self.of == 0:
            return 0.0, 1.0
        low, high = binomtest(self.held, self.of).proportion_ci(0.95, method="wilson")
        return float(low), float(high)

    @property
    def words(self) -> str:
        """The count as a reader sees it."""
        return f"{self.held} of {self.of}"


def count_slides(records: Sequence[Record], *criteria: str) -> Count:
    """Slides in which all these criteria hold, of those where all apply."""
    judged = [record for record in records if all(record.get(name) is not None for name in criteria)]
    return Count(sum(all(record[name] for name in criteria) for record in judged), len(judged))


@dataclass(frozen=True, eq=False)
class RuleSlides:
    """What one rule did on every test slide, under one network."""

    rule: str
    network: str
    """Key of the network; empty where both are one."""
    records: Sequence[Record]

    @property
    def is_rival(self) -> bool:
        """Made from a host alone."""
        return self.rule not in CONTROLS and not find_rule(self.rule).is_ours

    @property
    def words(self) -> str:
        """The rule, and whose it is where that matters."""
        label = find_rule(self.rule).label
        return label if not self.network or not self.is_rival else f"{label} of the {self.network} host"

    def count(self, *criteria: str) -> Count:
        """Slides in which all these hold."""
        return count_slides(self.records, *criteria)

    @property
    def both(self) -> Count:
        """Sufficient and necessary."""
        return self.count("sufficient", "necessary")

    def mean(self, name: str) -> float | None:
        """Mean of a figure over the slides that have it."""
        found = [float(record[name]) for record in self.records if record.get(name) is not None]
        return fmean(found) if found else None


def read_judged_slides(run: Path) -> tuple[list[Record], bool]:
    """The slides of the S/N/R diagnostic of every fold that has it, and whether both networks are one."""
    folds = Run(run).folds_with("diagnostics/snr.json")
    found = [(fold.number, read_finding(fold.finding("snr"))) for fold in folds]
    records = [{**slide, "fold": number} for number, finding in found for slide in finding.slides]
    return records, bool(found) and all(finding.is_same_network for _, finding in found)


def group_rules(records: Sequence[Record], *, is_same_network: bool) -> list[RuleSlides]:
    """Every rule under every network, ours first and controls last; one network is shown once."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if not (is_same_network and record["network"] == "plain"):
            found.setdefault((record["rule"], record["network"]), []).append(record)
    networks = {network for _, network in found}
    rank = {rule: number for number, rule in enumerate(order_rules([rule for rule, _ in found]))}
    return [
        RuleSlides(rule, network if len(networks) > 1 else "", members)
        for (rule, network), members in sorted(
            found.items(), key=lambda item: (rank[item[0][0]], item[0][1] == "wrapped")
        )
        # A control is the same choice under both networks; that of the evidence's own network stands beside it.
        if not (rule in CONTROLS and network == "plain" and (rule, "wrapped") in found)
    ]


@dataclass(frozen=True, eq=False)
class Claim:
    """The evidence beside the best rival at the same number of patches."""

    own: RuleSlides
    rival: RuleSlides | None
    others: Sequence[RuleSlides]
    """Attention of each network and random, where the best rival is not that."""
    is_same_network: bool

    @property
    def won_and_lost(self) -> tuple[int, int]:
        """Slides on which the evidence alone holds, and those on which the rival alone does."""
        if self.rival is None:
            return 0, 0
        key = ("fold", "bag_id")
        theirs = {tuple(one.get(name) for name in key): _holds(one) for one in self.rival.records}
        pairs = [
            (_holds(one), theirs[place])
            for one in self.own.records
            if (place := tuple(one.get(name) for name in key)) in theirs
        ]
        return sum(mine and not other for mine, other in pairs), sum(
            other and not mine for mine, other in pairs
        )

    def sentences(self, unit: str = "slide") -> list[str]:
        """The answer, the rival, and how the two compare."""
        held, of = self.own.both.held, self.own.both.of
        low, high = self.own.both.interval
        size = self.own.mean("evidence_fraction") or 0.0
        found = [
            f"{find_rule(self.own.rule).label} is sufficient and necessary in {held} of {of} test {unit}s "
            f"({100 * self.own.both.share:.0f} %, 95 % interval {100 * low:.0f} to {100 * high:.0f} %); "
            f"it is {100 * size:.1f} % of the patches."
        ]
        if (none := self.count_without_evidence()).held:
            found.append(
                f"{none.held} of {none.of} {unit}s have no evidence: without the patches their prediction stays as it is."
            )
        if self.rival is not None:
            found.append(self._compare_with_rival(self.rival, unit))
        if self.others:
            found.append("Others: " + "; ".join(f"{one.words} {one.both.words}" for one in self.others) + ".")
        return found

    def count_without_evidence(self) -> Count:
        """Slides whose prediction does not need the patches that were found."""
        verdicts = [
            {"none": one.get("no_evidence", not one["necessary"])}
            for one in self.own.records
            if one.get("necessary") is not None
        ]
        return count_slides(verdicts, "none")

    def _compare_with_rival(self, best: RuleSlides, unit: str) -> str:
        rival, own, (won, lost) = best.both, self.own.both, self.won_and_lost
        whose = "" if best.network else " of the host"
        head = f"Best rival at the same size, {best.words}{whose}: {rival.words}."
        paired = f"the evidence alone holds in {won}, the rival alone in {lost}"
        if rival.held >= own.held:
            how = "does better than" if rival.held > own.held else "does as well as"
            return f"{head} It {how} the evidence ({paired})."
        noise = (
            "a difference that chance could make"
            if sign_test(won, lost) > CHANCE
            else "more than chance would make"
        )
        return f"{head} The evidence holds in more {unit}s ({paired}: {noise})."


def _holds(record: Mapping[str, Any]) -> bool:
    return bool(record["sufficient"] and record["necessary"])


def sign_test(won: int, lost: int) -> float:
    """Two-sided chance of a split at least as uneven under a fair coin; 1 without a single difference."""
    return float(binomtest(won, won + lost).pvalue) if won + lost else 1.0


def make_claim(records: Sequence[Record], *, rule: str, is_same_network: bool) -> Claim | None:
    """The claim of a run whose own rule is this; None where it was not judged.

    Rivals are those of the plain host where there is one: a host that the wrapper changed belongs to this run.
    """
    rules = group_rules(records, is_same_network=is_same_network)
    own = next((one for one in rules if one.rule == rule and one.network in ("", "wrapped")), None)
    if own is None:
        return None
    plain = "plain" if any(one.network == "plain" for one in rules) else ""
    rivals = [one for one in rules if one.is_rival and one.rule != rule and one.network == plain]
    best = max(rivals, key=lambda one: one.both.held, default=None)
    others = [
        one for one in rules if one is not best and one is not own and one.rule in ("attention", "random")
    ]
    return Claim(own, best, others, is_same_network)


def describe_claim(records: Sequence[Record], *, rule: str, is_same_network: bool) -> list[str]:
    """Everything that may be said of a run whose own rule is this, sentence by sentence."""
    claim = make_claim(records, rule=rule, is_same_network=is_same_network)
    if claim is None:
        return []
    said = [*claim.sentences(), describe_networks(claim)]
    if any(record["rule"] == "oracle" for record in records):
        said.append(ORACLE_MEANING)
    return [text for text in said if text]


def describe_networks(claim: Claim) -> str | None:
    """Whose rivals these are, where that is not said by their names."""
    if claim.is_same_network:
        return SAME_NETWORK_MEANING
    if claim.rival is not None and not claim.rival.network and RULES[claim.own.rule].is_ours:
        return (
            "Rivals are those of the wrapped host; name the plain host's run with --against to see its own."
        )
    return None
