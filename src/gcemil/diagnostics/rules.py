"""Subset rules by name: each is a ranking of the patches of a bag, of which a subset takes the first so many.

  random            one draw per bag, the same for every network
  <attribution>     every scorer of attribution.py that can explain the host: attention, occlusion, lrp ...
  <..>_smoothed     the same under the half smoothing of our selector: 1/2 s + 1/2 mean of s over the 3 x 3 patches
  gce_soft          the selector's scores: the first k are those whose gates open first
  gce_discrete      the recovered evidence first, then the rest, both by the selector's scores: at the size of the
                    evidence it is the evidence, and at any other size it has as many patches as the other rules
  oracle            truth first, one region after another, then attention; only where the truth is known

  evidence          the selector's scores too, under the name of the set that is recovered from them

`score_rules` scores the patches by the rules that are named; `take_subsets` takes from each rule as many patches as the
recovered evidence has. Names, labels and colours: gcemil/rules.py.

Rivals are made from the host that is asked, wrapped or plain. The two gce rules are the wrapper's, whose gates exist
under the wrapped host only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gcemil.diagnostics.attribution import ATTRIBUTIONS, Attribution, supported_attributions
from gcemil.diagnostics.trained_fold import FoldBag, NetworkName, PredictedBag
from gcemil.diagnostics.truth import oracle_scores
from gcemil.errors import UsageError
from gcemil.evidence.selector import Neighbourhood, smoothed
from gcemil.hosts.host import Host
from gcemil.recovery import subset_size, top_k
from gcemil.rules import SMOOTHED
from gcemil.shapes import Scores, Selected

RANKED = ("gce_soft", "gce_discrete")
"""The rules of the wrapper as rankings, comparable with others at any number of patches."""


def score_rules(
    bag: FoldBag,
    network: NetworkName,
    *,
    random: Scores,
    attributions: Mapping[str, Scores] | None = None,
    ours: Sequence[str] = ("evidence",),
    smooth: bool = False,
) -> dict[str, Scores]:
    """Scores of every rule for the patches of a bag; `ours` names the wrapper's rules, None attributes by attention alone."""
    attention = bag.predict(network).full.scores
    attributions = {"attention": attention} if attributions is None else attributions
    scores = {"random": random, **attributions}
    if smooth:
        scores |= smooth_scores(bag, attributions)
    if network == "wrapped" and bag.explanation is not None:
        explanation = bag.explanation
        scores |= {
            rule: explanation.order if rule == "gce_discrete" else explanation.output.scores
            for rule in ours
        }
    if bag.truth is not None:
        scores["oracle"] = oracle_scores(bag.truth, bag.regions, attention)
    return scores


def attribute_patches(
    view: PredictedBag, attributions: Mapping[str, Attribution]
) -> dict[str, Scores]:
    """The scores of each attribution for the patches of a bag; computed once per bag and network."""
    for name in attributions.keys() - view.attributed.keys():
        view.attributed[name] = attributions[name].scores(view)
    return {name: view.attributed[name] for name in attributions}


def smooth_scores(bag: FoldBag, scores: Mapping[str, Scores]) -> dict[str, Scores]:
    """The same rules under the selector's half smoothing; none for a bag without coordinates."""
    if bag.coords is None:
        return {}
    around = Neighbourhood.of(bag.coords, bag.bag.patch_size)
    return {name + SMOOTHED: smoothed(values, around) for name, values in scores.items()}


def choose_attributions(host: Host, names: Sequence[str] | None = None) -> dict[str, Attribution]:
    """The attributions that can explain the host, or those of them that are asked for; attention always."""
    found = supported_attributions(host)
    if names is None:
        return found
    if unknown := [name for name in names if name not in ATTRIBUTIONS]:
        raise UsageError(
            f"Unknown attribution '{unknown[0]}'. Choose from: {', '.join(ATTRIBUTIONS)}."
        )
    return {name: one for name, one in found.items() if name in names or name == "attention"}


@dataclass(frozen=True, eq=False)
class RuleSubset:
    """What one rule takes from a bag."""

    rule: str
    selected: Selected
    scores: Scores
    """The ranking of all patches from which the rule takes its subset."""


def take_subsets(
    bag: FoldBag,
    network: NetworkName,
    *,
    budget: float,
    rivals: Mapping[str, Attribution] | None = None,
) -> Iterator[RuleSubset]:
    """Evidence where there is any, then attention, random, oracle and rivals at the same size.

    `budget` gives the size where there is no wrapper.
    """
    scores = score_rules(bag, network, random=bag.random)
    explanation = bag.explanation
    selected = None if explanation is None else explanation.recovery.selected
    size = subset_size(len(bag), budget) if selected is None else int(selected.sum())
    if selected is not None and "evidence" in scores:
        yield RuleSubset("evidence", selected, scores["evidence"])
    for rule in ("attention", "random", "oracle"):
        if rule in scores:
            yield RuleSubset(rule, top_k(scores[rule], size), scores[rule])
    for rule, values in attribute_patches(bag.predict(network), rivals or {}).items():
        if rule != "attention":
            yield RuleSubset(rule, top_k(values, size), values)
