"""The tasks: classes, several targets, values, and risks by Cox or in discrete time.

A window of k bags gives logits (k, c). Targets are class indices or values (k,), labels (k, t) of
several targets, or (k, 2) with time and event (1 = happened).

Classification:
  loss = (1/k) sum over bags of w_y * (-log softmax(logits)_y)
  macro F1 is the mean over the classes that occur in the labels or in the predictions
  AUC is one-vs-rest, the mean over the classes that occur

Regression, with mean m and deviation s of the training labels:
  loss = (1/k) sum over bags of (logit - (y - m) / s)^2,   prediction = m + s logit
  R2 = 1 - sum (y - prediction)^2 / sum (y - mean y)^2

A metric that does not exist (one class, one value, no comparable pair) raises an InputError.
Whether it exists depends on the targets alone, so `check` fails before training starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real, Shaped
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, r2_score, roc_auc_score
from torch import Tensor

from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.config import TrainSettings
from gcemil.errors import InputError, UsageError
from gcemil.tasks.survival import (
    baseline_logits,
    c_index,
    comparable_pairs,
    cox_loss,
    discrete_time_loss,
    interval_edges,
    interval_index,
    no_pair_message,
)

ClassTargets = Int[Tensor, "k"]
ValueTargets = Real[Tensor, "k"]
TimeEventTargets = Real[Tensor, "k 2"]
Windows = list[Int[np.ndarray, "_"]]


class Task:
    """Loss, prediction and metrics of one kind of target."""

    name: ClassVar[str]
    task_metric: ClassVar[str]
    """Key in `metrics` by which epochs and subsets are judged; higher is better."""
    figure: ClassVar[str]
    """Key in `metrics` by which a model is compared with chance."""

    @property
    def prediction_names(self) -> tuple[str, ...]:
        """Columns of a table of predictions."""
        raise NotImplementedError

    @property
    def n_outputs(self) -> int:
        """Outputs of a host for this task."""
        return len(self.prediction_names)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor | None:
        """Scalar loss of a window; None if it holds nothing to learn from."""
        raise NotImplementedError

    def prediction(self, logits: Tensor) -> Tensor:
        """Probabilities, values or risks, of one bag or of many."""
        raise NotImplementedError

    def metrics(self, targets: Tensor, predictions: Tensor) -> dict[str, float]:
        """Metrics of a fold; InputError where one is undefined."""
        raise NotImplementedError

    def judge(self, targets: Tensor, predictions: Tensor) -> float:
        """The task metric alone."""
        return self.metrics(targets, predictions)[self.task_metric]

    def check(self, targets: Tensor, *, where: str = "") -> None:
        """InputError, with `where` before it, for targets on which `metrics` would be undefined."""
        raise NotImplementedError

    def explained(self, targets: Tensor, logits: Tensor) -> float | None:
        """1 - loss / entropy of the labels; None where labels have no entropy."""
        return None

    def caveats(self, targets: Tensor) -> tuple[str, ...]:
        """Cautions about metrics on these targets."""
        return ()

    def windows(
        self, targets: Tensor, *, window_size: int, generator: np.random.Generator
    ) -> Windows:
        """One epoch of bag indices, every bag once."""
        return shuffled_windows(len(targets), window_size=window_size, generator=generator)


@dataclass(frozen=True)
class ClassificationTask(Task):
    """One of several ordered classes per bag."""

    classes: tuple[str, ...]
    class_weights: tuple[float, ...] | None = None
    name = "classification"
    task_metric = "macro_f1"
    figure = "auc"

    def __post_init__(self) -> None:
        weights = self.class_weights
        if weights is not None and (
            len(weights) != len(self.classes) or not all(weight > 0 for weight in weights)
        ):
            raise UsageError(
                f"{len(self.classes)} classes need as many positive weights, got {list(weights)}."
            )

    @property
    def prediction_names(self) -> tuple[str, ...]:
        return tuple(f"prob_{name}" for name in self.classes)

    def loss(self, logits: Float[Tensor, "k c"], targets: Tensor) -> Tensor | None:
        logits = _full_precision(logits)
        weights = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        # The mean is over bags: over the sum of weights, the weight of a single bag would cancel.
        return F.cross_entropy(logits, targets.long(), weight=weights, reduction="none").mean()

    def prediction(self, logits: Float[Tensor, "*k c"]) -> Float[Tensor, "*k c"]:
        return torch.softmax(_full_precision(logits), dim=-1)

    def metrics(self, targets: Tensor, predictions: Float[Tensor, "k c"]) -> dict[str, float]:
        labels, probabilities = as_array(targets), _finite_array(predictions)
        present = self._present_classes(targets)
        areas = [roc_auc_score(labels == c, probabilities[:, c]) for c in present]
        return {
            "accuracy": float(accuracy_score(labels, probabilities.argmax(axis=1))),
            "macro_f1": self.judge(targets, predictions),
            "auc": float(np.mean(areas)),
        }

    def judge(self, targets: Tensor, predictions: Float[Tensor, "k c"]) -> float:
        """Macro F1, which exists for bags of one class too."""
        probabilities = _finite_array(predictions)
        return float(f1_score(as_array(targets), probabilities.argmax(axis=1), average="macro"))

    def check(self, targets: Tensor, *, where: str = "") -> None:
        self._present_classes(targets, where)

    def explained(self, targets: Tensor, logits: Float[Tensor, "k c"]) -> float | None:
        shares = torch.bincount(targets).double() / len(targets)
        entropy = float(torch.special.entr(shares).sum())
        loss = float(F.cross_entropy(logits.double(), targets.long()))
        return 1 - loss / entropy if entropy > 0 else None

    def caveats(self, targets: Tensor) -> tuple[str, ...]:
        absent = [name for index, name in enumerate(self.classes) if not (targets == index).any()]
        text = f"No bag of class {', '.join(absent)}: auc is the mean over the other classes."
        return (text,) if absent else ()

    def _present_classes(self, targets: Tensor, where: str = "") -> list[int]:
        """The classes that occur; InputError where there is one only."""
        present: list[int] = torch.unique(targets).tolist()
        if len(present) < 2:
            raise InputError(
                f"{_place(where)}AUC is undefined: all {len(targets)} bags are of class "
                f"{self.classes[present[0]]!r}. Evaluate on a fold with at least two classes."
            )
        return present


@dataclass(frozen=True)
class MultilabelTask(Task):
    """Several targets of two values, one logit each; unknown labels (NaN) are left out.

    loss = mean over the known labels of w_t * y * softplus(-z) + (1 - y) * softplus(z)
    AUC and macro F1 are means over the targets; auc_<target> is that of one.
    """

    classes: tuple[str, ...]
    class_weights: tuple[float, ...] | None = None
    """Weight of the positives of every target."""
    name = "multilabel"
    task_metric = figure = "auc"

    def __post_init__(self) -> None:
        ClassificationTask(self.classes, self.class_weights)

    @property
    def prediction_names(self) -> tuple[str, ...]:
        return ClassificationTask(self.classes).prediction_names

    def loss(self, logits: Float[Tensor, "k t"], targets: Tensor) -> Tensor | None:
        logits, known = _full_precision(logits), ~targets.isnan()
        if not bool(known.any()):
            return None
        weights = None if self.class_weights is None else logits.new_tensor(self.class_weights)
        losses = F.binary_cross_entropy_with_logits(
            logits, targets.nan_to_num(), pos_weight=weights, reduction="none"
        )
        return losses[known].mean()

    def prediction(self, logits: Float[Tensor, "*k t"]) -> Float[Tensor, "*k t"]:
        return torch.sigmoid(_full_precision(logits))

    def metrics(self, targets: Tensor, predictions: Float[Tensor, "k t"]) -> dict[str, float]:
        self.check(targets)
        areas, scores = [], []
        for labels, probabilities in zip(as_array(targets).T, as_array(predictions).T, strict=True):
            known = ~np.isnan(labels)
            areas.append(float(roc_auc_score(labels[known], probabilities[known])))
            scores.append(f1_score(labels[known], probabilities[known] > 0.5, average="macro"))
        named = {f"auc_{name}": area for name, area in zip(self.classes, areas, strict=True)}
        return {"auc": float(np.mean(areas)), "macro_f1": float(np.mean(scores)), **named}

    def check(self, targets: Tensor, *, where: str = "") -> None:
        for name, labels in zip(self.classes, as_array(targets).T, strict=True):
            values = np.unique(labels[~np.isnan(labels)])
            if len(values) < 2:
                state = "has no label"
                if len(values):
                    state = f"is {values[0]:.0f} on all bags that have a label"
                raise InputError(
                    f"{_place(where)}target '{name}' {state}, so its AUC is undefined. Split again "
                    "with fewer folds, or leave the target out."
                )

    def explained(self, targets: Tensor, logits: Float[Tensor, "k t"]) -> float | None:
        known = ~targets.isnan()
        labels = targets[known].double()
        shares = targets.nanmean(dim=0).double().expand_as(targets)[known]
        entropy = float(F.binary_cross_entropy(shares, labels))
        loss = float(F.binary_cross_entropy_with_logits(logits[known].double(), labels))
        return 1 - loss / entropy if entropy > 0 else None


@dataclass(frozen=True)
class RegressionTask(Task):
    """One value per bag, standardised by the training labels and judged by R2 in their own unit."""

    mean: float = 0.0
    deviation: float = 1.0
    name = "regression"
    task_metric = figure = "r2"
    prediction_names = ("value",)

    def standardise(self, targets: ValueTargets) -> Float[Tensor, "k"]:
        """Labels in training deviations from the training mean."""
        return (targets - self.mean) / self.deviation

    def loss(self, logits: Float[Tensor, "k 1"], targets: Tensor) -> Tensor | None:
        standard = self.standardise(targets).to(torch.float32)
        return F.mse_loss(_full_precision(logits).squeeze(1), standard)

    def prediction(self, logits: Float[Tensor, "*k 1"]) -> Float[Tensor, "*k"]:
        return self.mean + self.deviation * _full_precision(logits).squeeze(-1)

    def metrics(self, targets: Tensor, predictions: Float[Tensor, "k"]) -> dict[str, float]:
        labels, values = as_array(targets), _finite_array(predictions)
        self.check(targets)
        return {
            "r2": float(r2_score(labels, values)),
            "pearson": correlate(labels, values),
            "spearman": correlate(rankdata(labels), rankdata(values)),
            "mae": float(mean_absolute_error(labels, values)),
        }

    def check(self, targets: Tensor, *, where: str = "") -> None:
        if len(torch.unique(targets)) < 2:
            raise InputError(
                f"{_place(where)}R2 is undefined: all {len(targets)} bags have the value "
                f"{float(targets[0]):g}. Evaluate on a fold with at least two values."
            )


def correlate(one: Float[np.ndarray, "n"], other: Float[np.ndarray, "n"]) -> float:
    """Pearson's correlation; 0 where one of the two does not vary."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


