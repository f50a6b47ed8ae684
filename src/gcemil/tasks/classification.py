"""Classification: weighted cross-entropy over a window of bags, and the metrics of a fold.

  loss      = (1/k) sum over bags of w_y * (-log softmax(logits)_y)
  F1_c      = 2 TP / (2 TP + FP + FN), macro over the classes that occur in the labels or in the predictions
  AUC_c     = P(p_c of a bag of c > p_c of any other bag), ties one half; macro over the classes that occur

The predicted class is the one of highest probability, the lower index where two are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from jaxtyping import Float, Int
from sklearn.metrics import confusion_matrix, roc_auc_score
from torch import Tensor

from gcemil.errors import InputError


def cross_entropy(
    logits: Float[Tensor, "k c"],
    labels: Int[Tensor, "k"],
    *,
    class_weights: Float[Tensor, "c"] | None = None,
) -> Float[Tensor, ""]:
    """Mean over bags of the weighted surprise of the true class."""
    _check_labels(labels.cpu().numpy(), n_classes=logits.shape[1])
    # Divided by k, not by the sum of weights: with one bag per window the weight would cancel.
    return F.cross_entropy(logits, labels.long(), weight=class_weights, reduction="none").mean()


def confusion(
    labels: Int[np.ndarray, "n"], probabilities: Float[np.ndarray, "n c"]
) -> Int[np.ndarray, "c c"]:
    """Counts of bags, true class by row and predicted class by column."""
    n_classes = probabilities.shape[1]
    _check_labels(labels, n_classes=n_classes)
    _check_predictions(probabilities)
    return np.asarray(confusion_matrix(labels, probabilities.argmax(axis=1), labels=range(n_classes)))


def accuracy(matrix: Int[np.ndarray, "c c"]) -> float:
    """Share of bags whose class was predicted."""
    return float(np.trace(matrix) / matrix.sum())


def macro_f1(matrix: Int[np.ndarray, "c c"]) -> float:
    """A class neither true nor predicted anywhere has no F1; one predicted in vain has 0."""
    occurrences = matrix.sum(axis=0) + matrix.sum(axis=1)
    occurs = occurrences > 0
    return float((2 * np.diag(matrix)[occurs] / occurrences[occurs]).mean())


def macro_auc(
    labels: Int[np.ndarray, "n"], probabilities: Float[np.ndarray, "n c"], *, classes: Sequence[str]
) -> float:
    """Mean one-vs-rest AUC of the classes that occur."""
    _check_predictions(probabilities)
    if probabilities.shape[1] != len(classes):
        raise InputError(
            f"{probabilities.shape[1]} probabilities per bag for {len(classes)} classes. Check the classes of the run."
        )
    support = class_support(labels, n_classes=len(classes))
    check_two_classes(support, classes)
    present = np.flatnonzero(support)
    return float(np.mean([roc_auc_score(labels == one, probabilities[:, one]) for one in present]))


def class_support(labels: Int[np.ndarray, "n"], *, n_classes: int) -> Int[np.ndarray, "c"]:
    """Bags of each class."""
    _check_labels(labels, n_classes=n_classes)
    return np.bincount(labels, minlength=n_classes)


def check_two_classes(support: Int[np.ndarray, "c"], classes: Sequence[str]) -> None:
    """InputError where all bags are of one class: AUC does not exist."""
    present = [name for name, count in zip(classes, support, strict=True) if count]
    if len(present) < 2:
        raise InputError(
            f"AUC is undefined: all {int(support.sum())} bags are of class {present[0]!r}. "
            "Evaluate on a fold with at least two classes."
        )


def _check_labels(labels: Int[np.ndarray, "n"], *, n_classes: int) -> None:
    if len(labels) == 0:
        raise InputError("There is no bag, so there is neither loss nor metric. Use a split with bags.")
    wrong = labels[(labels < 0) | (labels >= n_classes)]
    if len(wrong):
        raise InputError(
            f"Labels of {n_classes} classes are 0 to {n_classes - 1}, got {int(wrong[0])}. Check slides.csv."
        )


def _check_predictions(probabilities: Float[np.ndarray, "n c"]) -> None:
    bad = ~np.isfinite(probabilities).all(axis=1)
    if bad.any():
        raise InputError(
            f"{int(bad.sum())} of {len(bad)} predictions are NaN or infinite. The model has diverged."
        )
