"""stability: does the evidence stay across seeds of training, and if the bag changes a little?

  jaccard          |S and S'| / |S or S'|, over the patches both bags have
  prediction_flip  how often the predictions from the two sets of evidence disagree
  output_gap       |Phi(X_S) - Phi'(X'_S')|, the class being the one the first network predicts on X
  cd_gap           mean |Phi(X_pi) - Phi(X_S)| of the rules made from gates; others: full_kept_gap

Two runs of other seeds form a pair, and so do a bag and its perturbed version. A perturbed bag is
explained anew: features, gates, evidence, prediction.

  rule              evidence
  whole_bag         all patches: the part of flips and gaps that is the network's own
  evidence          the recovered evidence
  soft_thresholded  gates above the threshold, without repair
  attention, ...    as many patches as the evidence has, by attention and the named attributions
  random            as many random patches, drawn anew every time: the baseline of chance
  oracle            as many patches, the true ones first, in an order that never changes

A run without gates takes a fixed share of the bag. Perturbations are small random changes that
should not change what the evidence is:

  dropout s   a share s of the patches is missing, at least one stays
  noise s     features + s * deviation * N(0, 1), by the deviation of each feature over the bag
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.random import Generator
from torch import Tensor

from gcemil.bags.bag import Bag, RowIndex
from gcemil.diagnostics.measurements import gated_logits
from gcemil.diagnostics.rules import attribute_patches, choose_attributions
from gcemil.diagnostics.snr import RISK_TOLERANCE, OutputScale
from gcemil.diagnostics.trained_fold import FoldBag, Measure, NetworkName, Pass, TrainedFold
from gcemil.diagnostics.truth import oracle_scores, precision
from gcemil.errors import RunError, UsageError
from gcemil.findings import Figures, Finding, mean_row, mean_rows
from gcemil.recovery import above_threshold, members, random_k, subset_size, top_k
from gcemil.shapes import Logits, Selected

RIVALS = ("saliency", "occlusion")
"""Attributions of the paper's table that cost no more than a few passes."""
RuleKey = tuple[str, NetworkName]
PerturbedBag = tuple[Bag, RowIndex]
"""A changed bag, and the rows of its patches in the bag it came from, sorted."""
WHOLE_BAG = "whole_bag"
SEEDS = "seeds"
FIXED_SHARE = 0.05
"""Evidence of a run without gates."""


@Measure
def measure_stability(
    fold: TrainedFold,
    *,
    others: Sequence[TrainedFold] = (),
    dropout: float = 0.1,
    noise: float = 0.1,
    repeats: int = 5,
    risk_tolerance: float = RISK_TOLERANCE,
    share: float = FIXED_SHARE,
    attributions: Sequence[str] = RIVALS,
) -> Pass[Finding]:
    """Under perturbation and, if runs of other seeds are given, across them."""
    if repeats < 1:
        raise UsageError(f"A bag is perturbed at least once, got repeats = {repeats}.")
    notes = _compare_runs(fold, others)
    collect, collect_of_seed = (
        EvidenceRules(fold.seed, share, risk_tolerance, attributions) for _ in range(2)
    )
    perturbed: list[dict[str, Any]] = []
    across: list[dict[str, Any]] = []
    while (bag := (yield "test")) is not None:
        rows = torch.arange(len(bag))
        clean = collect(bag, bag, rows)
        for name, strength in (("dropout", dropout), ("noise", noise)):
            figures: dict[RuleKey, list[Figures]] = {key: [] for key in clean}
            for repeat in range(repeats):
                # What is drawn depends on seed and bag alone, not on the bags before it.
                generator = np.random.default_rng(
                    [fold.seed, repeat, *f"{name} {bag.bag.bag_id}".encode()]
                )
                changed, kept_rows = PERTURBATIONS[name](bag.bag, strength, generator=generator)
                there = torch.from_numpy(kept_rows)
                per_rule = collect(FoldBag(bag.spec, changed, fold), bag, there)
                for key, one in per_rule.items():
                    pairs = [(clean[key], one)]
                    figures[key].append(pair_figures(key, pairs, [one], bag.truth, there))
            for key, own in figures.items():
                record = mean_row({}, own).values
                perturbed.append({**_labels(bag, key, f"{name} {strength:g}"), **record})
        if others:
            bags = [bag, *(FoldBag(bag.spec, bag.bag, one) for one in others)]
            seeds = [collect_of_seed(one, bag, rows) for one in bags]
            for key in (key for key in seeds[0] if all(key in one for one in seeds)):
                judged = [one[key] for one in seeds]
                pairs = list(combinations(judged, 2))
                record = pair_figures(key, pairs, judged, bag.truth, rows)
                across.append({**_labels(bag, key, SEEDS), **record})
        del bag
    records = [*across, *perturbed]
    return Finding(
        "stability",
        mean_rows(records, ("rule", "network", "perturbation")),
        slides=tuple(records),
        notes=notes,
        settings={"seeds": [one.settings.seed for one in (fold, *others)]} if others else {},
    )


