"""Findings of a run: made once, and again only when something they depend on has changed."""

import shutil
from dataclasses import replace

from builders.runs import TrainedRuns
from gcemil.diagnostics import trained_fold
from gcemil.diagnostics.diagnose import Comparison, diagnose_run, is_current, measure_fold
from gcemil.diagnostics.table import DIAGNOSTICS
from gcemil.runs.folder import Run


def test_a_finding_beside_a_plain_host_is_not_measured_again(
    classification_runs: TrainedRuns, tmp_path
):
    run = shutil.copytree(classification_runs.gce, tmp_path / "run")
    comparison = Comparison(run, against=classification_runs.host)
    Run(run).fold(0).finding("guarantee").unlink(missing_ok=True)
    assert not is_current(comparison, "guarantee", 0)
    measure_fold(comparison, 0, ["guarantee"])
    assert is_current(comparison, "guarantee", 0)
    assert not is_current(replace(comparison, against=None), "guarantee", 0)
    assert not is_current(replace(comparison, seed=comparison.seed + 1), "guarantee", 0)


def test_every_slide_is_read_and_explained_once_by_all_diagnostics(
    classification_runs: TrainedRuns, tmp_path, monkeypatch
):
    run = shutil.copytree(classification_runs.gce, tmp_path / "run")
    explained, explain = [], trained_fold.explain_bag

    def count(model, bag, question):
        explained.append(bag.bag_id)
        return explain(model, bag, question)

    monkeypatch.setattr(trained_fold, "explain_bag", count)
    # Stability perturbs bags and sanity empties them, which makes other bags; these are explained
    # too.
    names = [name for name in DIAGNOSTICS if name not in ("stability", "sanity")]
    diagnose_run(Comparison(run), names=names, jobs=1, again=True)
    fold = trained_fold.TrainedFold.open(run, 0)
    assert sorted(explained) == sorted(
        one.bag_id for one in (*fold.specs("val"), *fold.specs("test"))
    )
