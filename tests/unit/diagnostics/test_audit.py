"""A model that predicts 'tumour' from any patch above 0, on slides of twenty patches."""

import numpy as np
import pytest
import torch

from builders import grid_coords
from gcemil.bags import store
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow
from gcemil.diagnostics.audit import OWN_SCORES, ScoreSource, audit_model
from gcemil.diagnostics.audit_inputs import BlackBox
from gcemil.diagnostics.truth import TRUTH_FIGURES
from gcemil.errors import BagError, UsageError
from gcemil.tasks.task import ClassificationTask, SurvivalTask, stacked_targets

TASK = ClassificationTask(("normal", "tumour"))
NORMAL, TUMOUR = torch.tensor([4.0, -4.0]), torch.tensor([-4.0, 4.0])
LESION = 3


def any_positive(features, _coords):
    return TUMOUR if bool((features > 0).any()) else NORMAL, features[:, 0]


def slides(folder, *, n_patches=20, labels=("normal", "tumour") * 2, truth=True):
    """Patch 3 of every tumour slide is the lesion."""
    rows = []
    for number, label in enumerate(labels):
        slide_id = f"s{number}"
        lesion = np.zeros(n_patches, dtype=np.uint8)
        lesion[min(LESION, n_patches - 1)] = label == "tumour"
        features = np.where(lesion[:, None] > 0, 1.0, -1.0).astype(np.float32)
        store.write(
            folder / "features" / f"{slide_id}.h5",
            {"features": features, "coords": grid_coords(n_patches)},
        )
        if truth:
            store.write(folder / "truth" / f"{slide_id}.h5", {"evidence": lesion, "region": lesion})
        rows.append(SlideRow(slide_id, slide_id, label=label))
    card = CohortCard(name="toy", task="classification", classes=TASK.classes, feature_dim=1)
    return Cohort(folder, card, tuple(rows))


def audit(cohort, model=any_positive, sources=None, **options):
    host = BlackBox(model, "toy", in_dim=1, n_outputs=2).host()
    return audit_model(
        host,
        cohort,
        cohort.bags,
        stacked_targets(cohort.bags),
        TASK,
        score_sources=sources or {"model": OWN_SCORES},
        **options,
    )


def row(finding, rule, comparison="full-kept"):
    labels = {"rule": rule, "comparison": comparison}
    return next(row.values for row in finding.rows if row.labels == labels)


def fixed(values, **options):
    return ScoreSource(lambda bag, _full: torch.tensor(values), follows_bag=False, **options)


@pytest.mark.parametrize("rule", ["model", "oracle"])
def test_the_one_tumour_patch_is_sufficient_and_necessary(tmp_path, rule):
    found = row(audit(slides(tmp_path)), rule)
    assert found["evidence_sufficiency"] == pytest.approx(1)
    assert found["keep_only_drop"] == pytest.approx(0, abs=1e-6)
    # Without it all four slides look normal: F1 of normal 2/3, of tumour 0.
    assert found["complement_degradation"] == pytest.approx(1 - 1 / 3)
    assert found["full_kept_gap"] == pytest.approx(0, abs=1e-6)
    assert found["sufficient_share"] == pytest.approx(1)
    assert found["necessary_share"] == pytest.approx(0.5)
    assert found["evidence_fraction"] == pytest.approx(0.05)
    assert [found[name] for name in TRUTH_FIGURES] == pytest.approx([1, 1, 1, 1])


def test_curves_fall_at_once_where_the_lesion_is_first_and_never_where_it_is_last(tmp_path):
    cohort = slides(tmp_path)
    lesion = [0.0] * 20
    lesion[LESION] = 1.0
    last = fixed([1.0 - value for value in lesion])
    finding = audit(cohort, sources={"first": fixed(lesion), "last": last})
    sure, never = torch.tensor(8.0).sigmoid().item(), torch.tensor(-8.0).sigmoid().item()
    # On tumour slides all is in the lesion; on normal slides every patch says normal.
    expected = {"aukc": 1, "removal_area": (sure - never) / 2, "msk": 0.01}
    assert row(finding, "first", "curves") == pytest.approx(expected, abs=1e-6)
    expected = {"aukc": (1 + never / sure) / 2, "removal_area": 0, "msk": (1 + 0.01) / 2}
    assert row(finding, "last", "curves") == pytest.approx(expected, abs=1e-6)
    assert finding.slides[1]["keep_curve"] == pytest.approx([1] * 5)


def test_scores_that_point_at_background_are_found_out(tmp_path):
    background = fixed([1.0] + [0.0] * 19)
    finding = audit(slides(tmp_path), sources={"background": background})
    found = row(finding, "background")
    assert found["keep_only_drop"] == pytest.approx(1 - 1 / 3)
    assert found["complement_degradation"] == pytest.approx(0, abs=1e-6)
    assert found["precision"] == pytest.approx(0)
    assert "background: Macro-F1 from its patches alone 0.333" in " ".join(finding.notes)
    assert not any(
        row.labels["comparison"].startswith("noise") and row.labels["rule"] == "background"
        for row in finding.rows
    )
    assert any("cannot follow a changed bag" in note for note in finding.notes)


def test_a_model_at_chance_is_said_to_be_one(tmp_path):
    finding = audit(slides(tmp_path), model=lambda features, _: (NORMAL, features[:, 0]))
    assert any("no better than chance (AUC 0.500)" in note for note in finding.notes)


def test_evidence_that_noise_does_not_touch_is_stable(tmp_path):
    found = row(audit(slides(tmp_path)), "model", "noise 0.1")
    assert found == pytest.approx({"jaccard": 1, "prediction_flip": 0, "output_gap": 0}, abs=1e-6)