def _labels(bag: FoldBag, key: RuleKey, perturbation: str) -> dict[str, str]:
    rule, network = key
    labels = {"bag_id": bag.bag.bag_id, "rule": rule, "network": network}
    return {**labels, "perturbation": perturbation}


def _compare_runs(first: TrainedFold, others: Sequence[TrainedFold]) -> tuple[str, ...]:
    """Refuse runs that are not other seeds of the first, and note other differences."""
    if not others:
        return ("Across seeds: not measured, since no run of another seed was given.",)
    runs = [first.run, *(fold.run for fold in others)]
    if len(set(runs)) < len(runs):
        raise UsageError(
            "Stability across seeds compares two or more different runs, "
            f"got {[str(run) for run in runs]}."
        )
    notes = []
    for fold in others:
        if fold.cohort.folder != first.cohort.folder or list(fold.specs()) != list(first.specs()):
            raise RunError(
                f"{fold.run} (fold {fold.fold} of {fold.cohort.folder}) does not test on the bags "
                f"of {first.run} (fold {first.fold} of {first.cohort.folder}). Compare runs of one "
                "cohort and one fold."
            )
        names = f"{fold.run.name} and {first.run.name}"
        if fold.settings.seed == first.settings.seed:
            notes.append(f"{names} were trained with the same seed.")
        if fold.settings.model_copy(update={"seed": first.settings.seed}) != first.settings:
            notes.append(f"{names} differ in more than the seed.")
    return tuple(notes)


@dataclass(frozen=True, eq=False)
class RuleEvidence:
    """The evidence of one rule in one bag, and the predictions of its network."""

    selected: Selected
    """Over the patches of the unperturbed bag."""
    full: Logits
    kept: Logits
    gated: Logits | None
    output_scale: OutputScale

    @property
    def own_gap(self) -> float:
        """|Phi(X_pi) - Phi(X_S)| of a rule made from gates, |Phi(X) - Phi(X_S)| of any other."""
        reference = self.full if self.gated is None else self.gated
        outputs = self.output_scale.outputs(self.full, torch.stack([reference, self.kept]))
        one, other = outputs.tolist()
        return abs(one - other)


def pair_figures(
    key: RuleKey,
    pairs: Sequence[tuple[RuleEvidence, RuleEvidence]],
    judged: Sequence[RuleEvidence],
    truth: Selected | None,
    rows: Int[Tensor, "k"],
) -> Figures:
    """Means over pairs of what compares two, and over all of the figures of one."""
    gaps = [output_gap(*pair) for pair in pairs]
    flips = [
        one.output_scale.differ(one.kept, other.kept, gap)
        for (one, other), gap in zip(pairs, gaps, strict=True)
    ]
    figures: Figures = {"prediction_flip": fmean(map(float, flips)), "output_gap": fmean(gaps)}
    if key[0] == WHOLE_BAG:
        return figures
    alive = members(rows, n_patches=len(judged[0].selected))
    figures["jaccard"] = fmean(
        jaccard(one.selected & alive, other.selected & alive) for one, other in pairs
    )
    gap = "full_kept_gap" if judged[0].gated is None else "cd_gap"
    figures[gap] = fmean(one.own_gap for one in judged)
    if truth is not None and bool(truth.any()):
        figures["precision"] = fmean(precision(one.selected, truth) for one in judged)
    return figures


