"""gcemil explain and gcemil audit on small trained runs: files, exit codes, messages."""

import json
import re
import sys

import h5py
import numpy as np
import pytest
from PIL import Image

from builders import grid_coords, make_cohort, write_slide
from builders.commands import answer, read_certificate, refused, succeeded
from builders.geojson_rules import violations
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, read_fold, write_folds
from gcemil.config import TrainSettings
from gcemil.errors import GcemilError
from gcemil.findings import read_finding
from gcemil.training.run import train_run

FILES = {
    "evidence.h5",
    "evidence.json",
    "evidence.geojson",
    "regions.geojson",
    "overlay.png",
    "certificate.json",
}


def flat(text):
    return " ".join(text.split())


def unseen_slide(runs):
    return read_fold(Cohort.load(runs.cohort), 0).slides("test")[0]


@pytest.fixture(scope="module")
def explained(classification_runs, tmp_path_factory):
    """Slide, folder and output of one explanation."""
    slide, folder = unseen_slide(classification_runs), tmp_path_factory.mktemp("explained")
    output = succeeded("explain", classification_runs.gce, "--slide", slide, "--out", folder)
    return slide, folder, output


class TestExplain:
    def test_a_tested_slide_gets_every_file(self, explained):
        _, folder, output = explained
        assert {path.name for path in folder.iterdir()} - {"further_sets.geojson"} == FILES
        certificate = read_certificate(folder)
        assert certificate["headline"] in output
        assert certificate["subject"]["part"] == "test"
        assert violations((folder / "evidence.geojson").read_text()) == []

    def test_files_of_one_slide_agree(self, explained):
        _, folder, _ = explained
        selected = store.read(folder / "evidence.h5", "selected").tolist()
        coords = store.read(folder / "evidence.h5", "coords")
        listed = json.loads((folder / "evidence.json").read_text())
        assert [patch["index"] for patch in listed["patches"]] == selected
        features = json.loads((folder / "evidence.geojson").read_text())["features"]
        assert [int(one["properties"]["metadata"]["patch"]) for one in features] == selected
        corners = [one["geometry"]["coordinates"][0][0] for one in features]
        assert corners == coords[selected].tolist()
        certificate = read_certificate(folder)
        assert certificate["subject"]["n_selected"] == len(selected)
        assert certificate["subject"]["fraction"] == len(selected) / len(coords)
        assert certificate["stop_reason"] == listed["stop_reason"]
        prompts = [f"anchor: {anchor['prompt']}" for anchor in certificate["anchors"]]
        assert prompts
        assert set(prompts) <= set(features[0]["properties"]["measurements"])
        with Image.open(folder / "overlay.png") as picture:
            assert picture.format == "PNG"

    def test_the_certificate_names_what_it_rests_on(self, explained):
        slide, folder, _ = explained
        found = read_certificate(folder)
        provenance = found["provenance"]
        assert set(provenance["inputs"]) == {"model", f"features/{slide}"}
        names = {"gcemil", "commit", "packages", "python", "settings_hash", "fold", "seed"}
        assert names <= set(provenance)
        assert found["settings"]["rule"]["recovery"]["threshold"] == 0.5
        predictions = found["predictions"]
        assert None not in (predictions["gated"], predictions["removed"])
        assert found["verdicts"]["sufficient"]["change"] == pytest.approx(
            abs(predictions["kept"]["output"] - predictions["full"]["output"])
        )
        assert sum(predictions["kept"]["values"].values()) == pytest.approx(1)
        for anchor in found["anchors"]:
            counts = anchor["target"] > 0
            assert anchor["covered"] == (anchor["coverage"] >= anchor["target"] if counts else None)
        assert str(folder) not in (folder / "certificate.json").read_text()

    def test_further_sets_are_tiles_of_their_own_class(self, explained):
        _, folder, _ = explained
        rows = [row for one in read_certificate(folder)["further"] for row in one["patches"]]
        selected = store.read(folder / "evidence.h5", "selected").tolist()
        assert rows
        assert len({*rows, *selected}) == len(rows) + len(selected)
        text = (folder / "further_sets.geojson").read_text()
        assert violations(text) == []
        features = json.loads(text)["features"]
        assert len(features) == len(rows)
        names = {one["properties"]["classification"]["name"] for one in features}
        assert names <= {"Alternative 2", "Alternative 3"}

    def test_tolerances_decide_the_verdicts(self, classification_runs, tmp_path):
        slide = unseen_slide(classification_runs)
        common = ("explain", classification_runs.gce, "--slide", slide, "--out", tmp_path)
        for tolerance, expected in ((1.0, (True, False, True)), (0.0, (False, True))):
            options = [
                f"--{name}={tolerance}" for name in ("sufficiency", "necessity", "recoverability")
            ]
            succeeded(*common, *options)
            found = read_certificate(tmp_path)["verdicts"]
            held = tuple(found[name]["held"] for name in ("sufficient", "necessary", "recoverable"))
            assert held[: len(expected)] == expected

    def test_bounds_are_subtracted_whether_given_or_read(self, classification_runs, tmp_path):
        slide = unseen_slide(classification_runs)
        coords = store.read(
            classification_runs.gce / "fold_0" / "evidence" / f"{slide}.h5", "coords"
        )
        left, top = coords.min(axis=0).tolist()
        succeeded(f"explain {classification_runs.gce} --slide {slide} --out {tmp_path} --bounds-x "
f"{left} --bounds-y {top} --all-patches")  # fmt: skip
        features = json.loads((tmp_path / "evidence.geojson").read_text())["features"]
        assert len(features) == len(coords)
        corners = np.array([one["geometry"]["coordinates"][0][0] for one in features])
        assert corners.tolist() == (coords - [left, top]).tolist()
        assert corners.min() == 0

    @pytest.mark.parametrize("arm", ["gce", "host"])
    def test_one_class_against_another_has_its_own_evidence_and_folder(
        self, classification_runs, arm
    ):
        run, slide = getattr(classification_runs, arm), unseen_slide(classification_runs)
        one, other = Cohort.load(classification_runs.cohort).card.classes[:2]
        for target, against in ((one, other), (other, one)):
            common = (
                "explain",
                run,
                "--slide",
                slide,
                "--class",
                target,
                "--against-class",
                against,
            )
            output = succeeded(*common)
            name = f"evidence for {target} against {against}"
            folder = run / "fold_0" / "explain" / slide / re.sub(r"[^\w.-]+", "_", name)
            found = read_certificate(folder)
            assert found["rule"] == name
            assert found["output_name"] == f"probability of {target} among {target} and {against}"
            predicted = max(
                found["predictions"]["full"]["values"],
                key=found["predictions"]["full"]["values"].get,
            )
            assert any("nevertheless" in note for note in found["notes"]) == (
                predicted != f"prob_{target}"
            )
            turning = [
                one for one in found["further"] if one["name"] == f"removal turns it into {against}"
            ]
            assert [one["removed_class"] for one in turning] == [against] * len(turning)
            assert all(f"{one['name']}: " in output for one in found["further"])
            assert violations((folder / "evidence.geojson").read_text()) == []
            if found["further"]:
                assert violations((folder / "further_sets.geojson").read_text()) == []
                listed = json.loads((folder / "evidence.json").read_text())["further_sets"]
                assert [one["patches"] for one in listed] == [
                    one["patches"] for one in found["further"]
                ]
        assert "no class 'tumourr'" in refused(
            "explain", run, "--slide", slide, "--class", "tumourr"
        )

    def test_a_plain_host_has_attention_and_says_so(self, classification_runs, tmp_path):
        slide = unseen_slide(classification_runs)
        succeeded(
            f"explain {classification_runs.host} --slide {slide} --out {tmp_path} --budget 0.1"
        )
        found = read_certificate(tmp_path)
        assert found["rule"] == "attention top-k at budget 0.1"
        assert found["predictions"]["gated"] is None
        assert found["verdicts"]["recoverable"]["held"] is None
        assert found["anchors"] == []
        assert any("not recovered evidence" in note for note in found["notes"])
        text = (tmp_path / "evidence.geojson").read_text()
        assert violations(text) == []
        assert {
            one["properties"]["classification"]["name"] for one in json.loads(text)["features"]
        } == {"Attention top-k"}
        selected, scores = (
            store.read(tmp_path / "evidence.h5", name) for name in ("selected", "scores")
        )
        assert len(selected) == max(1, round(0.1 * len(scores)))
        assert scores[selected].min() >= np.delete(scores, selected).max()

    def test_of_a_case_with_two_slides_the_certificate_is_about_the_case(
        self, survival_runs, tmp_path
    ):
        cohort = Cohort.load(survival_runs.cohort)
        case = next(spec for spec in cohort.bags if len(spec.slide_ids) == 2)
        for slide in case.slide_ids:
            succeeded("explain", survival_runs.gce, "--slide", slide, "--out", tmp_path / slide)
        first, second = (read_certificate(tmp_path / slide) for slide in case.slide_ids)
        assert first["predictions"] == second["predictions"]
        assert (
            first["subject"]["n_patches"]
            == first["subject"]["slide_n_patches"] + second["subject"]["slide_n_patches"]
        )
        assert (
            first["subject"]["n_selected"]
            == first["subject"]["slide_n_selected"] + second["subject"]["slide_n_selected"]
        )
        assert f"Case '{case.case_id}' has 2 slides" in "".join(first["notes"])
        assert first["output_name"] == "risk in units of the training risks"
        for slide in case.slide_ids:
            coords = store.read(tmp_path / slide / "evidence.h5", "coords")
            # Coordinates of the slide itself, not of the case in which it was moved aside.
            assert coords.tolist() == store.read(cohort.feature_file(slide), "coords").tolist()
            assert violations((tmp_path / slide / "evidence.geojson").read_text()) == []


