"""Tables of predictions, ablations and cohorts on a results folder whose figures are known by hand."""

from pathlib import Path

import pytest
import torch
from paper import ablation
from paper.comparison import paper_figures
from paper.measured import read_measured
from paper.tables import TABLES

from builders.results import (
    column,
    diagnose,
    gce_folds,
    host_folds,
    made_table,
    snr_rows,
    texts,
    toy_results,
)
from gcemil.benchmark.grid import Grid, plan_runs, run_settings
from gcemil.config import EvidenceSettings, HostSettings
from gcemil.evidence.anchors import AnchorBank
from gcemil.findings import Row
from gcemil.model import GceMil
from gcemil.runs.checkpoint import build_host
from gcemil.tables import render_tables
from gcemil.training.optimizer import reading_temperature

GRIDS = Path(__file__).parents[3] / "paper" / "grids"


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
    assert made.remedy == "gcemil benchmark paper/grids/reduced.yaml --out RESULTS"


def test_components_are_the_host_the_variants_and_the_full_method(folder):
    full = folder.run("bracs", "abmil", "paper_budget", gce_folds(0.6, 0.8))
    diagnose(full, "snr", snr_rows({"evidence_sufficiency": 0.7, "complement_degradation": 0.3}))
    run = folder.run("bracs", "abmil", "naive_selector", gce_folds(0.5))
    diagnose(
        run,
        "snr",
        snr_rows({"evidence_sufficiency": 0.4, "complement_degradation": 0.1}, cd_gap=0.05),
    )
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
        "cells are missing: a test needs the predictions of +GCE and of its host on the dataset, "
        "one over folds two folds or more" in text
    )


def test_random_anchors_are_not_the_control_of_random_patches(folder):
    rows = snr_rows({"evidence_sufficiency": 0.7, "complement_degradation": 0.3})
    control = [
        Row(
            {**row.labels, "rule": "random", "network": "wrapped"}, {"complement_degradation": 0.05}
        )
        for row in rows
    ]
    diagnose(folder.run("bracs", "abmil", "paper_budget", gce_folds(0.6)), "snr", [*rows, *control])
    lines = made_table(folder, "grounding").lines
    printed = [line.row_labels[0] for line in lines if line.origin == "paper"]
    assert printed.count("Random anchors") == 1
    assert not [name for name in printed if name.startswith("random patches")]
    assert [
        line
        for line in lines
        if line.row_labels[0].startswith("random patches") and line.origin == "ours"
    ]


def test_the_default_adds_as_many_parameters_as_the_capacity_table_says(folder):
    width, outputs = ablation.FULL_WIDTH, ablation.N_OUTPUTS
    host = build_host(HostSettings(), in_dim=width, n_outputs=outputs)
    bank = AnchorBank.prototypes(torch.randn(100, width), 8, seed=0)
    model = GceMil(host, bank, in_dim=width, settings=EvidenceSettings())
    own = sum(weight.numel() for weight in host.parameters())
    added = sum(weight.numel() for weight in model.parameters()) - own
    assert added == ablation.ADDED_PARAMETERS
    texts_of_hosts = [texts(made_table(folder, "capacity"), "Parameters of abmil")[1]]
    assert texts_of_hosts == [f"{own:,} + {added:,} ({100 * added / own:+.4f} %)"]


def test_ablations_start_from_a_recipe_that_corrects_no_row():
    """Nothing but the paper's own parts."""
    for name in ("reduced_ablation", "reduced_ablation_rows"):
        grid = Grid.load(GRIDS / f"{name}.yaml")
        for key in plan_runs(grid):
            if key.is_plain:
                continue
            settings = run_settings(grid, key)
            evidence = settings.evidence
            assert evidence.train_host
            assert evidence.morphology_term
            corrects = (
                evidence.head, evidence.attention_term, evidence.contribution_term, evidence.likeness_term,
                evidence.recovery.drop_free_riders,
            )  # fmt: skip
            assert not any(corrects)
            assert reading_temperature(settings) == 0.4
            if key.label.startswith("selector_"):
                assert evidence.recovery.repair, key.label


def test_every_row_of_the_ablation_tables_has_a_variant_in_a_grid():
    planned = {
        label
        for name in ("reduced", "reduced_ablation", "reduced_ablation_rows")
        for label in (key.label for key in plan_runs(Grid.load(GRIDS / f"{name}.yaml")))
    }
    wanted = {
        variant
        for variants in (
            ablation.COMPONENTS,
            ablation.SELECTORS,
            ablation.GROUNDINGS,
            ablation.BUDGETS,
        )
        for variant in variants.values()
    }
    # A budget of 1 is the whole bag.
    assert wanted - planned == {"budget_1.00"}
