import numpy as np
import pytest

from builders import make_bag
from gcemil.bags import store
from gcemil.bags.bag import case_bag
from gcemil.diagnostics.audit_inputs import read_bag_scores
from gcemil.errors import CohortError, StoreError

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


def test_a_column_of_scores_per_patch_may_stand_upright(tmp_path):
    written(tmp_path, "a.1.h5", attention_scores=VALUES.reshape(3, 1).astype(np.float32), coords=BAG.coords)
    assert read_bag_scores(tmp_path, BAG).tolist() == VALUES.tolist()


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
def test_npy_may_be_a_row_or_a_column(tmp_path, shape):
    written(tmp_path, "a.1.npy", values=VALUES.reshape(shape))
    assert read_bag_scores(tmp_path, BAG).tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    "text", ["score\n0.5\n0.25\n1\n", "x,attention\n0,0.5\n1,0.25\n2,1\n", "anything\n0.5\n0.25\n1\n"]
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


def test_another_number_of_scores_is_refused(tmp_path):
    written(tmp_path, "a.1.npy", values=np.zeros(5))
    with pytest.raises(
        StoreError, match=r"a.1.npy has 5 scores for 3 patches. Score the patches of the cohort's own"
    ):
        read_bag_scores(tmp_path, BAG)


def test_a_score_that_is_no_number_is_refused(tmp_path):
    path = written(tmp_path, "a.1.npy", values=np.array([0.0, np.nan, 1.0]))
    with pytest.raises(StoreError, match="the score of patch 1 is nan"):
        read_bag_scores(tmp_path, BAG)
    path.unlink()
    written(tmp_path, "a.1.csv", "score\n1\nhigh\n2\n")
    with pytest.raises(StoreError, match="column 'score' holds something that is no number"):
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
        StoreError, match=r"no scores of slide 'a.1': a.1.h5, a.1.csv, a.1.npy are looked for"
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
