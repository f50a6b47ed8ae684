"""What all diagnostics keep to, measured in one pass over a few bags of a trained fold."""

from itertools import count

import pytest

from builders.folds import few_bags, fold_of, one_patch_fold
from builders.runs import TrainedRuns
from gcemil.diagnostics.diagnose import load_measure
from gcemil.diagnostics.table import DIAGNOSTICS
from gcemil.diagnostics.trained_fold import TrainedFold, run_passes
from gcemil.findings import join_folds, read_finding, write_finding
from gcemil.metrics import METRICS

FEW = ("attention", "occlusion")
OPTIONS = {
    "budget": {"budgets": (0.05, "recovered"), "attributions": FEW},
    "posthoc": {"attributions": FEW},
    "subsets": {"sizes": (4,)},
    "stability": {"repeats": 1},
    "cost": {"repeats": 1, "timed_bags": 1},
    "guarantee": {"alpha": 0.5},
    "sweep": {"thresholds": (0.3, 0.7), "coverage_targets": (None, 0.95)},
    "sanity": {"steps": 20, "bags": 8},
}
WITH_TRUTH = ("snr", "budget", "posthoc", "adaptive", "subsets", "sweep")
WITH_METRIC = ("snr", "budget", "posthoc", "adaptive", "sweep")


def measure(fold, names=tuple(DIAGNOSTICS)):
    # A clock that ticks whenever it is read, so that measuring twice gives the same.
    options = {name: dict(OPTIONS.get(name, {})) for name in names}
    for name in {"posthoc", "cost"} & set(names):
        options[name]["clock"] = count().__next__
    return run_passes(
        fold, {name: load_measure(name).steps(fold, **options[name]) for name in names}
    )


@pytest.fixture(scope="module", params=["classification_runs", "survival_runs"])
def findings(request):
    runs: TrainedRuns = request.getfixturevalue(request.param)
    return measure(few_bags(TrainedFold.open(runs.gce, 0, against=runs.host), 4))


def test_every_figure_is_declared_and_the_file_keeps_it(findings, tmp_path):
    for finding in findings.values():
        assert finding.rows
        assert {name for row in finding.rows for name in row.values} <= set(METRICS)
        assert read_finding(write_finding(tmp_path, finding)).rows == finding.rows
        assert join_folds([finding, finding]).rows[0].values == finding.rows[0].values


def test_the_gap_of_gates_and_the_gap_to_the_whole_bag_never_share_a_row(findings):
    for finding in findings.values():
        for row in finding.rows:
            assert None in (row.values.get("cd_gap"), row.values.get("full_kept_gap"))


@pytest.mark.parametrize("name", WITH_TRUTH)
def test_rules_are_compared_at_one_size_and_the_oracle_is_best_on_truth(findings, name):
    groups = {}
    for row in findings[name].rows:
        if row.labels.get("class", "all") == "all" and row.labels.get("comparison") != "soft-kept":
            labels = dict(row.labels)
            groups.setdefault(labels.pop("rule") and tuple(labels.values()), {})[
                row.labels["rule"]
            ] = row.values
    for rules in groups.values():
        oracle, chance = rules["oracle"], rules["random"]
        for metric in {"precision", "recall", "average_precision", "region_coverage"} & set(oracle):
            assert all(oracle[metric] >= values[metric] - 1e-12 for values in rules.values()), (
                metric
            )
        assert oracle["precision"] > chance["precision"]
        if name != "subsets":
            assert len({round(values["evidence_fraction"], 9) for values in rules.values()}) == 1


def test_the_same_fold_gives_the_same_findings(classification_runs: TrainedRuns):
    fold = few_bags(TrainedFold.open(classification_runs.gce, 0), 2)
    names = [name for name in DIAGNOSTICS if name not in ("cost", "bounds", "regions")]
    one, other = measure(fold, names), measure(fold, names)
    assert one == other


@pytest.mark.parametrize("kind", ["classification_runs", "survival_runs"])
def test_bags_of_one_patch_are_their_own_evidence(kind, request, tmp_path):
    runs: TrainedRuns = request.getfixturevalue(kind)
    fold = one_patch_fold(TrainedFold.open(runs.gce, 0), tmp_path / "cohort")
    # A case of several slides keeps a patch of each.
    fold = few_bags(fold_of(fold, lambda spec: len(spec.slide_ids) == 1))
    for name, finding in measure(
        fold, [name for name in DIAGNOSTICS if name != "localisation"]
    ).items():
        for row in finding.rows:
            assert row.values.get("evidence_fraction", 1.0) == 1.0, name
            assert row.values.get("jaccard", 1.0) == pytest.approx(1.0), name
            assert row.values.get("complement_degradation") is None, name
            for gap in ("full_kept_gap", "keep_only_drop", "prediction_flip"):
                assert row.values.get(gap) in (None, pytest.approx(0, abs=1e-6)), (name, gap)


def test_without_an_event_there_is_no_task_metric_and_a_note_says_so(survival_runs: TrainedRuns):
    fold = fold_of(TrainedFold.open(survival_runs.gce, 0), lambda spec: spec.target[1] == 0)
    for name, finding in measure(few_bags(fold), WITH_METRIC).items():
        assert all(row.values.get("keep_only_drop") is None for row in finding.rows), name
        assert any(note.startswith("No task metric on these bags:") for note in finding.notes), name


def test_bags_of_one_class_are_measured(classification_runs: TrainedRuns):
    fold = fold_of(TrainedFold.open(classification_runs.gce, 0), lambda spec: spec.target == 0)
    for name, finding in measure(few_bags(fold), (*WITH_METRIC, "guarantee", "subsets")).items():
        assert finding.rows, name


def test_a_run_without_a_wrapper_has_rivals_only(classification_runs: TrainedRuns):
    fold = few_bags(TrainedFold.open(classification_runs.host, 0))
    names = [name for name in DIAGNOSTICS if name != "budget"]
    for name, finding in measure(fold, names).items():
        rules = {row.labels.get("rule") for row in finding.rows}
        assert not rules & {"evidence", "gce_soft", "gce_discrete", "soft_thresholded"}, name
        assert bool(finding.rows) == (name not in ("bounds", "sweep")), name
