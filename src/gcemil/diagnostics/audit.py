"""Is this explanation faithful? S/N/R and stability of any model and any patch scores.

A rule turns patch scores into a subset, for every rule the same number of patches:
max(1, round(budget N)).

  <source>   scores of the model itself, or read from files
  random     one draw per bag: the baseline of chance
  oracle     truth first, one region after another; only if every bag has its truth

A row is one comparison:

  whole bag    the task metrics of the model: an explanation of a model at chance explains nothing
  full-kept    X against X_S and X_notS: sufficiency, necessity, size, truth
  curves       Phi of the first 1 to 20 % of the patches alone (keep), and the loss without them
  soft-kept    X_pi against X_S, for scores that are gates. A black box is gated at its input
  dropout s    the bag without a share s of its patches; noise s: features moved by a share s of
  noise s      their deviation. Scores are computed again, so scores from files have no such row

Phi is the probability of the class predicted on X, or the risk in units of the audited bags' own
risks, because the training risks of a foreign model are not known.

  keep curve      min(1, Phi(X_S) / Phi(X)); of a risk max(0, 1 - |Phi(X_S) - Phi(X)|); AUKC: mean
  removal curve   Phi(X) - Phi(X_notS); of a risk its size; removal area: its mean
  MSK             the smallest of these shares at which Phi is within the tolerance; 1 if none is

audit_inputs.py opens a cohort and a model on disk; `gcemil.audit` takes bags in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort, SampleRule, load_bags
from gcemil.bags.memory import as_array
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
from gcemil.diagnostics.truth import (
    TRUTH_FIGURES,
    oracle_scores,
    true_evidence,
    true_regions,
    truth_figures,
)
from gcemil.errors import InputError, UsageError
from gcemil.explanation import Interventions, bag_tensors, explain_bag
from gcemil.findings import Count, Figures, Finding, Row, compare_counts, mean_row, mean_rows
from gcemil.hosts.host import Host, HostOutput, check_gates, find_device, log_with_zero
from gcemil.metrics import CHANCE, METRICS
from gcemil.model import GceMil
from gcemil.recovery import members, subset_size, top_k
from gcemil.rules import CONTROLS
from gcemil.shapes import Logits, Scores
from gcemil.tasks.task import Task

CURVE_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Shares of the patches at which the curves are read: few patches are an explanation."""
FULL_KEPT = (
    "full_kept_gap", "removal_gap", "sufficient_share", "necessary_share", "evidence_fraction",
    *TRUTH_FIGURES,
)  # fmt: skip
SOFT_KEPT = ("cd_gap", "recoverable_share")
CURVES = ("aukc", "removal_area", "msk")
OnBag = Callable[[int, int], None]
Record = dict[str, Any]


@dataclass(frozen=True)
class ScoreSource:
    """Where the scores of a rule come from."""

    of: Callable[[Bag, HostOutput], Tensor]
    """One score per patch, from the bag and from the model's output on it."""
    follows_bag: bool = True
    """Whether scores follow a changed bag; those from files do not."""
    are_gates: bool = False
    """Whether they lie in [0, 1] and weigh the patches."""


OWN_SCORES = ScoreSource(lambda _bag, full: full.scores)
"""What the model itself returns."""