@pytest.fixture(scope="module")
def trained_cases(tmp_path_factory):
    """A cohort without patch size whose slides say little, and a run of one epoch on its first fold."""
    folder = tmp_path_factory.mktemp("cases")
    cohort = make_cohort(folder / "cohort", n_cases=20, n_patches=12, dim=8)
    features = np.random.default_rng(5).normal(size=(26, 8)).astype(np.float32)
    write_slide(folder / "cohort", "s001_0", features[:12], None)
    write_slide(folder / "cohort", "s002_0", features[12:13], grid_coords(1))
    path = write_slide(folder / "cohort", "s004_0", features[25:], grid_coords(1))
    with h5py.File(path, "a") as file:
        file["coords"].attrs["patch_size_level0"] = 1024
    path = write_slide(folder / "cohort", "s003_0", features[13:25], grid_coords(12) + 4096)
    with h5py.File(path, "a") as file:
        file["coords"].attrs["level0_width"] = 16_384
        file.attrs["openslide.bounds-x"] = "4096"
        file.attrs["openslide.bounds-y"] = "4096"
    card = cohort.card.model_copy(update={"patch_size_level0": None})
    cohort = Cohort(cohort.folder, card, cohort.slides)
    cohort.save()
    write_folds(cohort, make_folds(cohort))
    train_run(cohort.folder, folder / "run", TrainSettings(epochs=1), folds=[0], jobs=1)
    return folder


