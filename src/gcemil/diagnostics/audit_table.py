"""What the trials of an audit amount to: a row per rule and comparison, a record per bag, and the answer in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcemil.bags.cohort import BagSpec
from gcemil.diagnostics.answers import Answers
from gcemil.diagnostics.snr import BagOutcome, BagOutputs, RiskScale, bag_outputs, snr_scores
from gcemil.diagnostics.verdicts import Tolerances, judge_subset
from gcemil.errors import UsageError
from gcemil.findings import Labels, Row, mean_row
from gcemil.metrics import METRICS
from gcemil.rules import CONTROLS
from gcemil.shapes import Logits
from gcemil.tasks.task import Task

WHOLE_BAG, FULL_KEPT, SOFT_KEPT = "whole bag", "full-kept", "soft-kept"
CHANCE = {"auc": 0.5, "c_index": 0.5}
"""What a model that knows nothing reaches."""

Figures = dict[str, float | None]


@dataclass(frozen=True, eq=False)
class PerturbedTrial:
    """The same rule on a changed bag."""

    perturbation: str
    overlap: float
    kept: Logits


@dataclass(frozen=True, eq=False)
class AuditTrial:
    """One rule on one bag."""

    rule: str
    outcome: BagOutcome
    truth: Figures
    perturbed: list[PerturbedTrial] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class AuditTable:
    """All trials by rule, each with one entry per bag and in the same order."""

    trials: Mapping[str, Sequence[AuditTrial]]
    targets: Tensor
    task: Task
    scale: RiskScale
    tolerances: Tolerances

    @cached_property
    def answers(self) -> Answers:
        return Answers(self.task.n_outputs, self.scale)

    def rows(self) -> Iterator[Row]:
        yield Row(audit_labels("whole bag", WHOLE_BAG), dict(self.whole_bag()))
        for rule, trials in self.trials.items():
            yield self.full_kept(rule, trials)
        for rule, trials in self.trials.items():
            if trials[0].outcome.gated is not None:
                yield self.soft_kept(rule, trials)
        for rule, trials in self.trials.items():
            yield from self.stability(rule, trials)

    def whole_bag(self) -> dict[str, float]:
        """The model's own task metrics."""
        logits = torch.stack([trial.outcome.full for trial in self.trials["random"]])
        return self.task.metrics(self.targets, self.task.prediction(logits))

    def full_kept(self, rule: str, trials: Sequence[AuditTrial]) -> Row:
        """Sufficiency, necessity, size and truth."""
        scores = snr_scores(
            [replace(trial.outcome, gated=None) for trial in trials],
            self.targets,
            self.task,
            scale=self.scale,
        )
        row = mean_row(audit_labels(rule, FULL_KEPT), [self.figures(trial) for trial in trials])
        metrics: Figures = {
            "evidence_sufficiency": scores.evidence_sufficiency,
            "keep_only_drop": scores.keep_only_drop,
            "complement_degradation": scores.complement_degradation,
        }
        return replace(row, values=metrics | row.values)

    def figures(self, trial: AuditTrial) -> Figures:
        """What is said of one bag."""
        outputs = self.outputs(trial)
        found = judge_subset(outputs, self.tolerances)
        return {
            "full_kept_gap": outputs.full_kept_gap,
            "removal_gap": outputs.removal_gap,
            "sufficient_share": float(found.sufficient),
            "necessary_share": float(found.necessary),
            "evidence_fraction": trial.outcome.fraction,
            **trial.truth,
        }

    def outputs(self, trial: AuditTrial) -> BagOutputs:
        return bag_outputs(trial.outcome, self.task, self.scale)

    def soft_kept(self, rule: str, trials: Sequence[AuditTrial]) -> Row:
        """Recoverability of scores that are gates."""
        gaps = [self.outputs(trial).cd_gap for trial in trials]
        limit = self.tolerances.recoverability
        per_bag: list[Figures] = [
            {"cd_gap": gap, "recoverable_share": None if gap is None else float(gap <= limit)} for gap in gaps
        ]
        return mean_row(audit_labels(rule, SOFT_KEPT), per_bag)

    def stability(self, rule: str, trials: Sequence[AuditTrial]) -> Iterator[Row]:
        """One row per perturbation: means over its repeats, then over bags."""
        for name in dict.fromkeys(one.perturbation for one in trials[0].perturbed):
            per_bag: list[Figures] = [
                mean_figures([self.compare_perturbed(trial, one) for one in trial.perturbed if one.perturbation == name])
                for trial in trials
            ]
            yield mean_row(audit_labels(rule, name), per_bag)

    def compare_perturbed(self, trial: AuditTrial, changed: PerturbedTrial) -> dict[str, float]:
        full, kept = trial.outcome.full, trial.outcome.kept
        before, after = self.answers.outputs(full, torch.stack([kept, changed.kept])).tolist()
        gap = abs(before - after)
        flipped = (
            gap > self.answers.risk_tolerance
            if self.answers.is_risk
            else int(kept.argmax()) != int(changed.kept.argmax())
        )
        return {"jaccard": changed.overlap, "prediction_flip": float(flipped), "output_gap": gap}

    def records(self, specs: Sequence[BagSpec]) -> Iterator[dict[str, Any]]:
        """One entry per bag and rule."""
        for rule, trials in self.trials.items():
            for spec, trial in zip(specs, trials, strict=True):
                outputs = self.outputs(trial)
                yield {
                    "bag_id": spec.bag_id,
                    "slide_ids": list(spec.slide_ids),
                    "rule": rule,
                    "phi_full": outputs.full,
                    "phi_kept": outputs.kept,
                    "phi_removed": outputs.removed,
                    "phi_soft": outputs.gated,
                    **self.figures(trial),
                }

    def notes(self, *, n_with_truth: int, without_stability: Sequence[str]) -> Iterator[str]:
        for name, value in self.whole_bag().items():
            if value <= CHANCE.get(name, -1.0):
                yield (
                    f"On whole bags the model is no better than chance ({METRICS[name].label} {value:.3f}): check the order "
                    "of its outputs. What explains such a prediction explains nothing."
                )
        yield from (self.answer(rule) for rule in self.trials if rule not in CONTROLS)
        n_bags = len(self.targets)
        if n_with_truth < n_bags:
            yield f"No oracle: {n_with_truth} of {n_bags} bags have their true evidence in truth/."
        if without_stability:
            yield f"Scores from files ({', '.join(without_stability)}) cannot follow a changed bag: no stability for them."
        if self.task.n_outputs == 1:
            yield (
                f"Risks are in units of the audited bags' own (mean {self.scale.mean:.3g}, deviation "
                f"{self.scale.deviation:.3g}), because the model's training risks are not known."
            )

    def answer(self, rule: str) -> str:
        """Beside chance: what its patches give alone, and what is lost without them."""
        ours, chance = (self.full_kept(name, self.trials[name]).values for name in (rule, "random"))
        metric = METRICS[self.task.task_metric].label
        text = (
            f"{rule}: {metric} from its patches alone {ours['evidence_sufficiency']:.3f}, "
            f"from random ones {chance['evidence_sufficiency']:.3f}"
        )
        lost, lost_by_chance = ours["complement_degradation"], chance["complement_degradation"]
        if lost is None or lost_by_chance is None:
            return f"{text}; no bag has patches left without them."
        return f"{text}; lost without them {lost:.3f}, without random ones {lost_by_chance:.3f}."


def audit_labels(rule: str, comparison: str) -> Labels:
    return {"rule": rule, "comparison": comparison}


def mean_figures(repeats: Sequence[dict[str, float]]) -> Figures:
    return {name: fmean(one[name] for one in repeats) for name in repeats[0]}


def measure_risk_scale(trials: Sequence[AuditTrial], task: Task) -> RiskScale:
    """Mean and deviation of the audited bags' own risks; classes need none."""
    if task.n_outputs > 1:
        return RiskScale()
    risks = [float(trial.outcome.full[0]) for trial in trials]
    deviation = float(np.std(risks))
    if not deviation > 0:
        raise UsageError(
            f"The model gives all {len(risks)} bags the risk {risks[0]:g}: it has no unit of risk, and nothing to explain."
        )
    return RiskScale(fmean(risks), deviation)
