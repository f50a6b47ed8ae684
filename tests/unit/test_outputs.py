"""The three kinds of output: Phi, gaps and names by hand."""

import pytest
import torch

from gcemil.errors import UsageError
from gcemil.outputs import (
    ClassOutput,
    ClassQuestion,
    RiskOutput,
    Tolerances,
    ValueOutput,
    create_output,
    guess_task,
    judge,
)


def test_each_task_has_its_output():
    assert isinstance(create_output("classification", 3), ClassOutput)
    assert isinstance(create_output("survival", 1, 2.0), RiskOutput)
    assert isinstance(create_output("regression", 1), ValueOutput)
    assert (guess_task(1), guess_task(2)) == ("survival", "classification")


def test_phi_of_a_risk_has_the_unit_of_training_and_phi_of_a_value_is_the_output():
    full, logits = torch.tensor([3.0]), torch.tensor([[3.0], [5.0]])
    assert RiskOutput(2.0, 1.0).phi(full, logits).tolist() == [1.0, 2.0]
    assert ValueOutput().phi(full, logits).tolist() == [3.0, 5.0]
    assert create_output("regression", 1, 2.0, 1.0).gap(full, logits[1]) == 2.0


def test_a_value_is_named_and_given_in_the_unit_of_the_labels():
    kind = ValueOutput(label_mean=10.0, label_deviation=2.0)
    assert dict(zip(kind.names(), kind.values(torch.tensor([1.5])), strict=True)) == {"value": 13.0}


def test_only_a_risk_waits_for_its_unit():
    assert [create_output(task, 1).measures_unit for task in ("survival", "regression")] == [
        True,
        False,
    ]


def test_a_value_keeps_its_answer_and_is_judged_by_its_gaps():
    verdict = judge(
        ValueOutput(), torch.tensor([1.0]), torch.tensor([1.04]), torch.tensor([0.5]), Tolerances()
    )
    assert verdict.is_faithful
    assert (verdict.keeps_class, verdict.changes_class) == (True, False)
    far = judge(ValueOutput(), torch.tensor([1.0]), torch.tensor([2.0]), None, Tolerances())
    assert far.overshoot == pytest.approx(0.5)


def test_nobody_asks_a_value_for_a_class():
    with pytest.raises(UsageError, match="predicts one number and has no classes"):
        ClassQuestion.read(("value",), "value", None)
