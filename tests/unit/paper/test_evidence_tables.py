"""Tables of evidence diagnostics on findings written by hand."""

from dataclasses import replace

import pytest
from paper.comparison import TIMES

from builders.results import (
    column,
    diagnose,
    gce_folds,
    gce_run,
    made_table,
    snr_rows,
    texts,
    toy_results,
)
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


def test_the_audit_counts_its_slides_and_adds_them_up(folder):
    labels = {"rule": "evidence", "network": "wrapped", "class": "all"}
    for cohort, slides in (("bracs", 30.0), ("kirc", 20.0)):
        diagnose(
            gce_run(folder, cohort),
            "failures",
            [Row(labels, {"audited_slides": slides, "case_failure_share": 0.1})],
        )
    made = made_table(folder, "failure_audit")
    assert (texts(made, "BRACS")[0], texts(made, "KIRC")[0], texts(made, "All")[0]) == ("30", "20", "50")


def test_rules_are_compared_on_the_runs_that_have_all_of_them(folder):
    def rows(*rules):
        return [
            Row({"rule": rule, "network": network, "budget": "0.05"}, {"evidence_sufficiency": value})
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


def test_subsets_are_looked_up_by_size_and_policy(folder):
    labels = {"rule": "sufficient_prefix", "network": "plain", "k": "16"}
    diagnose(gce_run(folder), "subsets", [Row(labels, {"subsets_per_slide": 1.5, "two_subsets_share": 0.25})])
    made = made_table(folder, "minimal_subsets")
    assert texts(made, "16", "Sufficient-prefix")[:2] == ["1.5000", "25.00"]
    assert texts(made, "8", "Sufficient-prefix")[:2] == ["missing", "missing"]


def test_stability_never_has_both_gaps_in_one_line(folder):
    rows = [
        Row({"rule": "attention", "network": "plain", "perturbation": "seeds"}, {"jaccard": 0.3, "full_kept_gap": 0.2}),
        Row({"rule": "evidence", "network": "wrapped", "perturbation": "seeds"}, {"jaccard": 0.6, "cd_gap": 0.01}),
        Row({"rule": "evidence", "network": "wrapped", "perturbation": "dropout 0.1"}, {"jaccard": 0.8, "cd_gap": 0.01}),
    ]  # fmt: skip
    diagnose(gce_run(folder), "stability", rows)
    made = made_table(folder, "stability")
    assert texts(made, "seeds", "Attention top-k") == ["0.300", "missing", "-", "0.200"]
    assert texts(made, "seeds", "GCE discrete recovered") == ["0.600", "missing", "0.010", "-"]
    assert texts(made, "dropout 0.1", "GCE discrete recovered")[0] == "0.800"


def budget_rows(keep_only, removed, gap=0.2):
    def row(rule, network, comparison, **figures):
        return Row({"rule": rule, "network": network, "budget": "0.05", "comparison": comparison}, figures)

    kept = {"evidence_sufficiency": 0.5, "keep_only_drop": keep_only, "complement_degradation": removed}
    return [
        row("attention", "plain", "full-kept", **kept, full_kept_gap=gap, runtime_ratio=1.0),
        row("attention", "wrapped", "full-kept", evidence_sufficiency=0.4),
        row("saliency", "plain", "full-kept", **kept, full_kept_gap=gap),
        row("gce_discrete", "wrapped", "full-kept", **kept, full_kept_gap=gap / 2, cd_gap=None),
        row("gce_discrete", "wrapped", "soft-kept", evidence_sufficiency=0.5, cd_gap=0.01),
        row("gce_soft", "wrapped", "soft-kept", soft_metric=0.8, evidence_sufficiency=0.6, cd_gap=0.02),
    ]


def test_keeping_and_removing_have_the_papers_signs(folder):
    diagnose(gce_run(folder), "budget", budget_rows(0.1, 0.2), budget_rows(0.3, 0.4))
    made = made_table(folder, "intervention")
    # Drops of 0.1 and 0.3, losses of 0.2 and 0.4.
    assert texts(made, "Attention top-k") == ["-0.200±0.141", "-0.300±0.141"]
    assert texts(made, "Attention top-k", origin="paper") == ["-0.078", "-0.033"]
    assert [one.direction for one in made.columns] == ["higher", "lower"]


def test_the_two_gaps_of_a_rule_never_share_a_line(folder):
    diagnose(gce_run(folder), "budget", budget_rows(0.1, 0.2))
    made = made_table(folder, "same_budget")
    gap, full_kept = column(made, "gap"), column(made, "full_kept_gap")
    for line in (line for line in made.lines if line.origin == "ours"):
        assert "-" in (line.cells[gap].text, line.cells[full_kept].text), line.row_labels
    assert texts(made, "Attention top-k")[full_kept] == "0.200"
    assert texts(made, "GCE discrete evidence")[full_kept] == "0.100"
    assert texts(made, "GCE discrete evidence: gates against evidence")[gap] == "0.010"
    assert texts(made, "GCE discrete evidence", origin="paper")[gap] == "0.004±0.001"


def test_the_soft_row_is_the_prediction_under_the_gates(folder):
    diagnose(gce_run(folder), "budget", budget_rows(0.1, 0.2))
    made = made_table(folder, "same_budget")
    assert texts(made, "GCE soft evidence")[column(made, "macro_f1")] == "0.800"
    assert texts(made, "GCE soft evidence")[column(made, "evidence_sufficiency")] == "0.600"
    assert texts(made, "Attention top-k, wrapped host")[column(made, "macro_f1")] == "0.400"


def test_explanations_are_taken_at_the_size_of_the_evidence(folder):
    oracle = Row({"rule": "oracle", "network": "plain"}, {"complement_degradation": 0.3})
    diagnose(gce_run(folder), "posthoc", [*budget_rows(0.1, 0.2), oracle])
    made = made_table(folder, "posthoc")
    assert texts(made, "Gradient saliency")[column(made, "remove_drop")] == "0.200"
    assert texts(made, "Attention top-k")[column(made, "runtime")] == f"1.00{TIMES}"
    assert texts(made, "Integrated gradients")[column(made, "runtime")] == "missing"
    assert texts(made, "Oracle (truth first)")[column(made, "runtime")] == "-"


def test_rows_and_columns_of_ours_stand_where_they_have_a_figure(folder):
    diagnose(gce_run(folder), "posthoc", budget_rows(0.1, 0.2))
    made = made_table(folder, "posthoc")
    shown = {line.row_labels[0] for line in made.lines}
    # The paper has integrated gradients and no oracle; nobody asked for either.
    assert "Integrated gradients" in shown
    assert "Oracle (truth first)" not in shown
    without_gap = [
        replace(row, values={name: value for name, value in row.values.items() if name != "full_kept_gap"})
        for row in budget_rows(0.1, 0.2)
    ]
    diagnose(gce_run(folder), "posthoc", without_gap)
    fewer = made_table(folder, "posthoc")
    assert [one.key for one in made.columns if one not in fewer.columns] == ["full_kept_gap"]


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
    answer = texts(made_table(folder, "capacity"), "Does discrete recovery reduce aggregation cost?")
    assert answer[:2] == [
        "diagnostic cost, mode discrete",
        f"MIL aggregation 0.25{TIMES}; peak memory 0.20{TIMES}",
    ]


def test_the_gain_in_localisation_is_paired(folder):
    folder.cohort("camelyon16")
    run = folder.run("camelyon16", "abmil", "gce", gce_folds(0.9, 0.9))
    diagnose(
        run,
        "localisation",
        *(
            [
                Row({"rule": "attention", "network": "plain"}, {"dice": attention}),
                Row({"rule": "gates", "network": "wrapped"}, {"dice": gates}),
                Row({"rule": "oracle", "network": "none"}, {"dice": 1.0}),
            ]
            for attention, gates in ((0.2, 0.5), (0.4, 0.7))
        ),
    )
    made = made_table(folder, "localisation")
    assert texts(made, "ABMIL")[0] == "0.300±0.141"
    assert texts(made, "ABMIL Δ")[0] == "+0.300±0.000"
    assert texts(made, "oracle")[0] == "1.000±0.000"


@pytest.mark.parametrize(
    "name", ["diagnostics_bracs", "diagnostics", "components", "budget", "selector", "grounding"]
)
def test_attention_chance_and_truth_stand_below_every_table_about_the_evidence(folder, name):
    def control(rule, network, value):
        return Row({"rule": rule, "network": network, "class": "all"}, {"complement_degradation": value})

    rows = [
        control("attention", "plain", 0.3),
        control("random", "wrapped", 0.01),
        control("oracle", "wrapped", 0.4),
    ]
    diagnose(gce_run(folder), "snr", rows)
    made = made_table(folder, name)
    place = next(number for number, one in enumerate(made.columns) if one.metric == "complement_degradation")
    found = {
        line.row_labels[0].partition(",")[0]: line.cells[place].text
        for line in made.lines
        if line.origin == "ours"
    }
    assert found["attention of the plain host"] == "0.300"
    assert (found["random patches"], found["oracle (truth first)"]) == ("0.010", "0.400")


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
def test_attention_chance_and_truth_stand_in_every_table_that_compares_rules(folder, name, source, labels):
    figures = {"complement_degradation": 0.3, "keep_only_drop": 0.1, "jaccard": 0.3}
    rows = [Row({"rule": rule, "network": network, **labels}, figures) for rule, network in RULES.items()]
    diagnose(gce_run(folder), source, rows)
    lines = [line for line in made_table(folder, name).lines if line.origin == "ours"]
    measured = {line.row_labels[-2] for line in lines if any(cell.value is not None for cell in line.cells)}
    assert {"Attention top-k", "Random-k", "Oracle (truth first)"} <= measured
    # Controls compete with nothing: the truth would always be best.
    assert {line.comparison for line in lines if line.row_labels[-2].startswith(("Oracle", "Random"))} == {
        None
    }


def test_disjoint_subsets_and_failures_have_their_controls_too(folder):
    subsets = [
        Row({"rule": rule, "network": "plain", "k": "8"}, {"subsets_per_slide": 1.0})
        for rule in ("attention", "random", "oracle")
    ]
    diagnose(gce_run(folder), "subsets", subsets)
    failures = [
        Row({"rule": rule, "network": network, "class": "all"}, {"case_failure_share": 0.1})
        for rule, network in (
            ("evidence", "wrapped"),
            ("attention", "plain"),
            ("random", "wrapped"),
            ("oracle", "wrapped"),
        )
    ]
    diagnose(gce_run(folder), "failures", failures)
    of_subsets = {
        line.row_labels[1]
        for line in made_table(folder, "minimal_subsets").lines
        if line.cells[0].value == 1.0
    }
    assert {"oracle", "random"} <= {name.lower().partition(" ")[0].partition("-")[0] for name in of_subsets}
    said = [line.row_labels[0] for line in made_table(folder, "failure_audit").lines]
    assert {
        "attention of the plain host, all datasets",
        "random patches, all datasets",
        "oracle (truth first), all datasets",
    } <= set(said)
