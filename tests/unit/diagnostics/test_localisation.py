"""Localisation on toys known by hand, on a simulated cohort, and on trained folds."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from builders.runs import TrainedRuns
from gcemil.bags import store
from gcemil.bags.bag import slide_bag
from gcemil.diagnostics import trained_fold
from gcemil.diagnostics.lesions import (
    NOT_FOUND,
    SlideDetections,
    best_threshold,
    dice,
    froc_curve,
    interpolated_sensitivity,
    reached_sensitivity,
)
from gcemil.diagnostics.localisation import (
    MappedSlide,
    SlideTruth,
    lesion_exclusions,
    localisation_notes,
    localisation_rows,
    measure_localisation,
    slide_truth,
)
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.errors import StoreError
from gcemil.explanation import explain_bag
from gcemil.findings import join_folds, read_finding, write_finding

PAPER = (0.01, None)
"""Least overlap of a positive patch, micrometres per pixel."""


def slide(name, scores, truth):
    """One row of patches; x in `truth` is a positive patch."""
    positive = np.array([char == "x" for char in truth])
    lesion = np.where(positive, np.cumsum(np.diff(positive.astype(int), prepend=0) == 1), 0)
    cells = np.stack([np.arange(len(truth)), np.zeros(len(truth), dtype=np.int64)], axis=1)
    known = SlideTruth(
        name, cells, positive, lesion, np.zeros(int(lesion.max()), dtype=bool), False
    )
    return MappedSlide(known, {("toy", "none"): np.array(scores, dtype=np.float64)})


def figures(finding, rule, network="none"):
    return next(
        row.values for row in finding.rows if row.labels == {"rule": rule, "network": network}
    )


def test_the_threshold_is_the_score_of_best_mean_dice():
    # At 0.8: Dice 2/3 and 1; at 0.6: 1/2 ... the second slide loses what the first does not gain.
    first = (np.array([0.9, 0.8, 0.6, 0.1]), np.array([True, True, False, False]))
    second = (np.array([0.85, 0.7, 0.2, 0.1]), np.array([True, False, False, False]))
    assert best_threshold([first, second]) == 0.8


def test_the_threshold_equals_an_exhaustive_search():
    generator = np.random.default_rng(0)
    for _ in range(20):
        slides = [
            (generator.integers(0, 12, size=n) / 4, generator.random(n) < 0.3) for n in (7, 15, 4)
        ]
        with_truth = [one for one in slides if one[1].any()]
        scores = sorted({score for one in with_truth for score in one[0].tolist()}, reverse=True)
        mean = [np.mean([dice(one[0] >= t, one[1]) for one in with_truth]) for t in scores]
        assert best_threshold(slides) == scores[int(np.argmax(np.round(mean, 9)))]


def test_a_curve_known_by_hand_is_read_in_steps_and_by_lines():
    slides = [
        SlideDetections(np.array([0.9, 0.4]), np.array([0.6])),
        SlideDetections(np.array([NOT_FOUND]), np.array([0.6, 0.3])),
    ]
    curve = froc_curve(slides)
    assert curve[0].tolist() == pytest.approx([0, 0, 1, 1, 1.5])
    assert curve[1] == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert reached_sensitivity(curve) == pytest.approx(
        [1 / 3, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 2 / 3, 2 / 3]
    )
    half_way = froc_curve([SlideDetections(np.array([0.9, 0.1]), np.array([0.5, 0.1]))])
    # From (1, 1/2) to (2, 1).
    assert interpolated_sensitivity(half_way, [1.5]) == pytest.approx([0.75])
    assert reached_sensitivity(half_way, [1.5]) == pytest.approx([0.5])


def test_rows_of_a_toy_are_those_computed_by_hand():
    val = [slide("v", [0.9, 0.1, 0.1], "x..")]
    test = [
        slide("tumour", [0.95, 0.2, 0.2, 0.2, 0.99], "x.xx."),
        slide("normal", [0.9, 0.1, 0.1, 0.1], "...."),
    ]
    rows, details = localisation_rows(val, test)
    assert rows[0].labels == {"rule": "toy", "network": "none"}
    assert rows[0].values == pytest.approx(
        {
            # One of two marked patches is right, one of three positive ones is found.
            "dice": 2 / 5,
            "normal_specificity": 3 / 4,
            "patch_specificity": 4 / 6,
            "marked_share": (2 / 5 + 1 / 4) / 2,
            # 0.99 is wrong (1/2 per slide), 0.95 finds the first of two lesions.
            "froc": 5 * 0.5 / 7,
            "froc_official": 5 * 0.5 / 6,
            "map_threshold": 0.9,
        }
    )
    points = [row for row in rows if "froc" in row.labels]
    assert [row.labels["false_positives"] for row in points[:7]] == [
        "1/8",
        "1/4",
        "1/2",
        "1",
        "2",
        "4",
        "8",
    ]
    assert [row.values["lesion_sensitivity"] for row in points[:7]] == pytest.approx(
        [0, 0, 0.5, 0.5, 0.5, 0.5, 0.5]
    )
    assert len(points) == 7 + 6
    assert details[0]["lesions"] == 2
    assert details[0]["lesions_hit"] == 1
    assert details[1]["false_candidates"] == 1


def test_a_map_that_marks_everything_is_unmasked_by_the_point():
    everything = [slide("a", [0.5, 0.9, 0.5, 0.5, 0.5], "x..xx")]
    row = localisation_rows(everything, everything)[0][0].values
    # The best Dice marks all five patches: one candidate over both lesions, with its peak beside
    # them.
    assert row["marked_share"] == pytest.approx(1)
    assert row["froc"] == pytest.approx(1)
    assert row["froc_official"] == pytest.approx(0)


def test_one_patch_no_lesion_and_the_whole_slide_are_no_exception():
    one = [slide("one", [0.5], "x")]
    row = localisation_rows(one, one)[0][0].values
    assert (row["dice"], row["froc"], row["froc_official"]) == pytest.approx((1, 1, 1))
    assert row["patch_specificity"] is None
    normal = [slide("n", [0.5, 0.4], "..")]
    row = localisation_rows(one, normal)[0][0].values
    assert (row["dice"], row["froc"], row["froc_official"]) == (None, None, None)
    assert row["normal_specificity"] == pytest.approx(0.5)
    row = localisation_rows(normal, one)[0][0].values
    assert set(row.values()) == {None}
    assert localisation_rows(one, []) == ((), ())


def test_exclusions_and_missing_figures_are_told_by_name():
    lines = localisation_notes([], [slide("t", [0.5], "x")], {"a": "no truth", "b": "no truth"})
    assert lines[0] == "Excluded (no truth): a, b."
    assert "No validation slide has a lesion" in lines[1]
    assert "normal_specificity does not exist" in lines[2]
    assert "isolated tumour cells count" in lines[3]
    assert localisation_notes([], [], {"a": "no coordinates"})[-1].startswith(
        "No test slide has truth"
    )


def test_truth_is_read_by_the_one_percent_rule(tmp_path):
    path = tmp_path / "s.h5"
    overlap = np.array([0.01, 0.009, 1.0, 0.0], dtype=np.float32)
    coords = np.array([[0, 0], [512, 0], [1024, 0], [1536, 0]])
    bag = slide_bag("s", np.zeros((4, 1), dtype=np.float32), coords, 512)
    store.write(path, {"evidence": (overlap > 0.5).astype(np.uint8), "overlap": overlap})
    found = slide_truth(path, bag, "s", *PAPER)
    assert found.positive.tolist() == [True, False, True, False]
    assert found.lesion.tolist() == [1, 0, 2, 0]
    assert not found.isolated.any()
    # A whole patch of 128 micrometres has a major axis of 148, below the 275 of isolated tumour
    # cells.
    assert slide_truth(path, bag, "s", 0.01, 0.25).isolated.tolist() == [True, True]
    store.write(path, {"overlap": overlap}, {"microns_per_pixel": 1.0})
    assert slide_truth(path, bag, "s", 0.01, 0.25).isolated.tolist() == [True, False]
    store.write(path, {"evidence": np.array([0, 0, 1, 0], dtype=np.uint8)})
    assert slide_truth(path, bag, "s", *PAPER).positive.tolist() == [False, False, True, False]


def test_slides_without_truth_or_coordinates_are_excluded_and_wrong_sizes_refused(tmp_path):
    bag = slide_bag("s", np.zeros((4, 1), dtype=np.float32), None)
    assert slide_truth(tmp_path / "s.h5", bag, "s", *PAPER) == "no truth"
    store.write(tmp_path / "s.h5", {"overlap": np.zeros(3, dtype=np.float32)})
    assert slide_truth(tmp_path / "s.h5", bag, "s", *PAPER) == "no coordinates"
    with_coords = replace(bag, coords=np.zeros((4, 2), dtype=np.int64))
    with pytest.raises(StoreError, match=r"has shape \(3,\) for 4 patches"):
        slide_truth(tmp_path / "s.h5", with_coords, "s", *PAPER)


def test_a_recipe_keeps_slides_out_of_lesion_metrics():
    listed = [
        {"slide": "test_114", "reason": "not exhaustively annotated", "scope": "lesion_metrics"},
        {"slide": "test_049", "reason": "duplicate", "scope": "cohort"},
    ]
    assert lesion_exclusions({"exclusions": listed}) == {"test_114": "not exhaustively annotated"}
    assert lesion_exclusions({}) == {}


def test_a_trained_fold_has_every_map_and_its_controls(classification_runs: TrainedRuns, tmp_path):
    fold = TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host)
    finding = measure_localisation(fold)
    rules = [
        (row.labels["rule"], row.labels["network"]) for row in finding.rows if len(row.labels) == 2
    ]
    assert rules == [
        ("attention", "plain"), ("attention", "wrapped"), ("evidence scores", "wrapped"),
        ("gates", "wrapped"), ("evidence", "wrapped"), ("confirmed evidence", "wrapped"),
        ("random", "none"), ("oracle", "none"),
    ]  # fmt: skip
    # The recovered set is marked as it is: its share of the patches is the evidence fraction.
    shares = [
        float(bag.explanation.recovery.selected.float().mean())
        for bag in fold.bags("test")
        if bag.truth.any()
    ]
    assert figures(finding, "evidence", "wrapped")["marked_share"] == pytest.approx(
        sum(shares) / len(shares)
    )
    oracle, chance = figures(finding, "oracle"), figures(finding, "random")
    for name in ("dice", "patch_specificity", "froc_official"):
        best = max(figures(finding, *rule)[name] for rule in rules)
        assert oracle[name] == best > chance[name]
    # Every slide of this cohort has evidence, and a random map that marks all tissue hits it all.
    assert oracle["froc"] == pytest.approx(1)
    assert oracle["normal_specificity"] is None
    assert read_finding(write_finding(tmp_path, finding)) == finding
    assert figures(join_folds([finding, finding]), "oracle")["dice"] == pytest.approx(1)


def test_a_slide_without_evidence_marks_nothing_once_its_verdict_counts(
    classification_runs: TrainedRuns, monkeypatch
):
    """As on a normal slide, whose prediction stays without the patches that were found."""

    def explain_in_vain(model, bag, question):
        found = explain_bag(model, bag, question)
        return replace(found, verdict=replace(found.verdict, is_necessary=False))

    monkeypatch.setattr(trained_fold, "explain_bag", explain_in_vain)
    finding = measure_localisation(TrainedFold.open(classification_runs.gce, 0))
    found, confirmed = (
        figures(finding, rule, "wrapped") for rule in ("evidence", "confirmed evidence")
    )
    assert found["marked_share"] > 0
    assert (confirmed["marked_share"], confirmed["dice"], confirmed["patch_specificity"]) == (
        0,
        0,
        1,
    )
    assert any("slides that have no evidence mark nothing" in note for note in finding.notes)


def test_slides_of_a_case_are_judged_one_by_one(survival_runs: TrainedRuns):
    fold = TrainedFold.open(survival_runs.host, 0)
    finding = measure_localisation(fold)
    judged = {detail["slide_id"] for detail in finding.slides}
    assert judged == {slide_id for spec in fold.parts.test for slide_id in spec.slide_ids}
    assert {row.labels["rule"] for row in finding.rows} == {"attention", "random", "oracle"}
    oracle, chance = figures(finding, "oracle"), figures(finding, "random")
    assert oracle["dice"] == 1 > chance["dice"]
    assert oracle["froc_official"] > chance["froc_official"]


def test_a_slide_without_truth_is_left_out_and_named(classification_runs: TrainedRuns, tmp_path):
    cohort = tmp_path / "cohort"
    shutil.copytree(classification_runs.cohort, cohort)
    fold = TrainedFold.open(classification_runs.host, 0)
    lost = fold.parts.test[0].slide_ids[0]
    (cohort / "truth" / f"{lost}.h5").unlink()
    moved = replace(fold, cohort=type(fold.cohort).load(cohort))
    finding = measure_localisation(moved)
    assert finding.notes[0] == f"Excluded (no truth): {lost}."
    assert lost not in {detail["slide_id"] for detail in finding.slides}
    shutil.rmtree(cohort / "truth")
    nothing = measure_localisation(moved)
    assert nothing.rows == ()
    assert nothing.notes[-1] == "No test slide has truth and coordinates, so nothing is judged."
