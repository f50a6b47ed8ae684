"""Figures and tables of a paper: which files a run gives, whose patients are drawn, and what is refused."""

import csv

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from builders.reports import judged_slide, run_folder, toy_evidence
from gcemil.errors import RunError, UsageError
from gcemil.report import style
from gcemil.report.publication.survival import (
    choose_times,
    draw_risk_groups,
    estimate_uncensored,
    predict_survival,
)
from gcemil.report.publication.write import write_publication
from gcemil.report.scores import FoldPredictions, pool_folds


def write_classes(run, number, *, n=16, per_case=2, seed=0, wrapped=True):
    """A fold whose patients have two slides each; the joint prediction is better than the host's."""
    draws = np.random.default_rng([number, seed])
    slides = [f"f{number}s{i}" for i in range(n)]
    folder = run.fold(number, slides, wrapped=wrapped)
    for path in folder.glob("predictions*.csv"):
        skill = 0.4 if path.name == "predictions.csv" else 0.1
        rows = ["slide_id,case_id,split,target,prob_a,prob_b"]
        for i, slide in enumerate(slides):
            label = i // per_case % 2
            share = float(np.clip(0.5 + skill * (label - 0.5) + 0.3 * draws.normal(), 0.01, 0.99))
            rows.append(
                f"{slide},c{number}-{i // per_case},test,{'ab'[label]},{1 - share:.4f},{share:.4f}"
            )
        path.write_text("\n".join(rows) + "\n")


@pytest.fixture
def run(tmp_path):
    """Two folds of a wrapped run."""
    made = run_folder(tmp_path / "run")
    for number in range(2):
        write_classes(made, number)
    return made


def read_cells(path):
    with path.open() as file:
        return {(row["row"], row["column"]): row for row in csv.DictReader(file)}


def test_a_run_of_classes_gives_curves_confusion_calibration_and_tables_always_the_same(
    run, tmp_path
):
    written = write_publication(run.folder, tmp_path / "paper")
    names = {path.name for path in written.files}
    for name in ("roc", "precision_recall", "calibration", "confusion"):
        assert {f"{name}.svg", f"{name}.pdf"} <= names
        assert (tmp_path / "paper" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for name in ("metrics", "classes"):
        assert {f"{name}.tex", f"{name}.md", f"{name}.csv"} <= names
    assert "gcemil diagnose" in written.left_out["Diagnostic 'stability' was not made."]
    captions = (tmp_path / "paper" / "captions.md").read_text()
    assert "32 test slides of 16 patients" in captions
    again = write_publication(run.folder, tmp_path / "again", formats=["pdf"])
    for path in again.files:
        if path.suffix == ".pdf":
            assert path.read_bytes() == (tmp_path / "paper" / path.name).read_bytes()


def test_tables_hold_the_spread_of_folds_and_the_interval_over_patients(run, tmp_path):
    write_publication(run.folder, tmp_path, formats=["svg"])
    cells = read_cells(tmp_path / "metrics.csv")
    assert float(cells["host and evidence", "auc"]["value"]) == pytest.approx(0.8)
    joint = cells["host and evidence", "auc_all"]
    assert float(joint["low"]) < float(joint["value"]) < float(joint["high"])
    classes = read_cells(tmp_path / "classes.csv")
    assert classes["a", "n"]["value"] == "16"
    assert r"\toprule" in (tmp_path / "classes.tex").read_text()


def test_evidence_is_drawn_of_the_slide_that_was_asked_for(tmp_path):
    run = run_folder(tmp_path / "run")
    run.fold(0, ["s0", "s1"], evidence=[toy_evidence("s0"), toy_evidence("s1")])
    run.snr(0, [judged_slide("s0"), judged_slide("s1")])
    written = write_publication(
        run.folder, tmp_path / "paper", formats=["png"], slides=["s1"], dpi=72
    )
    names = {path.name for path in written.files}
    assert {"evidence_s1.png", "snr.png"} <= names
    assert "evidence_s0.png" not in names
    assert any("no scale bar" in what for what in written.left_out)


def test_the_plain_host_is_a_line_of_its_own(run, tmp_path):
    host = run_folder(tmp_path / "host", wrapped=False)
    for number in range(2):
        write_classes(host, number, seed=1, wrapped=False)
    write_publication(run.folder, tmp_path / "paper", against=host.folder, formats=["svg"])
    rows = {row for row, _ in read_cells(tmp_path / "paper" / "metrics.csv")}
    hosts = {"plain host, all patches", "host, all patches"}
    assert rows == {*hosts, "host and evidence", "evidence alone"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"formats": ["eps"]}, "svg, pdf, png, separated by commas; got 'eps'"),
        ({"slides": ["s99"]}, "Slide 's99' is not among the test slides of"),
    ],
)
def test_unknown_formats_and_slides_are_refused_before_anything_is_written(
    run, tmp_path, options, words
):
    with pytest.raises(UsageError, match=words):
        write_publication(run.folder, tmp_path / "paper", **options)
    assert not (tmp_path / "paper").exists()