class EvidenceRules:
    """The evidence of every rule under every network of a fold."""

    def __init__(
        self, seed: int, share: float, risk_tolerance: float, attributions: Sequence[str]
    ) -> None:
        """`share` is the size of evidence in a run without gates."""
        self._share, self._risk_tolerance = share, risk_tolerance
        self._attributions = attributions
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(
        self, bag: FoldBag, original: FoldBag, rows: Int[Tensor, "k"]
    ) -> dict[RuleKey, RuleEvidence]:
        """The evidence in a bag whose patches are the `rows` of the original."""
        fold, explanation = bag.fold, bag.explanation
        evidence = None if explanation is None else explanation.recovery.selected
        size = subset_size(len(bag), self._share) if evidence is None else int(evidence.sum())
        rule_evidence: dict[RuleKey, RuleEvidence] = {}
        for network, attributions in choose_attributions(fold, self._attributions).items():
            view = bag.predict(network)
            sets = {
                WHOLE_BAG: torch.ones(len(bag), dtype=torch.bool),
                "random": random_k(len(bag), size, generator=self._generator),
            }
            scores = attribute_patches(view, attributions)
            sets |= {name: top_k(values, size) for name, values in scores.items()}
            if network == "wrapped" and fold.model is not None and explanation is not None:
                threshold = fold.model.settings.selection_threshold
                sets["soft_thresholded"] = above_threshold(explanation.output.gates, threshold)
                sets["evidence"] = explanation.recovery.selected
            if original.truth is not None:
                # Attention would make the oracle differ between networks.
                none = torch.zeros(len(original))
                oracle = oracle_scores(original.truth, original.regions, none)
                sets["oracle"] = top_k(oracle[rows], size)
            scale = fold.output_scale(network, risk_tolerance=self._risk_tolerance)
            for rule, selected in sets.items():
                rule_evidence[rule, network] = RuleEvidence(
                    selected=members(rows[selected], n_patches=len(original)),
                    full=view.full.logits,
                    kept=view.kept(selected),
                    gated=gated_logits(bag, rule),
                    output_scale=scale,
                )
        return rule_evidence


def jaccard(one: Selected, other: Selected) -> float:
    """Shared over joint patches; two empty sets are the same set."""
    joint = int((one | other).sum())
    return int((one & other).sum()) / joint if joint else 1.0


def output_gap(one: RuleEvidence, other: RuleEvidence) -> float:
    """|Phi - Phi'| from the evidence, each in units of its own network's training risks."""
    return abs(
        one.output_scale.output(one.full, one.kept)
        - other.output_scale.output(one.full, other.kept)
    )


def drop_patches(bag: Bag, share: float, *, generator: Generator) -> PerturbedBag:
    """The bag without a random share of its patches."""
    if not 0 <= share < 1:
        raise UsageError(f"The share of patches to drop lies in [0, 1), got {share}.")
    n_kept = max(1, round((1 - share) * len(bag)))
    rows = np.sort(generator.choice(len(bag), size=n_kept, replace=False))
    return bag.take_rows(rows), rows


def add_noise(bag: Bag, share: float, *, generator: Generator) -> PerturbedBag:
    """The bag with Gaussian noise of a share of each feature's own deviation."""
    if not share >= 0:
        raise UsageError(f"Noise is a share of a feature's deviation, at least 0, got {share}.")
    # float32, because float16 would round small noise away.
    features = bag.features.astype(np.float32)
    noise = generator.standard_normal(features.shape, dtype=np.float32)
    noisy = features + np.float32(share) * features.std(axis=0) * noise
    return replace(bag, features=noisy), np.arange(len(bag))


PERTURBATIONS: dict[str, Callable[..., PerturbedBag]] = {
    "dropout": drop_patches,
    "noise": add_noise,
}