@dataclass(frozen=True)
class SurvivalTask(Task):
    """One log-risk per bag, trained with Cox and judged by Harrell's C-index."""

    name = "survival"
    task_metric = figure = "c_index"
    prediction_names = ("risk",)

    def loss(self, logits: Float[Tensor, "k 1"], targets: Tensor) -> Tensor | None:
        return cox_loss(_full_precision(logits).squeeze(1), *_times_and_events(targets))

    def prediction(self, logits: Float[Tensor, "*k 1"]) -> Float[Tensor, "*k"]:
        return _full_precision(logits).squeeze(-1)

    def metrics(self, targets: Tensor, predictions: Float[Tensor, "k"]) -> dict[str, float]:
        times, events = map(as_array, _times_and_events(targets))
        return {"c_index": c_index(as_array(predictions), times, events)}

    def check(self, targets: Tensor, *, where: str = "") -> None:
        times, events = map(as_array, _times_and_events(targets))
        if not comparable_pairs(times, events).any():
            raise InputError(f"{_place(where)}{no_pair_message(events)}")

    def windows(
        self, targets: Tensor, *, window_size: int, generator: np.random.Generator
    ) -> Windows:
        events = as_array(_times_and_events(targets)[1])
        return event_balanced_windows(events, window_size=window_size, generator=generator)


