"""Our counts and rank sums against scikit-learn's metrics."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, log_loss, roc_auc_score

from gcemil.tasks.classification import confusion, cross_entropy
from gcemil.tasks.task import ClassificationTask

pytestmark = pytest.mark.parametrize("seed", range(5))
CLASSES = ("a", "b", "c", "d")


def fold(seed: int, *, n: int = 60, n_classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Labels and coarse probabilities, so that many are tied."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(n) % n_classes)
    counts = generator.multinomial(8, np.full(n_classes, 1 / n_classes), size=n) + 0.0
    counts[np.arange(n), labels] += generator.integers(0, 3, size=n)
    return labels, counts / counts.sum(axis=1, keepdims=True)


def test_metrics_equal_scikit_learns(seed):
    labels, probabilities = fold(seed)
    predicted = probabilities.argmax(axis=1)
    ours = ClassificationTask(CLASSES).metrics(torch.from_numpy(labels), torch.from_numpy(probabilities))
    assert ours == pytest.approx(
        {
            "accuracy": accuracy_score(labels, predicted),
            "macro_f1": f1_score(labels, predicted, average="macro"),
            "auc": roc_auc_score(labels, probabilities, multi_class="ovr", average="macro"),
        },
        abs=1e-12,
    )


def test_binary_auc_equals_scikit_learns(seed):
    labels, probabilities = fold(seed, n_classes=2)
    ours = ClassificationTask(("a", "b")).metrics(torch.from_numpy(labels), torch.from_numpy(probabilities))
    assert ours["auc"] == pytest.approx(roc_auc_score(labels, probabilities[:, 1]), abs=1e-12)


def test_metrics_without_one_class_equal_scikit_learns_over_the_others(seed):
    labels, probabilities = fold(seed)
    labels, probabilities = labels[labels != 2], probabilities[labels != 2]
    ours = ClassificationTask(CLASSES).metrics(torch.from_numpy(labels), torch.from_numpy(probabilities))
    others = [roc_auc_score(labels == index, probabilities[:, index]) for index in (0, 1, 3)]
    assert ours["auc"] == pytest.approx(np.mean(others), abs=1e-12)
    expected = f1_score(labels, probabilities.argmax(axis=1), average="macro", zero_division=0.0)
    assert ours["macro_f1"] == pytest.approx(expected, abs=1e-12)


def test_confusion_equals_scikit_learns(seed):
    labels, probabilities = fold(seed)
    predicted = probabilities.argmax(axis=1)
    assert (confusion(labels, probabilities) == confusion_matrix(labels, predicted)).all()


def test_cross_entropy_equals_scikit_learns_log_loss(seed):
    labels, _ = fold(seed)
    logits = torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ours = cross_entropy(logits, torch.from_numpy(labels))
    assert ours.item() == pytest.approx(log_loss(labels, torch.softmax(logits, dim=1).numpy()), abs=1e-12)
