"""Sets of patches beside the evidence of one bag, each kept and removed like it.

alternative 2, 3    disjoint from the evidence and from each other; each alone keeps the class and loses at most delta_s
                    of Phi (the shortest next parts of the ranking, as in subsets.py)
turning             the smallest set found whose removal makes the network predict the class that was asked against
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gcemil.diagnostics.snr import OutputScale, Tolerances, judge_subset
from gcemil.diagnostics.subsets import MAX_STEPS, MAX_SUBSETS, SIZES, Sufficiency, disjoint_candidates
from gcemil.diagnostics.trained_fold import PredictedBag
from gcemil.records import FurtherSet
from gcemil.recovery import members, ranking
from gcemil.shapes import Scores, Selected


@torch.no_grad()
def find_disjoint_sets(
    view: PredictedBag, selected: Selected, scores: Scores, judge: Sufficiency
) -> list[Selected]:
    """The evidence and up to two further sets that each carry the prediction; none where the evidence does not."""
    if not bool(judge.holds(view.full.logits, view.kept(selected).unsqueeze(0))[0]):
        return []
    order = ranking(scores)
    found = disjoint_candidates(
        view, order[~selected[order]], judge, k=SIZES[0], steps=MAX_STEPS, n_sets=MAX_SUBSETS - 1
    )
    return [selected, *(members(one.patches, n_patches=len(view)) for one in found if one.is_sufficient)]


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
    """The second and third set that carry the prediction, where the first one does, and the set that turns it."""
    disjoint = find_disjoint_sets(view, selected, scores, Sufficiency(scale, tolerances.sufficiency))
    sets = [(f"alternative {number}", one) for number, one in enumerate(disjoint[1:], start=2)]
    if turning is not None and against is not None:
        sets.append((f"removal turns it into {names[against]}", turning))
    return tuple(_judge(name, one, view, scale, tolerances, names) for name, one in sets)


def _judge(
    name: str,
    selected: Selected,
    view: PredictedBag,
    scale: OutputScale,
    tolerances: Tolerances,
    names: Sequence[str],
) -> FurtherSet:
    outcome = view.outcome(selected)
    outputs = scale.read(outcome)
    verdict = judge_subset(outputs, tolerances)
    classes = None if scale.is_number else names
    return FurtherSet(
        name=name,
        patches=tuple(selected.nonzero().flatten().tolist()),
        kept=outputs.kept,
        removed=outputs.removed,
        kept_class=None if classes is None else classes[int(outcome.kept.argmax())],
        removed_class=None
        if classes is None or outcome.removed is None
        else classes[int(outcome.removed.argmax())],
        sufficient=verdict.sufficient,
        necessary=None if outputs.removed is None else verdict.necessary,
    )
