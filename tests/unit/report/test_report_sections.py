import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders.reports import judged_slide, run_folder, toy_evidence
from builders.results import ResultsFolder, diagnose, gce_folds, toy_results
from gcemil.benchmark.results import Results
from gcemil.benchmark.summary import write_summary
from gcemil.diagnostics.table import QUESTIONS
from gcemil.errors import CohortError, RunError
from gcemil.exports.geojson import EVIDENCE, NO_EVIDENCE
from gcemil.findings import Finding, Row
from gcemil.records import Representations, write_representations
from gcemil.report.context import Context
from gcemil.report.run_data import RunData
from gcemil.report.run_report import write_report
from gcemil.report.sections import headline, mechanism, representations, snr, tables
from gcemil.report.sections.examples import choose_examples
from gcemil.report.sections.grid import pair_hosts
from gcemil.report.sections.slides import describe_bags, draw_map, link_bags, render_slides
from gcemil.report.slide_view import name_anchor, read_slide_view
from gcemil.runs.folder import RunFold
from gcemil.tables import best_cells, format_metric

ALL = {"rule": "evidence", "network": "wrapped", "class": "all", "comparison": "full-kept"}


def context_of(run: Path, against: Path | None = None) -> Context:
    return Context.open(run, against, run / "figures", 0)


@pytest.fixture
def toy_run(tmp_path):
    """Three slides: one holds, one is not necessary, one is not sufficient; random holds nowhere."""
    run = run_folder(tmp_path / "run")
    slides = ["s0", "s1", "s2"]
    run.fold(0, slides, evidence=[toy_evidence(name) for name in slides])
    nothing = {"rule": "random", "sufficient": False, "necessary": False}
    own = ({}, {"necessary": False}, {"sufficient": False})
    judged = [judged_slide(name, **more) for name, more in zip(slides, own, strict=True)]
    run.snr(0, [*judged, *(judged_slide(name, **nothing) for name in slides)])
    return run


@pytest.fixture
def run(tmp_path):
    return run_folder(tmp_path / "a run")


def test_the_headline_counts_the_slides_that_hold(toy_run):
    text = headline.render_claim(context_of(toy_run.folder)).body
    assert "<b>1 of 3</b> test slides" in text
    assert "random 0 of 3" in text
    assert "25.0 % of the patches" in text
    assert "1 of 3 slides have no evidence" in text


def test_without_the_diagnostic_the_headline_gives_its_command(run):
    run.fold(0, ["s0"])
    text = headline.render_claim(context_of(run.folder)).body
    assert "Not measured" in text
    assert f"gcemil diagnose &#39;{run.folder}&#39; --only snr" in text


def test_a_run_without_the_wrapper_is_judged_by_its_attention(tmp_path):
    run = run_folder(tmp_path / "host", wrapped=False)
    run.fold(0, ["s0"], wrapped=False)
    run.snr(0, [judged_slide("s0", rule="attention")])
    text = headline.render_claim(context_of(run.folder)).body
    assert "Attention is sufficient and necessary in <b>1 of 1</b>" in text
    assert "The run has no wrapper" in text
    assert mechanism.render_mechanism(context_of(run.folder), None) is None


def test_cautions_say_what_a_reader_must_know(toy_run):
    metrics = toy_run.folder / "fold_0" / "metrics.json"
    found = json.loads(metrics.read_text())
    found["details"] |= {"anchors": "prototypes (8)", "warnings": ["gates all open"]}
    metrics.write_text(json.dumps(found))
    (toy_run.folder / "fold_0" / "checkpoint.safetensors").write_bytes(b"new weights")
    outdated = Finding("cost", (), provenance={"inputs": {"run": "print of the old weights"}})
    toy_run.finding(0, outdated)
    text = " ".join(headline.list_cautions(context_of(toy_run.folder)))
    for words in ("prototypes", "Only 3 slides", "no longer lies", "gates all open"):
        assert words in text
    assert "Fold 0 was trained again after snr" not in text
    assert "Fold 0 was trained again after cost had been measured" in text
    assert "--only cost" in text


def test_the_spread_is_over_folds_and_of_one_fold_over_its_slides(run):
    for number, value in enumerate((0.2, 0.4)):
        run.fold(number, [f"s{number}"])
        run.finding(number, Finding("cost", (Row({"mode": "full"}, {"peak_memory": value}),)))
    data = RunData(run.folder)
    assert data.spread("cost") == "2 folds"
    row = data.finding("cost").rows[0]
    assert row.values["peak_memory"] == pytest.approx(0.3)
    assert row.deviations["peak_memory"] == pytest.approx(0.2 / 2**0.5)
    (run.folder / "fold_1" / "diagnostics" / "cost.json").unlink()
    assert RunData(run.folder).spread("cost") == "the slides of one fold"