class TestExplainOddSlides:
    def test_a_slide_without_coordinates_has_evidence_but_no_place(self, trained_cases, tmp_path):
        output = succeeded("explain", trained_cases / "run", "--slide", "s001_0", "--out", tmp_path)
        assert "no coordinates" in output
        assert {path.name for path in tmp_path.iterdir()} == FILES - {
            "evidence.geojson",
            "regions.geojson",
            "overlay.png",
        }

    def test_a_slide_of_one_patch_is_its_own_evidence_and_leaves_no_complement(
        self, trained_cases, tmp_path
    ):
        succeeded("explain", trained_cases / "run", "--slide", "s004_0", "--out", tmp_path)
        found = read_certificate(tmp_path)
        assert found["subject"]["fraction"] == 1
        assert found["predictions"]["removed"] is None
        assert found["verdicts"]["sufficient"]["held"] is True
        assert found["verdicts"]["necessary"]["held"] is False
        (only,) = json.loads((tmp_path / "evidence.geojson").read_text())["features"]
        assert only["geometry"]["coordinates"][0][2] == [1024, 1024]

    def test_a_thumbnail_lies_under_the_overlay(self, trained_cases, tmp_path):
        Image.new("RGB", (512, 384), "pink").save(tmp_path / "t.png")
        common = (
            "explain",
            trained_cases / "run",
            "--out",
            tmp_path / "o",
            "--thumbnail",
            tmp_path / "t.png",
        )
        succeeded(*common, "--slide", "s003_0")
        with Image.open(tmp_path / "o" / "overlay.png") as picture:
            assert picture.size[0] > 2 * 512
        assert "has no scale. Give --downsample" in refused(*common, "--slide", "s000_0")
        succeeded(*common, "--slide", "s000_0", "--downsample", 32)


