"""Does the evidence stay when it should: across seeds of training, and when the bag changes a little (paper, stability).

  jaccard          |S and S'| / |S or S'|, over the patches both bags have
  prediction_flip  how often the predictions from the two sets of evidence are different answers
  output_gap       |Phi(X_S) - Phi'(X'_S')|, the class being the one the first network predicts on X
  cd_gap           mean |Phi(X_pi) - Phi(X_S)| of the rules made from gates, and full_kept_gap of the others

Two runs of other seeds form a pair, and so do a bag and its perturbed version. A perturbed bag is asked anew from the
start: features, gates, evidence, prediction.

  rule              evidence
  whole_bag         all patches: the part of flips and gaps that is the network's own
  attention         as many patches as the recovered evidence has, by the network's attention
  evidence          the recovered evidence
  soft_thresholded  gates above the threshold, without repair
  random            as many random patches, drawn anew every time: what chance gives
  oracle            as many patches, the true ones first, in an order that never changes

  saliency …        as many patches by any attribution that is asked for: gradient saliency, and occlusion where it has a closed
                    form, unless told otherwise

A run without gates takes a fixed share of the bag.

Perturbations are small random changes that should not change what the evidence is:

  dropout s   a share s of the patches is missing, at least one stays
  noise s     features + s * deviation * N(0, 1), the deviation that of each feature over the patches of the bag
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
"""A changed bag, and where each of its patches stands in the bag it came from, sorted."""
WHOLE_BAG = "whole_bag"
FIXED_SHARE = 0.05
"""Evidence of a run without gates."""

Record = dict[str, Any]

SEEDS = "seeds"


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
    """Under perturbation and, where runs of other seeds are given, across them."""
    if repeats < 1:
        raise UsageError(f"A bag is perturbed at least once, got repeats = {repeats}.")
    rules = _EvidenceRules(fold.seed, share, risk_tolerance, attributions)
    pairs = _SeedPairs([fold, *others], share, risk_tolerance, attributions) if others else None
    records: list[Record] = []
    while (bag := (yield "test")) is not None:
        clean = rules.collect(bag, bag, torch.arange(len(bag)))
        for name, strength in (("dropout", dropout), ("noise", noise)):
            versions = list(_judge_perturbed(rules, bag, name, strength, repeats))
            for key, reference in clean.items():
                figures = [
                    pair_figures(key, [(reference, judged[key])], [judged[key]], bag.truth, rows)
                    for judged, rows in versions
                ]
                labels = _labels(bag, key, f"{name} {strength:g}")
                records.append({**labels, **mean_row({}, figures).values})
        if pairs is not None:
            pairs.add(bag)
        del bag
    if pairs is None:
        note = "Across seeds: not measured, since no run of another seed was given."
        return _stability_finding(records, notes=(note,))
    seeds = [one.settings.seed for one in (fold, *others)]
    return _stability_finding(
        [*pairs.records, *records], {"seeds": seeds}, pairs.list_differences()
    )


class _SeedPairs:
    """The evidence of runs of several seeds, bag by bag."""

    def __init__(
        self,
        folds: Sequence[TrainedFold],
        share: float,
        risk_tolerance: float,
        attributions: Sequence[str],
    ) -> None:
        _check_runs(folds)
        self._rules = _EvidenceRules(folds[0].seed, share, risk_tolerance, attributions)
        self._folds = folds
        self.records: list[Record] = []

    def add(self, bag: FoldBag) -> None:
        """Compare what every rule takes from the bag under every two runs; `bag` is of the first."""
        rows = torch.arange(len(bag))
        bags = [bag, *(FoldBag(bag.spec, bag.bag, fold) for fold in self._folds[1:])]
        found = [self._rules.collect(one, bag, rows) for one in bags]
        for key in (key for key in found[0] if all(key in one for one in found)):
            judged = [one[key] for one in found]
            figures = pair_figures(key, list(combinations(judged, 2)), judged, bag.truth, rows)
            self.records.append({**_labels(bag, key, SEEDS), **figures})

    def list_differences(self) -> tuple[str, ...]:
        """What else than the seed differs between the runs."""
        notes, first = [], self._folds[0]
        for fold in self._folds[1:]:
            if fold.settings.seed == first.settings.seed:
                notes.append(
                    f"{fold.run.name} and {first.run.name} were trained with the same seed."
                )
            if fold.settings.model_copy(update={"seed": first.settings.seed}) != first.settings:
                notes.append(f"{fold.run.name} and {first.run.name} differ in more than the seed.")
        return tuple(notes)


def _judge_perturbed(
    rules: _EvidenceRules, bag: FoldBag, name: str, strength: float, repeats: int
) -> Iterator[tuple[dict[RuleKey, RuleEvidence], Tensor]]:
    """Every rule on a bag perturbed several times, and where its patches stood; one version in memory at a time."""
    for repeat in range(repeats):
        # What is drawn depends on seed and bag alone, not on the bags before it.
        generator = np.random.default_rng(
            [bag.fold.seed, repeat, *f"{name} {bag.bag.bag_id}".encode()]
        )
        changed, kept_rows = PERTURBATIONS[name](bag.bag, strength, generator=generator)
        rows = torch.from_numpy(kept_rows)
        yield rules.collect(FoldBag(bag.spec, changed, bag.fold), bag, rows), rows


def pair_figures(
    key: RuleKey,
    pairs: Sequence[tuple[RuleEvidence, RuleEvidence]],
    judged: Sequence[RuleEvidence],
    truth: Selected | None,
    rows: Int[Tensor, "k"],
) -> Figures:
    """Means over pairs of what compares two, and over all of what is said of one."""
    figures: Figures = {
        "prediction_flip": fmean(float(predictions_differ(*pair)) for pair in pairs),
        "output_gap": fmean(output_gap(*pair) for pair in pairs),
    }
    if key[0] == WHOLE_BAG:
        return figures
    alive = members(rows, n_patches=len(judged[0].selected))
    figures["jaccard"] = fmean(
        jaccard(one.selected & alive, other.selected & alive) for one, other in pairs
    )
    gap = "full_kept_gap" if judged[0].gated is None else "cd_gap"
    figures[gap] = fmean(own_gap(one) for one in judged)
    if truth is not None and bool(truth.any()):
        figures["precision"] = fmean(precision(one.selected, truth) for one in judged)
    return figures


def _labels(bag: FoldBag, key: RuleKey, perturbation: str) -> Record:
    return {
        "bag_id": bag.bag.bag_id,
        "rule": key[0],
        "network": key[1],
        "perturbation": perturbation,
    }


def _stability_finding(
    records: Sequence[Record], settings: dict[str, Any] | None = None, notes: tuple[str, ...] = ()
) -> Finding:
    rows = mean_rows(records, ("rule", "network", "perturbation"))
    return Finding("stability", rows, slides=tuple(records), notes=notes, settings=settings or {})


def _check_runs(folds: Sequence[TrainedFold]) -> None:
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


@dataclass(frozen=True, eq=False)
class RuleEvidence:
    """The evidence of one rule in one bag, and what the network says of it."""

    selected: Selected
    """Over the patches of the unperturbed bag."""
    full: Logits
    kept: Logits
    gated: Logits | None
    output_scale: OutputScale


class _EvidenceRules:
    """Every rule's evidence, under every network of a fold; `share` of the bag for a run without gates."""

    def __init__(
        self, seed: int, share: float, risk_tolerance: float, attributions: Sequence[str]
    ) -> None:
        self.share = share
        self.risk_tolerance = risk_tolerance
        self._attributions = attributions
        self._generator = torch.Generator().manual_seed(seed)

    def collect(
        self, bag: FoldBag, original: FoldBag, rows: Int[Tensor, "k"]
    ) -> dict[RuleKey, RuleEvidence]:
        """The evidence in a bag whose patches stand at `rows` of the original."""
        found: dict[RuleKey, RuleEvidence] = {}
        for network in bag.fold.networks:
            view = bag.predict(network)
            output_scale = bag.fold.output_scale(network, risk_tolerance=self.risk_tolerance)
            for rule, selected in self._select_patches(bag, network, original, rows).items():
                found[rule, network] = RuleEvidence(
                    selected=members(rows[selected], n_patches=len(original)),
                    full=view.full.logits,
                    kept=view.kept(selected),
                    gated=gated_logits(bag, rule),
                    output_scale=output_scale,
                )
        return found

    def _select_patches(
        self, bag: FoldBag, network: NetworkName, original: FoldBag, rows: Int[Tensor, "k"]
    ) -> dict[str, Selected]:
        """What every rule takes from the bag at hand, all of them as many patches."""
        view, explanation, model = bag.predict(network), bag.explanation, bag.fold.model
        evidence = None if explanation is None else explanation.recovery.selected
        size = subset_size(len(bag), self.share) if evidence is None else int(evidence.sum())
        found = {
            WHOLE_BAG: torch.ones(len(bag), dtype=torch.bool),
            "random": random_k(len(bag), size, generator=self._generator),
        }
        scores = attribute_patches(view, choose_attributions(view.host, self._attributions))
        found |= {name: top_k(values, size) for name, values in scores.items()}
        if network == "wrapped" and model is not None and explanation is not None:
            threshold = model.settings.selection_threshold
            found["soft_thresholded"] = above_threshold(explanation.output.gates, threshold)
            found["evidence"] = explanation.recovery.selected
        if original.truth is not None:
            # Attention would make the oracle differ between networks.
            oracle = oracle_scores(original.truth, original.regions, torch.zeros(len(original)))
            found["oracle"] = top_k(oracle[rows], size)
        return found


