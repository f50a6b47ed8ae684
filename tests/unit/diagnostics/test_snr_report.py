"""Rows by hand, a simulated cohort where truth decides, and folds on which figures do not exist."""

from pathlib import Path

import pytest
import torch

from builders import make_cohort
from builders.runs import TrainedRuns
from gcemil.config import EvidenceSettings, TrainSettings
from gcemil.diagnostics.measurements import Groups
from gcemil.diagnostics.snr import BagOutcome, RiskScale
from gcemil.diagnostics.snr_report import measure_snr, snr_rows
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.evidence.anchors import AnchorBank
from gcemil.hosts.table import create_host
from gcemil.model import GceMil
from gcemil.runs.folder import FoldParts
from gcemil.tasks.task import ClassificationTask, create_task

NORMAL, TUMOUR = torch.tensor([4.0, -4.0]), torch.tensor([-4.0, 4.0])
TASK = ClassificationTask(("normal", "tumour"))


def trial(target, full, kept, removed, gated, **record):
    outcome = BagOutcome(full, kept, removed, gated, 0.1)
    known = {"network": "wrapped", "rule": "evidence", "evidence_fraction": 0.1, **record}
    return torch.tensor(target), outcome, known


def rows_of(bags, task):
    groups = Groups()
    for bag in bags:
        groups.add({"rule": "evidence", "network": "wrapped"}, *bag)
    return list(snr_rows(groups, task, None))


def row_of(found, **labels):
    (row,) = [row for row in found if labels.items() <= row.labels.items()]
    return row


def test_rows_of_two_bags_by_hand():
    bags = [
        trial(0, NORMAL, NORMAL, NORMAL, NORMAL, cd_gap=0.25, full_kept_gap=0.0, necessary=False),
        trial(1, TUMOUR, TUMOUR, NORMAL, NORMAL, cd_gap=0.75, full_kept_gap=0.5, necessary=True),
    ]
    found = rows_of(bags, TASK)
    assert [(row.labels["class"], row.labels["comparison"]) for row in found] == [
        (name, comparison)
        for name in ("all", "normal", "tumour")
        for comparison in ("full-kept", "soft-kept")
    ]
    values = row_of(found, **{"class": "all", "comparison": "full-kept"}).values
    assert (
        values["task_metric"],
        values["evidence_sufficiency"],
        values["keep_only_drop"],
    ) == pytest.approx((1, 1, 0), abs=1e-6)
    # Without the evidence both bags look normal: F1 of normal 2/3, of tumour 0.
    assert values["complement_degradation"] == pytest.approx(2 / 3)
    assert (values["full_kept_gap"], values["necessary_share"]) == pytest.approx((0.25, 0.5))
    soft = row_of(found, **{"class": "all", "comparison": "soft-kept"}).values
    assert (soft["cd_gap"], soft["evidence_sufficiency"]) == pytest.approx((0.5, 1))
    assert soft["soft_metric"] == pytest.approx(1 / 3)
    assert soft["cd_metric_gap"] == pytest.approx(2 / 3)


def test_whole_bags_of_one_class_have_no_complement_and_still_a_macro_f1():
    bags = [trial(0, NORMAL, NORMAL, None, NORMAL), trial(0, TUMOUR, NORMAL, None, NORMAL)]
    values = row_of(rows_of(bags, TASK), **{"class": "all", "comparison": "full-kept"}).values
    # One of two normal bags right: F1 of normal 2/3, of tumour, predicted in vain, 0.
    assert values["task_metric"] == pytest.approx(1 / 3)
    assert values["keep_only_drop"] == pytest.approx(1 / 3 - 1)
    assert values["complement_degradation"] is None


@pytest.fixture(scope="module")
def found(classification_runs: TrainedRuns):
    return measure_snr(
        TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host)
    )


