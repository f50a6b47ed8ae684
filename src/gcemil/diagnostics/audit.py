"""Is this explanation faithful? S/N/R and stability of any model and any patch scores, beside random and oracle.

A rule turns patch scores into a subset, for every rule the same number of patches: max(1, round(budget N)).

  <source>   scores of the model itself, or read from files
  random     one draw per bag: what chance gives
  oracle     truth first, one region after another; only where every bag has its truth

Every row is one comparison:

  whole bag    the model's own task metrics: an explanation of a model that knows nothing explains nothing
  full-kept    X against X_S and X_notS: sufficiency, necessity, size, truth
  curves       Phi of the first 1 to 20 % of the patches alone (keep), and what is lost without them (removal)
  soft-kept    X_pi against X_S, for scores that are gates: recoverability. A black box is gated at its input
  dropout s    the bag without a share s of its patches, noise s: features moved by a share s of their deviation. The
  noise s      scores are asked anew, so scores from files have no such row

Phi is the probability of the class predicted on X, or the risk in units of the audited bags' own risks, because the
training risks of a foreign model are not known.

  keep curve      min(1, Phi(X_S) / Phi(X)); of a risk max(0, 1 - |Phi(X_S) - Phi(X)|). AUKC is its mean
  removal curve   Phi(X) - Phi(X_notS); of a risk its size. The removal area is its mean
  MSK             the smallest of these shares from which Phi is reached within the tolerance; 1 where none is enough
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort, SampleRule, load_bags
from gcemil.diagnostics.audit_inputs import name_bag_in_errors
from gcemil.diagnostics.snr import (
    RISK_TOLERANCE,
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
from gcemil.explanation import Interventions, bag_tensors
from gcemil.findings import Count, Figures, Finding, Row, compare_counts, mean_row, mean_rows
from gcemil.hosts.host import Host, HostOutput, log_with_zero
from gcemil.metrics import CHANCE, METRICS
from gcemil.recovery import members, subset_size, top_k
from gcemil.rules import CONTROLS
from gcemil.shapes import Logits, Scores
from gcemil.tasks.task import Task

"""What a model that knows nothing reaches."""

CURVE_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Shares of the patches at which the curves are read: few patches are an explanation."""
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


