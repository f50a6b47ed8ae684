"""Tables of evidence diagnostics on findings written by hand."""

import pytest
from paper.comparison import TIMES

from builders.results import diagnose, gce_folds, gce_run, made_table, snr_rows, texts, toy_results
from gcemil.findings import Row


@pytest.fixture
def folder(tmp_path):
    return toy_results(tmp_path / "results")


def test_diagnostics_take_the_row_over_all_classes(folder):
    rows = snr_rows({"evidence_sufficiency": 0.7, "complement_degradation": 0.3})
    other = snr_rows({"evidence_sufficiency": 0.5, "complement_degradation": None}, cd_gap=0.03)
    diagnose(gce_run(folder), "snr", rows, other)
    made = made_table(folder, "diagnostics_bracs")
    # A degradation that does not exist in the second fold is not a zero.
    assert texts(made, "ABMIL+GCE") == ["0.020±0.014", "0.300", "0.600±0.141"]
    assert texts(made, "ABMIL+GCE", origin="paper") == ["0.011±0.004", "0.230±0.042", "0.430±0.068"]


def test_failures_are_per_cent_and_all_is_the_mean_over_datasets(folder):
    for cohort, share in (("bracs", 0.1), ("kirc", 0.3)):
        rows = [
            Row(
                {"rule": "evidence", "network": "wrapped"},
                {"case_failure_share": share, "artifact_evidence_share": None},
            )
        ]
        diagnose(gce_run(folder, cohort), "failures", rows)
    made = made_table(folder, "failure_audit")
    # Artifacts were asked for and are not known; semantic mismatch was never asked for.
    assert texts(made, "BRACS")[1:3] == ["10.0", "-"]
    assert texts(made, "BRACS")[5] == "missing"
    assert texts(made, "All")[1] == "20.0±14.1"
    assert texts(made, "STAD", origin="paper")[:2] == ["190", "21.6"]


def test_rules_are_compared_on_the_runs_that_have_all_of_them(folder):
    def rows(*rules):
        return [
            Row(
                {"rule": rule, "network": network, "budget": "0.05"},
                {"evidence_sufficiency": value},
            )
            for rule, network, value in rules
        ]

    every = [
        ("attention", "plain", 0.4),
        ("saliency", "plain", 0.4),
        ("occlusion", "plain", 0.4),
        ("gce_discrete", "wrapped", 0.6),
    ]
    diagnose(gce_run(folder), "budget", rows(*every))
    other = folder.run("bracs", "dsmil", "gce", gce_folds(0.9))
    diagnose(other, "budget", rows(("attention", "plain", 0.9), ("gce_discrete", "wrapped", 0.9)))
    made = made_table(folder, "same_budget_short")
    assert texts(made, "Attention top-k")[0] == "0.400"
    assert texts(made, "GCE discrete")[0] == "0.600"


def test_costs_are_multiples_of_the_full_bag(folder):
    labels = {"mode": "discrete", "network": "wrapped", "timing": "measured"}
    diagnose(
        gce_run(folder),
        "cost",
        [Row(labels, {"aggregation_time": 0.25, "peak_memory": 0.2, "patch_ratio": 0.05})],
    )
    made = made_table(folder, "cost")
    assert texts(made, "GCE discrete, cached features")[1] == f"0.25{TIMES}"
    assert texts(made, "GCE discrete + tile prefilter")[2] == "missing"
    answer = texts(
        made_table(folder, "capacity"), "Does discrete recovery reduce aggregation cost?"
    )
    assert answer[:2] == [
        "diagnostic cost, mode discrete",
        f"MIL aggregation 0.25{TIMES}; peak memory 0.20{TIMES}",
    ]


RULES = {
    "attention": "plain",
    "saliency": "plain",
    "random": "plain",
    "oracle": "plain",
    "gce_discrete": "wrapped",
}


@pytest.mark.parametrize(
    ("name", "source", "labels"),
    [
        ("intervention", "budget", {"budget": "0.05"}),
        ("same_budget_short", "budget", {"budget": "0.05"}),
        ("same_budget", "budget", {"budget": "0.05"}),
        ("posthoc", "posthoc", {}),
        ("stability", "stability", {"perturbation": "seeds"}),
    ],
)
def test_attention_chance_and_truth_stand_in_every_table_that_compares_rules(
    folder, name, source, labels
):
    figures = {"complement_degradation": 0.3, "keep_only_drop": 0.1, "jaccard": 0.3}
    rows = [
        Row({"rule": rule, "network": network, **labels}, figures)
        for rule, network in RULES.items()
    ]
    diagnose(gce_run(folder), source, rows)
    lines = [line for line in made_table(folder, name).lines if line.origin == "ours"]
    measured = {
        line.row_labels[-2] for line in lines if any(cell.value is not None for cell in line.cells)
    }
    assert {"Attention top-k", "Random-k", "Oracle (truth first)"} <= measured
    # Controls compete with nothing: the truth would always be best.
    assert {
        line.comparison for line in lines if line.row_labels[-2].startswith(("Oracle", "Random"))
    } == {None}
