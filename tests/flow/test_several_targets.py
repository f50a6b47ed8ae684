"""Several targets of one cohort through every command: one model, and evidence of each target on its own patches."""

import json

import numpy as np
import pytest

from builders import grid_coords, write_slide
from builders.commands import answer, gcemil, refused, succeeded
from builders.foreign import write_table
from builders.viewer import bits, opened, send_bits, visitor
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.errors import InputError, RunError, UsageError
from gcemil.records import read_evidence
from gcemil.runs.folder import Run

TARGETS = ("LUAD", "LUSC")
PLAIN = (
    "evidence_strength=12",
    "evidence_min=0.04",
    "evidence_max=0.08",
    "mimic_rate=0",
    "slides_per_case=1",
)
"""A cohort that a model learns in seconds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A simulated cohort of two targets, and a run on it with everything that is measured."""
    folder = tmp_path_factory.mktemp("targets")
    dials = [part for dial in (*PLAIN, "distractor_rate=0") for part in ("--dial", dial)]
    cohort, run = folder / "cohort", folder / "run"
    succeeded(
        *["simulate", "nsclc", "--multilabel", "--size", "tiny", "--slides", "60"],
        *dials,
        *f"--out {cohort}".split(),
    )
    succeeded("split", cohort, "--parts", "36,10,14")
    assert "0 errors" in succeeded("validate", cohort)
    succeeded("train", cohort, "--out", run, "--epochs", 12, "--jobs", 1)
    succeeded("diagnose", run, "--only", "snr", "--jobs", 1)
    return folder


def test_the_model_is_judged_on_every_target_and_on_their_mean(folder):
    summary = json.loads((folder / "run" / "summary.json").read_text())
    areas = {name: summary["full"][f"auc_{name}"]["mean"] for name in TARGETS}
    assert summary["full"]["auc"]["mean"] == pytest.approx(np.mean(list(areas.values())))
    # The host of each target is the shared model: so are its figures.
    for name in TARGETS:
        assert summary["targets"][name]["full"]["auc"]["mean"] == pytest.approx(areas[name])
        assert summary["targets"][name]["gce"]["auc"]["mean"] > 0.9
    header = (folder / "run" / "fold_0" / "predictions.csv").read_text().splitlines()[0]
    assert header == "slide_id,case_id,split,target_LUAD,target_LUSC,prob_LUAD,prob_LUSC"


def test_evidence_of_a_target_lies_on_its_own_patches_and_not_on_those_of_the_other(folder):
    cohorts = {name: Cohort.load(folder / "cohort" / "targets" / name) for name in TARGETS}
    shares = {(one, other): [] for one in TARGETS for other in TARGETS}
    tested = Run(folder / "run" / "targets" / "LUAD").fold(0).path.glob("evidence/*.h5")
    labels = {row.slide_id: row.labels for row in Cohort.load(folder / "cohort").slides}
    both = [path.stem for path in tested if labels[path.stem] == (1, 1)]
    assert len(both) >= 3
    for name in TARGETS:
        for slide_id in both:
            path = Run(folder / "run" / "targets" / name).fold(0).evidence(slide_id)
            chosen = read_evidence(path).selected
            for other, cohort in cohorts.items():
                truth = store.read(cohort.truth_file(slide_id), "evidence").astype(bool)
                shares[name, other].append(truth[chosen].mean())
    for name, other in (TARGETS, TARGETS[::-1]):
        assert np.mean(shares[name, name]) > 0.7
        assert np.mean(shares[name, other]) < 0.3


def test_training_and_evaluating_again_change_nothing(folder):
    before = (folder / "run" / "summary.json").read_bytes()
    succeeded("train", folder / "cohort", "--out", folder / "run", "--epochs", 12, "--jobs", 1)
    assert (folder / "run" / "summary.json").read_bytes() == before
    succeeded("evaluate", folder / "run")
    assert (folder / "run" / "summary.json").read_bytes() == before


def test_a_new_slide_has_a_probability_and_evidence_for_every_target(folder, tmp_path):
    features = np.random.default_rng(0).normal(size=(40, 48)).astype(np.float32)
    path = write_slide(tmp_path, "new", features, grid_coords(40))
    found = answer("predict", folder / "run", path, "--out", tmp_path / "out", "--explain")
    for name in TARGETS:
        assert found[name][0][f"prob_{name}"] + found[name][0][f"prob_not {name}"] == pytest.approx(
            1
        )
        assert (tmp_path / "out" / name / "new" / "overlay.png").is_file()
    header, line = (tmp_path / "out" / "predictions.csv").read_text().splitlines()
    assert header.split(",")[:4] == ["slide_id", "file", "status", "prob_LUAD"]
    assert float(line.split(",")[3]) == pytest.approx(found["LUAD"][0]["prob_LUAD"])


def test_a_slide_is_explained_for_one_target(folder, tmp_path):
    run = folder / "run" / "targets" / "LUSC"
    slide = sorted(path.stem for path in run.glob("fold_0/evidence/*.h5"))[0]
    succeeded("explain", run, "--slide", slide, "--class", "LUSC", "--out", tmp_path)
    assert (tmp_path / "overlay.png").is_file()


