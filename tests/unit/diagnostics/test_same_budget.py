import pytest
import torch

from gcemil.config import EvidenceSettings
from gcemil.diagnostics.budget import same_budget_rows, truth_scores
from gcemil.evidence.anchors import AnchorBank
from gcemil.hosts.table import create_host
from gcemil.model import GceMil
from gcemil.simulation.simulate import simulate
from gcemil.tasks.task import ClassificationTask, stacked_targets
from gcemil.training.fold import reference_patches


def mask(text):
    return torch.tensor([char == "x" for char in text])


def test_precision_and_recall_are_means_over_bags_with_evidence():
    found = truth_scores(
        [mask("xx.."), mask("x..."), mask("...x")], [mask("x..x"), mask("xx.."), mask("....")]
    )
    assert found.precision == pytest.approx((0.5 + 1) / 2)
    assert found.recall == pytest.approx((0.5 + 0.5) / 2)


def test_without_truth_there_are_no_truth_scores():
    assert truth_scores([mask("x.")], [None]) is None
    assert truth_scores([mask("x.")], [mask("..")]) is None


def test_rules_have_the_same_size_and_the_oracle_is_best_on_truth(tmp_path):
    cohort = simulate("nsclc", tmp_path, size="tiny", slides=12)
    torch.manual_seed(0)
    dim = cohort.card.feature_dim
    reference = reference_patches(cohort, cohort.bags, seed=0)
    host = create_host("abmil", in_dim=dim, n_outputs=2).eval()
    model = GceMil(host, AnchorBank.prototypes(reference), in_dim=dim, settings=EvidenceSettings()).eval()
    model.calibrate(reference)
    rows = same_budget_rows(
        model,
        host,
        cohort,
        cohort.bags,
        stacked_targets(cohort.bags),
        ClassificationTask(cohort.card.classes),
    )
    assert [row.rule for row in rows] == ["random", "attention", "evidence", "oracle"]
    assert len({round(row.snr.evidence_fraction, 12) for row in rows}) == 1
    best = rows[-1].truth
    assert all(best.precision > row.truth.precision and best.recall > row.truth.recall for row in rows[:-1])