def rows_of(metrics, figures, **labels):
    """One row per rule with these figures."""
    return [
        Row({"rule": rule, "network": "wrapped", **labels}, dict(zip(metrics, values, strict=True)))
        for rule, values in figures.items()
    ]


def test_the_best_figure_is_bold_and_controls_do_not_compete(toy_run):
    metrics = ["full_kept_gap", "complement_degradation"]
    rules = ("evidence", "attention", "random", "oracle")
    values = ((0.1, 0.5), (0.3, 0.5), (0.0, 0.6), (0.0, 0.9))
    rows = rows_of(metrics, dict(zip(rules, values, strict=True)))
    made = context_of(toy_run.folder).make_table(rows, [*metrics, "precision"])
    assert best_cells(made) == {(0, 0), (0, 1), (1, 1)}
    assert [line.role for line in made.lines] == ["own", "", "control", "control"]
    assert (made.columns[0].header, made.columns[0].arrow) == ("Full-kept gap", "↓")
    assert len(made.columns) == 2, "a figure nobody has needs no column"


def test_a_map_that_marks_everything_is_not_the_best_detector(toy_run):
    metrics = ["froc", "froc_official"]
    rows = rows_of(metrics, {"evidence": (0.6, 0.3), "attention": (0.7, 0.4), "random": (1, 0.5)})
    made = tables.make_detector_table(context_of(toy_run.folder), rows, ())
    assert [column.key for column in made.columns] == metrics
    assert best_cells(made) == {(1, 1)}


def test_lines_compete_only_within_their_block(toy_run):
    rows = [
        *rows_of(["jaccard"], {"evidence": [0.9], "attention": [0.8]}, perturbation="noise"),
        *rows_of(["jaccard"], {"evidence": [0.5], "attention": [0.6]}, perturbation="dropout"),
    ]
    made = context_of(toy_run.folder).make_table(rows, ["jaccard"], within="perturbation")
    assert best_cells(made) == {(0, 0), (3, 0)}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("sufficient_share", 0.125, "12.5 %"),
        ("p_paired_t", 0.0312, "0.031"),
        ("keep_only_drop", -0.0001, "0.000"),
        ("keep_only_drop", -0.1, "-0.100"),
        ("explained_time", 1234.5, "1234"),
        ("explained_time", 2.345, "2.35"),
    ],
)
def test_numbers_are_written_by_their_kind(name, value, text):
    assert format_metric(name, value) == text


