import h5py
import numpy as np
import pytest

from builders.foreign import (
    clam_features,
    grid,
    rows,
    stamp_features,
    stamp_splits,
    torchmil_set,
    trident_features,
    write_table,
)
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.bags.foreign.cohort_import import import_cohort
from gcemil.bags.foreign.source import ReadOptions
from gcemil.errors import CohortError


def clam_labels(tmp_path, *slides, label=lambda i: "ab"[i % 2]):
    lines = [f"p{i},{slide},{label(i)}" for i, slide in enumerate(slides)]
    return write_table(tmp_path / "labels.csv", "case_id,slide_id,label", *lines)


def bag_of(folder, slide_id):
    cohort = Cohort.load(folder)
    return cohort.read_bag(next(spec for spec in cohort.bags if slide_id in spec.slide_ids))


def test_clam_h5_is_linked_and_reads_back_the_same(tmp_path):
    for slide in ("A", "B"):
        clam_features(tmp_path / "F", slide, grid(8, 512))
    report = import_cohort(tmp_path / "F", tmp_path / "c", labels=clam_labels(tmp_path, "A", "B"))
    link = tmp_path / "c" / "features" / "A.h5"
    bag = bag_of(tmp_path / "c", "A")
    assert (report.n_linked, report.n_copied) == (2, 0)
    assert link.is_symlink()
    assert link.resolve() == (tmp_path / "F" / "h5_files" / "A.h5").resolve()
    assert np.array_equal(bag.features, rows(8))
    assert np.array_equal(bag.coords, grid(8, 512))
    assert bag.patch_size == 512


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_copy_keeps_the_attributes_of_its_coordinates(tmp_path, is_batch):
    stated = {
        "patch_size_level0": 512,
        "level0_width": 9000,
        "target_magnification": 20,
        "overlap": "None",
    }
    for slide in ("A", "B"):
        path = clam_features(tmp_path / "F", slide, grid(8, 512))
        with h5py.File(path, "a") as file:
            features = file["features"][:]
            del file["features"]
            file["features"] = features[None] if is_batch else features
            file["coords"].attrs.update(stated)
    labels = clam_labels(tmp_path, "A", "B")
    report = import_cohort(tmp_path / "F", tmp_path / "c", labels=labels, copy=not is_batch)
    assert report.n_copied == 2
    copied = tmp_path / "c" / "features" / "A.h5"
    assert store.describe(copied)["features"].shape == (8, 8)
    assert store.attributes(copied, "coords") == stated


def test_trident_job_is_linked_and_empty_slides_are_listed_and_left_out(tmp_path):
    for slide in ("A", "B"):
        trident_features(tmp_path / "job", slide, grid(8, 512))
    trident_features(tmp_path / "job", "C", np.zeros((0, 2)))
    report = import_cohort(
        tmp_path / "job", tmp_path / "c", labels=clam_labels(tmp_path, "A", "B", "C")
    )
    cohort = Cohort.load(tmp_path / "c")
    assert report.empty == ("C",)
    assert "left out, no patches: C" in report.lines()
    assert [row.slide_id for row in cohort.slides] == ["A", "B"]
    assert cohort.card.encoder == "uni_v1"
    assert cohort.card.patch_size_level0 == 512
    assert "slide 'C': no patches" in cohort.card.provenance["left_out"]


def test_slides_scanned_at_different_magnification_leave_the_patch_size_open(tmp_path):
    for slide, size in (("A", 512), ("B", 256)):
        trident_features(tmp_path / "job", slide, grid(8, size), level0=size)
    report = import_cohort(tmp_path / "job", tmp_path / "c", labels=clam_labels(tmp_path, "A", "B"))
    assert Cohort.load(tmp_path / "c").card.patch_size_level0 is None
    assert any("256 px on 1 slides, 512 px on 1 slides" in line for line in report.assumptions)


def test_stamp_features_tables_and_splits(tmp_path):
    for slide in ("a", "b", "d"):
        stamp_features(tmp_path / "F" / "uni2-0a1b2c3d", slide, grid(8, 256))
    clinical = write_table(tmp_path / "clini.csv", "PATIENT,isMSIH", "p1,yes", "p2,no", "p3,no")
    slides = write_table(
        tmp_path / "slides.csv", "PATIENT,FILENAME", "p1,a.h5", "p2,b.h5", "p3,d.h5"
    )
    splits = stamp_splits(tmp_path / "splits.json", (["p1", "p2"], ["p3"]), (["p3"], ["p1", "p2"]))
    report = import_cohort(
        tmp_path / "F",
        tmp_path / "c",
        labels=clinical,
        slide_table=slides,
        splits=splits,
        options=ReadOptions(mpp=0.5),
    )
    cohort = Cohort.load(tmp_path / "c")
    assert report.n_folds == 2
    assert cohort.card.encoder == "uni2"
    assert np.array_equal(bag_of(tmp_path / "c", "a").coords, grid(8, 512))
    assert read_fold(cohort, 1).slides("test") == ["a", "b"]


