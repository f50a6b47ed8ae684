"""What may be claimed of the evidence of a run: counts of slides, and the sentences that follow.

  both        the patches are sufficient and necessary (Definitions 1 and 2 of the paper)
  rival       a ranking made from a host alone; random and oracle are controls, never rivals
  interval    the 95 % Wilson interval of a share
  chance      the sign test over slides on which only one of two rules holds, two-sided

Report, terminal and viewer use these sentences. The best rival is chosen after the fact, which
favours the rival and not the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy.stats import binomtest

from gcemil.findings import Count
from gcemil.rules import CONTROLS, RULES, find_rule, order_rules

Record = dict[str, Any]
CHANCE = 0.05
UNSURE = 0.75
"""A model whose mean probability of its own prediction is lower is unsure of whole slides."""
ORACLE_MEANING = (
    "The oracle takes annotated patches first, as many as the evidence has: what a pathologist "
    "marked, not what the model uses. A rule that uses the model can do better than the oracle."
)
SAME_NETWORK_MEANING = (
    "The wrapper left the host as it was: the plain host and the wrapped one are the same network, "
    "so each rule is shown once."
)


@dataclass(frozen=True, eq=False)
class RuleSlides:
    """What one rule did on every test slide, under one network."""

    rule: str
    network: str
    """Key of the network; empty if both are one."""
    records: Sequence[Record]

    @property
    def is_rival(self) -> bool:
        """Made from a host alone."""
        return self.rule not in CONTROLS and not find_rule(self.rule).is_ours

    @property
    def words(self) -> str:
        """The rule, and its host if there are two."""
        label = find_rule(self.rule).label
        return f"{label} of the {self.network} host" if self.network and self.is_rival else label

    def count(self, *criteria: str) -> Count:
        """Slides in which all these criteria hold, of those where all apply."""
        known = [[record.get(name) for name in criteria] for record in self.records]
        judged = [values for values in known if None not in values]
        return Count(sum(map(all, judged)), len(judged))

    @property
    def both(self) -> Count:
        """Sufficient and necessary."""
        return self.count("sufficient", "necessary")

    def mean(self, name: str) -> float | None:
        """Mean of a figure over the slides that have it."""
        values = [float(record[name]) for record in self.records if record.get(name) is not None]
        return fmean(values) if values else None


@dataclass(frozen=True, eq=False)
class Claim:
    """The evidence beside the best rival at the same number of patches."""

    own: RuleSlides
    rival: RuleSlides | None
    rules: Sequence[RuleSlides]
    """Every rule under every network, ours first and controls last."""
    is_same_network: bool

    def describe(self) -> list[str]:
        return [*self.sentences(), *self.remarks()]

    def sentences(self, unit: str = "slide") -> list[str]:
        """Evidence, rival, and how the two compare."""
        both, size = self.own.both, self.own.mean("evidence_fraction") or 0.0
        sentences = [
            f"{find_rule(self.own.rule).label} is sufficient and necessary in {both.words} test "
            f"{unit}s ({both.percent}); it is {100 * size:.1f} % of the patches."
        ]
        if (none := self.count_without_evidence()).held:
            sentences.append(
                f"{none.words} {unit}s have no evidence: without the patches their prediction "
                "stays as it is."
            )
        sentences += explain_counts(self.own.records, unit)
        if self.rival is not None:
            sentences.append(self._compare_with(self.rival, unit))
        others = [one for one in self.rules if one.rule in ("attention", "random")]
        counts = [
            f"{one.words} {one.both.words}"
            for one in others
            if one is not self.rival and one is not self.own
        ]
        return [*sentences, f"Others: {'; '.join(counts)}."] if counts else sentences

    def remarks(self) -> list[str]:
        """Whose rivals these are, if their names do not show it, and what an oracle is."""
        remarks = []
        if self.is_same_network:
            remarks.append(SAME_NETWORK_MEANING)
        elif self.rival is not None and not self.rival.network and RULES[self.own.rule].is_ours:
            remarks.append(
                "Rivals are those of the wrapped host; name the plain host's run with --against "
                "to see its own."
            )
        if any(rule.rule == "oracle" for rule in self.rules):
            remarks.append(ORACLE_MEANING)
        return remarks

    def count_without_evidence(self) -> Count:
        """Slides whose prediction does not need the recovered patches."""
        judged = [record for record in self.own.records if record.get("necessary") is not None]
        held = sum(bool(record.get("no_evidence", not record["necessary"])) for record in judged)
        return Count(held, len(judged))

    def _compare_with(self, rival: RuleSlides, unit: str) -> str:
        """The rival's count, and on how many slides each of the two holds alone."""
        held, theirs = (
            {
                (slide.get("fold"), slide["bag_id"]): slide["sufficient"] and slide["necessary"]
                for slide in rule.records
            }
            for rule in (self.own, rival)
        )
        shared = held.keys() & theirs.keys()
        won = sum(bool(held[bag] and not theirs[bag]) for bag in shared)
        lost = sum(bool(theirs[bag] and not held[bag]) for bag in shared)
        whose = "" if rival.network else " of the host"
        head = f"Best rival at the same size, {rival.words}{whose}: {rival.both.words}."
        paired = f"only the evidence holds in {won}, only the rival in {lost}"
        if rival.both.held >= self.own.both.held:
            how = "does better than" if rival.both.held > self.own.both.held else "does as well as"
            return f"{head} It {how} the evidence ({paired})."
        noise = "more than chance would make"
        if sign_test(won, lost) > CHANCE:
            noise = "a difference that chance could make"
        return f"{head} The evidence holds in more {unit}s ({paired}: {noise})."


