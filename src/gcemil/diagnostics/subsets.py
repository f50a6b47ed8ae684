"""subsets: how many disjoint subsets of a bag each keep its prediction.

The minimal-subset table of the paper.

  sufficient   the class predicted on X is predicted again and Phi(X) - Phi(X_S) <= 0.05 (paper);
               for a risk |Phi(X) - Phi(X_S)| <= risk_tolerance, in units of the training risks
  recursion    take a candidate off the ranking; if it is sufficient, go on with the patches left,
               at most three times

  rule               candidate
  sufficient_prefix  the shortest sufficient of the next k, 2k, ... 16 k patches by attention
  attention          the next k by attention
  evidence           the next k by evidence score
  random             the next k of a random order (seed 42)
  oracle             the next k, true evidence first

The ranking is that of the whole bag throughout, and so is the reference Phi(X).

The paper's table does not define its columns; these follow from its figures. Mean subsets = share
with one + share with two + share with three holds in every row: the recursion stops at three. Its
attention rows have a mean drop above the 0.05 that defines a subset: the mean is over every
candidate tried, the failing one included. Counts of its sufficient-prefix rows fall with k: k is
the step of the search. `remove_union_j` is over the slides with j subsets; `remove_random` takes
as many random patches out as all subsets of the slide have together.

The same search gives the further sets of one explained slide:

  alternative 2, 3    disjoint from the evidence and from each other; each alone keeps the class and
                      loses at most delta_s of Phi (the shortest next parts of the ranking)
  turning             the smallest set found whose removal changes the prediction to another class
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gcemil.diagnostics.rules import score_rules
from gcemil.diagnostics.snr import RISK_TOLERANCE, OutputScale, Tolerances, judge_subset
from gcemil.diagnostics.trained_fold import (
    Measure,
    Order,
    PartName,
    Pass,
    PredictedBag,
    Ranking,
    TrainedFold,
    prefix_logits,
)
from gcemil.diagnostics.truth import precision
from gcemil.errors import UsageError
from gcemil.findings import Figures, Finding, mean_rows
from gcemil.records import FurtherSet
from gcemil.recovery import members, rank_scores, ranking
from gcemil.shapes import Logits, Scores, Selected

SIZES = (8, 16, 32)
MAX_SUBSETS = 3
MAX_STEPS = 16
RANDOM_SEED = 42
"""The paper's."""


@dataclass(frozen=True)
class Sufficiency:
    """When a subset keeps the prediction of its bag."""

    output_scale: OutputScale
    tolerance: float = 0.05
    """Largest drop of the class probability."""

    def holds(self, full: Logits, logits: Float[Tensor, "k c"]) -> Bool[Tensor, "k"]:
        """Whether the prediction from each subset is that from the whole bag."""
        same = self.output_scale.agree(full, logits)
        if self.output_scale.is_number:
            return same
        return same & (self.output_scale.drops(full, logits) <= self.tolerance)


class Candidate(NamedTuple):
    """Patches that were tried as a subset, and how much of the prediction they lose."""

    patches: Ranking
    drop: float
    is_sufficient: bool


@Measure
def measure_subsets(
    fold: TrainedFold,
    *,
    sizes: Sequence[int] = SIZES,
    tolerance: float = 0.05,
    risk_tolerance: float = RISK_TOLERANCE,
    seed: int = RANDOM_SEED,
    part: PartName = "test",
) -> Pass[Finding]:
    """Disjoint sufficient subsets of every bag by rule, network and k."""
    if not sizes or min(sizes) < 1:
        raise UsageError(
            f"sizes are numbers of patches, at least one and each at least 1, got {list(sizes)}."
        )
    generator = torch.Generator().manual_seed(seed)
    judges = {
        network: Sufficiency(fold.output_scale(network, risk_tolerance=risk_tolerance), tolerance)
        for network in fold.networks
    }
    slides: list[dict[str, Any]] = []
    while (bag := (yield part)) is not None:
        # One random order per bag serves every k and both networks.
        random_order = torch.randperm(len(bag), generator=generator)
        for network, judge in judges.items():
            view = bag.predict(network)
            scores = score_rules(bag, network, random=rank_scores(random_order))
            orders = {rule: ranking(values) for rule, values in scores.items()}
            orders = {"sufficient_prefix": orders["attention"], **orders}
            for k in sizes:
                for rule, order in orders.items():
                    steps = MAX_STEPS if rule == "sufficient_prefix" else 1
                    candidates = disjoint_candidates(view, order, judge, k=k, steps=steps)
                    figures = subset_figures(
                        view, candidates, judge.output_scale, random_order, bag.truth
                    )
                    labels = {"rule": rule, "network": network, "k": k}
                    slides.append({"bag_id": bag.bag.bag_id, **labels, **figures})
    settings = {"max_subsets": MAX_SUBSETS, "max_steps": MAX_STEPS}
    rows = mean_rows(slides, ("rule", "network", "k"))
    return Finding("subsets", rows, slides=tuple(slides), settings=settings)


