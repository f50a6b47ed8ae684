"""Subset rules by name: each is a ranking of the patches of a bag, whose first ones are a subset.

  random            one draw per bag, the same for every network
  <attribution>     every scorer of attribution.py that supports the host: attention, occlusion ...
  <..>_smoothed     the same under the half smoothing of our selector: 1/2 s + 1/2 mean of s over
                    the 3 x 3 patches
  gce_soft          the selector's scores: the first k are those whose gates open first
  gce_discrete      the recovered evidence first, then the rest, by the selector's scores: a ranking
                    that is the evidence at its size, and comparable at any other
  evidence          the recovered evidence as a set, with the selector's scores
  oracle            truth first, one region after another, then attention; only with truth

`score_rules` scores the patches by the rules; `take_subsets` takes as many patches from each rule
as the recovered evidence has. Names, labels and colours: gcemil/rules.py.

Rivals are made from the host that is explained, wrapped or plain. The rules of the wrapper exist
under the wrapped host only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gcemil.diagnostics.attribution import ATTRIBUTIONS, Attribution, supported_attributions
from gcemil.diagnostics.trained_fold import FoldBag, NetworkName, PredictedBag, TrainedFold
from gcemil.diagnostics.truth import oracle_scores
from gcemil.errors import UsageError
from gcemil.evidence.selector import Neighbourhood, smoothed
from gcemil.recovery import subset_size, top_k
from gcemil.rules import SMOOTHED
from gcemil.shapes import Scores, Selected

ATTENTION = {"attention": ATTRIBUTIONS["attention"]}
RANKED = ("gce_soft", "gce_discrete")
"""The rules of the wrapper as rankings, comparable with others at any number of patches."""


def score_rules(
    bag: FoldBag,
    network: NetworkName,
    *,
    random: Scores | None = None,
    attributions: Mapping[str, Attribution] = ATTENTION,
    ours: Sequence[str] = ("evidence",),
    smooth: bool = False,
) -> dict[str, Scores]:
    """Scores of every rule for the patches of a bag; `ours` names the rules of the wrapper."""
    view = bag.predict(network)
    attributed = attribute_patches(view, attributions)
    scores = {"random": bag.random if random is None else random, **attributed}
    if smooth and bag.coords is not None:
        around = Neighbourhood.of(bag.coords, bag.bag.patch_size)
        scores |= {f"{name}{SMOOTHED}": smoothed(own, around) for name, own in attributed.items()}
    if network == "wrapped" and bag.explanation is not None:
        explanation = bag.explanation
        scores |= {
            rule: explanation.order if rule == "gce_discrete" else explanation.output.scores
            for rule in ours
        }
    if bag.truth is not None:
        scores["oracle"] = oracle_scores(bag.truth, bag.regions, view.full.scores)
    return scores


def attribute_patches(
    view: PredictedBag, attributions: Mapping[str, Attribution]
) -> dict[str, Scores]:
    """The scores of each attribution for the patches of a bag, computed once."""
    for name in attributions.keys() - view.attributed.keys():
        view.attributed[name] = attributions[name].scores(view)
    return {name: view.attributed[name] for name in attributions}


def choose_attributions(
    fold: TrainedFold, names: Sequence[str] | None = None
) -> dict[NetworkName, dict[str, Attribution]]:
    """The attributions that support each host, or the named ones of them and attention."""
    for name in names or ():
        if name not in ATTRIBUTIONS:
            raise UsageError(
                f"Unknown attribution '{name}'. Choose from: {', '.join(ATTRIBUTIONS)}."
            )
    return {
        network: {
            name: one
            for name, one in supported_attributions(fold.host_of(network)).items()
            if names is None or name in ("attention", *names)
        }
        for network in fold.networks
    }


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
    scores = score_rules(bag, network)
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
