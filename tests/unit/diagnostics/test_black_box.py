"""What an audit is given: models of unknown origin, and files of scores."""

import numpy as np
import pytest
import torch

from builders import make_bag
from gcemil.bags import store
from gcemil.bags.bag import case_bag
from gcemil.diagnostics.audit import name_bag_in_errors
from gcemil.diagnostics.audit_inputs import BlackBox, read_bag_scores
from gcemil.errors import BagError, CohortError, StoreError, UsageError

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


def test_a_numpy_model_gets_numpy():
    def model(features, coords):
        assert isinstance(features, np.ndarray)
        assert isinstance(coords, np.ndarray)
        return features.mean(axis=0), features[:, 0] + coords[:, 0]

    output = box(model, arrays="numpy").host()(FEATURES, COORDS)
    assert output.scores.tolist() == pytest.approx([1, 256, 515])


def test_one_logit_for_two_classes_is_the_log_odds_of_the_second():
    assert box(lambda features, coords: 3.0).host()(
        FEATURES, COORDS
    ).logits.tolist() == pytest.approx([0, 3])


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


def test_a_dict_needs_logits():
    assert box(lambda features, coords: {"logits": [1.0, 2.0]}).answer(FEATURES, COORDS)[
        0
    ].tolist() == [1, 2]
    with pytest.raises(UsageError, match="dict without 'logits', only: prob. Name them 'logits'"):
        box(lambda features, coords: {"prob": [0.5, 0.5]}).answer(FEATURES, COORDS)


@pytest.mark.parametrize("arrays", ["torch", "numpy"])
def test_a_model_of_batches_is_found_by_its_number_of_outputs(arrays):
    found = box(lambda features, coords: features[:, :, :2].mean(1), arrays=arrays)
    found.match_batch_axis(FEATURES, COORDS)
    assert found.answer(FEATURES, COORDS)[0].flatten().tolist() == pytest.approx(
        FEATURES[:, :2].mean(dim=0).tolist()
    )


def test_a_risk_is_one_number():
    assert box(lambda features, coords: 0.5, n_outputs=1).host()(
        FEATURES, COORDS
    ).logits.tolist() == pytest.approx([0.5])
    with pytest.raises(UsageError, match="1 output, a number"):
        box(lambda features, coords: [0.5, 1.0], n_outputs=1).answer(FEATURES, COORDS)


def test_an_error_inside_the_model_is_told_with_what_it_was_given():
    def model(features, coords):
        raise KeyError("weights")

    message = (
        r"failed on 3 patches \(KeyError: 'weights'\). It is called with features \(3, 2\) and "
        "coords as torch"
    )
    with pytest.raises(UsageError, match=message):
        box(model).answer(FEATURES, COORDS)


def test_the_bag_stands_in_front_of_what_is_wrong_with_it():
    for error in (UsageError, BagError, StoreError):
        with pytest.raises(error, match="Bag 'b': wrong"), name_bag_in_errors("b"):
            raise error("wrong")


BAG = make_bag(n_patches=3, slide_id="a.1")
VALUES = np.array([0.5, 0.25, 1.0])


def written(folder, name, text=None, **datasets):
    path = folder / name
    if text is not None:
        path.write_text(text)
    elif path.suffix == ".npy":
        np.save(path, datasets["values"])
    else:
        store.write(path, datasets)
    return path


@pytest.mark.parametrize("name", ["scores", "attention_scores", "attention", "gates", "whatever"])
def test_hdf5_is_read_by_the_usual_names_or_the_only_column(tmp_path, name):
    written(tmp_path, "a.1.h5", **{name: VALUES, "responses": np.zeros((3, 2))})
    assert read_bag_scores(tmp_path, BAG).tolist() == VALUES.tolist()


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
def test_npy_may_be_a_row_or_a_column(tmp_path, shape):
    written(tmp_path, "a.1.npy", values=VALUES.reshape(shape))
    assert read_bag_scores(tmp_path, BAG).tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    "text",
    ["score\n0.5\n0.25\n1\n", "x,attention\n0,0.5\n1,0.25\n2,1\n", "anything\n0.5\n0.25\n1\n"],
)
def test_csv_is_read_by_the_usual_names_or_the_only_column(tmp_path, text):
    written(tmp_path, "a.1.csv", text)
    assert read_bag_scores(tmp_path, BAG).tolist() == VALUES.tolist()