class _Trial(NamedTuple):
    """One rule on one bag and on its changed versions."""

    outcome: BagOutcome
    truth: Figures
    along: list[BagOutcome]
    """The outcomes at the sizes of the curves."""
    changed: list[tuple[str, float, Logits]]
    """Perturbation, overlap of the subsets, prediction."""


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
    """Judge every source and both controls on these bags."""
    if not specs:
        raise UsageError("There is no bag to audit. Choose another --part or --fold.")
    if not score_sources:
        raise UsageError(
            "There are no scores to audit. Let the model return (logits, scores), "
            "or give --scores DIR."
        )
    if taken := [name for name in score_sources if name in CONTROLS]:
        raise UsageError(
            f"'{taken[0]}' is the name of a control. Call these scores something else."
        )
    tolerances = tolerances or Tolerances()
    changes = {"dropout": dropout, "noise": noise}
    trials: dict[str, list[_Trial]] = {}
    bags = load_bags(cohort, specs, rule=SampleRule(), ahead=2)
    for done, (spec, bag) in enumerate(bags, start=1):
        with name_bag_in_errors(spec.bag_id):
            bag_trials = _try_rules(
                host, cohort, bag, score_sources, budget, changes, repeats, seed
            )
        for rule, trial in bag_trials.items():
            trials.setdefault(rule, []).append(trial)
        if on_bag:
            on_bag(done, len(specs))
    # A control over some of the bags would be compared with rules over all of them.
    n_with_truth = len(trials.get("oracle", ()))
    if n_with_truth < len(specs):
        trials.pop("oracle", None)
    outcomes = {rule: [one.outcome for one in own] for rule, own in trials.items()}
    risk_scale = measure_risk_scale(outcomes["random"], task.n_outputs)
    scale = OutputScale(task.n_outputs, risk_scale)
    records = {
        rule: [_judge_trial(one, scale, tolerances) for one in own] for rule, own in trials.items()
    }
    full_kept = {}
    for rule, own in records.items():
        metrics = subset_metrics(outcomes[rule], targets, partial(task_metric, task))
        del metrics["task_metric"]
        full_kept[rule] = _mean_row(rule, "full-kept", own, FULL_KEPT, metrics)
    full = torch.stack([one.full for one in outcomes["random"]])
    whole = task.metrics(targets, task.prediction(full))
    changed = [
        {"rule": rule, **row.labels, **row.values}
        for rule, own in trials.items()
        for trial in own
        for row in mean_rows(_compare_changed(trial, scale), ["comparison"])
    ]
    notes = [
        f"On whole bags the model is no better than chance ({METRICS[name].label} {value:.3f}): "
        "check the order of its outputs. What explains such a prediction explains nothing."
        for name, value in whole.items()
        if value <= CHANCE.get(name, -1.0)
    ]
    both = {
        rule: Count(
            sum(bool(r["sufficient_share"] and r["necessary_share"]) for r in own), len(own)
        )
        for rule, own in records.items()
    }
    for rule in (rule for rule in trials if rule not in CONTROLS):
        notes.append(compare_counts(rule, both[rule], both["random"]))
        label = METRICS[task.task_metric].label
        notes.append(
            _compare_metric(rule, label, full_kept[rule].values, full_kept["random"].values)
        )
    if n_with_truth < len(specs):
        notes.append(
            f"No oracle: {n_with_truth} of {len(specs)} bags have their true evidence in truth/."
        )
    if still := [name for name, source in score_sources.items() if not source.follows_bag]:
        notes.append(
            f"Scores from files ({', '.join(still)}) cannot follow a changed bag: "
            "no stability for them."
        )
    if task.n_outputs == 1:
        notes.append(
            "Predictions are in units of the audited bags' own "
            f"(mean {risk_scale.mean:.3g}, deviation {risk_scale.deviation:.3g}), "
            "because those of the model's training slides are not known."
        )
    return Finding(
        name="audit",
        rows=(
            Row({"rule": "whole bag", "comparison": "whole bag"}, dict(whole)),
            *full_kept.values(),
            *(_mean_row(rule, "curves", own, CURVES) for rule, own in records.items()),
            *(
                _mean_row(rule, "soft-kept", own, SOFT_KEPT)
                for rule, own in records.items()
                if own[0]["cd_gap"] is not None
            ),
            *mean_rows(changed, ["rule", "comparison"]),
        ),
        slides=tuple(
            {
                "bag_id": spec.bag_id,
                "slide_ids": list(spec.slide_ids),
                "rule": rule,
                **{name: value for name, value in record.items() if name not in SOFT_KEPT},
            }
            for rule, own in records.items()
            for spec, record in zip(specs, own, strict=True)
        ),
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
        scores = {name: sources[name].of(changed, answer).double() for name in names}
        scores["random"] = torch.from_numpy(draw.random(len(rows)))
        return scores if oracle is None else scores | {"oracle": oracle[rows].double()}

    size, chosen, trials = subset_size(len(bag), budget), {}, {}
    for rule, scores in score_patches(list(sources), bag, full, torch.arange(len(bag))).items():
        chosen[rule] = top_k(scores, size)
        gates = None
        if rule in sources and sources[rule].are_gates:
            check_gates(scores, n_patches=len(bag))
            gates = log_with_zero(scores.float())
        outcome = bag_outcome(interventions, chosen[rule], gates, full=full.logits)
        # Several shares of a small bag are one number of patches.
        sizes = [subset_size(len(bag), share) for share in CURVE_SHARES]
        along = {
            size: bag_outcome(interventions, top_k(scores, size), full=full.logits)
            for size in set(sizes)
        }
        figures = truth_figures(chosen[rule], scores, truth, regions)
        trials[rule] = _Trial(outcome, figures, [along[size] for size in sizes], [])
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


def _random_stream(seed: int, bag: Bag, purpose: str) -> np.random.Generator:
    """What is drawn depends on seed, bag and purpose alone, not on the bags before."""
    return np.random.default_rng([seed, *f"{purpose} {bag.bag_id}".encode()])


def _judge_trial(trial: _Trial, scale: OutputScale, tolerances: Tolerances) -> Record:
    """Outputs, verdicts, truth and curves of one rule on one bag."""
    outputs, along = scale.read(trial.outcome), [scale.read(one) for one in trial.along]
    verdict = judge_subset(outputs, tolerances)
    if scale.is_number:
        keep = [max(0.0, 1 - one.full_kept_gap) for one in along]
        removal = [one.removal_gap for one in along]
        reached = [one.full_kept_gap <= RISK_TOLERANCE for one in along]
    else:
        keep = [min(1.0, one.kept / one.full) for one in along]
        removal = [None if one.removed is None else one.full - one.removed for one in along]
        reached = [one.full - one.kept <= tolerances.sufficiency for one in along]
    lost = [value for value in removal if value is not None]
    return {
        "phi_full": outputs.full,
        "phi_kept": outputs.kept,
        "phi_removed": outputs.removed,
        "phi_soft": outputs.gated,
        "full_kept_gap": outputs.full_kept_gap,
        "removal_gap": outputs.removal_gap,
        "sufficient_share": float(verdict.sufficient),
        "necessary_share": float(verdict.necessary),
        "evidence_fraction": trial.outcome.fraction,
        **trial.truth,
        "cd_gap": outputs.cd_gap,
        "recoverable_share": float(bool(verdict.recoverable)),
        "aukc": fmean(keep),
        "removal_area": fmean(lost) if lost else None,
        "msk": next((s for s, enough in zip(CURVE_SHARES, reached, strict=True) if enough), 1.0),
        "keep_curve": keep,
        "removal_curve": removal,
    }


def _compare_changed(trial: _Trial, scale: OutputScale) -> Iterator[Record]:
    """A bag beside each of its changed versions."""
    full, kept = trial.outcome.full, trial.outcome.kept
    for name, overlap, changed in trial.changed:
        before, after = scale.outputs(full, torch.stack([kept, changed])).tolist()
        gap = abs(before - after)
        flipped = float(scale.differ(kept, changed, gap))
        yield {
            "comparison": name,
            "jaccard": overlap,
            "prediction_flip": flipped,
            "output_gap": gap,
        }


def _mean_row(
    rule: str,
    comparison: str,
    records: Sequence[Record],
    names: Sequence[str],
    over_all: Figures | None = None,
) -> Row:
    figures = [{name: record[name] for name in names} for record in records]
    return mean_row({"rule": rule, "comparison": comparison}, figures, over_all)


def _compare_metric(rule: str, label: str, ours: Figures, chance: Figures) -> str:
    """The task metric from the patches alone and without them, beside random patches."""
    text = (
        f"{rule}: {label} from its patches alone {ours['evidence_sufficiency']:.3f}, "
        f"from random ones {chance['evidence_sufficiency']:.3f}"
    )
    lost, lost_by_chance = ours["complement_degradation"], chance["complement_degradation"]
    if lost is None or lost_by_chance is None:
        return f"{text}; no bag has patches left without them."
    return f"{text}; lost without them {lost:.3f}, without random ones {lost_by_chance:.3f}."


def measure_risk_scale(
    outcomes: Sequence[BagOutcome], n_outputs: int, spread: float | None = None
) -> RiskScale:
    """Mean of the audited bags' own risks, and their deviation unless it is known."""
    if n_outputs > 1:
        return RiskScale()
    risks = [float(outcome.full[0]) for outcome in outcomes]
    deviation = float(np.std(risks)) if spread is None else spread
    if not deviation > 0:
        raise UsageError(
            f"The model predicts {risks[0]:g} for all {len(risks)} bags: "
            "its predictions have no unit, and nothing to explain."
        )
    return RiskScale(fmean(risks), deviation)


@contextmanager
def name_bag_in_errors(bag_id: str) -> Iterator[None]:
    """Puts the bag in front of what is wrong with it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"Bag '{bag_id}': {error}") from error
    except InputError as error:
        raise type(error)(f"Bag '{bag_id}': {error}") from error


# Bags in memory

Scoring = Callable[[Any], Any]
"""From a bag, as the caller gave it, to one score per patch or a boolean mask over its patches."""


@torch.no_grad()
def apply_rules(
    network: Any,
    item: Any,
    bag: Bag,
    scorings: Mapping[str, Scoring],
    budget: float,
    gates: bool,
    seed: int,
) -> Iterator[tuple[str, Tensor, BagOutcome]]:
    """Every rule on one bag: its name, the patches it selects, and the predictions."""
    device = find_device(network)
    features, coords = bag_tensors(bag, device)
    size, n_patches = subset_size(len(bag), budget), len(bag)
    chosen: dict[str, tuple[Tensor, Tensor | None]] = {}
    if isinstance(network, GceMil):
        explanation = explain_bag(network, bag)
        embedded, full = explanation.output.embedded, explanation.output.answer
        interventions = Interventions(network.explained, features, coords, embedded=embedded)
        if not scorings:
            chosen["evidence"] = explanation.recovery.selected, explanation.output.log_gates
    else:
        interventions = Interventions(network, features, coords)
        full = interventions.full()
    if not scorings:
        chosen["attention"] = top_k(full.scores, size), None
    for rule, score in scorings.items():
        with torch.enable_grad():
            values = torch.from_numpy(as_array(score(item)).reshape(-1)).to(device)
        if len(values) != n_patches or not bool(torch.isfinite(values).all()):
            raise UsageError(
                f"Explanation '{rule}' must give {n_patches} finite scores, "
                f"got {len(values)} values."
            )
        if gates:
            check_gates(values.float(), n_patches=n_patches)
        selected = values if values.dtype == torch.bool else top_k(values.double(), size)
        chosen[rule] = selected, log_with_zero(values.float()) if gates else None
    first = next(iter(chosen.values()))[0]
    draw = np.random.default_rng([seed, *bag.bag_id.encode()]).random(n_patches)
    chosen["random"] = top_k(torch.from_numpy(draw).to(device), int(first.sum())), None
    for rule, (selected, log_gates) in chosen.items():
        yield rule, selected, bag_outcome(interventions, selected, log_gates, full=full.logits)


def judge_outcome(
    scale: OutputScale, outcome: BagOutcome, tolerances: Sequence[float]
) -> dict[str, Any]:
    """Outputs, gaps and verdicts of one rule on one bag."""
    outputs = scale.read(outcome)
    figures = {f"phi_{name}": value for name, value in vars(outputs).items()} | {
        "sufficiency_gap": outputs.full_kept_gap,
        "necessity_gap": outputs.removal_gap,
        "recoverability_gap": outputs.cd_gap,
    }
    record: Record = {n: math.nan if value is None else value for n, value in figures.items()}
    for tolerance in tolerances:
        verdict = judge_subset(outputs, Tolerances(tolerance, tolerance, tolerance))
        record |= {f"{name}@{tolerance:g}": value for name, value in vars(verdict).items()}
    return record


def describe_table(table: pd.DataFrame, tolerances: Sequence[float]) -> str:
    """The verdict on every rule in one sentence, at the tolerance nearest to that of the method."""
    if not tolerances:
        return ""
    tolerance = min(tolerances, key=lambda one: abs(one - Tolerances().sufficiency))
    sufficient, necessary = (table[f"{n}@{tolerance:g}"] for n in ("sufficient", "necessary"))
    holds = (sufficient.astype(bool) & necessary.astype(bool)).groupby(table["rule"], sort=False)
    counts = {str(rule): Count(int(rows.sum()), len(rows)) for rule, rows in holds}
    random = counts.pop("random")
    return " ".join(compare_counts(rule, count, random) for rule, count in counts.items())
