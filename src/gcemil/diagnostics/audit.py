"""Is this explanation faithful? S/N/R and stability of any model and any patch scores, beside random and oracle.

A rule turns patch scores into a subset, for every rule the same number of patches: max(1, round(budget N)).

  <source>   scores of the model itself, or read from files
  random     one draw per bag: what chance gives
  oracle     truth first, one region after another; only where every bag has its truth

Every row is one comparison:

  whole bag    the model's own task metrics: an explanation of a model that knows nothing explains nothing
  full-kept    X against X_S and X_notS: sufficiency, necessity, size, truth
  soft-kept    X_pi against X_S, for scores that are gates: recoverability. A black box is gated at its input
  dropout s    the bag without a share s of its patches, noise s: features moved by a share s of their deviation. The
  noise s      scores are asked anew, so scores from files have no such row

Phi is the probability of the class predicted on X, or the risk in units of the audited bags' own risks, because the
training risks of a foreign model are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.loader import SampleRule, load_bags
from gcemil.diagnostics.audit_inputs import name_bag_in_errors
from gcemil.diagnostics.snr import (
    BagOutcome,
    OutputScale,
    RiskScale,
    Tolerances,
    bag_outcome,
    judge_subset,
    subset_metrics,
    task_metric,
)
from gcemil.diagnostics.stability import PERTURBATIONS, jaccard
from gcemil.diagnostics.truth import oracle_scores, true_evidence, true_regions, truth_figures
from gcemil.errors import BagError, UsageError
from gcemil.explain import Interventions, bag_tensors
from gcemil.findings import Figures, Finding, Labels, Row, mean_row
from gcemil.hosts.host import Host, HostOutput, log_with_zero
from gcemil.metrics import METRICS
from gcemil.recovery.recover import members, subset_size, top_k
from gcemil.rules import CONTROLS
from gcemil.shapes import Logits, Scores, Selected
from gcemil.tasks.task import Task

CHANCE = {"auc": 0.5, "c_index": 0.5}
"""What a model that knows nothing reaches."""

OnBag = Callable[[int, int], None]


@dataclass(frozen=True)
class ScoreSource:
    """Where the scores of a rule come from."""

    of: Callable[[Bag, HostOutput], Tensor]
    """One score per patch, from the bag and from what the model says of it."""
    follows_bag: bool = True
    """Whether a changed bag gets scores of its own; scores from files do not."""
    are_gates: bool = False
    """Whether they lie in [0, 1] and mean how much of a patch there is."""


OWN_SCORES = ScoreSource(lambda _bag, full: full.scores)
"""What the model itself returns."""


@torch.no_grad()
def audit_model(
    host: Host,
    cohort: Cohort,
    specs: Sequence[BagSpec],
    targets: Tensor,
    task: Task,
    *,
    score_sources: Mapping[str, ScoreSource],
    budget: float = 0.05,
    seed: int = 0,
    on_bag: OnBag | None = None,
    tolerances: Tolerances | None = None,
    dropout: float = 0.1,
    noise: float = 0.1,
    repeats: int = 3,
) -> Finding:
    """Every source and both controls on these bags; the host is any that `Interventions` accepts."""
    _check_sources(score_sources, specs)
    tolerances = tolerances or Tolerances()
    changes = {"dropout": dropout, "noise": noise}
    trials: dict[str, list[_AuditTrial]] = {}
    bags = load_bags(cohort, specs, rule=SampleRule(), ahead=2)
    for done, (spec, bag) in enumerate(bags, start=1):
        with name_bag_in_errors(spec.bag_id):
            for trial in _try_rules(host, cohort, bag, score_sources, budget, changes, repeats, seed):
                trials.setdefault(trial.rule, []).append(trial)
        if on_bag:
            on_bag(done, len(specs))
    # A control over some of the bags would be compared with rules over all of them.
    n_with_truth = len(trials.get("oracle", ()))
    if n_with_truth < len(specs):
        trials.pop("oracle", None)
    table = _AuditTable(trials, targets, task, measure_risk_scale(trials["random"], task), tolerances)
    still = [name for name, source in score_sources.items() if not source.follows_bag]
    return Finding(
        name="audit",
        rows=tuple(table.rows()),
        slides=tuple(table.records(specs)),
        notes=tuple(table.notes(n_with_truth=n_with_truth, without_stability=still)),
        settings={
            "budget": budget,
            **{f"{name}_tolerance": value for name, value in vars(tolerances).items()},
            **changes,
            "repeats": repeats,
            "seed": seed,
        },
    )


def _try_rules(
    host: Host,
    cohort: Cohort,
    bag: Bag,
    sources: Mapping[str, ScoreSource],
    budget: float,
    changes: Mapping[str, float],
    repeats: int,
    seed: int,
) -> list[_AuditTrial]:
    """Every rule on one bag and on its changed versions."""
    truth, regions = true_evidence(cohort, bag), true_regions(cohort, bag)
    interventions = Interventions(host, *bag_tensors(bag))
    full = interventions.full()
    everyone = torch.arange(len(bag))
    draw = _random_stream(seed, bag, "random")
    fixed = {"oracle": oracle_scores(truth, regions, torch.zeros(len(bag)))} if truth is not None else {}
    size = subset_size(len(bag), budget)
    rankings = _score_patches(bag, full, sources, fixed, everyone, draw)
    chosen = {rule: top_k(scores, size) for rule, scores in rankings.items()}
    found = {}
    for rule, scores in rankings.items():
        gates = rule in sources and sources[rule].are_gates
        outcome = bag_outcome(
            interventions, chosen[rule], _take_log_gates(scores) if gates else None, full=full.logits
        )
        found[rule] = _AuditTrial(rule, outcome, truth_figures(chosen[rule], scores, truth, regions))
    following = {name: source for name, source in sources.items() if source.follows_bag}
    for name, strength in changes.items():
        for repeat in range(repeats):
            changed = PERTURBATIONS[name](
                bag, strength, generator=_random_stream(seed, bag, f"{name} {repeat}")
            )
            rows = torch.from_numpy(changed.rows)
            again = Interventions(host, *bag_tensors(changed.bag))
            rankings = _score_patches(changed.bag, again.full(), following, fixed, rows, draw)
            for rule, scores in rankings.items():
                selected = top_k(scores, subset_size(len(rows), budget))
                overlap = _subset_overlap(chosen[rule], selected, rows)
                kept = again.kept(selected).logits
                found[rule].perturbed.append(_PerturbedTrial(f"{name} {strength:g}", overlap, kept))
    return list(found.values())


def _score_patches(
    bag: Bag,
    full: HostOutput,
    sources: Mapping[str, ScoreSource],
    fixed: Mapping[str, Scores],
    rows: Int[Tensor, "k"],
    draw: np.random.Generator,
) -> dict[str, Float[Tensor, "k"]]:
    """Scores of every rule for the patches of this bag; `fixed` ones are those of the bag it came from."""
    found = {name: source.of(bag, full).double() for name, source in sources.items()}
    found["random"] = torch.from_numpy(draw.random(len(rows)))
    return found | {rule: scores[rows].double() for rule, scores in fixed.items()}


def _subset_overlap(before: Selected, after: Bool[Tensor, "k"], rows: Int[Tensor, "k"]) -> float:
    """Jaccard of two subsets over the patches both bags have."""
    alive = members(rows, n_patches=len(before))
    return jaccard(before & alive, members(rows[after], n_patches=len(before)))


def _take_log_gates(scores: Scores) -> Scores:
    outside = ~((scores >= 0) & (scores <= 1))
    if bool(outside.any()):
        wrong = int(outside.nonzero()[0])
        raise BagError(
            f"Gates lie in [0, 1], but patch {wrong} has {float(scores[wrong])}. Audit them as scores."
        )
    return log_with_zero(scores.float())


def _random_stream(seed: int, bag: Bag, purpose: str) -> np.random.Generator:
    """What is drawn depends on seed, bag and purpose alone, not on the bags before."""
    return np.random.default_rng([seed, *f"{purpose} {bag.bag_id}".encode()])


def _check_sources(sources: Mapping[str, ScoreSource], specs: Sequence[BagSpec]) -> None:
    if not specs:
        raise UsageError("There is no bag to audit. Choose another --part or --fold.")
    if not sources:
        raise UsageError(
            "There are no scores to audit. Let the model return (logits, scores), or give --scores DIR."
        )
    if taken := [name for name in sources if name in CONTROLS]:
        raise UsageError(f"'{taken[0]}' is the name of a control. Call these scores something else.")


WHOLE_BAG, FULL_KEPT, SOFT_KEPT = "whole bag", "full-kept", "soft-kept"


@dataclass(frozen=True, eq=False)
class _PerturbedTrial:
    """The same rule on a changed bag."""

    perturbation: str
    overlap: float
    kept: Logits


@dataclass(frozen=True, eq=False)
class _AuditTrial:
    """One rule on one bag."""

    rule: str
    outcome: BagOutcome
    truth: Figures
    perturbed: list[_PerturbedTrial] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _AuditTable:
    """All trials by rule, each with one entry per bag and in the same order."""

    trials: Mapping[str, Sequence[_AuditTrial]]
    targets: Tensor
    task: Task
    scale: RiskScale
    tolerances: Tolerances

    @cached_property
    def output_scale(self) -> OutputScale:
        return OutputScale(self.task.n_outputs, self.scale)

    def rows(self) -> Iterator[Row]:
        yield Row(_audit_labels("whole bag", WHOLE_BAG), dict(self.whole_bag()))
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

    def full_kept(self, rule: str, trials: Sequence[_AuditTrial]) -> Row:
        """Sufficiency, necessity, size and truth."""
        score = partial(task_metric, self.task)
        metrics = subset_metrics([trial.outcome for trial in trials], self.targets, score)
        metrics.pop("task_metric")
        return mean_row(_audit_labels(rule, FULL_KEPT), [self.figures(trial) for trial in trials], metrics)

    def figures(self, trial: _AuditTrial) -> Figures:
        """What is said of one bag."""
        outputs = self.output_scale.read(trial.outcome)
        found = judge_subset(outputs, self.tolerances)
        return {
            "full_kept_gap": outputs.full_kept_gap,
            "removal_gap": outputs.removal_gap,
            "sufficient_share": float(found.sufficient),
            "necessary_share": float(found.necessary),
            "evidence_fraction": trial.outcome.fraction,
            **trial.truth,
        }

    def soft_kept(self, rule: str, trials: Sequence[_AuditTrial]) -> Row:
        """Recoverability of scores that are gates."""
        per_bag: list[Figures] = []
        for outputs in (self.output_scale.read(trial.outcome) for trial in trials):
            is_recoverable = judge_subset(outputs, self.tolerances).recoverable
            share = None if is_recoverable is None else float(is_recoverable)
            per_bag.append({"cd_gap": outputs.cd_gap, "recoverable_share": share})
        return mean_row(_audit_labels(rule, SOFT_KEPT), per_bag)

    def stability(self, rule: str, trials: Sequence[_AuditTrial]) -> Iterator[Row]:
        """One row per perturbation: means over its repeats, then over bags."""
        for name in dict.fromkeys(one.perturbation for one in trials[0].perturbed):
            per_bag: list[Figures] = [
                mean_row(
                    {},
                    [
                        self.compare_perturbed(trial, one)
                        for one in trial.perturbed
                        if one.perturbation == name
                    ],
                ).values
                for trial in trials
            ]
            yield mean_row(_audit_labels(rule, name), per_bag)

    def compare_perturbed(self, trial: _AuditTrial, changed: _PerturbedTrial) -> Figures:
        full, kept = trial.outcome.full, trial.outcome.kept
        before, after = self.output_scale.outputs(full, torch.stack([kept, changed.kept])).tolist()
        gap = abs(before - after)
        flipped = self.output_scale.differ(kept, changed.kept, gap)
        return {"jaccard": changed.overlap, "prediction_flip": float(flipped), "output_gap": gap}

    def records(self, specs: Sequence[BagSpec]) -> Iterator[dict[str, Any]]:
        """One entry per bag and rule."""
        for rule, trials in self.trials.items():
            for spec, trial in zip(specs, trials, strict=True):
                outputs = self.output_scale.read(trial.outcome)
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


def _audit_labels(rule: str, comparison: str) -> Labels:
    return {"rule": rule, "comparison": comparison}


def measure_risk_scale(trials: Sequence[_AuditTrial], task: Task) -> RiskScale:
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