MODELS = """
import numpy as np
import torch

from gcemil.runs.checkpoint import load_network
from pathlib import Path

HOST = load_network(Path({checkpoint!r}))[0].host

def predict(features, coords):
    output = HOST(features, coords)
    return output.logits, output.scores

def logits_only(features, coords):
    return HOST(features, coords).logits

def three(features, coords):
    return features[0, :3]

def nothing(features, coords):
    return features[0, :2] * float("nan")

def averaged(features, coords):
    return np.asarray(features).mean(axis=0)[:2], np.asarray(features)[:, 0]

NUMBER = 3
"""


@pytest.fixture
def lab(classification_runs, tmp_path, monkeypatch):
    """A working folder with a module of models, forgotten afterwards."""
    checkpoint = str(classification_runs.host / "fold_0" / "checkpoint.safetensors")
    (tmp_path / "lab_models.py").write_text(MODELS.format(checkpoint=checkpoint))
    (tmp_path / "lab_broken.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.chdir(tmp_path)
    # The command adds the working folder.
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("lab_models", "lab_broken"):
        sys.modules.pop(name, None)


class TestAudit:
    def test_a_model_with_scores_is_audited_beside_both_controls(self, classification_runs, lab):
        output = succeeded("audit", classification_runs.cohort, "--model", "lab_models:predict")
        finding = read_finding(lab / "audit.json")
        assert {one.labels["rule"] for one in finding.rows} == {
            "whole bag",
            "model",
            "random",
            "oracle",
        }
        assert "audit, full-kept" in output
        assert "wrote audit.json" in output
        assert finding.provenance["model"] == "lab_models:predict"
        assert finding.provenance["part"] == "test"

    def test_files_of_our_own_evidence_can_be_audited_as_gates(self, classification_runs, lab):
        found = answer(f"audit {classification_runs.cohort} --model lab_models:predict --scores "
f"{classification_runs.gce / 'fold_0' / 'evidence'} --column gates --gates --out "
f"{lab / 'new' / 'a.json'} --repeats 1")  # fmt: skip
        assert {(one["labels"]["rule"], one["labels"]["comparison"]) for one in found["rows"]} >= {
            ("evidence", "full-kept"),
            ("evidence", "soft-kept"),
        }
        assert read_finding(lab / "new" / "a.json").name == "audit"

    def test_a_model_without_scores_has_its_slope_audited(self, classification_runs, lab):
        succeeded(
            "audit", classification_runs.cohort, "--model", "lab_models:logits_only", "--repeats", 0
        )
        rows = read_finding(lab / "audit.json").rows
        assert "slope" in {one.labels["rule"] for one in rows}
        assert {one.labels["comparison"] for one in rows} == {"whole bag", "full-kept", "curves"}

    def test_a_model_is_named_by_its_file_and_its_verdict_is_a_sentence(
        self, classification_runs, lab
    ):
        output = succeeded(
            "audit", classification_runs.cohort, "--model", "./lab_models.py:predict"
        )
        assert re.search(
            r"model: its patches are sufficient and necessary on \d+ of \d+ bags \(\d+ %, 95 % interval",
            flat(output),
        )
        shares = (lab / "lab_models.py").read_text() + (
            "def shares(features, coords):\n    return HOST(features, coords).logits.softmax(0), features[:, 0]\n"
            "def drops(features, coords):\n    return torch.rand(2), features[:, 0]\n"
        )
        (lab / "more.py").write_text(shares)
        for name, words in (
            ("shares", "look like probabilities"),
            ("drops", "two outputs for bag"),
        ):
            succeeded(
                "audit", classification_runs.cohort, "--model", f"more.py:{name}", "--repeats", 0
            )
            assert words in " ".join(read_finding(lab / "audit.json").notes)
        message = refused("audit", classification_runs.cohort, "--model", "./absent.py:predict")
        assert "--model 'absent.py' is not there" in message

    def test_the_page_has_the_verdict_the_curves_and_every_rule(self, classification_runs, lab):
        output = succeeded(f"audit {classification_runs.cohort} --model lab_models:predict --repeats 1 --html "
f"{lab / 'page' / 'audit.html'}")  # fmt: skip
        finding = read_finding(lab / "audit.json")
        page = (lab / "page" / "audit.html").read_text()
        (verdict,) = [note for note in finding.notes if "sufficient and necessary on" in note]
        assert f'<p class="answer">{verdict}</p>' in page
        assert "data:image/svg+xml" in page
        assert all(f">{name}</td>" in page for name in ("model", "random", "oracle (truth)"))
        assert all(f"{name}\xa0{arrow}" in page for name, arrow in (("AUKC", "↑"), ("MSK", "↓")))
        assert "wrote" in output
        assert len(finding.slides[0]["keep_curve"]) == len(finding.settings["curve_shares"])

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ("lab_models", "--model 'lab_models' is neither a run folder nor a callable of yours"),
            ("lab_nowhere:predict", "module 'lab_nowhere' cannot be imported"),
            ("lab_broken:predict", r"RuntimeError: no licence"),
            ("lab_models:absent", "there is no 'absent' in 'lab_models'. There are: "),
            ("lab_models:NUMBER", "'lab_models:NUMBER' is a int and cannot be called"),
            (
                "lab_models:three",
                "gave logits of shape (3,) for one bag; this cohort has 2 outputs",
            ),
            ("lab_models:nothing", "gave NaN or infinite logits"),
        ],
    )
    def test_models_that_cannot_be_audited_are_named(
        self, classification_runs, lab, model, message
    ):
        assert message in refused("audit", classification_runs.cohort, "--model", model)
        assert not (lab / "audit.json").exists()

    def test_scores_that_do_not_fit_are_named_with_their_file(self, classification_runs, lab):
        slide = unseen_slide(classification_runs)
        (lab / "scores").mkdir()
        np.save(lab / "scores" / f"{slide}.npy", np.zeros(3))
        common = ("audit", classification_runs.cohort, "--model", "lab_models:predict", "--scores")
        message = refused(*common, lab / "scores", error=GcemilError)
        assert f"{slide}.npy has 3 scores for" in message
        assert "is not a folder" in refused(*common, lab / "absent")
        assert "called 'scores'. Rename" in refused(
            *common, lab / "scores", "--scores", lab / "scores"
        )
        assert "Give them with --scores" in refused(*common[:-1], "--gates")

    def test_survival_is_audited_by_its_c_index(self, survival_runs, lab):
        (lab / "lab_models.py").write_text(
            "def risk(features, coords):\n    return features.mean(), features[:, 0]\n"
        )
        succeeded("audit", survival_runs.cohort, "--model", "lab_models:risk", "--repeats", 1)
        finding = read_finding(lab / "audit.json")
        assert "c_index" in finding.rows[0].values
        assert any("units of the audited bags' own" in note for note in finding.notes)
