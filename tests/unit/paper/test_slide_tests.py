"""Tests over slides in the significance tables, from tables of predictions written by hand."""

import pandas as pd
import pytest

from builders.results import ResultsFolder, gce_folds, host_folds, made_table, texts
from gcemil.errors import RunError

LABELS = ["a", "a", "b", "b"]
SWAPS, SWAPS_HOLM = "permutation over slides", "permutation over slides, Holm"


def write_predictions(path, predicted, *, split="test", slides=None):
    """A table of predictions: the class named has probability 0.9."""
    slides = slides or [f"s{index}" for index in range(len(predicted))]
    lines = [
        {"slide_id": slide, "case_id": slide, "split": split, "target": target,
         "prob_a": 0.9 if one == "a" else 0.1, "prob_b": 0.9 if one == "b" else 0.1}
        for slide, one, target in zip(slides, predicted, LABELS, strict=True)
    ]  # fmt: skip
    pd.DataFrame(lines).to_csv(path, index=False)


def wrapped_only(tmp_path, soft, full):
    """BRACS, ABMIL, one fold of the wrapped arm, which holds its host."""
    results = ResultsFolder(tmp_path / "results")
    results.grid(bracs={"profile": "bracs"})
    results.cohort("bracs")
    fold = results.run("bracs", "abmil", "gce", gce_folds(0.6)) / "fold_0"
    write_predictions(fold / "predictions.csv", soft)
    write_predictions(fold / "predictions_full.csv", full)
    return results, fold


def test_one_fold_has_a_test_over_its_slides(tmp_path):
    results, _ = wrapped_only(tmp_path, "aabb", "aaaa")
    made = made_table(results, "significance_classification")
    # Two slides of four differ, both in favour: of the four swaps two are as large.
    assert texts(made, "ABMIL+GCE", SWAPS) == ["0.500", "missing", "missing", "missing"]
    assert texts(made, "ABMIL+GCE", SWAPS_HOLM)[0] == "0.500"
    # One fold has no test over folds, and its lines do not stand there empty.
    assert not [line for line in made.lines if line.row_labels[1].startswith("paired t")]
    assert texts(made, "DSMIL+GCE", SWAPS) == ["missing"] * 4


def test_a_trained_host_is_the_other_side_and_both_tests_stand_beside_each_other(tmp_path):
    results = ResultsFolder(tmp_path / "results")
    results.cohort("bracs")
    host = results.run("bracs", "abmil", "host", host_folds(0.5, 0.6))
    gce = results.run("bracs", "abmil", "gce", gce_folds(0.6, 0.8))
    for number in (0, 1):
        write_predictions(gce / f"fold_{number}" / "predictions.csv", "aabb")
        write_predictions(host / f"fold_{number}" / "predictions.csv", "aaaa")
        # The wrapped run's own full bag is not the plain host that was trained.
        write_predictions(gce / f"fold_{number}" / "predictions_full.csv", "aabb")
    made = made_table(results, "significance_classification")
    # Four slides of two folds, all in favour; with Macro-F1 1 against 1/3 in each: two swaps of
    # sixteen are as large.
    assert texts(made, "ABMIL+GCE", SWAPS)[0] == "0.125"
    # Differences of 0.1 and 0.2: t = 3 with one degree of freedom.
    assert texts(made, "ABMIL+GCE", "paired t")[0] == "0.205"


def test_risks_are_tested_too(tmp_path):
    results = ResultsFolder(tmp_path / "results")
    results.grid(kirc={"profile": "kirc"})
    results.cohort("kirc", task="survival")
    fold = results.run("kirc", "abmil", "gce", gce_folds(0.6, metric="c_index")) / "fold_0"
    for name, risks in (("predictions.csv", (3, 2, 1)), ("predictions_full.csv", (1, 2, 3))):
        names = [f"s{index}" for index in range(3)]
        table = {"slide_id": names, "case_id": names, "split": "test", "target": [1.0, 2.0, 3.0]}
        pd.DataFrame({**table, "event": 1, "risk": risks}).to_csv(fold / name, index=False)
    made = made_table(results, "significance_survival")
    # C-index 1 against 0. The middle slide has the same rank on both sides: two slides, of whose
    # four swaps two are as large.
    assert texts(made, "ABMIL+GCE", SWAPS)[0] == "0.500"


def test_other_bags_and_damaged_tables_are_refused_by_name(tmp_path):
    results, fold = wrapped_only(tmp_path, "aabb", "aaaa")
    write_predictions(fold / "predictions_full.csv", "aaaa", slides=["s0", "s1", "s2", "s9"])
    with pytest.raises(RunError, match=r"test different bags \('s3' is in one of them only"):
        made_table(results, "significance_classification")
    write_predictions(fold / "predictions_full.csv", "aaaa")
    path = fold / "predictions.csv"
    path.write_text(path.read_text().replace("0.9", "nan"))
    with pytest.raises(RunError, match=r"is not a table of predictions \(a number is not finite"):
        made_table(results, "significance_classification")
    write_predictions(path, "aabb", split="val")
    write_predictions(fold / "predictions_full.csv", "aaaa", split="val")
    with pytest.raises(RunError, match="no test bag"):
        made_table(results, "significance_classification")
