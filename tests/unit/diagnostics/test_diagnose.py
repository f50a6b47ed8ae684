"""Findings of a run: made once, and again only when something they depend on has changed."""

import shutil
from dataclasses import replace

from gcemil.diagnostics.diagnose import Comparison, is_current, run_diagnostic
from gcemil.runs.folder import RunFolder
from run_builders import TrainedRuns


def test_a_finding_beside_a_plain_host_is_not_measured_again(classification_runs: TrainedRuns, tmp_path):
    run = shutil.copytree(classification_runs.gce, tmp_path / "run")
    comparison = Comparison(run, against=classification_runs.host)
    RunFolder(run).fold(0).finding("guarantee").unlink(missing_ok=True)
    assert not is_current(comparison, "guarantee", 0)
    run_diagnostic("guarantee", run, 0, against=classification_runs.host)
    assert is_current(comparison, "guarantee", 0)
    assert not is_current(replace(comparison, against=None), "guarantee", 0)
    assert not is_current(replace(comparison, seed=comparison.seed + 1), "guarantee", 0)
