"""Sufficiency, Necessity, Recoverability of discrete evidence, measured by intervention.

The metrics of the paper (metric table):

  keep_only_drop          M(X) - M(X_S)                     sufficiency, lower is better
  evidence_sufficiency    M(X_S)                            sufficiency, higher is better
  complement_degradation  M(X) - M(X_notS)                  necessity, higher is better
  cd_gap                  mean |Phi(X_pi) - Phi(X_S)|       recoverability, lower is better
  full_kept_gap           mean |Phi(X) - Phi(X_S)|          for every subset rule, lower is better

M is the task metric over all bags; Phi is the probability of the class predicted on X, the risk in
units of the training risks, or the value in deviations of the training labels. cd_gap needs gates;
full_kept_gap does not. They are different quantities and never share a row.

Definitions 1 to 3 of the paper judge one subset of one bag:

  sufficient    |Phi(X_S) - Phi(X)|    <= delta_s
  necessary     |Phi(X_notS) - Phi(X)| >= delta_n    never for the whole bag: nothing is left
  recoverable   |Phi(X_pi) - Phi(X_S)| <= delta_r    not defined for a rule without gates

S is the recovered evidence (threshold and repair), the subset that a reader is shown. No criterion
implies another: the paper's constructions are toys in the tests.

Two predictions of one bag agree if they are the same class, or if the risk or value moves by at
most risk_tolerance: 0.2 of a deviation is to numbers, most of which lie within four, what 0.05 is
to a probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.errors import InputError, UsageError
from gcemil.explanation import Interventions, bag_tensors, read_evidence_output, recover_evidence
from gcemil.findings import Figures
from gcemil.model import GceMil
from gcemil.outputs import AskedOutput, ClassOutput, NumberOutput, Output
from gcemil.outputs import Tolerances as Tolerances
from gcemil.shapes import LogGates, Logits, Selected
from gcemil.tasks.task import (
    ClassificationTask,
    RegressionTask,
    SurvivalTask,
    Task,
    measure_task_metric,
)

Score = Callable[[Tensor, Sequence[Logits]], float | None]
"""M of some predictions; None where it does not exist."""
RISK_TOLERANCE = 0.2
"""Training deviations by which a risk or a value may move and still agree."""


@dataclass(frozen=True)
class SnrScores:
    """Sufficiency, necessity and recoverability of one subset rule over some bags, see `snr`.

    Example:
        >>> import gcemil
        >>> scores = gcemil.SnrScores(0.02, 0.9, 0.3, 0.01, 0.04, 0.05, n_bags=20, n_whole_bags=0)
        >>> scores.complement_degradation
        0.3
    """

    keep_only_drop: float
    """M(X) - M(X_S), lower is better; M is Macro-F1, C-index or R2."""
    evidence_sufficiency: float
    """M(X_S), higher is better."""
    complement_degradation: float | None
    """M(X) - M(X_notS), higher is better; None if every subset is a whole bag."""
    cd_gap: float | None
    """Mean |Phi(X_pi) - Phi(X_S)|, lower is better; None for a rule without gates."""
    full_kept_gap: float
    """Mean |Phi(X) - Phi(X_S)|, lower is better."""
    evidence_fraction: float
    """Mean share of the patches that is evidence."""
    n_bags: int
    """Number of bags."""
    n_whole_bags: int
    """Bags whose subset is the whole bag, left out of the degradation."""


@dataclass(frozen=True, eq=False)
class BagOutcome:
    """The four predictions for one bag and one subset."""

    full: Logits
    kept: Logits
    removed: Logits | None
    gated: Logits | None
    fraction: float


@dataclass(frozen=True)
class BagOutputs:
    """Phi of the same four predictions, one number each."""

    full: float
    kept: float
    removed: float | None
    gated: float | None

    @property
    def full_kept_gap(self) -> float:
        """The gap that Definition 1 limits."""
        return abs(self.full - self.kept)

    @property
    def removal_gap(self) -> float | None:
        """The change that Definition 2 requires; None if no patch is left."""
        return None if self.removed is None else abs(self.full - self.removed)

    @property
    def cd_gap(self) -> float | None:
        """The gap that Definition 3 limits; None for a rule without gates."""
        return None if self.gated is None else abs(self.gated - self.kept)


@dataclass(frozen=True)
class AskedOutputs(BagOutputs):
    """Phi of the class of a question, of which only a fall counts."""

    @property
    def full_kept_gap(self) -> float:
        return self.full - self.kept

    @property
    def removal_gap(self) -> float | None:
        return None if self.removed is None else self.full - self.removed


@dataclass(frozen=True)
class RiskScale:
    """Mean and deviation of the training fold's risks; (0, 1) for classes and for values."""

    mean: float = 0.0
    deviation: float = 1.0