def test_the_page_is_always_the_same_and_lists_once_what_was_not_measured(toy_run, tmp_path):
    first, second = (write_report(toy_run.folder, tmp_path / f"{name}.html") for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    before, _, end = first.read_text(encoding="utf-8").partition('id="missing"')
    assert "Not measured" not in before.partition("</nav>")[2]
    assert end.count("gcemil diagnose") == 1
    assert "--only budget,posthoc,subsets" in end
    for name in ("budget", "stability", "cost", "failures"):
        assert end.count(QUESTIONS[name]) == 1
    files = list((toy_run.folder / "figures").iterdir())
    assert {path.suffix for path in files} == {".png", ".svg"}
    for name in ("snr_slides", "prediction_folds", "slide_typical", "anchor_coverage", "mechanism"):
        assert any(path.stem == name for path in files)


def test_a_slide_without_evidence_has_a_chip_a_filter_and_a_grey_map(run):
    evidence = replace(toy_evidence("s0"), is_sufficient=True, is_necessary=False)
    run.fold(0, ["s0"], evidence=[evidence])
    run.snr(0, [judged_slide("s0", necessary=False, no_evidence=True)])
    text = render_slides(context_of(run.folder)).body
    assert '<span class="chip none">no evidence</span>' in text
    assert "no evidence (1)" in text
    assert "No evidence: without the patches that were found the prediction stays as it is" in text
    data = RunData(run.folder)
    view = read_slide_view(data, data.bags[0], "s0")
    pixels = np.asarray(Image.open(io.BytesIO(draw_map(view).data)).convert("RGB")).reshape(-1, 3)
    assert (pixels == NO_EVIDENCE.color).all(axis=1).any()
    assert not (pixels == EVIDENCE.color).all(axis=1).any()


def test_concepts_that_count_for_the_prediction_come_first_and_the_others_are_folded(run):
    weights = np.array([0.1, 1.0], dtype=np.float32)
    run.fold(0, ["s0"], evidence=[replace(toy_evidence("s0"), anchor_weights=weights)])
    text = render_slides(context_of(run.folder)).body
    shown, _, folded = text.partition("1 other concepts")
    assert "Concepts that count for a" in shown
    assert ("necrosis" in shown, "glands" in shown, "glands" in folded) == (True, False, True)
    assert "not why the class was predicted" in folded


def test_a_prototype_is_named_with_the_patch_that_is_most_like_it():
    evidence = replace(toy_evidence("s0"), prompts=("prototype 1", "prototype 2"))
    assert name_anchor(evidence, 0) == "prototype 1, like the patch at 0, 0"
    assert name_anchor(toy_evidence("s0"), 0) == "glands"


def test_a_bound_that_limits_nothing_is_said_to_and_not_printed(toy_run):
    figures = {"coverage_bound": 1355.6, "coverage_slack": 1355.0, "full_kept_gap": 0.1}
    slides = RunData(toy_run.folder).folds[0].findings["snr"].slides
    toy_run.finding(0, Finding("snr", (Row(ALL, figures),), slides=slides))
    text = snr.render_snr(context_of(toy_run.folder)).body
    assert "1355" not in text
    assert "limits nothing here" in text


def test_failing_slides_are_named_and_linked(toy_run):
    types = dict.fromkeys(tables.FAILURE_TYPES, False) | {"artifact_evidence": None}
    about = {"rule": "evidence", "network": "wrapped", **types}
    slides = [{"bag_id": name, "slide_ids": [name], **about} for name in ("s0", "s1")]
    slides[1]["low_necessity"] = True
    row = Row(ALL, {"low_necessity_share": 0.5})
    toy_run.finding(0, Finding("failures", (row,), slides=tuple(slides)))
    context = context_of(toy_run.folder)
    text = tables.render_failures(context, link_bags(context)).body
    assert '<a href="#bag-1">s1</a>' in text
    assert "1 of 2" in text
    assert "not known" in text
    kinds = {bag["bag_id"]: bag["kinds"] for bag in describe_bags(context.run)}
    assert ("failing" in kinds["s0"], "failing" in kinds["s1"]) == (False, True)


def store_representations(path, *modes):
    """Ten test bags of two classes."""
    draws = np.random.default_rng(0)
    found = {mode: draws.normal(size=(10, 4)).astype(np.float32) for mode in modes}
    ids = tuple(f"b{number}" for number in range(10))
    write_representations(path, Representations(found, ids, ("test",) * 10, ("a", "b") * 5))


def test_representations_of_both_runs_are_drawn_side_by_side(tmp_path, toy_run):
    host = run_folder(tmp_path / "host", wrapped=False)
    host.fold(0, ["s0"], wrapped=False)
    store_representations(toy_run.folder / "fold_0" / "representations.h5", "full", "soft")
    store_representations(host.folder / "fold_0" / "representations.h5", "full")
    context = context_of(toy_run.folder, host.folder)
    text = representations.render_representations(context).body
    assert "--keep-epochs" in str(context.render_missing().body)
    assert "after each of these epochs" not in text
    drawn = (toy_run.folder / "figures" / "representations.svg").read_text()
    assert drawn.count('<g id="axes_') == 2, "the plain host, and host + GCE gated"


def test_kept_epochs_are_drawn_from_the_first_to_the_last(toy_run):
    fold = RunFold(toy_run.folder / "fold_0")
    for path in (fold.representations, *(fold.epoch_representations(epoch) for epoch in range(7))):
        store_representations(path, "full", "soft")
    context = context_of(toy_run.folder)
    assert "after each of these epochs" in representations.render_representations(context).body
    drawn = (toy_run.folder / "figures" / "representations_epochs.svg").read_text()
    assert drawn.count('<g id="axes_') == 4
    assert representations.choose_epochs(range(7)) == [0, 2, 4, 6]
    assert representations.choose_epochs([3]) == [3]


def test_a_slide_shows_its_four_outputs_and_the_numbers_behind_its_verdicts(toy_run):
    text = render_slides(context_of(toy_run.folder)).body
    assert "Not necessary: change 0.000, at least 0.05" in text
    assert "Not sufficient: change 0.300, at most 0.05" in text
    assert text.count("<details") == 3
    assert text.count("<img") == 3


def test_evidence_without_coordinates_has_numbers_and_no_map(run):
    run.fold(0, ["s0"], evidence=[toy_evidence("s0", with_coords=False)])
    run.snr(0, [judged_slide("s0", phi_removed=None, necessary=False, removal_gap=None)])
    context = context_of(run.folder)
    text = render_slides(context).body
    assert "<img" not in text
    assert "nothing is left without it" in text
    assert choose_examples(context.run) == {}


def test_examples_are_the_middle_and_the_end_of_the_order_by_gap(run):
    gaps = {"s0": 0.5, "s1": 0.1, "s2": 0.9, "s3": 0.3, "s4": 0.2}
    run.fold(0, list(gaps), evidence=[toy_evidence(name) for name in gaps])
    run.snr(0, [judged_slide(name, full_kept_gap=gap) for name, gap in gaps.items()])
    found = {key: view.slide_id for key, view in choose_examples(RunData(run.folder)).items()}
    assert found == {"typical": "s3", "worst": "s2"}


def test_names_that_are_html_stay_text(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    run = run_folder(tmp_path / "run", classes=(evil, "b"))
    run.fold(0, [evil], target=evil, evidence=[toy_evidence(evil)])
    run.snr(0, [judged_slide(evil, target=evil, predicted=evil)])
    row = Row({"mode": evil, "network": evil}, {"peak_memory": 1.0})
    run.finding(0, Finding("cost", (row,), notes=(f"a note with {evil}",)))
    text = write_report(run.folder, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<img src=x" not in text
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") > 5


def test_a_slide_id_never_leads_out_of_the_run(run, tmp_path):
    run.fold(0, ["../../secret"])
    with pytest.raises(CohortError, match="cannot be a slide id"):
        write_report(run.folder, tmp_path / "report.html")


def test_runs_of_different_cohorts_are_no_pair(toy_run, tmp_path):
    other = run_folder(tmp_path / "other", wrapped=False, fingerprint="0" * 64)
    other.fold(0, ["s0"], wrapped=False)
    with pytest.raises(RunError, match="different fingerprints"):
        write_report(toy_run.folder, tmp_path / "report.html", against=other.folder)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder.mkdir(), "it has no config.yaml"),
        (run_folder, "no finished fold"),
        (lambda folder: (folder / "grids").mkdir(parents=True), "has no summary.json"),
    ],
)
def test_a_folder_that_cannot_be_reported_says_why(tmp_path, make, words):
    make(tmp_path / "folder")
    with pytest.raises(RunError, match=words):
        write_report(tmp_path / "folder", tmp_path / "report.html")