def test_a_fold_without_predictions_is_refused_with_the_command_that_makes_them(run, tmp_path):
    for path in (run.folder / "fold_1").glob("predictions*.csv"):
        path.unlink()
    with pytest.raises(RunError, match=r"fold_1 has no table of predictions.*--again"):
        write_publication(run.folder, tmp_path / "paper")


def test_a_patient_of_two_folds_is_drawn_as_one():
    folds = [
        FoldPredictions(np.array(["p", "q"]), ("a", "b"), np.array([0, 0]), np.zeros(2), {})
        for _ in range(2)
    ]
    weights = pool_folds(folds).draw_weights(np.random.default_rng(0), 20)
    assert (weights[:, :2] == weights[:, 2:]).all()
    assert (weights[:, :2].sum(axis=1) == 2).all()


def test_pooled_concordance_compares_within_folds_alone():
    def fold(risks):
        times = np.array([1.0, 2.0])
        return FoldPredictions(
            np.arange(2).astype(str), (), np.ones(2, int), times, {"full": risks}
        )

    # Within each fold the order is right; across the folds it would not be.
    bags = pool_folds([fold(np.array([2.0, 1.0])), fold(np.array([20.0, 10.0]))])
    assert bags.measure("full", "c_index", np.ones((1, 4))) == pytest.approx([1.0])


# Survival


def write_survival(run, number, *, n=30):
    """A fold whose risk is the logarithm of the hazard."""
    draws = np.random.default_rng(number)
    folder = run.fold(number, ["s"])
    risks = draws.normal(size=2 * n)
    times = draws.exponential(np.exp(-risks)) * 10 + 0.1
    ends = draws.exponential(15, size=2 * n) + 0.1
    rows = ["slide_id,case_id,split,target,event,risk"]
    for i, risk in enumerate(risks):
        part = "val" if i < n else "test"
        time, event = min(times[i], ends[i]), int(times[i] <= ends[i])
        rows.append(f"f{number}s{i},f{number}c{i},{part},{time:.4f},{event},{risk:.4f}")
    for path in folder.glob("predictions*.csv"):
        path.write_text("\n".join(rows) + "\n")
    metrics = '{"full": {"c_index": 0.7}, "gce": {"c_index": 0.7}, "details": {}}'
    (folder / "metrics.json").write_text(metrics)


def test_a_run_of_survival_gives_kaplan_meier_auc_over_time_and_brier_score(tmp_path):
    run = run_folder(tmp_path / "run")
    for number in range(2):
        write_survival(run, number)
    written = write_publication(run.folder, tmp_path / "paper", formats=["svg"])
    names = {path.name for path in written.files}
    assert {"kaplan_meier.svg", "auc_over_time.svg", "brier.svg", "metrics.tex"} <= names
    cells = read_cells(tmp_path / "paper" / "metrics.csv")
    assert float(cells["host and evidence", "Mean AUC(t)"]["value"]) > 0.7
    # A constant probability of one half scores one quarter.
    assert float(cells["host and evidence", "IBS"]["value"]) < 0.25


def test_numbers_at_risk_stand_below_the_time_axis():
    events, risks = [True, True, False, True], [4.0, 3, 2, 1]
    times = [1.0, 2, 3, 4]
    cases = pd.DataFrame({"fold": 0, "time": times, "event": events, "risk": risks})
    figure = draw_risk_groups({"All": cases})
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words.count("at risk") == 2
    assert words[words.index("at risk") + 1] == "2"


def test_censoring_after_an_event_of_the_same_time_does_not_count_it_as_at_risk():
    times, events = np.array([1.0, 1.0, 2.0]), np.array([True, False, True])
    assert estimate_uncensored(times, events, np.array([0.5, 1.0])).tolist() == [1.0, 0.5]


def test_survival_is_not_predicted_from_equal_risks_or_without_events():
    cases = pd.DataFrame({"time": [1.0, 2.0], "event": [True, True], "risk": [1.0, 1.0]})
    for fitted_on in (cases, cases.assign(event=False, risk=[0.0, 1.0])):
        assert predict_survival(fitted_on, np.zeros(1), np.array([1.0])) is None
    assert len(choose_times(np.array([1.0, 2.0]), np.array([True, False]))) == 0


# Tissue


@pytest.mark.parametrize(
    ("microns", "label", "share"), [(1.0, "200 µm", 0.2), (8.0, "1 mm", 0.125)]
)
def test_a_scale_bar_has_a_round_length(microns, label, share):
    axes = Figure().subplots()
    axes.set(xlim=(0, 1000), ylim=(500, 0))
    style.draw_scale_bar(axes, 1000, microns)
    left, right = axes.lines[0].get_xdata()
    assert (right - left) / 1000 == pytest.approx(share)
    assert axes.texts[0].get_text() == label
