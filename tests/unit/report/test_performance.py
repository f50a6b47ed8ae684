"""Metrics of weighted bags against scikit-learn and lifelines, and the text of the section."""

import json
import re

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score, r2_score, roc_auc_score

from builders.reports import run_folder
from gcemil.errors import RunError
from gcemil.report.context import Context
from gcemil.report.run_data import RunData
from gcemil.report.scores import (
    FoldPredictions,
    bin_confidence,
    draw_metrics,
    find_interval,
    read_fold_predictions,
)
from gcemil.report.sections import headline, performance


def fold_of(n=60, classes=("a", "b", "c"), seed=0, **modes) -> FoldPredictions:
    """Labels by chance; a mode with skill 1 is right most of the time."""
    draws = np.random.default_rng(seed)
    labels = draws.integers(len(classes), size=n)
    by_mode = {}
    for mode, skill in modes.items():
        logits = draws.normal(size=(n, len(classes))) + 3 * skill * np.eye(len(classes))[labels]
        by_mode[mode] = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return FoldPredictions(np.arange(n).astype(str), classes, labels, np.zeros(n), by_mode)


def test_weighted_metrics_are_those_of_repeated_bags():
    fold = fold_of(full=0.4)
    weights = np.random.default_rng(1).integers(3, size=(4, 60)).astype(float)
    measured = {
        metric: fold.measure("full", metric, weights) for metric in ("accuracy", "macro_f1", "auc")
    }
    for number, counts in enumerate(weights):
        rows = np.repeat(np.arange(60), counts.astype(int))
        labels, shares = fold.labels[rows], fold.by_mode["full"][rows]
        predicted = shares.argmax(axis=1)
        auc = np.mean([roc_auc_score(labels == one, shares[:, one]) for one in np.unique(labels)])
        macro_f1 = f1_score(labels, predicted, average="macro")
        assert measured["accuracy"][number] == pytest.approx(accuracy_score(labels, predicted))
        assert measured["macro_f1"][number] == pytest.approx(macro_f1)
        assert measured["auc"][number] == pytest.approx(auc)


def test_the_weighted_c_index_is_that_of_lifelines():
    from lifelines.utils import concordance_index

    draws = np.random.default_rng(0)
    times, events = np.round(draws.exponential(5, 40), 0) + 1, draws.random(40) < 0.6
    risks = np.round(draws.normal(size=40) - times / 5, 1)
    weights = draws.integers(3, size=(3, 40)).astype(float)
    for number, own in enumerate(weights):
        rows = np.repeat(np.arange(40), own.astype(int))
        theirs = concordance_index(times[rows], -risks[rows], events[rows])
        fold = FoldPredictions(np.arange(40), (), events.astype(int), times, {"full": risks})
        assert fold.measure("full", "c_index", weights)[number] == pytest.approx(theirs)


def test_weighted_metrics_of_a_value_are_those_of_repeated_bags():
    draws = np.random.default_rng(0)
    labels = draws.normal(size=40)
    values = labels + draws.normal(size=40)
    weights = draws.integers(3, size=(3, 40)).astype(float)
    fold = FoldPredictions(np.arange(40), (), np.zeros(40, dtype=int), labels, {"full": values})
    r2, mae, pearson = (fold.measure("full", name, weights) for name in ("r2", "mae", "pearson"))
    for number, own in enumerate(weights):
        rows = np.repeat(np.arange(40), own.astype(int))
        true, predicted = labels[rows], values[rows]
        assert r2[number] == pytest.approx(r2_score(true, predicted))
        assert mae[number] == pytest.approx(np.abs(true - predicted).mean())
        assert pearson[number] == pytest.approx(np.corrcoef(true, predicted)[0, 1])
    whole = fold.measure("full", "spearman", np.ones((1, 40)))[0]
    assert whole == pytest.approx(spearmanr(labels, values).statistic)
    ones = FoldPredictions(np.arange(3), (), np.zeros(3, int), np.ones(3), {"full": np.arange(3.0)})
    assert np.isnan(ones.measure("full", "r2", np.ones((1, 3))))


def test_cases_are_drawn_whole_and_within_their_class():
    labels = np.array([0, 0, 0, 0, 1, 1])
    fold = FoldPredictions(np.array(list("aabbcd")), ("x", "y"), labels, np.zeros(6), {})
    weights = fold.draw_weights(np.random.default_rng(0), 50)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[:, [0, 2]].sum(axis=1) == 2).all()
    assert (weights[:, 4:].sum(axis=1) == 2).all()


def test_a_difference_is_paired_over_the_same_draws():
    fold = fold_of(full=0.2, gce=1.0)
    fold.by_mode["head"] = fold.by_mode["full"]
    draws = draw_metrics(
        [fold, fold_of(seed=3, full=0.2, gce=1.0, head=0.2)], ["full", "gce"], ("auc",), seed=0
    )
    low, _ = find_interval(draws["gce", "auc"] - draws["full", "auc"])
    assert low > 0
    same = draw_metrics([fold], ["full", "head"], ("auc",), seed=0)
    assert find_interval(same["head", "auc"] - same["full", "auc"]) == (0, 0)


