import csv
import io

import pytest
from typer.testing import CliRunner

from builders.results import ResultsFolder, diagnose, gce_folds, host_folds
from gcemil.errors import UsageError
from gcemil.findings import Row
from gcemil.tables import MISSING, UNDEFINED, Cell, Column, Line, Table, best_cells, render_tables

COLUMNS = (
    Column("macro_f1", "Macro-F1", "macro_f1", group="BRACS"),
    Column("cd_gap", "C-D gap", "cd_gap", group="BRACS"),
    Column("evidence_fraction", "Evid. frac.", "evidence_fraction"),
)


def line(name, origin, *cells, comparison="all"):
    return Line((name, origin), origin, cells, comparison)


@pytest.fixture
def table():
    return Table(
        name="toy",
        title="a toy of 100 % _certainty_",
        label="tab:toy",
        row_labels=("rule", "figures"),
        columns=COLUMNS,
        lines=(
            line(
                "attention",
                "ours",
                Cell("0.500±0.100", 0.5, 0.1, 5),
                UNDEFINED,
                Cell("0.050", 0.05),
            ),
            line(
                "GCE",
                "ours",
                Cell("0.700±0.100", 0.7, 0.1, 5),
                Cell("0.010", 0.01),
                Cell("0.050", 0.05),
            ),
            line("GCE, other", "ours", Cell("0.700", 0.7), Cell("0.020", 0.02), MISSING),
            line(
                "GCE",
                "paper",
                Cell("0.748±0.032", 0.748, 0.032),
                Cell("0.004±0.001", 0.004),
                Cell("0.051"),
            ),
            line("oracle", "ours", Cell("0.900", 0.9), UNDEFINED, MISSING, comparison=None),
        ),
        legend={"paper": "real", "ours": "simulated"},
        notes=("Mind this.",),
        remedy="gcemil diagnose RUN --only snr",
    )


def test_bold_goes_to_the_best_of_each_origin_by_the_metrics_direction(table):
    # Macro-F1: two equal figures; C-D gap: the lower one. The paper's line has no rival, the oracle does not compete,
    # and no share of patches is better than another.
    assert best_cells(table) == {(1, 0), (2, 0), (1, 1)}


def test_markdown_has_arrows_bold_origin_and_what_is_missing(table):
    assert render_tables([table], "markdown").splitlines() == [
        "## toy: a toy of 100 % _certainty_",
        "",
        "| rule | figures | BRACS Macro-F1 ↑ | BRACS C-D gap ↓ | Evid. frac. |",
        "| --- | --- | --- | --- | --- |",
        "| attention | ours | 0.500±0.100 | - | 0.050 |",
        "| GCE | ours | **0.700±0.100** | **0.010** | 0.050 |",
        "| GCE, other | ours | **0.700** | 0.020 | missing |",
        "| GCE | paper | 0.748±0.032 | 0.004±0.001 | 0.051 |",
        "| oracle | ours | 0.900 | - | missing |",
        "",
        "- paper: real.",
        "- ours: simulated.",
        "- Mind this.",
        "- 2 cells are missing. Add them with: gcemil diagnose RUN --only snr",
    ]


def test_latex_is_escaped_and_groups_its_columns(table):
    text = render_tables([table], "latex")
    assert (
        r"\caption{a toy of 100 \% \_certainty\_. paper: real. ours: simulated. Mind this." in text
    )
    assert r"\begin{tabular}{llccc}" in text
    assert r" &  & \multicolumn{2}{c}{BRACS} & \multicolumn{1}{c}{} \\" in text
    assert r"rule & figures & Macro-F1$\uparrow$ & C-D gap$\downarrow$ & Evid. frac. \\" in text
    assert r"GCE & ours & \textbf{0.700$\pm$0.100} & \textbf{0.010} & 0.050 \\" in text
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 1


def test_csv_has_one_line_per_cell_with_its_numbers(table):
    rows = list(csv.DictReader(io.StringIO(render_tables([table], "csv"))))
    assert len(rows) == 5 * 3
    assert rows[0] == {
        "table": "toy", "row": "attention", "figures": "ours", "column": "macro_f1", "metric": "macro_f1",
        "better": "higher", "text": "0.500±0.100", "value": "0.5", "deviation": "0.1", "n": "5", "state": "there",
        "low": "", "high": "",
    }  # fmt: skip
    assert [row["state"] for row in rows[:9]].count("missing") == 1
    assert rows[1]["state"] == "undefined"


@pytest.fixture
def results(tmp_path):
    folder = ResultsFolder(tmp_path / "results")
    folder.cohort("bracs")
    folder.run("bracs", "abmil", "host", host_folds(0.5))
    folder.run("bracs", "abmil", "gce", gce_folds(0.6, 0.8))
    return folder.folder


def invoked(*arguments):
    import typer

    from gcemil.cli.benchmark import tables

    app = typer.Typer()
    app.command()(tables)
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_a_mean_is_over_folds_and_seeds_and_a_single_value_has_no_interval(results):
    ResultsFolder(results).run("bracs", "abmil", "gce", gce_folds(0.7), seed=1)
    ResultsFolder(results).run("bracs", "dsmil", "gce", gce_folds(0.4))
    lines = invoked(results, "--metric", "macro_f1").output.splitlines()
    assert lines[2:4] == [
        "| cohort | host | arm | mode | Macro-F1 ↑ |",
        "| --- | --- | --- | --- | --- |",
    ]
    assert "| bracs | abmil | gce | soft | 0.700 [0.452, 0.948] |" in lines
    assert "| bracs | dsmil | gce | soft | 0.400 |" in lines


def test_a_diagnostic_is_a_table_of_its_own(results):
    rows = [
        Row({"rule": rule}, {"precision": value})
        for rule, value in (("gates", 0.5), ("attention", None))
    ]
    diagnose(
        results / "runs" / "bracs" / "abmil" / "gce" / "seed_0",
        "snr",
        [*rows, Row({"rule": "gates"}, {})],
    )
    result = invoked(results, "--table", "snr")
    assert result.output.startswith("## snr: means over folds and seeds")
    assert "| bracs | abmil | gce | gates | 0.500 |" in result.output
    assert "| bracs | abmil | gce | attention | - |" in result.output


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--table", "The results have no source 'x'. Choose one of: task."),
        ("--metric", "The results have no metric 'x'."),
    ],
)
def test_the_command_refuses_a_name_it_does_not_know(results, option, said):
    result = invoked(results, option, "x")
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(said)
