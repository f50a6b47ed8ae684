"""The bank of a fold from the cohort's examples: only those that the fold may see."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.examples import EXAMPLES_FILE, choose_for_fold, read_examples
from gcemil.errors import CohortError
from gcemil.evidence.alignment import FactoredFit
from gcemil.evidence.anchors import AnchorBank
from gcemil.evidence.examples import bank_from_examples, whitening_fit


def create_example_bank(
    cohort: Cohort, train_bags: Sequence[BagSpec], reference: Tensor, *, rank: int
) -> tuple[AnchorBank, FactoredFit]:
    """Anchors of examples on these training slides and on slides outside the cohort, and the bridge that reaches them."""
    examples = read_examples(cohort.folder / EXAMPLES_FILE, cohort.card.feature_dim)
    train = {slide_id for spec in train_bags for slide_id in spec.slide_ids}
    held_out = {row.slide_id for row in cohort.slides} - train
    chosen = choose_for_fold(examples, held_out)
    if chosen.missing:
        raise CohortError(
            f"{cohort.folder / EXAMPLES_FILE}: this fold has no example of '{chosen.missing[0]}' on its training slides or outside the "
            f"cohort ({chosen.n_held_out} examples lie on slides it validates or tests on). Name patches on more slides with "
            "'gcemil anchors from-examples'."
        )
    fit = whitening_fit(reference, rank=rank)
    left_out = f", {chosen.n_held_out} on held-out slides left out" if chosen.n_held_out else ""
    rows = {name: torch.from_numpy(examples.features[own]) for name, own in chosen.rows.items()}
    return bank_from_examples(rows, fit, source=examples.source, note=left_out), fit