def explain_counts(records: Sequence[Record], unit: str) -> list[str]:
    """How the output moves without or with only the evidence, and why a definition fails."""
    known = [one for one in records if one.get("phi_full") is not None]
    kept, removed = (
        [one for one in known if one.get(f"phi_{name}") is not None] for name in ("kept", "removed")
    )
    if not kept or not removed:
        return []
    full, alone = (fmean(one[f"phi_{name}"] for one in kept) for name in ("full", "kept"))
    before, without = (fmean(one[f"phi_{name}"] for one in removed) for name in ("full", "removed"))
    keeps = RuleSlides("", "", kept).count("keeps_class")
    changes = RuleSlides("", "", removed).count("changes_class")
    stays = f"; the class stays on {keeps.words}" if keeps.of else ""
    leaves = f"; the class changes on {changes.words}" if changes.of else ""
    sentences = [
        f"With the evidence alone the output moves from {full:.2f} to {alone:.2f} on average "
        f"({alone - full:+.2f}){stays}.",
        f"Without the evidence it moves from {before:.2f} to {without:.2f} "
        f"({without - before:+.2f}){leaves}.",
    ]
    failed = [one for one in kept if one.get("sufficient") is False]
    same = [one for one in failed if one.get("keeps_class") is True]
    n_surer = sum(one["phi_kept"] > one["phi_full"] for one in same)
    if len(failed) > len(records) / 2:
        sentences.append(_explain_insufficient(n_surer, len(failed), full, unit))
    spare = sum(one.get("necessary") is False for one in removed)
    if spare > len(records) / 2:
        sentences.append(
            f"On {spare} {unit}s the output hardly changes without the evidence: other patches "
            "suffice. Count such sets with 'gcemil diagnose RUN --only subsets'; 'gcemil explain' "
            "lists the second and third of a slide."
        )
    return sentences


def _explain_insufficient(n_surer: int, n_failed: int, full: float, unit: str) -> str:
    """Why most evidence is not sufficient: it is surer than the slide, or too little of it."""
    if n_surer <= n_failed / 2:
        return (
            f"On {n_failed - n_surer} of the {n_failed} {unit}s where the evidence is not "
            "sufficient the model is less sure of it than of all patches: it is too small. Train "
            "with a larger evidence.budget, or with recovery.until_sufficient."
        )
    why = (
        f"On {n_surer} of the {n_failed} {unit}s where the evidence is not sufficient it keeps the "
        "class and is only surer: "
    )
    if full < UNSURE:
        return (
            f"{why}the model is unsure of whole slides (mean output {full:.2f}), which "
            "under-fitting does. Train longer or with a higher learning_rate, and compare the "
            "training metric in the report."
        )
    return (
        f"{why}it is over-confident on few patches. Judge it with a larger sufficiency_tolerance, "
        "or by the class that it keeps."
    )


def sign_test(won: int, lost: int) -> float:
    """Two-sided chance of a split at least as uneven under a fair coin; 1 without a difference."""
    return float(binomtest(won, won + lost).pvalue) if won + lost else 1.0


def make_claim(records: Sequence[Record], *, rule: str, is_same_network: bool) -> Claim | None:
    """The claim of a run with this own rule; None where it was not judged.

    Rivals are those of the plain host if there is one: a host that the wrapper changed belongs to
    this run.
    """
    rules = _group_rules(records, is_same_network=is_same_network)
    own = [one for one in rules if one.rule == rule and one.network in ("", "wrapped")]
    if not own:
        return None
    plain = "plain" if any(one.network == "plain" for one in rules) else ""
    rivals = [one for one in rules if one.is_rival and one.rule != rule and one.network == plain]
    best = max(rivals, key=lambda rival: rival.both.held, default=None)
    return Claim(own[0], best, rules, is_same_network)


def _group_rules(records: Sequence[Record], *, is_same_network: bool) -> list[RuleSlides]:
    """Every rule under every network, ours first and controls last; one network is shown once."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if not (is_same_network and record["network"] == "plain"):
            groups.setdefault((record["rule"], record["network"]), []).append(record)
    has_both = len({network for _, network in groups}) > 1
    rules = order_rules([rule for rule, _ in groups])
    return [
        RuleSlides(rule, network if has_both else "", groups[rule, network])
        for rule, network in sorted(
            groups, key=lambda key: (rules.index(key[0]), key[1] == "wrapped")
        )
        # A control is the same choice under both networks; the evidence's own network is shown.
        if not (rule in CONTROLS and network == "plain" and (rule, "wrapped") in groups)
    ]