def test_the_report_has_a_page_of_all_targets_and_one_of_each(folder):
    succeeded("report", folder / "run")
    page = (folder / "run" / "report.html").read_text()
    assert 'href="report_LUAD.html"' in page
    assert "mean over targets" in page
    assert "Sufficient and necessary" in page
    assert "not LUSC" in (folder / "run" / "report_LUSC.html").read_text()


def test_the_viewer_shows_a_target(folder):
    client = visitor(opened(folder / "run" / "targets" / "LUAD"))
    run = client.get("/api/slides").json()
    assert run["run"] == "LUAD"
    assert {row["label"] for row in run["rows"]} == {"not LUAD", "LUAD"}
    slide_id = run["first"]
    slide = client.get(f"/api/slides/{slide_id}").json()
    chosen = np.isin(np.arange(slide["n_bag"]), slide["chosen"])
    assert chosen.any()
    address = f"/api/slides/{slide_id}"
    assert client.get(f"{address}/patches").status_code == 200
    judged = send_bits(client, f"{address}/judge", bits(chosen, np.ones_like(chosen)))
    assert judged.status_code == 200
    assert "LUAD" in judged.text
    assert send_bits(client, f"{address}/evidence.geojson", bits(chosen)).status_code == 200


def test_a_question_of_one_target_names_the_runs_of_each(folder):
    for command in (
        ("explain", folder / "run", "--slide", "x"),
        ("view", folder / "run"),
        ("figures", folder / "run"),
    ):
        message = refused(*command)
        assert "has 2 targets, and evidence is that of one. Give one of: " in message
        assert str(folder / "run" / "targets" / "LUSC") in message
    with pytest.raises(UsageError, match="has 2 targets"):
        __import__("gcemil").load(folder / "run")


def test_a_target_whose_folder_does_not_exist_is_refused(folder):
    assert "does not exist" in refused(
        "report", folder / "run" / "targets" / "LUADD", error=RunError
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "dsmil"), "Host 'dsmil' cannot have several targets"),
        (("--host", "clam_sb", "--no-gce"), "Host 'clam_sb' cannot have several targets"),
        (("--recipe", "joint"), "Several targets share one model that is trained here"),
    ],
)
def test_what_several_targets_cannot_have_is_refused_before_anything_is_written(
    folder, options, said
):
    out = folder / "refused"
    assert said in refused("train", folder / "cohort", "--out", out, *options)
    assert not out.exists()


def test_an_import_of_several_targets_with_a_missing_label_is_trained(tmp_path):
    lines = ["slide_id,ER,PR"]
    for number in range(24):
        features = np.random.default_rng(number).normal(size=(12, 8)).astype(np.float32)
        write_slide(tmp_path / "job", f"s{number:02d}", features, grid_coords(12))
        er = ("neg", "pos")[number % 2]
        lines.append(f"s{number:02d},{er},{'' if number == 5 else number // 2 % 2}")
    table = write_table(tmp_path / "labels.csv", *lines)
    given = ("import", tmp_path / "job" / "features", "--labels", table, "--task", "multilabel")
    output = succeeded(*given, "--target", "ER,PR", "--out", tmp_path / "cohort")
    assert "target 'PR': 12 slides are 1, 11 are 0, 1 have no label" in " ".join(output.split())
    assert "no column 'HER2'" in refused(*given, "--target", "ER,HER2", "--out", tmp_path / "other")
    succeeded("split", tmp_path / "cohort", "--parts", "12,6,6")
    training = ("train", tmp_path / "cohort", "--epochs", 1, "--jobs", 1, "--no-gce")
    succeeded(*training, "--out", tmp_path / "run")
    tested = sum(
        len(
            (tmp_path / "run" / "targets" / name / "fold_0" / "predictions.csv")
            .read_text()
            .splitlines()
        )
        - 1
        for name in ("ER", "PR")
    )
    parts = dict(
        line.split(",")
        for line in (tmp_path / "cohort" / "splits" / "fold_0.csv").read_text().splitlines()
    )
    assert tested == 24 - (parts["s05"] != "train")
    # A part without a positive has no AUC.
    split = tmp_path / "cohort" / "splits" / "fold_0.csv"
    rows = {line.split(",")[0]: line.split(",")[1] for line in lines[1:]}
    split.write_text(
        "\n".join(
            line.replace(",test", ",train") if rows.get(line.split(",")[0]) == "pos" else line
            for line in split.read_text().splitlines()
        )
    )
    message = refused(*training, "--out", tmp_path / "second", error=InputError)
    assert "fold 0, part test: target 'ER' is 0 on all bags that have a label" in message


def test_commands_for_one_model_want_one_target(folder, tmp_path):
    weights = folder / "run" / "fold_0" / "checkpoint.safetensors"
    message = refused(
        *f"adopt {weights} --host abmil --cohort {folder}/cohort --out {tmp_path}/run".split()
    )
    assert "has several targets, which 'gcemil train' trains together" in message
    assert gcemil("validate", folder / "cohort" / "targets" / "LUAD").exit_code == 0