def jaccard(one: Selected, other: Selected) -> float:
    """Shared over joint patches; two empty sets are the same set."""
    joint = int((one | other).sum())
    return int((one & other).sum()) / joint if joint else 1.0


def predictions_differ(one: RuleEvidence, other: RuleEvidence) -> bool:
    """Whether the two predictions from the evidence are different answers."""
    return one.output_scale.differ(one.kept, other.kept, output_gap(one, other))


def output_gap(one: RuleEvidence, other: RuleEvidence) -> float:
    """|Phi - Phi'| of the predictions from the evidence, a risk in units of its own network's training risks."""
    return abs(
        one.output_scale.output(one.full, one.kept)
        - other.output_scale.output(one.full, other.kept)
    )


def own_gap(judged: RuleEvidence) -> float:
    """|Phi(X_pi) - Phi(X_S)| of a rule made from gates, |Phi(X) - Phi(X_S)| of any other."""
    reference = judged.full if judged.gated is None else judged.gated
    one, other = judged.output_scale.outputs(
        judged.full, torch.stack([reference, judged.kept])
    ).tolist()
    return abs(one - other)


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
    # float32, because float16 on disk would round small noise away; the deviation is 0 for a single patch.
    features = bag.features.astype(np.float32)
    noise = generator.standard_normal(features.shape, dtype=np.float32)
    noisy = features + np.float32(share) * features.std(axis=0) * noise
    return replace(bag, features=noisy), np.arange(len(bag))


PERTURBATIONS: dict[str, Callable[..., PerturbedBag]] = {
    "dropout": drop_patches,
    "noise": add_noise,
}