def test_one_class_alone_has_no_auc_and_no_interval():
    weights = np.ones((2, 3))
    shares = {"full": np.full((3, 2), 0.5)}
    fold = FoldPredictions(np.arange(3), ("a", "b"), np.zeros(3, dtype=int), np.zeros(3), shares)
    found = fold.measure("full", "auc", weights)
    assert np.isnan(found).all()
    assert find_interval(found) is None


def test_calibration_is_perfect_where_confidence_is_the_share_of_right_predictions():
    shares = np.array([[0.75, 0.25]] * 4)
    fold = FoldPredictions(
        np.arange(4).astype(str), ("a", "b"), np.array([0, 0, 0, 1]), np.zeros(4), {"full": shares}
    )
    (confidence,), (right,), (error,) = bin_confidence(fold, "full", np.ones((1, 4)))
    filled = ~np.isnan(confidence)
    assert (confidence[filled].tolist(), right[filled].tolist(), error) == ([0.75], [0.75], 0)


@pytest.fixture
def measured(tmp_path):
    """Six slides of two classes, all predicted as the first, with a vote, a history and false evidence."""
    run = run_folder(tmp_path / "run")
    folder = run.fold(0, [f"s{number}" for number in range(6)])
    for path in folder.glob("predictions*.csv"):
        path.write_text(path.read_text().replace("s5,s5,test,a", "s5,s5,test,b"))
    metrics = json.loads((folder / "metrics.json").read_text())
    none = {"class": "normal", "promised_rate": 0.1, "n_validation": 9, "threshold": 0.4}
    vote = {"weight": 0.25, "reads": "anchors", "opinion": False}
    none |= {"n_test": 8, "reached_rate": 0.125}
    metrics["details"] |= {"vote": vote, "no_evidence": none}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    record = {"stage": "train", "warnings": [], "terms": {"task": 0.5}, "val_loss": 0.6, "val": 0.7}
    lines = [json.dumps({**record, "epoch": epoch}) + "\n" for epoch in range(2)]
    (folder / "history.jsonl").write_text("".join(lines))
    return run


def test_the_section_compares_the_mixture_with_the_host_and_says_who_decides(measured):
    context = Context(RunData(measured.folder), None, measured.folder / "figures")
    text = performance.render_performance(context).body
    line = ["Macro-F1", "host, all patches", "0.800", "0.800", "+0.000", "0.000 to 0.000"]
    assert re.search("".join(f"<td[^>]*>{re.escape(cell)}</td>" for cell in line), text)
    assert "no difference in any draw" in text
    assert "The evidence head has a weight of 25% in the joint prediction" in text
    names = {path.stem for path in (measured.folder / "figures").glob("*.svg")}
    assert names == {
        "roc", "precision_recall", "calibration", "confusion", "learning", "prediction_folds",
    }  # fmt: skip
    words = "Without a lesion (class normal): evidence is confirmed on 12% of 8 slides tested"
    assert words in headline.render_claim(context).body


def test_the_plain_host_of_another_run_is_compared_on_the_same_draws(measured, tmp_path):
    names = [f"s{number}" for number in range(6)]
    host = run_folder(tmp_path / "host", wrapped=False)
    host.fold(0, names, wrapped=False, value=0.5)
    data, plain = RunData(measured.folder), RunData(host.folder)
    fold = read_fold_predictions(data.folds[0], plain.folds[0])
    assert "plain" in fold.by_mode
    context = Context(data, plain, measured.folder / "figures")
    draws = draw_metrics([fold], ["plain", "full", "gce"], ("macro_f1",), seed=0)
    rows = [
        ["plain host, all patches", "0.500", "0.800", "+0.300"],
        ["host, all patches", "0.800", "0.800", "+0.000"],
    ]
    # Both hosts predict the same, so one of them is shown; then the plain one does worse.
    for shown in (rows[:1], rows):
        assert [list(row[1:5]) for row in performance.compare_with_host(context, draws)] == shown
        draws["plain", "macro_f1"] = draws["plain", "macro_f1"] - 0.1


def test_a_target_that_is_no_class_is_refused(measured):
    path = measured.folder / "fold_0" / "predictions_full.csv"
    path.write_text(path.read_text().replace("test,b", "test,z"))
    data = RunData(measured.folder)
    with pytest.raises(RunError, match="not a class or number"):
        read_fold_predictions(data.folds[0])


def test_the_dot_stands_at_the_epoch_that_is_kept():
    history = [{"epoch": epoch, "val": value} for epoch, value in enumerate((0.5, 1.0, 1.0, 0.9))]
    figure = performance.draw_learning({0: history}, {0: 2}, "macro_f1")
    assert [line.get_xdata() for line in figure.axes[-1].lines if len(line.get_xdata()) == 1] == [
        [2]
    ]
