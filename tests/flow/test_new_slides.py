"""Slides outside the cohort: predict for files, folders and patterns, explain for one, and what cannot be used."""

import csv
import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from tifffile import imread

from builders.commands import answer, gcemil, read_certificate, refused, succeeded
from builders.geojson_rules import violations
from builders.runs import TrainedRuns
from builders.slides import truncate
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.config import EvidenceSettings, TrainSettings
from gcemil.errors import GcemilError
from gcemil.training.run import train_run

FILES = {
    "evidence.h5",
    "evidence.json",
    "evidence.geojson",
    "regions.geojson",
    "overlay.png",
    "certificate.json",
    "further_sets.geojson",
}


def predictions(out):
    with (out / "predictions.csv").open() as file:
        return {row["slide_id"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def slide(classification_runs):
    """Features and coordinates of a test slide, and what the run says of it."""
    cohort = Cohort.load(classification_runs.cohort)
    name = read_fold(cohort, 0).slides("test")[0]
    path = cohort.feature_file(name)
    with (classification_runs.gce / "fold_0" / "predictions.csv").open() as file:
        known = next(row for row in csv.DictReader(file) if row["slide_id"] == name)
    return name, path, float(known["prob_LUAD"])


@pytest.fixture(scope="module")
def three_folds(classification_runs, tmp_path_factory):
    """Both arms on three folds, an epoch each."""
    folder = tmp_path_factory.mktemp("folds")
    for arm, evidence in (("gce", EvidenceSettings()), ("host", None)):
        settings = TrainSettings(evidence=evidence, epochs=1)
        train_run(classification_runs.cohort, folder / arm, settings, folds=[0, 1, 2], jobs=1)
    return TrainedRuns(classification_runs.cohort, folder / "host", folder / "gce")


class TestFeatureFilesOfEveryLayout:
    def test_a_folder_of_layouts_gives_one_prediction(self, classification_runs, slide, tmp_path):
        _, path, known = slide
        features, coords = store.read(path, "features"), store.read(path, "coords")
        folder = tmp_path / "in"
        folder.mkdir()
        shutil.copy(path, folder / "own.h5")
        with h5py.File(folder / "batched.h5", "w") as file:
            file["features"], file["coords"] = features[None], coords[None]
        with h5py.File(folder / "trident.h5", "w") as file:
            file["features"], file["coords"] = features, coords
            file["features"].attrs["encoder"] = "another"
            file["coords"].attrs["patch_size_level0"] = 512
        with h5py.File(folder / "stamp.h5", "w") as file:
            file["feats"], file["coords"] = features, coords.astype(np.float32) * 0.25
            file.attrs.update({"tile_size_um": 128.0, "unit": "um", "extractor": "ctranspath"})
        # A bare tensor has no coordinates, so that nothing is smoothed and its evidence may differ.
        torch.save(torch.from_numpy(features)[None], folder / "tensor.pt")
        succeeded(
            "predict", classification_runs.gce, folder, "--out", tmp_path / "out", "--mpp", 0.25
        )
        found = predictions(tmp_path / "out")
        assert set(found) == {"own", "batched", "trident", "stamp", "tensor"}
        for name in ("own", "batched", "trident", "stamp"):
            assert float(found[name]["prob_LUAD"]) == pytest.approx(known, abs=1e-4), name
        assert {row["status"] for row in found.values()} == {"done"}
        assert "encoder 'another' by its own account" in found["trident"]["reason"]
        files = (folder / "tensor.pt", folder / "own.h5")
        whole = ("--mode", "full", "--out", tmp_path / "full")
        own, tensor = answer("predict", classification_runs.gce, *files, *whole)
        assert tensor["prob_LUAD"] == pytest.approx(own["prob_LUAD"], abs=1e-6)
        assert tensor["evidence_coords"] is None


class TestManyInputs:
    def test_one_bad_file_is_a_line_and_the_others_are_done_once(
        self, classification_runs, slide, tmp_path
    ):
        _, path, known = slide
        folder, out = tmp_path / "in", tmp_path / "in" / "out"
        folder.mkdir()
        for name in ("good.h5", "bad.h5"):
            shutil.copy(path, folder / name)
        truncate(folder / "bad.h5")
        torch.save({"features": torch.zeros(3, 4)}, folder / "objects.pt")
        (folder / "notes.txt").write_text("not a slide")
        command = ("predict", classification_runs.gce, folder, "--out", out)
        result = gcemil(*command)
        assert result.exit_code == 1, result.exception
        assert "2 of 3 slides failed; the others are done" in result.stderr
        found = predictions(out)
        assert {name: row["status"] for name, row in found.items()} == {
            "good": "done",
            "bad": "failed",
            "objects": "failed",
        }
        assert float(found["good"]["prob_LUAD"]) == pytest.approx(known, abs=1e-4)
        assert found["good"]["mode"] == "gce"
        assert found["good"]["verdict"]
        assert "bad.h5" in found["bad"]["reason"]
        assert "holds a dict, not one tensor" in found["objects"]["reason"]
        written = (out / "good.h5").stat().st_mtime_ns
        again = gcemil(*command)
        assert again.exit_code == 1
        assert "1 of 3 slides were done before" in again.stdout
        assert (out / "good.h5").stat().st_mtime_ns == written
        assert predictions(out) == found

    def test_what_changed_is_done_again(self, classification_runs, slide, tmp_path):
        _, path, _ = slide
        shutil.copy(path, tmp_path / "a.h5")
        shutil.copy(path, tmp_path / "b.h5")
        command = (
            "predict",
            classification_runs.gce,
            f"{tmp_path}/[ab].h5",
            "--out",
            tmp_path / "out",
        )
        first = answer(*command)
        assert [one["status"] for one in first] == ["done", "done"]
        with h5py.File(tmp_path / "a.h5", "a") as file:
            file["features"][0] += 1
        statuses = {one["slide_id"]: one["status"] for one in answer(*command)}
        assert statuses == {"a": "done", "b": "already done"}
        (tmp_path / "out" / "records" / "a.json").write_text("{")
        (tmp_path / "out" / "b.h5").unlink()
        assert [one["status"] for one in answer(*command)] == ["done", "done"]
        assert [one["status"] for one in answer(*command, "--mode", "soft")] == ["done", "done"]
        assert [one["status"] for one in answer(*command, "--mode", "soft", "--again")] == [
            "done"
        ] * 2

    def test_of_two_files_of_a_slide_features_are_taken_and_the_other_is_told(
        self, classification_runs, slide, tmp_path
    ):
        _, path, _ = slide
        shutil.copy(path, tmp_path / "s.h5")
        torch.save(torch.from_numpy(store.read(path, "features")), tmp_path / "s.pt")
        said = succeeded("predict", classification_runs.gce, tmp_path, "--out", tmp_path / "out")
        assert "1 files lie beside better ones" in said
        assert predictions(tmp_path / "out")["s"]["file"].endswith("s.h5")
        (tmp_path / "other").mkdir()
        shutil.copy(path, tmp_path / "other" / "s.h5")
        message = refused("predict", classification_runs.gce, tmp_path / "s.h5", tmp_path / "other")
        assert "would both be slide 's'" in message

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("nowhere.h5", "does not exist"),
            ("*.svs", "matches neither a slide nor a feature file"),
            ("empty", "holds neither slides nor features"),
            ("notes.txt", "is neither a slide nor a feature file"),
        ],
    )
    def test_what_is_no_input_is_one_sentence(self, classification_runs, tmp_path, given, said):
        (tmp_path / "empty").mkdir()
        (tmp_path / "notes.txt").write_text("x")
        message = refused(
            "predict", classification_runs.gce, tmp_path / given, "--out", tmp_path / "out"
        )
        assert said in message
        assert "\n" not in message
        assert not (tmp_path / "out").exists()


