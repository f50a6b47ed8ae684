"""From a trained run to a page: measured, then written, from files alone."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from builders.reports import run_folder, toy_evidence
from gcemil.cli.report import figures, report
from gcemil.diagnostics.diagnose import Comparison, measure_fold
from gcemil.diagnostics.table import QUESTIONS
from gcemil.errors import RunError
from gcemil.records import read_representations, write_evidence
from gcemil.report.run_data import RunData
from gcemil.report.run_report import write_report
from gcemil.report.sections.representations import FEWEST

app = typer.Typer()
app.command("report")(report)
app.command("figures")(figures)


@app.callback()
def nothing() -> None:
    """Keeps `report` a verb."""


def copied(run: Path, tmp_path: Path) -> Path:
    """A run that may be written into."""
    return Path(shutil.copytree(run, tmp_path / run.name))


def ids_of(text: str) -> list[str]:
    return re.findall(r'<section id="([a-z]+)"', text)


@pytest.fixture
def gce(classification_runs, tmp_path):
    return copied(classification_runs.gce, tmp_path)


def test_a_measured_run_beside_its_host_has_a_page_with_every_section(classification_runs, gce):
    measure_fold(Comparison(gce, against=classification_runs.host), 0, ["snr", "failures"])
    path = write_report(gce, gce / "report.html", against=classification_runs.host)
    text = path.read_text(encoding="utf-8")
    assert ids_of(text) == [
        "performance", "claim", "snr", "examples", "mechanism", "truth", "failures", "slides", "provenance", "missing",
    ]  # fmt: skip
    slides = RunData(gce).slides("snr")
    own = [one for one in slides if (one["rule"], one["network"]) == ("evidence", "wrapped")]
    held = sum(one["sufficient"] and one["necessary"] for one in own)
    assert f"<b>{held} of {len(own)}</b> test slides" in text
    assert "The cohort is simulated" in text
    assert "outline: annotated truth" in text
    assert text.count('class="bag') >= len(own)
    assert "the plain host and the wrapped one are the same network" in text
    (command,) = re.findall(
        r"<code>(gcemil diagnose [^<]*)</code>", text.partition('id="missing"')[2]
    )
    assert set(command.split("--only ")[1].split(",")) == QUESTIONS.keys() - {"snr", "failures"}
    assert len(text) < 5e6


def test_a_plain_host_has_a_page_without_evidence(classification_runs, tmp_path):
    host = copied(classification_runs.host, tmp_path)
    text = write_report(host, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "abmil, no wrapper" in text
    assert "mechanism" not in ids_of(text)
    assert "writes no evidence files" in text


def test_a_survival_run_draws_its_risk_groups_with_and_without_evidence(survival_runs, tmp_path):
    run = copied(survival_runs.gce, tmp_path)
    measure_fold(Comparison(run), 0, ["snr"])
    text = write_report(run, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "C-index" in text.partition('id="performance"')[2]
    assert (run / "figures" / "kaplan_meier.svg").is_file()
    assert "test cases" in text
    assert re.search(r"(event|censored) at [0-9.]+", text)


def test_the_verb_stores_representations_and_draws_them_where_there_are_enough(
    classification_runs, gce, tmp_path
):
    host = copied(classification_runs.host, tmp_path)
    arguments = ["report", str(gce), "--against", str(host), "--representations", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert '"report"' in result.output
    found = read_representations(gce / "fold_0" / "representations.h5")
    assert set(found.by_mode) == {"full", "soft", "discrete"}
    tested = {bag.bag_id for bag in RunData(gce).bags}
    assert {
        bag for bag, part in zip(found.bag_ids, found.parts, strict=True) if part == "test"
    } == tested
    assert np.isfinite(found.by_mode["soft"]).all()
    assert read_representations(host / "fold_0" / "representations.h5").bag_ids == found.bag_ids
    text = (gce / "report.html").read_text(encoding="utf-8")
    assert "Not measured yet" in text, "nothing was diagnosed"
    assert f"gcemil diagnose {gce} --against {host} --only snr" in text
    assert (gce / "figures" / "representations.png").is_file() == (len(found.bag_ids) >= FEWEST)


def test_the_verb_refuses_a_folder_that_is_no_run(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, RunError)


@pytest.mark.slow
def test_a_hundred_slides_stay_below_five_megabytes(tmp_path):
    run = run_folder(tmp_path / "run")
    names = [f"slide-{number:03d}" for number in range(100)]
    folder = run.fold(0, names)
    draws = np.random.default_rng(0)
    for name in names:
        chosen = np.flatnonzero(draws.random(5000) < 0.05)
        write_evidence(
            folder / "evidence" / f"{name}.h5",
            toy_evidence(name, n_patches=5000, selected=chosen.tolist(), width=70),
            {},
        )
    path = write_report(run.folder, tmp_path / "report.html")
    assert path.stat().st_size < 5e6


@pytest.mark.parametrize("task", ["classification", "survival"])
def test_a_trained_run_has_the_figures_of_a_paper(task, request, tmp_path):
    runs = request.getfixturevalue(f"{task}_runs")
    command = [
        "figures",
        str(runs.gce),
        "--against",
        str(runs.host),
        "--out",
        str(tmp_path),
        "--format",
        "pdf",
    ]
    done = CliRunner().invoke(app, [*command, "--dpi", "72", "--json"])
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)
    names = {Path(path).name for path in written["files"]}
    drawn = {
        "classification": {"roc.pdf", "confusion.pdf"},
        "survival": {"kaplan_meier.pdf", "auc_over_time.pdf"},
    }
    assert drawn[task] | {"metrics.tex", "captions.md"} <= names
    assert any(name.startswith("evidence_") for name in names)
    assert "--only snr" in written["left_out"]["Diagnostic 'snr' was not made."]
