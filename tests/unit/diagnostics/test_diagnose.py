"""Findings of a run: made once, and again only when something they depend on has changed."""

import shutil
from dataclasses import replace

from gcemil.diagnostics.diagnose import Comparison, finding_file, is_current, run_diagnostic
from run_builders import TrainedRuns


def test_a_finding_beside_a_plain_host_is_not_measured_again(classification_runs: TrainedRuns, tmp_path):
    run = shutil.copytree(classification_runs.gce, tmp_path / "run")
    comparison = Comparison(run, against=classification_runs.host)
    path = finding_file(run, "guarantee", 0)
    path.unlink(missing_ok=True)
    assert not is_current(path, comparison, 0)
    run_diagnostic("guarantee", run, 0, against=classification_runs.host)
    assert is_current(path, comparison, 0)
    assert not is_current(path, replace(comparison, against=None), 0)
    assert not is_current(path, replace(comparison, seed=comparison.seed + 1), 0)