def test_slides_are_listed_with_their_verdicts(found, classification_runs: TrainedRuns):
    evidence = [slide for slide in found.slides if slide["rule"] == "evidence"]
    fold = TrainedFold.open(classification_runs.gce, 0)
    assert [slide["bag_id"] for slide in evidence] == [spec.bag_id for spec in fold.parts.test]
    for slide in evidence:
        assert slide["sufficient"] == (abs(slide["phi_full"] - slide["phi_kept"]) <= 0.05)
        assert slide["necessary"] == (abs(slide["phi_full"] - slide["phi_removed"]) >= 0.05)
        assert slide["recoverable"] == (abs(slide["phi_soft"] - slide["phi_kept"]) <= 0.01)
        assert slide["evidence_fraction"] == pytest.approx(slide["n_selected"] / slide["n_patches"])
        assert slide["stop_reason"] in {"covered", "capped", "no_gain", "exhausted", "gates"}
        assert slide["margin_bound"] >= 0
        assert slide["coverage_bound"] >= 0


def test_tolerances_decide_the_shares_and_are_stated(classification_runs: TrainedRuns):
    fold = TrainedFold.open(classification_runs.gce, 0)
    lenient = measure_snr(
        fold, sufficiency_tolerance=1.0, necessity_tolerance=0.0, recoverability_tolerance=1.0
    )
    full = row_of(lenient.rows, rule="evidence", comparison="full-kept", **{"class": "all"}).values
    soft = row_of(lenient.rows, rule="evidence", comparison="soft-kept", **{"class": "all"}).values
    assert (
        full["sufficient_share"],
        full["necessary_share"],
        soft["recoverable_share"],
    ) == pytest.approx((1, 1, 1))
    assert lenient.settings["sufficiency_tolerance"] == 1.0
    assert "plain" not in {row.labels["network"] for row in lenient.rows}


def test_survival_has_no_classes_and_no_signed_effects(survival_runs: TrainedRuns):
    fold = TrainedFold.open(survival_runs.gce, 0)
    found = measure_snr(fold)
    assert {row.labels["class"] for row in found.rows} == {"all"}
    # A signed difference of risks has no better side.
    assert {
        row.values["removal_effect"] for row in found.rows if "removal_effect" in row.values
    } == {None}
    assert all(slide["event"] in (0, 1) for slide in found.slides)


def untrained(folder: Path, *, task="classification", n_patches=1, **settings) -> TrainedFold:
    """Prototype anchors over an untrained host, on a cohort without truth."""
    cohort = make_cohort(folder, task=task, n_cases=6, n_patches=n_patches)
    torch.manual_seed(0)
    host = create_host("abmil", in_dim=8, n_outputs=cohort.n_outputs).eval()
    reference = torch.randn(64, 8)
    evidence = EvidenceSettings(**settings)
    model = GceMil(host, AnchorBank.prototypes(reference), in_dim=8, settings=evidence).eval()
    model.calibrate(reference)
    train = TrainSettings(evidence=evidence)
    parts = FoldParts((), cohort.bags[:2], cohort.bags[2:])
    scale = RiskScale()
    return TrainedFold(
        run=folder,
        fold=0,
        cohort=cohort,
        task=create_task(cohort, train),
        settings=train,
        parts=parts,
        host=host,
        model=model,
        plain=None,
        scale=scale,
        plain_scale=scale,
    )


def test_gates_that_open_nothing_are_counted(tmp_path):
    fold = untrained(
        tmp_path, n_patches=40, centre="zero", recovery={"threshold": 1.0, "repair": False}
    )
    found = measure_snr(fold)
    values = row_of(found.rows, rule="evidence", comparison="full-kept", **{"class": "all"}).values
    # The patch of highest gate stands in for the empty subset.
    assert (values["empty_share"], values["evidence_fraction"]) == pytest.approx((1, 1 / 40))


def test_gates_that_open_everything_have_run_away(tmp_path):
    fold = untrained(
        tmp_path,
        n_patches=40,
        recovery={"threshold": 0.0, "max_fraction": 1.0, "drop_free_riders": False},
    )
    values = row_of(
        measure_snr(fold).rows, rule="evidence", comparison="full-kept", **{"class": "all"}
    ).values
    assert (values["runaway_share"], values["evidence_fraction"]) == pytest.approx((1, 1))
