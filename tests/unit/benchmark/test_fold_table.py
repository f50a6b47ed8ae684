"""The table of one run over its folds: mean, deviation and interval by mode."""

import json

import pytest

from builders.commands import gcemil, refused, succeeded
from gcemil.errors import RunError


@pytest.fixture
def run(tmp_path):
    """Three folds of a wrapped run, as metrics alone."""
    for fold, value in enumerate((0.7, 0.8, 0.9)):
        folder = tmp_path / "run" / f"fold_{fold}"
        folder.mkdir(parents=True)
        figures = {"accuracy": value, "macro_f1": value, "auc": value}
        (folder / "metrics.json").write_text(
            json.dumps({"full": figures, "gce": figures, "details": {}})
        )
    (tmp_path / "run" / "config.yaml").write_text("cohort: nowhere\nsettings: {}\n")
    return tmp_path / "run"


def test_a_run_has_a_table_over_its_folds_in_every_format(run):
    said = succeeded("tables", run)
    # Student's t of two degrees of freedom is 4.303; the deviation is .1.
    assert "0.800 ± 0.100 [0.552, 1.048]" in said
    assert "gce: host and evidence" in said
    assert "3 folds" in said
    latex = succeeded("tables", run, "--format", "latex", "--metric", "auc")
    assert r"0.800 $\pm$ 0.100 [0.552, 1.048]" in latex
    assert r"\toprule" in latex
    assert "Macro" not in latex
    lines = succeeded("tables", run, "--format", "csv").splitlines()
    assert sum(line.startswith('folds,"full') for line in lines) == 3


def test_one_fold_has_a_mean_alone(run):
    for fold in (1, 2):
        (run / f"fold_{fold}" / "metrics.json").unlink()
    said = succeeded("tables", run)
    assert "0.700 |" in said
    assert "±" not in said
    assert "One fold: no deviation" in said


def test_a_metric_that_a_run_has_not_and_a_run_without_folds_are_refused(run):
    assert "has no metric 'f1'. Choose one of: accuracy, macro_f1, auc" in refused(
        "tables", run, "--metric", "f1"
    )
    (run / "fold_0" / "metrics.json").unlink()
    for fold in (1, 2):
        (run / f"fold_{fold}" / "metrics.json").unlink()
    assert "has no finished fold" in str(gcemil("tables", run).exception)
    assert isinstance(gcemil("tables", run).exception, RunError)
