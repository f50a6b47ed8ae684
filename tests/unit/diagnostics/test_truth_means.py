import pytest
import torch

from gcemil.diagnostics.truth import truth_scores


def mask(text):
    return torch.tensor([char == "x" for char in text])


def test_precision_and_recall_are_means_over_bags_with_evidence():
    found = truth_scores(
        [mask("xx.."), mask("x..."), mask("...x")], [mask("x..x"), mask("xx.."), mask("....")]
    )
    assert found.precision == pytest.approx((0.5 + 1) / 2)
    assert found.recall == pytest.approx((0.5 + 0.5) / 2)


def test_without_truth_there_are_no_truth_scores():
    assert truth_scores([mask("x.")], [None]) is None
    assert truth_scores([mask("x.")], [mask("..")]) is None