def disjoint_candidates(
    view: PredictedBag,
    order: Ranking,
    judge: Sufficiency,
    *,
    k: int,
    steps: int,
    n_sets: int = MAX_SUBSETS,
) -> list[Candidate]:
    """At most `n_sets` disjoint sufficient subsets, and the candidate at which the search ended.

    A candidate is the shortest sufficient prefix of the patches left, or the last one tried.
    """
    candidates: list[Candidate] = []
    left: Ranking = order
    full = view.full.logits
    while len(left) > 0 and len(candidates) < n_sets:
        sizes = list(dict.fromkeys(min(k * step, len(left)) for step in range(1, steps + 1)))
        logits = prefix_logits(view, left, sizes)
        sufficient = judge.holds(full, logits)
        chosen = int(sufficient.int().argmax()) if bool(sufficient.any()) else len(sizes) - 1
        drop = float(judge.output_scale.drops(full, logits[chosen : chosen + 1]))
        candidates.append(Candidate(left[: sizes[chosen]], drop, bool(sufficient[chosen])))
        if not candidates[-1].is_sufficient:
            break
        left = left[sizes[chosen] :]
    return candidates


def subset_figures(
    view: PredictedBag,
    candidates: Sequence[Candidate],
    output_scale: OutputScale,
    random_order: Order,
    truth: Selected | None = None,
) -> Figures:
    """The columns of the paper's table for one bag; None where no patch is removed or left."""
    subsets = [candidate.patches for candidate in candidates if candidate.is_sufficient]
    count, total = len(subsets), sum(len(subset) for subset in subsets)
    figures: Figures = {
        "subsets_per_slide": float(count),
        "two_subsets_share": float(count >= 2),
        "three_subsets_share": float(count >= 3),
        "kept_output_drop": sum(candidate.drop for candidate in candidates) / len(candidates),
        "subset_patches": total / count if count else None,
    }
    unions = {
        f"remove_union_{j}": subsets[:j] if count >= j else [] for j in range(1, MAX_SUBSETS + 1)
    }
    unions["remove_random"] = [random_order[:total]] if count else []
    for name, parts in unions.items():
        selected = members(torch.cat(parts), n_patches=len(view)) if parts else None
        rest = None if selected is None else view.removed(selected)
        drop = None if rest is None else output_scale.drops(view.full.logits, rest.unsqueeze(0))
        figures[name] = None if drop is None else float(drop)
    figures["precision"] = None
    if truth is not None and bool(truth.any()):
        first = members(candidates[0].patches, n_patches=len(view))
        figures["precision"] = precision(first, truth)
    return figures


# Sets beside the evidence of one slide


@torch.no_grad()
def find_disjoint_sets(
    view: PredictedBag, selected: Selected, scores: Scores, judge: Sufficiency
) -> list[Selected]:
    """The evidence and up to two further sets that keep the prediction; none if it does not."""
    if not bool(judge.holds(view.full.logits, view.kept(selected).unsqueeze(0))[0]):
        return []
    order = ranking(scores)
    candidates = disjoint_candidates(
        view, order[~selected[order]], judge, k=SIZES[0], steps=MAX_STEPS, n_sets=MAX_SUBSETS - 1
    )
    return [
        selected,
        *(members(one.patches, n_patches=len(view)) for one in candidates if one.is_sufficient),
    ]


@torch.no_grad()
def find_further_sets(
    view: PredictedBag,
    selected: Selected,
    scores: Scores,
    scale: OutputScale,
    tolerances: Tolerances,
    names: Sequence[str],
    *,
    turning: Selected | None = None,
    against: int | None = None,
) -> tuple[FurtherSet, ...]:
    """The second and third set that keep the prediction, and the set that changes it."""
    disjoint = find_disjoint_sets(
        view, selected, scores, Sufficiency(scale, tolerances.sufficiency)
    )
    sets = [(f"alternative {number}", one) for number, one in enumerate(disjoint[1:], start=2)]
    if turning is not None and against is not None:
        sets.append((f"removal turns it into {names[against]}", turning))
    further = []
    for name, one in sets:
        outcome = view.outcome(one)
        outputs = scale.read(outcome)
        verdict = judge_subset(outputs, tolerances)
        kept_class, removed_class = (
            None if scale.is_number or logits is None else names[int(logits.argmax())]
            for logits in (outcome.kept, outcome.removed)
        )
        further.append(
            FurtherSet(
                name=name,
                patches=tuple(one.nonzero().flatten().tolist()),
                kept=outputs.kept,
                removed=outputs.removed,
                kept_class=kept_class,
                removed_class=removed_class,
                sufficient=verdict.sufficient,
                necessary=None if outputs.removed is None else verdict.necessary,
            )
        )
    return tuple(further)