@dataclass(frozen=True)
class DiscreteTimeTask(SurvivalTask):
    """One log-odds of risk per bag over the baseline hazards of four intervals."""

    edges: tuple[float, ...]
    baseline: tuple[float, ...]

    @classmethod
    def of_training(cls, targets: TimeEventTargets) -> DiscreteTimeTask:
        """Intervals and baseline from the training cases alone."""
        times, events = map(as_array, _times_and_events(targets))
        edges = interval_edges(times, events)
        baseline = baseline_logits(interval_index(times, edges), events)
        return cls(tuple(edges.tolist()), tuple(baseline.tolist()))

    def loss(self, logits: Float[Tensor, "k 1"], targets: Tensor) -> Tensor | None:
        times, events = _times_and_events(targets)
        intervals = torch.from_numpy(interval_index(as_array(times), np.asarray(self.edges)))
        hazards = _full_precision(logits) + logits.new_tensor(self.baseline)
        return discrete_time_loss(hazards, intervals.to(logits.device), events)


def make_task(
    kind: str,
    classes: Sequence[str],
    *,
    class_weights: tuple[float, ...] | None = None,
    label_scale: tuple[float, float] = (0.0, 1.0),
) -> Task:
    """The task of a cohort or checkpoint; `label_scale` is that of a network of regression."""
    if kind == "regression":
        return RegressionTask(*label_scale)
    if kind == "survival":
        return SurvivalTask()
    task = MultilabelTask if kind == "multilabel" else ClassificationTask
    return task(tuple(classes), class_weights)


def create_task(
    cohort: Cohort, settings: TrainSettings, label_scale: tuple[float, float] = (0.0, 1.0)
) -> Task:
    """The task by which predictions on a cohort are made and judged."""
    return make_task(
        cohort.card.task,
        cohort.card.classes,
        class_weights=settings.class_weights,
        label_scale=label_scale,
    )


