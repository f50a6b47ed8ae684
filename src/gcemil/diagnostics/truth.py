"""Evidence against truth, for cohorts that have it.

  precision          |S and T| / |S|
  recall             |S and T| / |T|
  average precision  mean precision at the ranks of the true patches; equal scores share a rank
  region coverage    disjoint true regions that S touches / disjoint true regions

A bag without true evidence has none of these figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int
from sklearn.metrics import average_precision_score
from torch import Tensor

from gcemil.bags import store
from gcemil.bags.bag import Bag
from gcemil.bags.cohort import Cohort
from gcemil.bags.store import read_truth
from gcemil.errors import UsageError
from gcemil.recovery import rank_scores, ranking
from gcemil.shapes import Scores, Selected

RegionNumbers = Int[Tensor, "n"]
"""The connected true region of each patch, 0 = none."""

NO_TRUTH = "The cohort has no truth: there is neither an oracle row nor a figure against truth."
TRUTH_FIGURES = ("precision", "recall", "average_precision", "region_coverage")


def truth_figures(
    selected: Selected, scores: Scores, truth: Selected | None, regions: RegionNumbers | None
) -> dict[str, float | None]:
    """Every truth figure of one subset and of its ranking; None without true patches."""
    if truth is None or not bool(truth.any()):
        return dict.fromkeys(TRUTH_FIGURES)
    return {
        "precision": precision(selected, truth),
        "recall": recall(selected, truth),
        "average_precision": average_precision(scores, truth),
        "region_coverage": None if regions is None else region_coverage(selected, regions),
    }


def precision(selected: Selected, truth: Selected) -> float:
    """Share of the subset that is true; 0 for an empty subset."""
    return float((selected & truth).sum()) / max(1, int(selected.sum()))


def recall(selected: Selected, truth: Selected) -> float:
    """|S and T| / |T|."""
    return float((selected & truth).sum()) / int(truth.sum())


def average_precision(scores: Scores, truth: Selected) -> float:
    """Area under the steps of precision over recall, down the ranking."""
    return float(average_precision_score(truth.numpy(), scores.numpy()))


def region_coverage(selected: Selected, regions: RegionNumbers) -> float | None:
    """Share of the true regions with at least one selected patch; None without a region."""
    every = np.unique(regions[regions > 0].numpy())
    if len(every) == 0:
        return None
    return len(np.unique(regions[selected & (regions > 0)].numpy())) / len(every)


def oracle_scores(truth: Selected, regions: RegionNumbers | None, attention: Scores) -> Scores:
    """The best ranking on truth: the first patch of every region, the second of each, the rest.

    Within a region and in the rest, attention decides.
    """
    order = ranking(attention)
    places = regions if regions is not None else truth.long()
    ranked = places[order].numpy()
    # How many patches of the same region come earlier.
    turn = torch.from_numpy(pd.Series(ranked).groupby(ranked).cumcount().to_numpy())
    # The rest comes last. A stable sort keeps attention's order within a turn.
    late = torch.where(truth[order], turn, len(order))
    return rank_scores(order[late.sort(stable=True).indices])


def true_evidence(cohort: Cohort, bag: Bag) -> Selected | None:
    """Which patches of a bag are evidence, if the cohort has truth."""
    column = truth_column(cohort, bag, "evidence")
    return None if column is None else column.bool()


def true_regions(cohort: Cohort, bag: Bag) -> Int[Tensor, "n"] | None:
    """The connected true region of each patch, 0 = none; no region is in two slides."""
    column = truth_column(cohort, bag, "region")
    if column is None:
        return None
    sizes = torch.tensor([span.stop - span.start for span in bag.spans])
    slide = torch.arange(len(sizes)).repeat_interleave(sizes)
    return torch.where(column > 0, column + slide * (column.max() + 1), 0)


def truth_column(cohort: Cohort, bag: Bag, name: str) -> Int[Tensor, "n"] | None:
    """One column of truth/<slide>.h5 for every patch; None unless every slide has it."""
    files = [cohort.truth_file(slide_id) for slide_id in bag.slide_ids]
    if not all(path.is_file() and store.has(path, name) for path in files):
        return None
    columns = [
        read_truth(path, name, span.stop - span.start)
        for path, span in zip(files, bag.spans, strict=True)
    ]
    return torch.from_numpy(np.concatenate(columns).astype(np.int64))


def artifact_concepts(cohort: Cohort, names: Sequence[str] | None = None) -> tuple[int, ...] | None:
    """Numbers of the concepts that are artifacts: by name, or by kind in cohort.yaml.

    None if cohort.yaml does not list the kinds of its concepts.
    """
    provenance = cohort.card.provenance
    known = list(provenance.get("concepts", ()))
    if names is not None:
        if missing := [name for name in names if name not in known]:
            raise UsageError(
                f"{cohort.folder / 'cohort.yaml'} names no concept '{missing[0]}', "
                f"only: {', '.join(known) or 'none'}."
            )
        return tuple(known.index(name) for name in names)
    kinds = provenance.get("kinds")
    if not isinstance(kinds, list):
        return None
    return tuple(number for number, kind in enumerate(kinds) if kind == "artifact")