def test_dropping_the_lesion_flips_the_prediction(tmp_path):
    # Nine of ten patches are gone, so the lesion is mostly gone too.
    found = row(audit(slides(tmp_path), dropout=0.9, repeats=4), "oracle", "dropout 0.9")
    assert 0 < found["prediction_flip"] <= 0.5
    assert found["output_gap"] == pytest.approx(
        found["prediction_flip"]
        * (torch.tensor(8.0).sigmoid() - torch.tensor(-8.0).sigmoid()).item()
    )


def test_gates_that_delete_are_recoverable_and_half_open_ones_are_not(tmp_path):
    cohort = slides(tmp_path)
    sharp = ScoreSource(
        lambda bag, _: torch.from_numpy((bag.features[:, 0] > 0).astype(float)).clamp(0.01),
        follows_bag=False,
        are_gates=True,
    )
    half = fixed([0.5] * 20, are_gates=True)
    finding = audit(cohort, sources={"sharp": sharp, "half": half})
    # Half of a lesion is still one, while the subset of equal gates is patch 0: background.
    gap = (torch.tensor(8.0).sigmoid() - torch.tensor(-8.0).sigmoid()).item()
    assert row(finding, "half", "soft-kept") == pytest.approx(
        {"cd_gap": gap / 2, "recoverable_share": 0.5}
    )
    assert row(finding, "sharp", "soft-kept") == pytest.approx(
        {"cd_gap": 0, "recoverable_share": 1}, abs=1e-6
    )
    for one in finding.rows:
        assert not {"cd_gap", "full_kept_gap"} <= set(one.values)


def test_gates_out_of_range_are_named(tmp_path):
    with pytest.raises(
        BagError, match=r"Bag 's0': Gates lie in \[0, 1\], but patch 2 has gate 1.5"
    ):
        audit(slides(tmp_path), sources={"g": fixed([0.0, 0.0, 1.5] + [0.0] * 17, are_gates=True)})


def test_without_truth_for_every_bag_there_is_no_oracle(tmp_path):
    cohort = slides(tmp_path)
    cohort.truth_file("s1").unlink()
    finding = audit(cohort)
    assert {one.labels["rule"] for one in finding.rows} == {"whole bag", "model", "random"}
    assert "No oracle: 3 of 4 bags have their true evidence in truth/." in finding.notes


def test_nothing_to_audit_is_an_error(tmp_path):
    cohort = slides(tmp_path)
    host = BlackBox(any_positive, "toy", in_dim=1, n_outputs=2).host()
    targets = stacked_targets(cohort.bags)
    with pytest.raises(UsageError, match="no scores to audit"):
        audit_model(host, cohort, cohort.bags, targets, TASK, score_sources={})
    with pytest.raises(UsageError, match="no bag to audit"):
        audit_model(host, cohort, [], targets, TASK, score_sources={"model": OWN_SCORES})
    with pytest.raises(UsageError, match="'oracle' is the name of a control"):
        audit(cohort, sources={"oracle": OWN_SCORES})
    with pytest.raises(
        UsageError, match=r"Bag 's0': A fraction of the bag lies in \(0, 1\], got 0"
    ):
        audit(cohort, budget=0.0)


def survival_audit(folder, model, events=(1, 1, 0)):
    rows = []
    for number, event in enumerate(events):
        features = np.full((10, 1), 2.0 * number + 1, dtype=np.float32)
        features[0] = 0.0
        store.write(
            folder / "features" / f"s{number}.h5", {"features": features, "coords": grid_coords(10)}
        )
        rows.append(SlideRow(f"s{number}", f"s{number}", time=9.0 - number, event=event))
    cohort = Cohort(folder, CohortCard(name="toy", task="survival", feature_dim=1), tuple(rows))
    host = BlackBox(model, "toy", in_dim=1, n_outputs=1).host()
    return audit_model(
        host,
        cohort,
        cohort.bags,
        stacked_targets(cohort.bags),
        SurvivalTask(),
        score_sources={"model": OWN_SCORES},
    )


def highest(features, _coords):
    return features.max(dim=0).values, features[:, 0]


def test_risks_are_in_units_of_the_audited_bags(tmp_path):
    # Risks 1, 3 and 5: mean 3, deviation sqrt(8/3). Any patch but the first alone gives the risk of
    # the bag.
    finding = survival_audit(tmp_path, highest, events=(1, 1, 1))
    assert row(finding, "whole bag", "whole bag") == pytest.approx({"c_index": 1})
    assert row(finding, "model")["full_kept_gap"] == pytest.approx(0, abs=1e-6)
    assert row(finding, "model")["removal_gap"] == pytest.approx(0, abs=1e-6)
    assert any("(mean 3, deviation 1.63)" in note for note in finding.notes)
    moved = survival_audit(
        tmp_path, lambda features, _: (features.mean(dim=0), features[:, 0]), events=(1, 1, 1)
    )
    # The mean is 0.9 of the value; the best patch alone says the value: |0.1 (1, 3, 5)| over 0.9
    # sqrt(8/3).
    assert row(moved, "model")["full_kept_gap"] == pytest.approx(
        0.3 / (0.9 * (8 / 3) ** 0.5), rel=1e-5
    )


def test_a_risk_that_is_the_same_for_everyone_has_no_unit(tmp_path):
    with pytest.raises(UsageError, match="predicts 2 for all 3 bags"):
        survival_audit(tmp_path, lambda features, _: (torch.tensor([2.0]), features[:, 0]))