def training_task(
    cohort: Cohort,
    settings: TrainSettings,
    train_bags: Sequence[BagSpec],
    label_scale: tuple[float, float] = (0.0, 1.0),
) -> Task:
    """The task with the loss that the settings name."""
    if cohort.card.task == "survival" and settings.survival_loss == "discrete_time":
        return DiscreteTimeTask.of_training(stacked_targets(train_bags))
    return create_task(cohort, settings, label_scale)


def measure_label_scale(cohort: Cohort, train_bags: Sequence[BagSpec]) -> tuple[float, float]:
    """Mean and deviation of the training labels of regression; (0, 1) for every other task."""
    if cohort.card.task != "regression":
        return 0.0, 1.0
    labels = stacked_targets(train_bags).double()
    return float(labels.mean()), max(float(labels.std(correction=0)), 1e-12)


def stacked_targets(bags: Sequence[BagSpec]) -> Tensor:
    """The targets of bags, one row each."""
    return torch.stack([target_tensor(spec) for spec in bags])


def target_tensor(spec: BagSpec) -> Tensor:
    """A class index, a value, (time, event), or a label per target, NaN where it is not known."""
    if isinstance(spec.target, int):
        return torch.tensor(spec.target)
    if isinstance(spec.target, float):
        return torch.tensor(spec.target, dtype=torch.float32)
    values = [math.nan if one is None else one for one in spec.target]
    return torch.tensor(values, dtype=torch.float32)


# One epoch as windows of bags: every bag once, window sizes differing by at most one. One optimiser
# step takes one window. Equal sizes matter for Cox: a window of one bag has a constant likelihood.


def shuffled_windows(n_bags: int, *, window_size: int, generator: np.random.Generator) -> Windows:
    """Random windows of at most `window_size` bag indices."""
    return _deal_bags(generator.permutation(n_bags), window_size, generator)


def event_balanced_windows(
    events: Bool[np.ndarray, "n"], *, window_size: int, generator: np.random.Generator
) -> Windows:
    """Random windows with event counts differing by at most one."""
    if window_size < 2:
        raise UsageError(
            "The Cox loss of one bag is constant, so a survival window needs at least 2 bags, "
            f"got {window_size}."
        )
    if not events.any():
        raise InputError(
            f"None of {len(events)} bags has an event, so Cox has nothing to learn. "
            "Use another split."
        )
    halves = [generator.permutation(np.flatnonzero(half)) for half in (events, ~events)]
    return _deal_bags(np.concatenate(halves), window_size, generator)


def _deal_bags(
    order: Int[np.ndarray, "n"], window_size: int, generator: np.random.Generator
) -> Windows:
    """One bag to each window in turn; windows and their contents in random order."""
    n_windows = -(-len(order) // window_size)
    return [
        generator.permutation(order[first::n_windows]) for first in generator.permutation(n_windows)
    ]


# Tensors


def _times_and_events(targets: TimeEventTargets) -> tuple[Real[Tensor, "k"], Bool[Tensor, "k"]]:
    """The two columns; times are finite and not negative, events 0 or 1."""
    times, events = targets.unbind(dim=1)
    wrong = ~(torch.isfinite(times) & (times >= 0) & ((events == 0) | (events == 1)))
    if bool(wrong.any()):
        time, event = targets[wrong][0].tolist()
        raise InputError(
            f"A survival target is a time >= 0 and an event 0 or 1, got time={time} and "
            f"event={event}. Check slides.csv."
        )
    return times, events == 1


def _full_precision(logits: Float[Tensor, "*k c"]) -> Float[Tensor, "*k c"]:
    """At least float32: bfloat16 is too coarse for a sum of exponentials."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _finite_array(predictions: Shaped[Tensor, "k *c"]) -> Shaped[np.ndarray, "k *c"]:
    """Predictions as an array; InputError if one is NaN or infinite."""
    values = as_array(predictions)
    if n_bad := int((~np.isfinite(values)).reshape(len(values), -1).any(axis=1).sum()):
        raise InputError(
            f"{n_bad} of {len(values)} predictions are NaN or infinite. The model has diverged."
        )
    return values


def _place(where: str) -> str:
    return f"{where}: " if where else ""


def measure_task_metric(task: Task, targets: Tensor, logits: Float[Tensor, "k c"]) -> float:
    """Macro-F1, R2 or C-index, also of bags that are all of one class, which have no AUC."""
    return task.judge(targets, task.prediction(logits))


def as_array(values: Shaped[Tensor, "*k"]) -> Shaped[np.ndarray, "*k"]:
    """On the CPU, floats in double precision."""
    array: Shaped[np.ndarray, "*k"] = values.detach().cpu().numpy()
    return array.astype(np.float64) if array.dtype.kind == "f" else array
