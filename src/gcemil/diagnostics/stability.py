"""Does the evidence stay when it should: across seeds of training, and when the bag changes a little (paper, stability).

  jaccard          |S and S'| / |S or S'|, over the patches both bags have
  prediction_flip  how often the predictions from the two sets of evidence are different answers
  output_gap       |Phi(X_S) - Phi'(X'_S')|, the class being the one the first network predicts on X
  cd_gap           mean |Phi(X_pi) - Phi(X_S)| of the rules made from gates, and full_kept_gap of the others

Two runs of other seeds form a pair, and so do a bag and its perturbed version. A perturbed bag is asked anew from the
start: features, gates, evidence, prediction.

Rules and their sizes: judged_evidence.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from gcemil.diagnostics.answers import RISK_TOLERANCE
from gcemil.diagnostics.bench import FoldBag, TrainedFold
from gcemil.diagnostics.judged_evidence import (
    FIXED_SHARE,
    WHOLE_BAG,
    EvidenceRules,
    OriginalBag,
    RuleEvidence,
    RuleKey,
    ScoreRule,
    jaccard,
    output_gap,
    own_gap,
    predictions_differ,
)
from gcemil.diagnostics.perturbed_bags import PERTURBATIONS
from gcemil.diagnostics.truth import precision
from gcemil.errors import RunError, UsageError
from gcemil.findings import Finding, mean_row
from gcemil.recovery.rules import members

Figures = dict[str, float | None]

SEEDS = "seeds"


def measure_stability(
    fold: TrainedFold,
    *,
    others: Sequence[TrainedFold] = (),
    dropout: float = 0.1,
    noise: float = 0.1,
    repeats: int = 5,
    risk_tolerance: float = RISK_TOLERANCE,
    share: float = FIXED_SHARE,
    scores: Mapping[str, ScoreRule] | None = None,
) -> Finding:
    """Under perturbation and, where runs of other seeds are given, across them."""
    common: dict[str, Any] = {"risk_tolerance": risk_tolerance, "share": share, "scores": scores}
    perturbed = measure_under_perturbation(
        fold,
        dropout=dropout,
        noise=noise,
        repeats=repeats,
        **common,
    )
    if not others:
        return replace(
            perturbed, notes=("Across seeds: not measured, since no run of another seed was given.",)
        )
    across = measure_across_runs([fold, *others], **common)
    return Finding(
        "stability",
        across.rows + perturbed.rows,
        slides=across.slides + perturbed.slides,
        notes=across.notes + perturbed.notes,
        settings=perturbed.settings | across.settings,
    )


def measure_across_runs(
    folds: Sequence[TrainedFold],
    *,
    risk_tolerance: float = RISK_TOLERANCE,
    share: float = FIXED_SHARE,
    scores: Mapping[str, ScoreRule] | None = None,
) -> Finding:
    """The evidence of several runs that share cohort and fold, every two of them a pair."""
    check_runs(folds)
    generator = torch.Generator().manual_seed(folds[0].seed)
    rules = EvidenceRules(generator, share, risk_tolerance, scores or {})
    table = StabilityTable()
    for bag in folds[0].bags("test"):
        original, rows = OriginalBag.of(bag), torch.arange(len(bag))
        found = [rules.collect(fold, FoldBag(bag.spec, bag.bag, fold), original, rows) for fold in folds]
        for key in (key for key in found[0] if all(key in one for one in found)):
            judged = [one[key] for one in found]
            figures = pair_figures(key, list(combinations(judged, 2)), judged, original, rows)
            table.add(bag, key, SEEDS, figures)
    settings = {
        "seeds": [fold.settings.seed for fold in folds],
        "risk_tolerance": risk_tolerance,
        "share": share,
    }
    return table.finding(settings, notes=tuple(run_differences(folds)))


def measure_under_perturbation(
    fold: TrainedFold,
    *,
    dropout: float = 0.1,
    noise: float = 0.1,
    repeats: int = 5,
    risk_tolerance: float = RISK_TOLERANCE,
    share: float = FIXED_SHARE,
    scores: Mapping[str, ScoreRule] | None = None,
) -> Finding:
    """The evidence of each bag beside that of its perturbed versions."""
    if repeats < 1:
        raise UsageError(f"A bag is perturbed at least once, got repeats = {repeats}.")
    generator = torch.Generator().manual_seed(fold.seed)
    rules = EvidenceRules(generator, share, risk_tolerance, scores or {})
    table = StabilityTable()
    for bag in fold.bags("test"):
        original = OriginalBag.of(bag)
        clean = rules.collect(fold, bag, original, torch.arange(len(bag)))
        for name, strength in (("dropout", dropout), ("noise", noise)):
            versions = list(judge_perturbed(rules, fold, bag, original, name, strength, repeats))
            for key, reference in clean.items():
                figures = [
                    pair_figures(key, [(reference, judged[key])], [judged[key]], original, rows)
                    for judged, rows in versions
                ]
                table.add(bag, key, f"{name} {strength:g}", mean_row({}, figures).values)
    settings = {
        "dropout": dropout,
        "noise": noise,
        "repeats": repeats,
        "risk_tolerance": risk_tolerance,
        "share": share,
    }
    return table.finding(settings)


def judge_perturbed(
    rules: EvidenceRules,
    fold: TrainedFold,
    bag: FoldBag,
    original: OriginalBag,
    name: str,
    strength: float,
    repeats: int,
) -> Iterator[tuple[dict[RuleKey, RuleEvidence], Tensor]]:
    """Every rule on a bag perturbed several times, and where its patches stood; one version in memory at a time."""
    for repeat in range(repeats):
        # What is drawn depends on seed and bag alone, not on the bags before it.
        generator = np.random.default_rng([fold.seed, repeat, *f"{name} {bag.bag.bag_id}".encode()])
        perturbed = PERTURBATIONS[name](bag.bag, strength, generator=generator)
        rows = torch.from_numpy(perturbed.rows)
        yield rules.collect(fold, FoldBag(bag.spec, perturbed.bag, fold), original, rows), rows


def pair_figures(
    key: RuleKey,
    pairs: Sequence[tuple[RuleEvidence, RuleEvidence]],
    judged: Sequence[RuleEvidence],
    original: OriginalBag,
    rows: Int[Tensor, "k"],
) -> Figures:
    """Means over pairs of what compares two, and over all of what is said of one."""
    figures: Figures = {
        "prediction_flip": fmean(float(predictions_differ(*pair)) for pair in pairs),
        "output_gap": fmean(output_gap(*pair) for pair in pairs),
    }
    if key[0] == WHOLE_BAG:
        return figures
    alive = members(rows, n_patches=original.n_patches)
    figures["jaccard"] = fmean(jaccard(one.selected & alive, other.selected & alive) for one, other in pairs)
    gap = "full_kept_gap" if judged[0].gated is None else "cd_gap"
    figures[gap] = fmean(own_gap(one) for one in judged)
    truth = original.truth
    if truth is not None and bool(truth.any()):
        figures["precision"] = fmean(precision(one.selected, truth) for one in judged)
    return figures


class StabilityTable:
    """Figures per bag, gathered by rule, network and perturbation."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, str, str], list[Figures]] = {}
        self._slides: list[dict[str, Any]] = []

    def add(self, bag: FoldBag, key: RuleKey, perturbation: str, figures: Figures) -> None:
        rule, network = key
        self._figures.setdefault((rule, network, perturbation), []).append(figures)
        labels = {"rule": rule, "network": network, "perturbation": perturbation}
        self._slides.append({"bag_id": bag.bag.bag_id, **labels, **figures})

    def finding(self, settings: dict[str, Any], *, notes: tuple[str, ...] = ()) -> Finding:
        rows = tuple(
            mean_row({"rule": rule, "network": network, "perturbation": perturbation}, figures)
            for (rule, network, perturbation), figures in self._figures.items()
        )
        return Finding("stability", rows, slides=tuple(self._slides), notes=notes, settings=settings)


def run_differences(folds: Sequence[TrainedFold]) -> list[str]:
    """What else than the seed differs between the runs."""
    notes = []
    first = folds[0].settings.model_copy(update={"seed": 0})
    for fold in folds[1:]:
        if fold.settings.seed == folds[0].settings.seed:
            notes.append(f"{fold.run.name} and {folds[0].run.name} were trained with the same seed.")
        if fold.settings.model_copy(update={"seed": 0}) != first:
            notes.append(f"{fold.run.name} and {folds[0].run.name} differ in more than the seed.")
    return notes


def check_runs(folds: Sequence[TrainedFold]) -> None:
    if len({fold.run for fold in folds}) < max(2, len(folds)):
        raise UsageError(
            f"Stability across seeds compares two or more different runs, got {[str(fold.run) for fold in folds]}."
        )
    first = folds[0]
    for fold in folds[1:]:
        if fold.cohort.folder != first.cohort.folder or list(fold.specs()) != list(first.specs()):
            raise RunError(
                f"{fold.run} (fold {fold.fold} of {fold.cohort.folder}) does not test on the bags of "
                f"{first.run} (fold {first.fold} of {first.cohort.folder}). Compare runs of one cohort and one fold."
            )
