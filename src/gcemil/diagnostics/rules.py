"""Subset rules by name: each is a ranking of the patches of a bag, of which a subset takes the first so many.

  random            one draw per bag, the same for every network
  <attribution>     every scorer of attribution.py that can explain the host: attention, occlusion, lrp ...
  <..>_smoothed     the same under the half smoothing of our selector: 1/2 s + 1/2 mean of s over the 3 x 3 patches
  gce_soft          the selector's scores: the first k are those whose gates open first
  gce_discrete      the recovered evidence first, then the rest, both by the selector's scores: at the size of the
                    evidence it is the evidence, and at any other size it has as many patches as the other rules
  oracle            truth first, one region after another, then attention; only where the truth is known

`rule_scores` ranks by every rule; `rank_by_rules` by the few that need no attribution; `rule_subsets` takes from each of
these as many patches as the recovered evidence has, `rival_subsets` as many by attributions. Names, labels and colours: gcemil/rules.py.

Rivals are made from the host that is asked, wrapped or plain. The two gce rules are the wrapper's, whose gates exist
under the wrapped host only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcemil.diagnostics.attribution import ATTRIBUTIONS, Attribution, supported_attributions
from gcemil.diagnostics.trained_fold import FoldBag, NetworkName, Order, PredictedBag
from gcemil.diagnostics.truth import oracle_scores
from gcemil.errors import UsageError
from gcemil.evidence.spatial import Neighbourhood, smoothed
from gcemil.hosts.host import Host, HostOutput
from gcemil.recovery.recover import rank_scores, ranking, subset_size, top_k
from gcemil.rules import SMOOTHED
from gcemil.shapes import LogGates, Scores, Selected


def rule_scores(
    bag: FoldBag,
    network: NetworkName,
    attributions: Mapping[str, Scores],
    *,
    random: Scores,
    smooths: bool = True,
) -> dict[str, Scores]:
    """Scores of every rule for the patches of a bag, from the attributions of the network that is asked."""
    found = {"random": random, **attributions}
    if smooths:
        found |= smooth_scores(bag, attributions)
    if network == "wrapped" and bag.explanation is not None:
        soft = bag.explanation.output.scores
        found["gce_soft"] = soft
        found["gce_discrete"] = rank_selected_first(bag.explanation.recovery.selected, soft)
    if bag.truth is not None:
        found["oracle"] = oracle_scores(bag.truth, bag.regions, attributions["attention"])
    return found


def attribute_patches(view: PredictedBag, attributions: Mapping[str, Attribution]) -> dict[str, Scores]:
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


def rank_selected_first(selected: Selected, scores: Scores) -> Scores:
    """Ranks from n down to 1: the selected patches before the others, both by score."""
    order = ranking(scores)
    return rank_scores(torch.cat([order[selected[order]], order[~selected[order]]]))


def choose_attributions(host: Host, names: Sequence[str] | None = None) -> dict[str, Attribution]:
    """The attributions that can explain the host, or those of them that are asked for; attention always."""
    found = supported_attributions(host)
    if names is None:
        return found
    if unknown := [name for name in names if name not in ATTRIBUTIONS]:
        raise UsageError(f"Unknown attribution '{unknown[0]}'. Choose from: {', '.join(ATTRIBUTIONS)}.")
    return {name: one for name, one in found.items() if name in names or name == "attention"}


@dataclass(frozen=True, eq=False)
class RuleSubset:
    """What one rule takes from a bag."""

    rule: str
    selected: Selected
    scores: Scores
    """The ranking of all patches from which the rule takes its subset."""
    log_gates: LogGates | None = None


def rule_subsets(
    bag: FoldBag, network: NetworkName, full: HostOutput, random: Scores, *, budget: float
) -> Iterator[RuleSubset]:
    """Evidence where there is any, then its rivals at the same size."""
    explanation, size = bag.explanation, subset_size(len(bag), budget)
    if explanation is not None:
        selected, output = explanation.recovery.selected, explanation.output
        size = int(selected.sum())
        if network == "wrapped":
            yield RuleSubset("evidence", selected, output.scores, output.log_gates)
    yield RuleSubset("attention", top_k(full.scores, size), full.scores)
    yield RuleSubset("random", top_k(random, size), random)
    if bag.truth is not None:
        oracle = oracle_scores(bag.truth, bag.regions, full.scores)
        yield RuleSubset("oracle", top_k(oracle, size), oracle)


def rival_subsets(view: PredictedBag, rivals: Mapping[str, Attribution], size: int) -> Iterator[RuleSubset]:
    """The first so many patches by each rival; attention is among the rules of `rule_subsets` already."""
    for name, scores in attribute_patches(view, rivals).items():
        if name != "attention":
            yield RuleSubset(name, top_k(scores, size), scores)


def rank_by_rules(
    bag: FoldBag, network: NetworkName, view: PredictedBag, *, random_order: Order
) -> dict[str, Tensor]:
    """Every rule's order of the patches, best first: evidence where there are gates, oracle where there is truth."""
    attention = view.full.scores
    orders = {"random": random_order, "attention": ranking(attention)}
    if network == "wrapped" and bag.explanation is not None:
        orders["evidence"] = ranking(bag.explanation.output.scores)
    if bag.truth is not None:
        orders["oracle"] = ranking(oracle_scores(bag.truth, bag.regions, attention))
    return orders
