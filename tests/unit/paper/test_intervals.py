"""Intervals: the first draw is the figure itself, draws resample slides and runs, and files keep
them.
"""

import numpy as np
import pandas as pd
import pytest
from paper import intervals
from paper.intervals import (
    COMPARISONS,
    DRAWS,
    Interval,
    Place,
    draw_weights,
    join_runs,
    measure_effects,
    read_intervals,
    weighted_c_index,
    weighted_macro_f1,
    weighted_mean,
    write_intervals,
)
from paper.measured import CohortFacts, Measured, SlideTest
from paper.page import CHECKS, SECOND_ROWS
from sklearn.metrics import f1_score

from gcemil.findings import Finding, write_finding
from gcemil.tasks.survival import c_index


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def drawn(values, weights):
    """The slides of one draw, each as often as it was drawn."""
    return np.repeat(values, weights.astype(int), axis=-1)


@pytest.mark.parametrize("number", [0, 1, 7])
def test_macro_f1_of_a_draw_is_that_of_its_slides(generator, number):
    truth, predicted = generator.integers(0, 4, 60), generator.integers(0, 4, 60)
    weights = draw_weights(60)
    expected = f1_score(
        drawn(truth, weights[number]), drawn(predicted, weights[number]), average="macro"
    )
    assert weighted_macro_f1(weights, truth, predicted)[number] == pytest.approx(expected)


@pytest.mark.parametrize("number", [0, 1, 7])
def test_c_index_of_a_draw_is_that_of_its_slides(generator, number):
    times, events = generator.integers(1, 30, 50).astype(float), generator.random(50) < 0.5
    risks = generator.normal(size=50)
    weights = draw_weights(50)
    own = weights[number]
    expected = c_index(drawn(risks, own), drawn(times, own), drawn(events, own))
    assert weighted_c_index(weights, times, events, risks)[number] == pytest.approx(expected)


def test_a_mean_leaves_out_slides_without_a_value():
    weights = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 1.0]])
    assert weighted_mean(weights, np.array([1.0, 4.0, np.nan])) == pytest.approx([2.5, 1.0])


def test_runs_are_drawn_again_where_there_are_several():
    alone = join_runs([np.full(DRAWS + 1, 2.0)])
    assert (alone == 2.0).all()
    pair = join_runs([np.zeros(DRAWS + 1), np.ones(DRAWS + 1)])
    assert pair[0] == 0.5
    assert set(np.unique(pair[1:])) == {0.0, 0.5, 1.0}


def test_a_file_keeps_what_was_measured(tmp_path):
    lines = [
        Interval("classification", "gce", "all", 0.1, 0.05, 0.2, 0.3, 4, 1),
        Interval("cost", "gce", "all", 0.1, 0.05, 0.2, None, 1, 0),
    ]
    write_intervals(lines, tmp_path / "intervals.csv")
    assert read_intervals(tmp_path / "intervals.csv") == lines


def test_every_measured_comparison_is_on_the_page():
    on_page = {*CHECKS, *(name for names in SECOND_ROWS.values() for name in names)}
    assert set(COMPARISONS) < on_page
    assert on_page - set(COMPARISONS) == {
        "encoders",
        "significance_classification",
        "significance_survival",
    }


KEYS = [f"s{number}" for number in range(6)]


