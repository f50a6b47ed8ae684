"""Is this subset of this bag sufficient, necessary, recoverable? Definitions 1 to 3 of the paper, slide by slide.

  sufficient    |Phi(X_S) - Phi(X)|    <= delta_s
  necessary     |Phi(X_notS) - Phi(X)| >= delta_n      the whole bag never is: it leaves nothing behind to compare with
  recoverable   |Phi(X_pi) - Phi(X_S)| <= delta_r      a rule without gates has no such verdict

Phi is a probability, or a risk in units of the training risks. S is the recovered evidence (threshold and repair), since
that is the subset a reader is shown. No criterion implies another: the paper's constructions are toys in the tests.

Rules that are judged, each at the size of the recovered evidence:

  evidence    the wrapper's own, under the wrapped host
  attention   the highest raw scores of the host that is asked
  random      one draw per bag, the same for both networks
  oracle      truth first, one region after another, then attention; only where the truth is known
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gcemil.diagnostics.bench import FoldBag, NetworkName, TrainedFold
from gcemil.diagnostics.snr import BagOutcome, BagOutputs, bag_outcome, bag_outputs
from gcemil.diagnostics.truth import oracle_scores
from gcemil.errors import UsageError
from gcemil.hosts.host import HostOutput
from gcemil.recovery.rules import subset_size, top_k
from gcemil.shapes import LogGates, Logits, Scores, Selected
from gcemil.tasks.task import ClassificationTask, Task

DEFAULT_BUDGET = 0.05
"""rho of the paper, for a run that has no wrapper to say its own."""


@dataclass(frozen=True)
class Tolerances:
    """delta_s, delta_n and delta_r. The paper states none; these are ours, and every finding names them."""

    sufficiency: float = 0.05
    necessity: float = 0.05
    recoverability: float = 0.01

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            # Written so that NaN fails too.
            if not value >= 0:
                raise UsageError(
                    f"The tolerance of {name} is a difference of outputs, 0 or more, got {value}."
                )


@dataclass(frozen=True)
class Verdict:
    sufficient: bool
    necessary: bool
    recoverable: bool | None


def judge_subset(outputs: BagOutputs, tolerances: Tolerances) -> Verdict:
    """What the definitions say of one subset of one bag."""
    removal_gap, cd_gap = outputs.removal_gap, outputs.cd_gap
    return Verdict(
        sufficient=outputs.full_kept_gap <= tolerances.sufficiency,
        necessary=removal_gap is not None and removal_gap >= tolerances.necessity,
        recoverable=None if cd_gap is None else cd_gap <= tolerances.recoverability,
    )


@dataclass(frozen=True, eq=False)
class RuleSubset:
    """What one rule takes from a bag."""

    rule: str
    selected: Selected
    scores: Scores
    """The ranking of all patches from which the rule takes its subset."""
    log_gates: LogGates | None = None


@dataclass(frozen=True, eq=False)
class JudgedSubset:
    """A rule's subset, put to the test under one network."""

    network: NetworkName
    subset: RuleSubset
    outcome: BagOutcome
    outputs: BagOutputs
    verdict: Verdict

    @property
    def rule(self) -> str:
        return self.subset.rule

    @property
    def selected(self) -> Selected:
        return self.subset.selected


def judge_subsets(
    bench: FoldBag,
    fold: TrainedFold,
    tolerances: Tolerances,
    *,
    generator: torch.Generator,
    budget: float,
) -> Iterator[JudgedSubset]:
    """Every rule under every network, all of one size; `budget` gives it where there is no wrapper."""
    random = torch.rand(len(bench), generator=generator)
    for network in fold.networks:
        asked = bench.network(network)
        full = asked.full()
        for subset in rule_subsets(bench, network, full, random, budget=budget):
            outcome = bag_outcome(asked, subset.selected, subset.log_gates, full=full.logits)
            outputs = bag_outputs(outcome, fold.task, fold.scale_of(network))
            yield JudgedSubset(network, subset, outcome, outputs, judge_subset(outputs, tolerances))


def rule_subsets(
    bench: FoldBag, network: NetworkName, full: HostOutput, random: Scores, *, budget: float
) -> Iterator[RuleSubset]:
    """Evidence where there is any, then its rivals at the same size."""
    explanation, size = bench.explanation, subset_size(len(bench), budget)
    if explanation is not None:
        selected, output = explanation.recovery.selected, explanation.output
        size = int(selected.sum())
        if network == "wrapped":
            yield RuleSubset("evidence", selected, output.scores, output.log_gates)
    yield RuleSubset("attention", top_k(full.scores, size), full.scores)
    yield RuleSubset("random", top_k(random, size), random)
    if bench.truth is not None:
        oracle = oracle_scores(bench.truth, bench.regions, full.scores)
        yield RuleSubset("oracle", top_k(oracle, size), oracle)


def own_budget(fold: TrainedFold) -> float:
    """The share of patches that the run means to be evidence."""
    return DEFAULT_BUDGET if fold.model is None else fold.model.settings.budget


def bag_record(bench: FoldBag, judged: JudgedSubset, task: Task) -> dict[str, Any]:
    """What identifies a judged subset in a list of slides, and the outputs and verdicts it has."""
    outputs = judged.outputs
    return {
        "bag_id": bench.spec.bag_id,
        "case_id": bench.spec.case_id,
        "slide_ids": list(bench.bag.slide_ids),
        "rule": judged.rule,
        "network": judged.network,
        **named_target(task, bench.spec.target, judged.outcome.full),
        "n_patches": len(bench),
        "n_selected": int(judged.selected.sum()),
        "phi_full": outputs.full,
        "phi_soft": outputs.gated,
        "phi_kept": outputs.kept,
        "phi_removed": outputs.removed,
        **vars(judged.verdict),
    }


def named_target(task: Task, target: int | tuple[float, int], logits: Logits) -> dict[str, Any]:
    """Target and prediction by class name, or time and event."""
    if isinstance(target, int):
        names = task.classes if isinstance(task, ClassificationTask) else ()
        return {"target": names[target], "predicted": names[int(logits.argmax())]}
    return {"time": target[0], "event": target[1]}
