import pytest

from builders import PATCH, make_cohort
from gcemil.bags import store
from gcemil.bags.annotations.truth import write_truth
from gcemil.bags.validate import select_errors, validate
from gcemil.errors import CohortError


def asap(*rectangles, group="Tumor"):
    annotations = "".join(
        f'<Annotation Name="a{number}" Type="Polygon" PartOfGroup="{group}"><Coordinates>'
        + "".join(
            f'<Coordinate Order="{order}" X="{x}" Y="{y}"/>'
            for order, (x, y) in enumerate([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
        )
        + "</Coordinates></Annotation>"
        for number, (x0, y0, x1, y1) in enumerate(rectangles)
    )
    return f"<ASAP_Annotations><Annotations>{annotations}</Annotations></ASAP_Annotations>"


@pytest.fixture
def cohort(tmp_path):
    """Slides s000 and s002 normal, s001 and s003 tumor; 16 patches each, 8 in a row."""
    return make_cohort(tmp_path / "cohort", n_cases=4, n_patches=16, classes=("normal", "tumor"))


@pytest.fixture
def annotations(tmp_path):
    folder = tmp_path / "annotations"
    folder.mkdir()
    return folder


def test_outlines_become_overlap_evidence_and_regions(cohort, annotations):
    # All of patch 0, a quarter of patch 1, less than 1 % of patch 2, and patch 7 far from them.
    first = (0, 0, PATCH + PATCH // 4, PATCH)
    speck = (2 * PATCH + 10, 10, 2 * PATCH + 50, 50)
    last = (7 * PATCH, 0, 8 * PATCH, PATCH)
    (annotations / "s001_0.xml").write_text(asap(first, speck, last))
    report = write_truth(cohort, annotations, negative_class="normal", microns_per_pixel=0.25)
    assert report.annotated == ("s001_0",)
    assert report.normal == ("s000_0", "s002_0")
    assert report.missing == ("s003_0",)
    path = cohort.truth_file("s001_0")
    overlap = store.read(path, "overlap")
    assert overlap[[0, 1, 7]].tolist() == pytest.approx([1, 0.25, 1])
    assert 0 < overlap[2] < 0.01
    assert store.read(path, "evidence").tolist() == [1, 1, 0, 0, 0, 0, 0, 1] + [0] * 8
    assert store.read(path, "region").tolist() == [1, 1, 0, 0, 0, 0, 0, 2] + [0] * 8
    assert store.attributes(path)["microns_per_pixel"] == 0.25
    assert store.attributes(path)["source"] == "s001_0.xml"
    assert not select_errors(validate(cohort.folder))


def test_a_normal_slide_has_zeros_only_when_its_class_is_named(cohort, annotations):
    report = write_truth(cohort, annotations)
    assert report.missing == ("s000_0", "s001_0", "s002_0", "s003_0")
    assert not (cohort.folder / "truth").exists()
    report = write_truth(cohort, annotations, negative_class="normal")
    assert report.normal == ("s000_0", "s002_0")
    assert not store.read(cohort.truth_file("s000_0"), "evidence").any()
    assert not cohort.truth_file("s001_0").exists()


def test_labels_and_annotations_that_disagree_are_told(cohort, annotations):
    (annotations / "s000_0.xml").write_text(asap((0, 0, PATCH, PATCH)))
    (annotations / "s001_0.xml").write_text(asap((0, 0, PATCH, PATCH), group="None"))
    report = write_truth(cohort, annotations, negative_class="normal")
    assert report.notes == (
        "s000_0: labelled normal, yet s000_0.xml marks tumour.",
        "s001_0: s001_0.xml marks tumour on none of its patches.",
    )


def test_without_a_patch_size_the_grid_step_is_taken_and_said(tmp_path, annotations):
    cohort = make_cohort(tmp_path / "unsized", n_cases=4, classes=("normal", "tumor"))
    unsized = type(cohort)(
        cohort.folder, cohort.card.model_copy(update={"patch_size_level0": None}), cohort.slides
    )
    (annotations / "s001_0.xml").write_text(asap((0, 0, PATCH, PATCH)))
    report = write_truth(unsized, annotations)
    assert report.notes == ("s001_0: patch size taken from the grid step, 512 level-0 pixels.",)


def test_existing_truth_is_not_overwritten_unasked(cohort, annotations):
    write_truth(cohort, annotations, negative_class="normal")
    refused = r"s000_0\.h5 exists and differs \(2 truth files in all\)"
    with pytest.raises(CohortError, match=refused):
        write_truth(cohort, annotations, negative_class="normal", min_overlap=0.5)
    options = {"negative_class": "normal", "min_overlap": 0.5}
    replaced = write_truth(cohort, annotations, **options, replace=True)
    assert replaced.normal == ("s000_0", "s002_0")
    cohort.truth_file("s000_0").write_bytes(b"damaged")
    with pytest.raises(CohortError, match=r"s000_0\.h5 exists and differs \(1 truth"):
        write_truth(cohort, annotations, negative_class="normal", min_overlap=0.5)


def test_truth_that_is_what_would_be_written_is_kept_as_it_is(cohort, annotations):
    write_truth(cohort, annotations, negative_class="normal")
    kept, again = cohort.truth_file("s000_0"), cohort.truth_file("s002_0")
    before = kept.stat().st_mtime_ns
    again.unlink()
    assert write_truth(cohort, annotations, negative_class="normal").normal == ("s000_0", "s002_0")
    assert (kept.stat().st_mtime_ns, again.is_file()) == (before, True)