@pytest.fixture
def place(tmp_path):
    """A host and its wrapped run on six slides, with files written by hand."""
    for label in ("host", "gce"):
        folder = tmp_path / label / "fold_0"
        (folder / "diagnostics").mkdir(parents=True)
        modes = {
            "full": {"macro_f1": 0.0},
            **({"gce": {"macro_f1": 0.0}} if label == "gce" else {}),
        }
        (folder / "metrics.json").write_text(pd.Series({**modes, "details": {}}).to_json())
    truth = ["a", "a", "a", "b", "b", "b"]
    for label, mode, right in (("host", "full", 3), ("gce", "full", 3), ("gce", "gce", 6)):
        said = [
            one if number < right else "ab"["ba".index(one)] for number, one in enumerate(truth)
        ]
        table = pd.DataFrame({"slide_id": KEYS, "case_id": KEYS, "split": "test", "target": truth})
        table["prob_a"] = [float(one == "a") for one in said]
        table["prob_b"] = 1 - table.prob_a
        name = (
            "predictions.csv"
            if mode == ("gce" if label == "gce" else "full")
            else f"predictions_{mode}.csv"
        )
        table.to_csv(tmp_path / label / "fold_0" / name, index=False)
    rows = []
    for rule, network, kept in (
        ("attention", "plain", 0.5), ("attention", "wrapped", 0.5), ("gce_discrete", "wrapped", 0.8),
        ("oracle", "wrapped", 0.9), ("oracle", "plain", 0.9),
    ):  # fmt: skip
        for number, key in enumerate(KEYS):
            is_right = number < round(kept * 6)
            label = int(truth[number] == "b")
            rows.append(
                {"bag_id": key, "network": network, "rule": rule, "size": "0.05", "phi_full": 1.0, "phi_kept": kept,
                 "phi_removed": 0.0, "phi_gated": kept, "class_full": label,
                 "class_kept": label if is_right else 1 - label, "average_precision": kept, "class_removed": 0}
            )  # fmt: skip
    pd.DataFrame(rows).to_csv(
        tmp_path / "gce" / "fold_0" / "diagnostics" / "measurements.csv.gz", index=False
    )
    maps = {
        ("evidence scores", "wrapped"): 0.6,
        ("attention", "plain"): 0.4,
        ("evidence", "wrapped"): 0.3,
        ("oracle", "none"): 1.0,
    }
    slides = tuple(
        {"slide_id": key, "rule": rule, "network": network, "dice": dice}
        for (rule, network), dice in maps.items()
        for key in KEYS
    )
    write_finding(
        tmp_path / "gce" / "fold_0" / "diagnostics", Finding("localisation", (), slides=slides)
    )
    return Place("toy", "bracs", "abmil", 0, {"host": tmp_path / "host", "gce": tmp_path / "gce"})


def test_a_gain_is_that_of_the_main_prediction_over_the_plain_host(place):
    effect = intervals.gain(place, "gce")
    # The host says a of all: F1 2/3 for a and 0 for b.
    assert effect.value[0] == pytest.approx(1 - 1 / 3)
    assert effect.ceiling[0] == pytest.approx(
        f1_score([0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0], average="macro") - 1 / 3
    )


def test_localisation_reads_the_continuous_map_and_the_set_has_a_comparison_of_its_own(place):
    effect = intervals.dice_gain(place, "gce")
    of_set = intervals.dice_gain(place, "gce", rule="evidence")
    assert effect.value[0] == pytest.approx(0.6 - 0.4)
    assert effect.ceiling[0] == pytest.approx(1 - 0.4)
    assert of_set.value[0] == pytest.approx(0.3 - 0.4)


def test_a_figure_that_no_run_has_is_left_out(place):
    with pytest.raises(intervals.MissingFigureError):
        intervals.gain(place, "taught")
    with pytest.raises(intervals.MissingFigureError):
        intervals.two_subsets(place, "gce")


def test_the_share_of_significant_tests_has_wilsons_interval():
    cohort = CohortFacts("bracs", "bracs", None, {"task": "classification", "provenance": {}})
    tests = tuple(
        SlideTest("bracs", host, 0.1, p, 100, 9) for host, p in (("abmil", 0.01), ("dsmil", 0.2))
    )
    measured = Measured(pd.DataFrame(), (cohort,), tests)
    (line,) = measure_effects(measured, [])
    assert (line.comparison, line.value, line.runs) == ("significance_classification", 0.5, 2)
    assert 0 < line.low < 0.5 < line.high < 1
