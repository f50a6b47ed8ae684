"""Tables of predictions, ablations and cohorts on a results folder whose figures are known by hand."""

import pytest
from paper.comparison import paper_figures
from paper.measured import read_measured
from paper.tables import TABLES

from builders.results import (
    column,
    diagnose,
    gce_folds,
    gce_run,
    host_folds,
    made_table,
    snr_rows,
    texts,
    toy_results,
)
from gcemil.tables import render_tables


@pytest.fixture
def folder(tmp_path):
    return toy_results(tmp_path / "results")


def test_every_table_is_there_when_nothing_was_diagnosed(folder):
    measured = read_measured(folder.folder)
    tables = {name: make(measured, paper_figures()) for name, make in TABLES.items()}
    assert {table.label for table in tables.values()} == {
        table.label for table in paper_figures().tables.values()
    }
    for name, made in tables.items():
        assert made.name == name
        assert made.lines
        assert {len(line.cells) for line in made.lines} == {len(made.columns)}
        assert {len(line.row_labels) for line in made.lines} == {len(made.row_labels)}


def test_host_and_gain_stand_beside_the_paper(folder):
    made = made_table(folder, "classification")
    macro_f1 = column(made, "bracs.macro_f1")
    # (0.5 + 0.6) / 2; sd of the two is 0.1 / sqrt 2.
    assert texts(made, "ABMIL")[macro_f1] == "0.550±0.071"
    # Paired: 0.1 and 0.2.
    assert texts(made, "ABMIL +GCE Δ")[macro_f1] == "+0.150±0.071"
    assert texts(made, "ABMIL", origin="paper")[macro_f1] == "0.634±0.045"
    assert texts(made, "ABMIL +GCE Δ", origin="paper")[macro_f1] == "+0.069"


def test_what_was_not_run_is_missing_and_never_zero(folder):
    made = made_table(folder, "classification")
    assert texts(made, "ABMIL")[column(made, "panda.auc")] == "missing"
    assert texts(made, "HDMIL")[column(made, "bracs.auc")] == "missing"
    assert made.remedy == "gcemil benchmark paper/grids/paper.yaml --out RESULTS"


def test_components_are_the_host_the_variants_and_the_full_method(folder):
    diagnose(gce_run(folder), "snr", snr_rows({"evidence_sufficiency": 0.7, "complement_degradation": 0.3}))
    run = folder.run("bracs", "abmil", "naive_selector", gce_folds(0.5))
    diagnose(run, "snr", snr_rows({"evidence_sufficiency": 0.4, "complement_degradation": 0.1}, cd_gap=0.05))
    made = made_table(folder, "components")
    assert texts(made, "Backbone only") == ["0.550±0.071", "-", "-", "-"]
    assert texts(made, "Naive selector") == ["0.500", "0.050", "0.100", "0.400"]
    assert texts(made, "Full GCE") == ["0.700±0.141", "0.010", "0.300", "0.700"]
    assert texts(made, "+ Budget control") == ["missing"] * 4


def test_seeds_of_a_fold_are_no_further_folds_in_a_test(folder):
    before = made_table(folder, "significance_classification")
    folder.run("bracs", "abmil", "host", host_folds(0.5, 0.6), seed=1)
    folder.run("bracs", "abmil", "gce", gce_folds(0.6, 0.8), seed=1)
    after = made_table(folder, "significance_classification")
    # Differences 0.1 and 0.2: t = 0.15 / (0.0707 / sqrt 2) = 3, one degree of freedom.
    assert texts(before, "ABMIL+GCE", "paired t")[0] == "0.205"
    assert texts(after, "ABMIL+GCE", "paired t")[0] == "0.205"


def test_holm_corrects_over_the_table(folder):
    folder.cohort("nsclc")
    folder.run("nsclc", "abmil", "host", host_folds(0.5, 0.5, 0.5))
    folder.run("nsclc", "abmil", "gce", gce_folds(0.6, 0.61, 0.62))
    made = made_table(folder, "significance_classification")
    single, corrected = (texts(made, "ABMIL+GCE", test) for test in ("paired t", "paired t, Holm"))
    assert float(corrected[1]) == pytest.approx(2 * float(single[1]), abs=1e-3)
    assert corrected[0] == single[0] == "0.205"


def test_encoders_are_told_apart_by_what_the_grid_says(folder):
    folder.grid(
        "encoders",
        weak={"profile": "bracs", "encoder": "resnet50"},
        strong={"profile": "bracs", "encoder": "uni"},
    )
    for cohort, value in (("weak", 0.4), ("strong", 0.7)):
        folder.cohort(cohort)
        folder.run(cohort, "abmil", "host", host_folds(value))
        folder.run(cohort, "abmil", "gce", gce_folds(value + 0.1))
    made = made_table(folder, "encoders")
    assert texts(made, "BRACS", "ResNet-50 (ImageNet)", "ABMIL") == ["0.400", "0.500", "+0.100"]
    assert texts(made, "BRACS", "UNI (foundation)", "ABMIL") == ["0.700", "0.800", "+0.100"]
    assert texts(made, "BRACS", "ViT-S (SSL pathology)", "ABMIL") == ["missing"] * 3


def test_a_table_says_why_cells_are_missing(folder):
    folder.run("bracs", "dsmil", "gce", gce_folds(0.9))
    text = render_tables([made_table(folder, "significance_classification")], "markdown")
    assert (
        "cells are missing: a test needs the predictions of +GCE and of its host on the dataset, one over folds two folds or more"
        in text
    )
