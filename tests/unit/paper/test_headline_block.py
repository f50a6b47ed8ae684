"""The abstract's claims: from the paper's own tables, and from results whose averages are known by
hand.
"""

import pytest
from paper.comparison import TIMES, paper_figures
from paper.measured import read_measured
from paper.overview import headline_table

from builders.results import ResultsFolder, gce_folds, host_folds


@pytest.fixture
def results(tmp_path):
    """Two classification cohorts and one of survival; gains 0.1 and 0.3, and -0.02."""
    results = ResultsFolder(tmp_path)
    for cohort, task, metric, host, gce in (
        ("bracs", "classification", "macro_f1", 0.5, 0.6),
        ("nsclc", "classification", "macro_f1", 0.5, 0.8),
        ("kirc", "survival", "c_index", 0.6, 0.58),
    ):
        results.cohort(cohort, task=task)
        results.run(cohort, "abmil", "host", host_folds(host, host, metric=metric))
        results.run(cohort, "abmil", "gce", gce_folds(gce, gce, metric=metric))
    return results


def block(results):
    return headline_table(read_measured(results.folder), paper_figures())


def value(made, claim, mark):
    return next(
        line.cells[0].text
        for line in made.lines
        if line.row_labels[0] == claim and line.row_labels[1].startswith(mark)
    )


def test_gains_are_means_over_hosts_and_cohorts_of_one_task(results):
    made = block(results)
    # 0.1 and 0.3: mean 0.2, sd 0.1 sqrt 2.
    assert value(made, "Mean gain in Macro-F1", "ours") == "+0.2000±0.1414"
    assert value(made, "Mean gain in C-index", "ours") == "-0.0200±0.0000"


def test_the_papers_claims_stand_beside_what_its_tables_give(results):
    made = block(results)
    assert value(made, "Mean gain in Macro-F1", "paper (abstract)") == "0.024"
    # 36 cells of the table add up to 0.855.
    assert value(made, "Mean gain in Macro-F1", "paper (from its tables)") == "+0.0238"
    assert value(made, "Mean gain in C-index", "paper (from its tables)") == "+0.0142"
    # 0.029 / 0.005 and 0.029 / 0.004; 0.277 / 0.107 and 0.412 / 0.151.
    assert value(made, "C-D gap reduced", "paper (from its tables)") == f"5.8{TIMES} to 7.2{TIMES}"
    assert (
        value(made, "Complement degradation increased", "paper (from")
        == f"2.6{TIMES} to 2.7{TIMES}"
    )
    assert value(made, "Inference with tile prefilter, faster", "paper (from") == f"5{TIMES}"
    assert value(made, "Utility retained with tile prefilter", "paper (from") == f"0.989{TIMES}"