def test_torchmil_set_brings_labels_splits_and_truth(tmp_path):
    torchmil_set(
        tmp_path / "root", {"a": (grid(8, 512), 1, [1] + [0] * 7), "b": (grid(4, 512), 0, [0] * 4)}
    )
    report = import_cohort(tmp_path / "root", tmp_path / "c")
    cohort = Cohort.load(tmp_path / "c")
    assert cohort.card.classes == ("0", "1")
    assert read_fold(cohort, 0).part_of == {"a": "train", "b": "test"}
    assert store.read(cohort.truth_file("a"), "evidence").tolist() == [1] + [0] * 7
    assert report.dialect == "torchmil"
    assert np.array_equal(bag_of(tmp_path / "c", "b").features, rows(4))


def test_t9_features_with_dots_join_a_table_that_keeps_svs(tmp_path):
    slides = ["TCGA-A1-0001-01Z-00-DX1.AB-12", "TCGA-A1-0001-01Z-00-DX2.CD-34"]
    for slide in slides:
        trident_features(tmp_path / "job", slide, grid(8, 512))
    labels = write_table(
        tmp_path / "t.csv",
        "case_id,slide_id,survival_months,censorship",
        *(f"TCGA-A1-0001,{slide}.svs,10,0" for slide in slides),
    )
    report = import_cohort(tmp_path / "job", tmp_path / "c", labels=labels)
    cohort = Cohort.load(tmp_path / "c")
    assert [row.slide_id for row in cohort.slides] == slides
    assert cohort.bags[0].target == (10.0, 1)
    assert (report.n_slides, report.n_cases) == (2, 1)


def test_ids_without_a_partner_are_reported_on_both_sides(tmp_path):
    for slide in ("A", "B", "X"):
        clam_features(tmp_path / "F", slide, grid(8, 512))
    report = import_cohort(
        tmp_path / "F", tmp_path / "c", labels=clam_labels(tmp_path, "A", "B", "Y")
    )
    assert report.labels_without_features == ("Y",)
    assert report.features_without_labels == ("X",)
    assert {"1 labels without features: Y", "1 features without labels: X"} <= set(report.lines())


def test_t10_splits_that_part_a_patient_are_refused_with_the_cases(tmp_path):
    for slide in ("A", "B", "C"):
        clam_features(tmp_path / "F", slide, grid(8, 512))
    labels = write_table(tmp_path / "t.csv", "case_id,slide_id,label", "p1,A,x", "p1,B,y", "p2,C,x")
    splits = write_table(tmp_path / "splits_0.csv", ",train,val,test", "0,A,C,B")
    with pytest.raises(
        CohortError, match=r"slides of 1 cases stand in more than one part \(p1\).*gcemil split"
    ):
        import_cohort(tmp_path / "F", tmp_path / "c", labels=labels, splits=splits)
    assert not (tmp_path / "c").exists()


def test_slides_no_split_places_are_left_out_and_listed(tmp_path):
    for slide in ("A", "B", "C", "D"):
        clam_features(tmp_path / "F", slide, grid(8, 512))
    splits = write_table(tmp_path / "splits_0.csv", ",train,val,test", "0,A,B,C")
    report = import_cohort(
        tmp_path / "F", tmp_path / "c", labels=clam_labels(tmp_path, *"ABCD"), splits=splits
    )
    assert report.excluded == ("slide 'D': no fold of splits_0.csv places it",)
    assert read_fold(Cohort.load(tmp_path / "c"), 0).part_of == {
        "A": "train",
        "B": "val",
        "C": "test",
    }


def test_two_feature_dimensions_are_refused(tmp_path):
    clam_features(tmp_path / "F", "A", grid(8, 512))
    clam_features(tmp_path / "F", "B", grid(8, 512), dim=4)
    with pytest.raises(CohortError, match="'A' has 8 features per patch, 'B' has 4"):
        import_cohort(tmp_path / "F", tmp_path / "c", labels=clam_labels(tmp_path, "A", "B"))
