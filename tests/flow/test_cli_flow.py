"""The commands of the README, one after another, on tiny cohorts; exit codes and messages."""

import json

import numpy as np
import pytest

from builders import grid_coords, make_cohort, write_slide
from builders.commands import gcemil, succeeded


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flow")
    make_cohort(folder / "cohort", n_cases=30, n_patches=12, dim=16)
    succeeded("split", folder / "cohort")
    succeeded(f"train {folder / 'cohort'} --out {folder / 'run'} --epochs 2 --folds 0,1 --jobs 1")
    return folder


@pytest.mark.parametrize("profile", ["bracs", "kirc"])
def test_simulate_split_validate(tmp_path, profile):
    succeeded("simulate", profile, "--size", "tiny", "--slides", 40, "--out", tmp_path / "c")
    succeeded("split", tmp_path / "c")
    assert "0 errors" in succeeded("validate", tmp_path / "c")


def test_a_run_folder_holds_what_is_promised(trained):
    run = trained / "run"
    for name in ("config.yaml", "environment.json", "summary.json"):
        assert (run / name).is_file()
    for name in ("checkpoint.safetensors", "history.jsonl", "predictions.csv", "metrics.json"):
        assert (run / "fold_0" / name).is_file()
    metrics = json.loads((run / "fold_0" / "metrics.json").read_text())
    assert set(metrics) == {"full", "head", "gce", "soft", "discrete", "details"}
    assert set(metrics["soft"]) == {"accuracy", "macro_f1", "auc"}
    header = (run / "fold_0" / "predictions.csv").read_text().splitlines()[0]
    assert header == "slide_id,case_id,split,target,prob_benign,prob_malignant"
    assert len(list((run / "fold_0" / "evidence").glob("*.h5"))) == 6


def test_training_again_changes_nothing(trained):
    before = (trained / "run" / "summary.json").read_bytes()
    succeeded(f"train {trained / 'cohort'} --out {trained / 'run'} --epochs 2 --folds 0,1 --jobs 1")
    assert (trained / "run" / "summary.json").read_bytes() == before


def test_other_settings_are_refused_with_the_difference(trained):
    result = gcemil("train", trained / "cohort", "--out", trained / "run", "--epochs", 3)
    assert "epochs: 2 then, 3 now" in str(result.exception)


def test_evaluation_repeats_the_metrics(trained):
    before = json.loads((trained / "run" / "summary.json").read_text())
    after = json.loads(succeeded("evaluate", trained / "run", "--json"))
    assert after == before


@pytest.mark.parametrize("mode", ["full", "soft", "discrete"])
def test_a_new_slide_is_predicted_with_its_evidence(trained, tmp_path, mode):
    features = np.random.default_rng(3).normal(size=(50, 16)).astype(np.float32)
    path = write_slide(tmp_path, "new.slide", features, grid_coords(50))
    found = json.loads(
        succeeded(
            "predict", trained / "run", path, "--mode", mode, "--json", "--out", tmp_path / "ev"
        )
    )
    assert found[0]["slide_id"] == "new.slide"
    assert found[0]["prob_benign"] + found[0]["prob_malignant"] == pytest.approx(1)
    assert 0 < len(found[0]["evidence"]) <= 8
    assert (tmp_path / "ev" / "new.slide.h5").is_file()


def test_a_slide_of_another_encoder_is_refused(trained, tmp_path):
    path = write_slide(tmp_path, "new", np.zeros((5, 8), np.float32), grid_coords(5))
    result = gcemil("predict", trained / "run", path)
    assert "trained on width 16" in str(result.exception)


def test_splitting_again_leaves_no_old_fold(tmp_path):
    make_cohort(tmp_path / "c", n_cases=30)
    succeeded("split", tmp_path / "c")
    succeeded("split", tmp_path / "c", "--folds", 3, "--force")
    names = sorted(path.name for path in (tmp_path / "c" / "splits").iterdir())
    assert names == ["fold_0.csv", "fold_1.csv", "fold_2.csv", "splits.yaml"]
    succeeded("validate", tmp_path / "c")


def test_folds_that_test_a_slide_twice_are_trained_on_only_when_declared(tmp_path):
    make_cohort(tmp_path / "c", n_cases=30)
    succeeded("split", tmp_path / "c", "--folds", 3)
    splits = tmp_path / "c" / "splits"
    (splits / "splits.yaml").unlink()
    (splits / "fold_3.csv").write_text((splits / "fold_0.csv").read_text())
    training = (
        "train",
        tmp_path / "c",
        "--out",
        tmp_path / "run",
        "--epochs",
        1,
        "--folds",
        0,
        "--no-gce",
    )
    assert "is tested in fold_0.csv and fold_3.csv (10 slides in all)" in str(
        gcemil(*training).exception
    )
    assert gcemil("validate", tmp_path / "c").exit_code == 1
    assert "4 folds declared" in succeeded("split", tmp_path / "c", "--official")
    succeeded("validate", tmp_path / "c")
    succeeded(*training)


def test_split_by_slide_refuses_leakage(tmp_path):
    make_cohort(tmp_path, n_cases=12, slides_per_case=2)
    result = gcemil("split", tmp_path, "--unit", "slide")
    assert "would stand in train and test at once" in str(result.exception)


def test_validate_exits_with_one_when_there_is_an_error(tmp_path):
    cohort = make_cohort(tmp_path, n_cases=10)
    cohort.feature_file("s003_0").unlink()
    result = gcemil("validate", tmp_path, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)[0]["where"] == "s003_0"


def test_a_fold_with_one_class_or_no_event_is_not_trained_on(tmp_path):
    cohort = make_cohort(tmp_path / "c", n_cases=20)
    succeeded("split", tmp_path / "c")
    labels = {row.slide_id: row.label for row in cohort.slides}
    path = tmp_path / "c" / "splits" / "fold_0.csv"
    lines = [
        line.replace("val", "train") if labels.get(line.split(",")[0]) == "benign" else line
        for line in path.read_text().splitlines()
    ]
    path.write_text("\n".join(lines))
    result = gcemil("train", tmp_path / "c", "--out", tmp_path / "run")
    assert "the val part has only class 'malignant'" in str(result.exception)


def test_repack_and_inspect_and_doctor(tmp_path):
    make_cohort(tmp_path, n_cases=3)
    assert "0 of 3 files rewritten" in succeeded("repack", tmp_path)
    assert "Cohort of gcemil" in succeeded("inspect", tmp_path)
    assert {row["check"] for row in json.loads(succeeded("doctor", "--json"))} >= {
        "python",
        "torch",
        "device",
    }