class TestExplanationsOfNewSlides:
    def test_predict_explains_and_explain_takes_the_file_alike(
        self, classification_runs, slide, tmp_path
    ):
        name, path, _ = slide
        command = ("--unit", "region", "--heatmap", "gate")
        succeeded(
            f"predict {classification_runs.gce} {path} --explain",
            *command,
            "--out",
            tmp_path / "many",
        )
        succeeded("explain", classification_runs.gce, path, *command, "--out", tmp_path / "one")
        succeeded(
            f"explain {classification_runs.gce} --slide {name}",
            *command,
            "--out",
            tmp_path / "known",
        )
        names = FILES | {"heatmap_gate.ome.tif"}
        assert {file.name for file in (tmp_path / "one").iterdir()} == names
        for file in names:
            one, many = (
                (tmp_path / where / file).read_bytes() for where in ("one", f"many/{name}")
            )
            assert one == many, file
        # The slide is of the cohort: the explanation is that of the cohort but for where it comes from.
        for file in ("evidence.h5", "regions.geojson"):
            assert (tmp_path / "one" / file).read_bytes() == (
                tmp_path / "known" / file
            ).read_bytes(), file
        new, known = (read_certificate(tmp_path / where) for where in ("one", "known"))
        assert (new["subject"]["part"], known["subject"]["part"]) == ("new", "test")
        for key in ("predictions", "regions"):
            assert new[key] == known[key]

    @pytest.mark.parametrize("arm", ["gce", "host"])
    def test_several_folds_explain_a_new_slide_together(self, three_folds, slide, tmp_path, arm):
        run, (_, path, _) = getattr(three_folds, arm), slide
        features = store.read(path, "features") + np.float32(0.01)
        new = tmp_path / "new.h5"
        store.write(new, {"features": features, "coords": store.read(path, "coords")})
        said = succeeded("explain", run, new, "--heatmap", "fold_share", "--out", tmp_path / "all")
        found = read_certificate(tmp_path / "all")
        assert found["consensus"]["folds"] == [0, 1, 2]
        assert "Mean of 3 folds (0, 1, 2), spread" in " ".join(said.split())
        share = store.read(tmp_path / "all" / "evidence.h5", "fold_share")
        selected = store.read(tmp_path / "all" / "evidence.h5", "selected").tolist()
        assert set(np.round(share * 3, 6)) <= {0, 1, 2, 3}
        assert (
            selected
            == np.flatnonzero(share > 0.5 if (share > 0.5).any() else share == share.max()).tolist()
        )
        assert found["consensus"]["n_unanimous"] == (share == 1).sum()
        assert sum(found["consensus"]["n_chosen"]) == round(share.sum() * 3)
        assert (tmp_path / "all" / "heatmap_fold_share.ome.tif").is_file()
        listed = json.loads((tmp_path / "all" / "evidence.json").read_text())
        assert [one["fold_share"] for one in listed["patches"]] == pytest.approx(
            share[selected], abs=1e-6
        )
        text = (tmp_path / "all" / "evidence.geojson").read_text()
        assert violations(text) == []
        assert all(
            "fold_share" in one["properties"]["measurements"]
            for one in json.loads(text)["features"]
        )
        (predicted,) = answer("predict", run, new, "--out", tmp_path / "predicted")
        for name, value in found["predictions"]["full"]["values"].items():
            assert value == pytest.approx(predicted[name], abs=1e-6)
            assert value == pytest.approx(
                np.mean([one[name] for one in found["consensus"]["per_fold"]]), abs=1e-6
            )
        assert predicted["spread"] == pytest.approx(found["consensus"]["spread"], abs=1e-6)
        assert predicted["evidence"] == (selected if arm == "gce" else None)
        if arm == "gce":
            assert predicted["verdict"] == found["verdict"]
        succeeded("explain", run, new, "--folds", 1, "--out", tmp_path / "one")
        alone = store.read(tmp_path / "one" / "evidence.h5", "selected")
        assert len(alone) == found["consensus"]["n_chosen"][1]
        assert "explained by one fold" in refused(
            "explain", run, "--slide", slide[0], "--folds", "0,1"
        )

    def test_several_folds_answer_for_one_class_against_another(self, three_folds, slide, tmp_path):
        features = store.read(slide[1], "features") + np.float32(0.01)
        new = tmp_path / "new.h5"
        store.write(new, {"features": features, "coords": store.read(slide[1], "coords")})
        common = ("explain", three_folds.gce, new, "--against-class")
        (predicted,) = answer("predict", three_folds.gce, new, "--out", tmp_path / "predicted")
        classes = ["LUAD", "LUSC"]
        best = max(classes, key=lambda name: predicted[f"prob_{name}"])
        (other,) = {*classes} - {best}
        succeeded(*common, other, "--out", tmp_path / "asked")
        found = read_certificate(tmp_path / "asked")
        assert found["rule"] == f"evidence for {best} against {other}, chosen by most of 3 folds"
        turning = [one for one in found["further"] if one["name"].startswith("removal turns")]
        assert [one["removed_class"] for one in turning] == [other] * len(turning)

    def test_regions_are_judged_in_every_file(self, classification_runs, slide, tmp_path):
        name, _, _ = slide
        said = succeeded(
            f"explain {classification_runs.gce} --slide {name} --unit region --out {tmp_path}"
        )
        assert "connected regions, largest score mass first" in said
        regions = read_certificate(tmp_path)["regions"]
        text = (tmp_path / "regions.geojson").read_text()
        features = json.loads(text)["features"]
        listed = json.loads((tmp_path / "evidence.json").read_text())
        assert violations(text) == []
        assert len(regions) == len(features) == len(listed["regions"]) > 0
        assert sum(region["n_patches"] for region in regions) == len(listed["patches"])
        first = features[0]["properties"]["measurements"]
        assert first["sufficient"] == int(regions[0]["sufficient"])
        assert first["kept alone"] == pytest.approx(regions[0]["kept"], rel=1e-5)
        assert {patch["region"] for patch in listed["patches"]} == {
            region["number"] for region in regions
        }

    def test_many_slides_of_the_cohort_are_explained_and_one_unknown_is_a_line(
        self, classification_runs, tmp_path
    ):
        tested = read_fold(Cohort.load(classification_runs.cohort), 0).slides("test")
        (tmp_path / "ids.txt").write_text(f"{tested[0]}\nnobody\n")
        result = gcemil(
            f"explain {classification_runs.gce} --slides {tmp_path / 'ids.txt'} --out "
            f"{tmp_path / 'out'}"
        )
        assert result.exit_code == 1, result.exception
        with (tmp_path / "out" / "explained.csv").open() as file:
            rows = {row["slide_id"]: row for row in csv.DictReader(file)}
        assert rows[tested[0]]["status"] == "explained"
        assert rows[tested[0]]["sufficient"] in ("yes", "no")
        assert "has no slide 'nobody'" in rows["nobody"]["reason"]
        assert {path.name for path in (tmp_path / "out" / tested[0]).iterdir()} == FILES
        run = shutil.copytree(classification_runs.gce, tmp_path / "run")
        assert "diagnose" in refused("explain", run, "--slides", "failures")
        found = answer("explain", run, "--slides", "all", "--out", tmp_path / "all")
        assert [row["slide_id"] for row in found] == [
            row.slide_id
            for row in Cohort.load(classification_runs.cohort).slides
            if row.slide_id in tested
        ]
        finding = {
            "name": "failures",
            "rows": [],
            "slides": [
                {
                    "rule": "evidence",
                    "network": "wrapped",
                    "slide_ids": [one],
                    "low_necessity": one == tested[1],
                }
                for one in tested
            ],
        }
        (run / "fold_0" / "diagnostics").mkdir(exist_ok=True)
        (run / "fold_0" / "diagnostics" / "failures.json").write_text(json.dumps(finding))
        found = answer("explain", run, "--slides", "failures")
        assert [row["slide_id"] for row in found] == [tested[1]]

    def test_what_to_explain_is_said_once(self, classification_runs, slide, tmp_path):
        name, path, _ = slide
        command = ("explain", classification_runs.gce)
        assert "Say what to explain" in refused(*command)
        assert "Say what to explain" in refused(*command, path, "--slide", name)
        assert "is none of these" in refused(*command, "--slides", "everything")
        assert "24 slides" in refused(*command, path.parent)
        assert "are of one slide" in refused(*command, "--slides", "all", "--downsample", 4)

    def test_a_plain_host_maps_its_attention_alone(self, classification_runs, slide, tmp_path):
        _, path, _ = slide
        command = ("explain", classification_runs.host, path, "--out", tmp_path)
        message = refused(*command, "--heatmap", "gate", error=GcemilError)
        assert "only: attention_score" in message
        assert not list(tmp_path.iterdir())
        succeeded(*command, "--heatmap", "attention", "--heatmap", "class")
        assert (tmp_path / "heatmap_attention_score.ome.tif").is_file()
        luad, lusc = (
            imread(tmp_path / f"heatmap_class_{name}.ome.tif") for name in ("LUAD", "LUSC")
        )
        assert luad.shape == lusc.shape
        assert (luad != lusc).any()

    def test_a_risk_has_no_map_per_class(self, survival_runs, tmp_path):
        slide = Cohort.load(survival_runs.cohort).slides[0].slide_id
        command = ("explain", survival_runs.gce, "--slide", slide, "--out", tmp_path)
        message = refused(*command, "--heatmap", "class", error=GcemilError)
        assert "has no measurement 'class' to map, only: evidence_score" in message