def test_the_column_asked_for_is_taken(tmp_path):
    written(tmp_path, "a.1.h5", scores=VALUES, gates=VALUES / 2)
    assert read_bag_scores(tmp_path, BAG, column="gates").tolist() == (VALUES / 2).tolist()
    (tmp_path / "a.1.h5").unlink()
    written(tmp_path, "a.1.csv", "p,q\n1,2\n3,4\n5,6\n")
    assert read_bag_scores(tmp_path, BAG, column="q").tolist() == [2, 4, 6]
    with pytest.raises(CohortError, match="has no column 'r', only: p, q"):
        read_bag_scores(tmp_path, BAG, column="r")


def test_the_slides_of_a_case_follow_one_another(tmp_path):
    written(tmp_path, "a.npy", values=np.array([1.0, 2.0]))
    written(tmp_path, "b.csv", "score\n3\n")
    case = case_bag("case", [make_bag(1, slide_id="b"), make_bag(2, slide_id="a")])
    assert read_bag_scores(tmp_path, case).tolist() == [1, 2, 3]


def test_a_score_that_is_no_number_is_refused(tmp_path):
    path = written(tmp_path, "a.1.npy", values=np.array([0.0, np.nan, 1.0]))
    with pytest.raises(StoreError, match="the score of patch 1 is nan"):
        read_bag_scores(tmp_path, BAG)
    path.unlink()
    written(tmp_path, "a.1.csv", "score\n1\nhigh\n2\n")
    with pytest.raises(StoreError, match="column 'score' holds something that is not a number"):
        read_bag_scores(tmp_path, BAG)


def test_scores_in_another_order_are_refused(tmp_path):
    written(tmp_path, "a.1.h5", scores=VALUES, coords=BAG.coords[::-1].copy())
    with pytest.raises(StoreError, match="coordinates are not those of the features, row by row"):
        read_bag_scores(tmp_path, BAG)


@pytest.mark.parametrize("values", [np.zeros((3, 2)), np.array([["a", "b", "c"]])])
def test_a_table_per_class_is_refused(tmp_path, values):
    written(tmp_path, "a.1.npy", values=values)
    with pytest.raises(StoreError, match=r"one number per patch, got|not real numbers"):
        read_bag_scores(tmp_path, BAG)


def test_missing_ambiguous_and_broken_files_are_named(tmp_path):
    with pytest.raises(
        StoreError, match=r"no scores of slide 'a.1': none of a.1.h5, a.1.csv, a.1.npy exists"
    ):
        read_bag_scores(tmp_path, BAG)
    written(tmp_path, "a.1.h5", first=np.zeros(3), second=np.zeros(3))
    with pytest.raises(StoreError, match="holds: first, second; which of them"):
        read_bag_scores(tmp_path, BAG)
    written(tmp_path, "a.1.csv", "p,q\n1,2\n")
    with pytest.raises(StoreError, match=r"a.1.h5 and a.1.csv, two files for one slide"):
        read_bag_scores(tmp_path, BAG)
    (tmp_path / "a.1.h5").unlink()
    with pytest.raises(StoreError, match="has columns: p, q; which of them"):
        read_bag_scores(tmp_path, BAG)
    (tmp_path / "a.1.csv").unlink()
    written(tmp_path, "a.1.npy", "no array")
    with pytest.raises(StoreError, match="cannot be read as a NumPy array"):
        read_bag_scores(tmp_path, BAG)
