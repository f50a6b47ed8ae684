from collections import Counter

import pandas as pd
import pytest

from builders.folds import few_bags
from builders.runs import TrainedRuns
from gcemil.diagnostics.budget import measure_budget
from gcemil.diagnostics.failures import measure_failures
from gcemil.diagnostics.measurements import KEY_COLUMNS, measure_rules, write_measurements
from gcemil.diagnostics.snr import BagOutputs, Tolerances, Verdict, judge_subset
from gcemil.diagnostics.snr_report import measure_snr
from gcemil.diagnostics.sweep import measure_sweep
from gcemil.diagnostics.trained_fold import TrainedFold, run_passes
from gcemil.explanation import Interventions

TOLERANCES = Tolerances(sufficiency=0.125, necessity=0.25, recoverability=0.0625)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        # At the limits, just beyond them, and of a whole bag, which leaves nothing behind.
        ((0.75, 0.625, 0.5, 0.6875), (True, True, True)),
        ((0.75, 0.624, 0.501, 0.687), (False, False, False)),
        ((0.75, 0.75, None, None), (True, False, None)),
    ],
)
def test_the_limits_themselves_are_within(outputs, expected):
    assert judge_subset(BagOutputs(*outputs), TOLERANCES) == Verdict(*expected)


def judged_fold(run, *, against=None, budget=0.05):
    fold = TrainedFold.open(run, 0, against=against)
    return [(bag, list(measure_rules(bag, budget=budget))) for bag in fold.bags()]


def test_every_rule_has_the_size_of_the_evidence(classification_runs: TrainedRuns):
    for bag, judged in judged_fold(classification_runs.gce, against=classification_runs.host):
        assert [(one.network, one.rule) for one in judged] == [
            ("plain", "attention"),
            ("plain", "random"),
            ("plain", "oracle"),
            ("wrapped", "evidence"),
            ("wrapped", "attention"),
            ("wrapped", "random"),
            ("wrapped", "oracle"),
        ]
        assert {int(one.selected.sum()) for one in judged} == {
            int(bag.explanation.recovery.selected.sum())
        }
        # Only the evidence has gates; both networks are asked about the same random patches.
        assert [one.rule for one in judged if one.outputs.gated is not None] == ["evidence"]
        assert judged[1].selected.equal(judged[5].selected)


def test_diagnostics_of_one_pass_predict_a_subset_once(
    classification_runs: TrainedRuns, monkeypatch
):
    asked = Counter()
    kept = Interventions.kept

    def count(self, selected):
        asked[id(self._embedded), selected.numpy().tobytes()] += 1
        return kept(self, selected)

    fold = few_bags(
        TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host), 2
    )
    bags = list(fold.bags())
    # Explained first: the search for the evidence is not part of what the diagnostics share.
    assert all(bag.explanation is not None for bag in bags)
    monkeypatch.setattr(
        TrainedFold, "bags", lambda self, part="test": iter(bags if part == "test" else ())
    )
    monkeypatch.setattr(Interventions, "kept", count)
    measures = {"snr": measure_snr, "failures": measure_failures, "sweep": measure_sweep}
    run_passes(fold, {name: measure.steps(fold) for name, measure in measures.items()})
    assert asked
    assert set(asked.values()) == {1}
    # The prediction from the evidence comes with the explanation.
    evidence = bags[0].explanation.recovery.selected.numpy().tobytes()
    assert (id(bags[0].explanation.output.embedded), evidence) not in asked


def test_a_pass_leaves_one_line_per_bag_network_rule_and_size(
    classification_runs: TrainedRuns, tmp_path
):
    fold = few_bags(TrainedFold.open(classification_runs.gce, 0), 3)
    found = run_passes(
        fold,
        {"snr": measure_snr.steps(fold), "budget": measure_budget.steps(fold, attributions=[])},
    )
    write_measurements(tmp_path, fold.measurements, "0123456789abcdef")
    # Another diagnostic adds its lines; lines of another checkpoint go.
    path = write_measurements(
        tmp_path, dict(list(fold.measurements.items())[:1]), "0123456789abcdef"
    )
    table = pd.read_csv(path, dtype={"size": str})
    assert len(table) == len(fold.measurements) == len(table.drop_duplicates(list(KEY_COLUMNS)))
    assert set(table["size"]) == {"recovered", "0.01", "0.05", "0.1"}
    evidence = table[table["rule"] == "evidence"].set_index("bag_id")
    for slide in (one for one in found["snr"].slides if one["rule"] == "evidence"):
        line = evidence.loc[slide["bag_id"]]
        assert (line["n_selected"], line["n_patches"]) == (slide["n_selected"], slide["n_patches"])
        for name, column in {
            "phi_kept": "phi_kept",
            "phi_removed": "phi_removed",
            "phi_soft": "phi_gated",
        }.items():
            assert line[column] == pytest.approx(slide[name])
    other = pd.read_csv(
        write_measurements(tmp_path, dict(list(fold.measurements.items())[:2]), "f" * 64)
    )
    assert set(other["model"]) == {"f" * 12}
    assert len(other) == 2