def test_a_grid_shows_its_runs_and_what_the_evidence_changed(tmp_path):
    results = toy_results(tmp_path / "results")
    summary = write_summary(Results(results.folder))
    (gain,) = pair_hosts(summary["means"], "macro_f1").itertuples(index=False)
    assert tuple(gain) == ("abmil", "bracs", pytest.approx(0.55), pytest.approx(0.7))
    text = write_report(results.folder, tmp_path / "grid.html").read_text(encoding="utf-8")
    assert "Simulated, not tissue: bracs, kirc" in text
    assert text.count('<td class="name">kirc</td>') == 2
    assert "Name snr under diagnostics" in text
    assert (results.folder / "figures" / "hosts_macro_f1.svg").is_file()
    with pytest.raises(RunError, match="Leave --against out"):
        write_report(results.folder, tmp_path / "grid.html", against=tmp_path)


def test_a_grid_without_host_arms_compares_with_all_patches_and_counts_the_evidence(tmp_path):
    results = ResultsFolder(tmp_path / "results")
    results.grid(bracs={"profile": "bracs"})
    results.cohort("bracs")
    run = results.run("bracs", "abmil", "gce", gce_folds(0.6, 0.8))
    diagnose(run, "snr", [Row(ALL, {"both_share": 0.75})])
    grid = results.folder / "grids" / "toy.yaml"
    grid.write_text(grid.read_text().replace("diagnostics: []", "diagnostics: [snr]"))
    summary = write_summary(Results(results.folder))
    # Full is a tenth below soft.
    (gain,) = pair_hosts(summary["means"], "macro_f1").itertuples(index=False)
    assert tuple(gain) == ("abmil", "bracs", pytest.approx(0.6), pytest.approx(0.7))
    text = write_report(results.folder, tmp_path / "grid.html").read_text(encoding="utf-8")
    assert "75.0 %" in text
    assert "Name snr under diagnostics" not in text
