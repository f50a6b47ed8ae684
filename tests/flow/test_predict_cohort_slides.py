"""What predict says of slides that the run was made with, and what stands beside the model's own prediction."""

import csv
import shutil

import pytest

from builders.commands import answer, gcemil, refused, succeeded
from gcemil.bags.folds import make_folds, read_fold, write_folds
from gcemil.config import EvidenceSettings, TrainSettings
from gcemil.runs.folder import Run
from gcemil.runs.predict import load_fold_models
from gcemil.simulation.simulate import simulate
from gcemil.training.run import train_run


@pytest.fixture(scope="module")
def two_folds(tmp_path_factory):
    """A wrapped run of two folds."""
    folder = tmp_path_factory.mktemp("two")
    cohort = simulate("nsclc", folder / "cohort", size="tiny", slides=24, seed=0)
    write_folds(cohort, make_folds(cohort, seed=0))
    settings = TrainSettings(evidence=EvidenceSettings(), epochs=1, seed=0)
    train_run(cohort.folder, folder / "run", settings, folds=[0, 1], jobs=1)
    return cohort, folder / "run"


@pytest.fixture(scope="module")
def slides(two_folds, tmp_path_factory):
    """A slide that fold 0 tests, one that both folds trained on, and one that no fold knows."""
    cohort, _ = two_folds
    first, second = (read_fold(cohort, fold) for fold in (0, 1))
    tested = next(slide for slide in first.slides("test") if second.part_of[slide] == "train")
    trained = next(slide for slide in first.slides("train") if second.part_of[slide] == "train")
    new = tmp_path_factory.mktemp("new") / "new.h5"
    shutil.copy(cohort.feature_file(tested), new)
    import h5py

    with h5py.File(new, "a") as file:
        file["features"][0] += 1
    return cohort.feature_file(tested), cohort.feature_file(trained), new


def test_slides_of_the_cohort_are_predicted_by_folds_that_did_not_see_them(
    two_folds, slides, tmp_path
):
    _, run = two_folds
    tested, trained, _ = slides
    renamed = tmp_path / "renamed.h5"
    shutil.copy(trained, renamed)
    command = ("predict", run, *slides, renamed, "--out", tmp_path / "out")
    said = succeeded(*command)
    assert (
        "1 slides are of the run's own cohort: each is predicted by the folds that did not see it"
        in said
    )
    assert "2 slides were used to train these folds" in said
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = {row["slide_id"]: row for row in csv.DictReader(file)}
    assert {name: (row["part"], row["folds"]) for name, row in rows.items()} == {
        tested.stem: ("test", "0"),
        trained.stem: ("train", "0|1"),
        "renamed": ("train", "0|1"),
        "new": ("new", "0|1"),
    }
    with (run / "fold_0" / "predictions.csv").open() as file:
        known = next(row for row in csv.DictReader(file) if row["slide_id"] == tested.stem)
    assert float(rows[tested.stem]["prob_LUAD"]) == pytest.approx(
        float(known["prob_LUAD"]), abs=1e-5
    )
    assert rows[tested.stem]["spread"] == ""


def test_the_mean_over_folds_has_its_spread_and_the_evidence_alone_beside_it(
    two_folds, slides, tmp_path
):
    _, run = two_folds
    (both,) = answer("predict", run, slides[2], "--out", tmp_path / "both")
    first, second = (
        answer("predict", run, slides[2], "--folds", fold, "--out", tmp_path / str(fold))[0]
        for fold in (0, 1)
    )
    found = [first["prob_LUAD"], second["prob_LUAD"]]
    assert both["prob_LUAD"] == pytest.approx(sum(found) / 2)
    assert both["spread"] == pytest.approx(abs(found[0] - found[1]) / 2**0.5)
    (alone,) = answer("predict", run, slides[2], "--mode", "discrete", "--out", tmp_path / "alone")
    assert both["evidence_prob_LUAD"] == pytest.approx(alone["prob_LUAD"])
    assert "host_prob_LUAD" in both
    assert "evidence_prob_LUAD" not in alone
    assert "--folds is 'all' or numbers" in refused("predict", run, slides[2], "--folds", "one")


def test_workers_predict_what_one_process_predicts(two_folds, slides, tmp_path):
    _, run = two_folds
    names = ("slide_id", "prob_LUAD", "part", "folds", "verdict")
    one, two = (
        [[row[name] for name in names] for row in answer(
            "predict", run, *slides, "--jobs", jobs, "--device", "cpu", "--out", tmp_path / str(jobs)
        )]
        for jobs in (1, 2)
    )  # fmt: skip
    assert one == two
    assert gcemil("predict", run, slides[0], "--device", "cuda:77").exit_code != 0


def test_a_moved_cohort_is_still_known(two_folds, slides, tmp_path):
    cohort, run = two_folds
    moved = shutil.copytree(run, tmp_path / "run")
    text = (moved / "config.yaml").read_text().replace(str(cohort.folder), str(tmp_path / "gone"))
    (moved / "config.yaml").write_text(text)
    (found,) = answer("predict", moved, slides[1])
    assert found["part"] == "train"
    assert len(load_fold_models(moved, folds=None, needs_evidence=True)) == len(
        Run(moved).trained_folds()
    )