def bag_outcome(
    interventions: Interventions,
    selected: Selected,
    log_gates: LogGates | None = None,
    *,
    full: Logits | None = None,
) -> BagOutcome:
    """The predictions for one subset; `full` is that on X, if it is known."""
    removed = interventions.removed(selected)
    return BagOutcome(
        full=interventions.full().logits if full is None else full,
        kept=interventions.kept(selected).logits,
        removed=None if removed is None else removed.logits,
        gated=None if log_gates is None else interventions.gated(log_gates).logits,
        fraction=float(selected.double().mean()),
    )


def snr_scores(
    outcomes: Sequence[BagOutcome], targets: Tensor, task: Task, *, scale: RiskScale | None = None
) -> SnrScores:
    """The scores of one rule from its outcomes, bag by bag."""
    if not outcomes:
        raise UsageError("S/N/R needs at least one bag.")
    metrics = subset_metrics(outcomes, targets, partial(task_metric, task))
    output_scale = OutputScale(task.n_outputs, scale or RiskScale())
    outputs = [output_scale.read(outcome) for outcome in outcomes]
    cd_gaps = [one.cd_gap for one in outputs if one.cd_gap is not None]
    full, kept = (
        task_metric(task, targets, [getattr(one, name) for one in outcomes])
        for name in ("full", "kept")
    )
    return SnrScores(
        keep_only_drop=full - kept,
        evidence_sufficiency=kept,
        complement_degradation=metrics["complement_degradation"],
        cd_gap=fmean(cd_gaps) if cd_gaps else None,
        full_kept_gap=fmean(one.full_kept_gap for one in outputs),
        evidence_fraction=fmean(outcome.fraction for outcome in outcomes),
        n_bags=len(outcomes),
        n_whole_bags=sum(outcome.removed is None for outcome in outcomes),
    )


@torch.no_grad()
def snr(
    model: GceMil,
    bags: Iterable[Bag],
    targets: Tensor,
    *,
    scale: RiskScale | None = None,
    classes: tuple[str, ...] | None = None,
) -> SnrScores:
    """Measure sufficiency, necessity and recoverability of a model's own evidence.

    Args:
        model: A trained model in evaluation mode.
        bags: The bags.
        targets: Class indices (bags,), values (bags,), or (time, event) pairs (bags, 2).
        scale: Mean and deviation of the training risks; None takes 0 and 1.
        classes: Names of the classes; None takes their indices.

    Returns:
        The scores over all bags.

    Raises:
        UsageError: There is no bag.
        InputError: The task metric does not exist on these bags.

    Example:
        >>> import gcemil, torch
        >>> bags = [torch.randn(20, 8) + number % 2 for number in range(12)]
        >>> model = gcemil.fit(bags, [0, 1] * 6, epochs=2).network
        >>> tested = [gcemil.slide_bag(str(number), bags[number].numpy()) for number in (0, 1)]
        >>> gcemil.snr(model, tested, torch.tensor([0, 1])).n_bags
        2
    """
    outcomes = []
    for bag in bags:
        features, coords = bag_tensors(bag, model.anchors.device)
        output = read_evidence_output(model, features, coords, bag.patch_size)
        interventions = Interventions(model.explained, features, coords, embedded=output.embedded)
        outcomes.append(
            bag_outcome(
                interventions, recover_evidence(model, output, coords).selected, output.log_gates
            )
        )
    names = classes or tuple(str(index) for index in range(model.n_outputs))
    task: Task = ClassificationTask(names)
    if model.output_kind.is_number:
        task = SurvivalTask() if model.output_kind.measures_unit else RegressionTask()
    return snr_scores(outcomes, targets, task, scale=scale)


def subset_metrics(
    outcomes: Sequence[BagOutcome], targets: Sequence[Tensor] | Tensor, score: Score
) -> Figures:
    """M of X, X_S and X_notS over all bags; None without bags or where M does not exist on them."""

    def measure(name: str, pairs: Sequence[tuple[BagOutcome, Tensor]]) -> float | None:
        if not pairs:
            return None
        return score(torch.stack([one for _, one in pairs]), [getattr(o, name) for o, _ in pairs])

    every = list(zip(outcomes, targets, strict=True))
    rest = [pair for pair in every if pair[0].removed is not None]
    full, kept = measure("full", every), measure("kept", every)
    return {
        "task_metric": full,
        "evidence_sufficiency": kept,
        "keep_only_drop": _subtract(full, kept),
        "complement_degradation": _subtract(measure("full", rest), measure("removed", rest)),
    }