@dataclass(frozen=True, eq=False)
class _Trial:
    """One rule on one bag, and on its changed versions: perturbation, overlap of the subsets, prediction."""

    outcome: BagOutcome
    truth: Figures
    along: list[BagOutcome]
    """The outcomes at the sizes of the curves."""
    changed: list[tuple[str, float, Logits]] = field(default_factory=list)


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
    if not specs:
        raise UsageError("There is no bag to audit. Choose another --part or --fold.")
    if not score_sources:
        raise UsageError(
            "There are no scores to audit. Let the model return (logits, scores), or give --scores DIR."
        )
    if taken := [name for name in score_sources if name in CONTROLS]:
        raise UsageError(
            f"'{taken[0]}' is the name of a control. Call these scores something else."
        )
    tolerances = tolerances or Tolerances()
    changes = {"dropout": dropout, "noise": noise}
    trials: dict[str, list[_Trial]] = {}
    for done, (spec, bag) in enumerate(
        load_bags(cohort, specs, rule=SampleRule(), ahead=2), start=1
    ):
        with name_bag_in_errors(spec.bag_id):
            for rule, trial in _try_rules(
                host, cohort, bag, score_sources, budget, changes, repeats, seed
            ).items():
                trials.setdefault(rule, []).append(trial)
        if on_bag:
            on_bag(done, len(specs))
    # A control over some of the bags would be compared with rules over all of them.
    n_with_truth = len(trials.get("oracle", ()))
    if n_with_truth < len(specs):
        trials.pop("oracle", None)
    scale = measure_risk_scale([trial.outcome for trial in trials["random"]], task.n_outputs)
    table = _AuditTable(trials, targets, task, OutputScale(task.n_outputs, scale), tolerances)
    full = torch.stack([trial.outcome.full for trial in trials["random"]])
    whole = task.metrics(targets, task.prediction(full))
    answers = (text for rule in trials if rule not in CONTROLS for text in table.answer(rule))
    notes = [*_chance_notes(whole), *answers]
    if n_with_truth < len(specs):
        notes.append(
            f"No oracle: {n_with_truth} of {len(specs)} bags have their true evidence in truth/."
        )
    if still := [name for name, source in score_sources.items() if not source.follows_bag]:
        notes.append(
            f"Scores from files ({', '.join(still)}) cannot follow a changed bag: no stability for them."
        )
    if task.n_outputs == 1:
        notes.append(
            f"Predictions are in units of the audited bags' own (mean {scale.mean:.3g}, deviation "
            f"{scale.deviation:.3g}), because those of the model's training slides are not known."
        )
    return Finding(
        name="audit",
        rows=(Row({"rule": "whole bag", "comparison": "whole bag"}, dict(whole)), *table.rows()),
        slides=tuple(table.records(specs)),
        notes=tuple(notes),
        settings={
            "budget": budget,
            **{f"{name}_tolerance": value for name, value in vars(tolerances).items()},
            **changes,
            "curve_shares": list(CURVE_SHARES),
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
) -> dict[str, _Trial]:
    """Every rule on one bag and on its changed versions."""
    truth, regions = true_evidence(cohort, bag), true_regions(cohort, bag)
    interventions = Interventions(host, *bag_tensors(bag))
    full, draw = interventions.full(), _random_stream(seed, bag, "random")
    oracle = None if truth is None else oracle_scores(truth, regions, torch.zeros(len(bag)))

    def score_patches(
        names: Sequence[str], changed: Bag, answer: HostOutput, rows: Tensor
    ) -> dict[str, Scores]:
        """Scores of every rule for the patches of a bag; the oracle ranks those that are left."""
        scores = {name: sources[name].of(changed, answer).double() for name in names}
        scores["random"] = torch.from_numpy(draw.random(len(rows)))
        return scores if oracle is None else scores | {"oracle": oracle[rows].double()}

    size, chosen, trials = subset_size(len(bag), budget), {}, {}
    for rule, scores in score_patches(list(sources), bag, full, torch.arange(len(bag))).items():
        chosen[rule] = top_k(scores, size)
        gates = _log_gates(scores) if rule in sources and sources[rule].are_gates else None
        outcome = bag_outcome(interventions, chosen[rule], gates, full=full.logits)
        # Several shares of a small bag are one number of patches.
        sizes = [subset_size(len(bag), share) for share in CURVE_SHARES]
        found = {
            size: bag_outcome(interventions, top_k(scores, size), full=full.logits)
            for size in set(sizes)
        }
        trials[rule] = _Trial(
            outcome,
            truth_figures(chosen[rule], scores, truth, regions),
            [found[size] for size in sizes],
        )
    following = [name for name, source in sources.items() if source.follows_bag]
    for name, strength in changes.items():
        for repeat in range(repeats):
            generator = _random_stream(seed, bag, f"{name} {repeat}")
            changed, kept_rows = PERTURBATIONS[name](bag, strength, generator=generator)
            rows = torch.from_numpy(kept_rows)
            again = Interventions(host, *bag_tensors(changed))
            alive = members(rows, n_patches=len(bag))
            for rule, scores in score_patches(following, changed, again.full(), rows).items():
                selected = top_k(scores, subset_size(len(rows), budget))
                # Over the patches that both bags have.
                overlap = jaccard(chosen[rule] & alive, members(rows[selected], n_patches=len(bag)))
                kept = again.kept(selected).logits
                trials[rule].changed.append((f"{name} {strength:g}", overlap, kept))
    return trials


def _log_gates(scores: Scores) -> Scores:
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


@dataclass(frozen=True, eq=False)
class _AuditTable:
    """All trials by rule, each with one entry per bag and in the same order."""

    trials: Mapping[str, Sequence[_Trial]]
    targets: Tensor
    task: Task
    output_scale: OutputScale
    tolerances: Tolerances

    def rows(self) -> Iterator[Row]:
        """Sufficiency and necessity of every rule, then the curves, the gates and the stability."""
        for rule in self.trials:
            yield self.full_kept(rule)
        for rule, trials in self.trials.items():
            areas = [self.trace(trial)[2] for trial in trials]
            yield mean_row({"rule": rule, "comparison": "curves"}, areas)
        for rule, trials in self.trials.items():
            if trials[0].outcome.gated is not None:
                figures = [self.figures(trial, gates=True) for trial in trials]
                yield mean_row({"rule": rule, "comparison": "soft-kept"}, figures)
        for rule, trials in self.trials.items():
            per_bag = [
                row
                for trial in trials
                for row in mean_rows(self.compare_changed(trial), ["comparison"])
            ]
            records = [{"rule": rule, **row.labels, **row.values} for row in per_bag]
            yield from mean_rows(records, ["rule", "comparison"])

    def full_kept(self, rule: str) -> Row:
        """Sufficiency, necessity, size and truth."""
        trials = self.trials[rule]
        outcomes = [trial.outcome for trial in trials]
        metrics = subset_metrics(outcomes, self.targets, partial(task_metric, self.task))
        metrics.pop("task_metric")
        figures = [self.figures(trial) for trial in trials]
        return mean_row({"rule": rule, "comparison": "full-kept"}, figures, metrics)

    def figures(self, trial: _Trial, *, gates: bool = False) -> Figures:
        """What is said of the subset of one bag, or of its gates."""
        outputs = self.output_scale.read(trial.outcome)
        verdict = judge_subset(outputs, self.tolerances)
        if gates:
            return {"cd_gap": outputs.cd_gap, "recoverable_share": float(bool(verdict.recoverable))}
        return {
            "full_kept_gap": outputs.full_kept_gap,
            "removal_gap": outputs.removal_gap,
            "sufficient_share": float(verdict.sufficient),
            "necessary_share": float(verdict.necessary),
            "evidence_fraction": trial.outcome.fraction,
            **trial.truth,
        }

    def trace(self, trial: _Trial) -> tuple[list[float], list[float | None], Figures]:
        """Keep and removal curve of one bag, their means, and MSK."""
        outputs = [self.output_scale.read(outcome) for outcome in trial.along]
        if self.output_scale.is_number:
            keep = [max(0.0, 1 - one.full_kept_gap) for one in outputs]
            removal = [one.removal_gap for one in outputs]
            reached = [one.full_kept_gap <= RISK_TOLERANCE for one in outputs]
        else:
            keep = [min(1.0, one.kept / one.full) for one in outputs]
            removal = [None if one.removed is None else one.full - one.removed for one in outputs]
            reached = [one.full - one.kept <= self.tolerances.sufficiency for one in outputs]
        lost = [value for value in removal if value is not None]
        msk = next(
            (share for share, enough in zip(CURVE_SHARES, reached, strict=True) if enough), 1.0
        )
        areas: Figures = {
            "aukc": fmean(keep),
            "removal_area": fmean(lost) if lost else None,
            "msk": msk,
        }
        return keep, removal, areas

    def compare_changed(self, trial: _Trial) -> Iterator[dict[str, Any]]:
        """A bag beside each of its changed versions."""
        full, kept = trial.outcome.full, trial.outcome.kept
        for name, overlap, changed in trial.changed:
            before, after = self.output_scale.outputs(full, torch.stack([kept, changed])).tolist()
            gap = abs(before - after)
            flipped = float(self.output_scale.differ(kept, changed, gap))
            yield {
                "comparison": name,
                "jaccard": overlap,
                "prediction_flip": flipped,
                "output_gap": gap,
            }

    def records(self, specs: Sequence[BagSpec]) -> Iterator[dict[str, Any]]:
        """One entry per bag and rule."""
        for rule, trials in self.trials.items():
            for spec, trial in zip(specs, trials, strict=True):
                outputs = self.output_scale.read(trial.outcome)
                keep, removal, areas = self.trace(trial)
                yield {
                    "bag_id": spec.bag_id,
                    "slide_ids": list(spec.slide_ids),
                    "rule": rule,
                    "phi_full": outputs.full,
                    "phi_kept": outputs.kept,
                    "phi_removed": outputs.removed,
                    "phi_soft": outputs.gated,
                    **self.figures(trial),
                    **areas,
                    "keep_curve": keep,
                    "removal_curve": removal,
                }

    def answer(self, rule: str) -> tuple[str, str]:
        """Beside chance: on how many bags it holds; what its patches give alone, and what is lost without them."""
        verdict = compare_counts(rule, self.count_both(rule), self.count_both("random"))
        return verdict, self._compare_metric(rule)

    def count_both(self, rule: str) -> Count:
        """Bags on which the patches of a rule are sufficient and necessary."""
        found = [self.figures(trial) for trial in self.trials[rule]]
        return Count(
            sum(bool(one["sufficient_share"] and one["necessary_share"]) for one in found),
            len(found),
        )

    def _compare_metric(self, rule: str) -> str:
        ours, chance = (self.full_kept(name).values for name in (rule, "random"))
        text = (
            f"{rule}: {METRICS[self.task.task_metric].label} from its patches alone "
            f"{ours['evidence_sufficiency']:.3f}, from random ones {chance['evidence_sufficiency']:.3f}"
        )
        lost, lost_by_chance = ours["complement_degradation"], chance["complement_degradation"]
        if lost is None or lost_by_chance is None:
            return f"{text}; no bag has patches left without them."
        return f"{text}; lost without them {lost:.3f}, without random ones {lost_by_chance:.3f}."


def _chance_notes(whole: Mapping[str, float]) -> Iterator[str]:
    for name, value in whole.items():
        if value <= CHANCE.get(name, -1.0):
            yield (
                f"On whole bags the model is no better than chance ({METRICS[name].label} {value:.3f}): check the order "
                "of its outputs. What explains such a prediction explains nothing."
            )


def measure_risk_scale(
    outcomes: Sequence[BagOutcome], n_outputs: int, spread: float | None = None
) -> RiskScale:
    """Mean of the audited bags' own risks, and their deviation where no other is known; classes need neither."""
    if n_outputs > 1:
        return RiskScale()
    risks = [float(outcome.full[0]) for outcome in outcomes]
    deviation = float(np.std(risks)) if spread is None else spread
    if not deviation > 0:
        raise UsageError(
            f"The model answers {risks[0]:g} for all {len(risks)} bags: its answers have no unit, and nothing to explain."
        )
    return RiskScale(fmean(risks), deviation)
