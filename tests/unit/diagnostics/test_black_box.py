import numpy as np
import pytest
import torch

from gcemil.diagnostics.audit_inputs import BlackBox, name_bag_in_errors
from gcemil.errors import BagError, StoreError, UsageError

FEATURES = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
COORDS = torch.tensor([[0, 0], [256, 0], [512, 0]])
WEIGHTS = torch.tensor([[1.0, -1.0], [-1.0, 2.0]])


def linear(features, coords):
    """Logits of class c: sum over patches of w_c x_i."""
    return (features @ WEIGHTS.T).sum(dim=0)


def box(model, n_outputs=2, **options):
    return BlackBox(model, "lab:model", in_dim=2, n_outputs=n_outputs, **options)


@pytest.mark.parametrize(
    "answer",
    [
        torch.tensor([1.0, 2.0]),
        torch.tensor([[1.0, 2.0]]),
        np.array([1.0, 2.0]),
        [1.0, 2.0],
        (torch.tensor([1.0, 2.0]), None),
    ],
)
def test_logits_may_come_in_many_clothes(answer):
    output = box(lambda features, coords: answer).host()(FEATURES, COORDS)
    assert output.logits.tolist() == pytest.approx([1, 2])
    assert output.scores.tolist() == pytest.approx([0, 0, 0])


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
def test_scores_may_be_a_row_or_a_column(shape):
    model = box(lambda features, coords: (torch.zeros(2), np.array([3.0, 1.0, 2.0]).reshape(shape)))
    assert model.host()(FEATURES, COORDS).scores.tolist() == pytest.approx([3, 1, 2])


def test_a_numpy_model_gets_numpy():
    def model(features, coords):
        assert isinstance(features, np.ndarray)
        assert isinstance(coords, np.ndarray)
        return features.mean(axis=0), features[:, 0] + coords[:, 0]

    output = box(model, arrays="numpy").host()(FEATURES, COORDS)
    assert output.scores.tolist() == pytest.approx([1, 256, 515])


def test_one_logit_for_two_classes_is_the_log_odds_of_the_second():
    assert box(lambda features, coords: 3.0).host()(FEATURES, COORDS).logits.tolist() == pytest.approx([0, 3])


def test_the_slope_of_a_linear_model_is_what_each_patch_adds():
    # Class 1 wins: -1 + 4 + 3 = 6 against 1 - 2 + 0 = -1.
    assert box(linear).slopes(FEATURES, COORDS).tolist() == pytest.approx([-1, 4, 3])


def test_a_model_without_gradient_has_no_slope():
    with pytest.raises(
        UsageError, match="'lab:model' returns no patch scores and its logits carry no gradient"
    ):
        box(lambda features, coords: features.mean(axis=0), arrays="numpy").slopes(FEATURES, COORDS)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (torch.zeros(3), r"logits of shape \(3,\) for one bag; this cohort has 2 outputs"),
        (torch.zeros(3, 2), r"logits of shape \(3, 2\)"),
        (None, "logits of type NoneType"),
        ({"logits": [0, 0]}, "logits of type dict"),
        ("tumour", "logits of type str"),
        ((torch.zeros(2), torch.zeros(3), torch.zeros(3)), "logits of type tuple"),
        (torch.tensor([0.0, float("nan")]), "NaN or infinite logits"),
        ((torch.zeros(2), torch.zeros(2)), r"scores of shape \(2,\) for 3 patches"),
        ((torch.zeros(2), torch.full((3,), float("inf"))), "NaN or infinite scores"),
    ],
)
def test_every_wrong_answer_is_named(answer, message):
    with pytest.raises(UsageError, match=f"Model 'lab:model' gave {message}"):
        box(lambda features, coords: answer).answer(FEATURES, COORDS)


def test_a_risk_is_one_number():
    assert box(lambda features, coords: 0.5, n_outputs=1).host()(
        FEATURES, COORDS
    ).logits.tolist() == pytest.approx([0.5])
    with pytest.raises(UsageError, match="1 output, the risk"):
        box(lambda features, coords: [0.5, 1.0], n_outputs=1).answer(FEATURES, COORDS)


def test_an_error_inside_the_model_is_told_with_what_it_was_given():
    def model(features, coords):
        raise KeyError("weights")

    message = r"failed on 3 patches \(KeyError: 'weights'\). It is called with features \(3, 2\) and coords as torch"
    with pytest.raises(UsageError, match=message):
        box(model).answer(FEATURES, COORDS)


def test_the_bag_stands_in_front_of_what_is_wrong_with_it():
    for error in (UsageError, BagError, StoreError):
        with pytest.raises(error, match="Bag 'b': wrong"), name_bag_in_errors("b"):
            raise error("wrong")