def gated_metrics(
    outcomes: Sequence[BagOutcome], targets: Sequence[Tensor], score: Score
) -> Figures:
    """M of X_pi beside M of X_S, and how far they are apart."""
    soft, kept = (
        score(torch.stack(list(targets)), [getattr(one, name) for one in outcomes])
        for name in ("gated", "kept")
    )
    gap = _subtract(soft, kept)
    return {
        "soft_metric": soft,
        "evidence_sufficiency": kept,
        "cd_metric_gap": None if gap is None else abs(gap),
    }


def _subtract(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def score_where_defined(task: Task) -> Score:
    """M of a task, or None where it does not exist, such as a C-index of bags without an event."""

    def score(targets: Tensor, logits: Sequence[Logits]) -> float | None:
        try:
            return task_metric(task, targets, logits)
        except InputError:
            return None

    return score


def task_metric(task: Task, targets: Tensor, logits: Sequence[Logits]) -> float:
    """M: Macro-F1, R2 or C-index."""
    return measure_task_metric(task, targets, torch.stack([one.cpu() for one in logits]))


@dataclass(frozen=True)
class OutputScale:
    """Phi, and how the predictions of one network are compared."""

    n_outputs: int
    scale: RiskScale
    risk_tolerance: float = RISK_TOLERANCE
    asked: AskedOutput | None = None
    """The class of a question, in place of the predicted one."""

    def __post_init__(self) -> None:
        if not self.risk_tolerance >= 0:
            raise UsageError(f"risk_tolerance is at least 0, got {self.risk_tolerance}.")
        if self.is_number and not self.scale.deviation > 0:
            raise UsageError(
                f"The training risks have standard deviation {self.scale.deviation}: "
                "a model that predicts the same for every bag has no unit of risk."
            )

    @property
    def is_number(self) -> bool:
        """Whether predictions are risks or values, which have no class to keep."""
        return self.n_outputs == 1

    @property
    def _kind(self) -> Output:
        if self.is_number:
            return NumberOutput(self.scale.deviation, self.scale.mean)
        return self.asked or ClassOutput(self.n_outputs)

    def outputs(self, full: Logits, logits: Float[Tensor, "k c"]) -> Float[Tensor, "k"]:
        """Phi of several predictions for the bag with prediction `full`."""
        return self._kind.phi(full, logits)

    def output(self, full: Logits, logits: Logits) -> float:
        """Phi of one prediction; the class is the one predicted on X."""
        return float(self.outputs(full, logits.unsqueeze(0)))

    def read(self, outcome: BagOutcome) -> BagOutputs:
        """Phi of X, X_S, X_notS and X_pi."""
        logits = (outcome.full, outcome.kept, outcome.removed, outcome.gated)
        phi = [None if one is None else self.output(outcome.full, one) for one in logits]
        return (BagOutputs if self.asked is None else AskedOutputs)(*phi)  # type: ignore[arg-type]

    def drops(self, full: Logits, logits: Float[Tensor, "k c"]) -> Float[Tensor, "k"]:
        """Phi(X) - Phi of each; its size for a number, which can move either way."""
        lost = self.outputs(full, full.unsqueeze(0)) - self.outputs(full, logits)
        return lost.abs() if self.is_number else lost

    def agree(self, full: Logits, logits: Float[Tensor, "k c"]) -> Bool[Tensor, "k"]:
        """Which of the predictions agree with the one on the whole bag."""
        if self.is_number:
            return self.drops(full, logits) <= self.risk_tolerance
        return torch.tensor([self._kind.same_class(full, one) for one in logits])

    def differ(self, one: Logits, other: Logits, gap: float) -> bool:
        """Whether two predictions, their outputs so far apart, disagree."""
        return gap > self.risk_tolerance if self.is_number else bool(one.argmax() != other.argmax())


@dataclass(frozen=True)
class Verdict:
    """Definitions 1 to 3 for one subset."""

    sufficient: bool
    necessary: bool
    recoverable: bool | None


def judge_subset(outputs: BagOutputs, tolerances: Tolerances) -> Verdict:
    """Apply the definitions to one subset of one bag."""
    removal_gap, cd_gap = outputs.removal_gap, outputs.cd_gap
    return Verdict(
        sufficient=outputs.full_kept_gap <= tolerances.sufficiency,
        necessary=removal_gap is not None and removal_gap >= tolerances.necessity,
        recoverable=None if cd_gap is None else cd_gap <= tolerances.recoverability,
    )
