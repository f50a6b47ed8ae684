"""Drawn slides: truth to the pixel, and files that other tools open."""

from xml.etree import ElementTree

import numpy as np
import pytest

from gcemil.bags import store
from gcemil.features.patching import PatchingRules, patch_slides, patches_path, read_patch_file
from gcemil.files import read_picture, read_yaml
from gcemil.simulation.pixels import (
    FINE,
    SQUARE,
    draw_masks,
    mask_path,
    read_pixel_truth,
    simulate_pixels,
    slide_path,
    write_pixel_truth,
)
from gcemil.slides.grid import PatchSettings
from gcemil.slides.mask_files import rasterise_rings
from gcemil.slides.reader import Bounds, open_slide

SETTINGS = PatchSettings()
PATCH = SQUARE * FINE
FEW = {"size": "tiny", "slides": 3, "patches": (20, 24), "dials": {"decoy_rate": 0.0}}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Three small slides with drawn lesions, patched where they show a concept."""
    folder = tmp_path_factory.mktemp("pixels")
    rows = simulate_pixels("camelyon16", folder, **FEW)
    report = patch_slides(
        [folder / "slides"], folder, PatchingRules(masks=folder / "masks" / "concept")
    )
    assert not report.problems
    return folder, rows


def read_mask(folder, what, row):
    return read_picture(mask_path(folder, what, row.slide_id), "L")


# Truth


@pytest.mark.parametrize("seed", range(6))
def test_a_planned_square_is_its_concept_for_the_better_part_and_no_other_square_is(seed):
    cells = np.stack(np.divmod(np.arange(20), 5), axis=1)
    lesion = np.isin(np.arange(20), (6, 7)).astype(np.int64)
    concept, evidence = draw_masks(cells, lesion, lesion, np.random.default_rng(seed))
    blocks = evidence.reshape(6, SQUARE, 7, SQUARE).astype(bool).mean(axis=(1, 3))
    planned = np.zeros((6, 7), bool)
    planned[2, 2:4] = True
    assert blocks[planned].min() > 0.6
    assert blocks[~planned].max() < 0.45
    assert (concept[evidence > 0] == 2).all()
    assert not concept[:8].any()
    assert np.ptp((concept > 0)[2 * SQUARE : 4 * SQUARE].argmax(axis=1)) > 4


def test_labels_follow_from_what_is_drawn(drawn):
    folder, rows = drawn
    names = read_yaml(folder / "pixels.yaml")["provenance"]["concepts"]
    for row in rows:
        evidence = read_mask(folder, "evidence", row)
        concept = read_mask(folder, "concept", row)
        shown = {names[code - 1] for code in np.unique(concept[evidence > 0])}
        assert shown == ({"invasive epithelial nests"} if row.label == "tumor" else set())
    assert {row.label for row in rows} == {"normal", "tumor"}


def test_patch_truth_is_written_as_that_of_simulated_features(drawn):
    folder, rows = drawn
    tumor = next(row for row in rows if row.label == "tumor")
    grid = read_patch_file(patches_path(folder, SETTINGS, tumor.slide_id))
    path = write_pixel_truth(folder, tumor.slide_id, grid)
    truth = {name: store.read(path, name) for name in ("evidence", "concept", "region", "overlap")}
    assert {name: values.dtype.name for name, values in truth.items()} == {
        "evidence": "uint8", "concept": "uint8", "region": "uint16", "overlap": "float32",
    }  # fmt: skip
    assert len(truth["evidence"]) == len(grid)
    assert truth["evidence"].sum() >= 1
    np.testing.assert_array_equal(truth["evidence"] == 1, truth["overlap"] > 0.5)
    np.testing.assert_array_equal(truth["region"] > 0, truth["evidence"] == 1)
    assert (truth["concept"][truth["overlap"] > 0.6] == 5).all()
    assert store.attributes(path)["label"] == "tumor"
    path.unlink()


def test_asap_polygons_are_the_evidence_mask(drawn):
    folder, rows = drawn
    for row in rows:
        root = ElementTree.parse(folder / "annotations" / f"{row.slide_id}.xml").getroot()
        mask = read_mask(folder, "evidence", row) > 0
        painted = np.zeros_like(mask)
        for annotation in root.iter("Annotation"):
            points = annotation.iter("Coordinate")
            ring = np.array([(float(point.get("X")), float(point.get("Y"))) for point in points])
            bounds = Bounds(0, 0, mask.shape[1] * FINE, mask.shape[0] * FINE)
            inside = rasterise_rings([ring], bounds, downsample=FINE)
            painted = (
                painted | inside if annotation.get("PartOfGroup") == "Tumor" else painted & ~inside
            )
        np.testing.assert_array_equal(painted, mask)


# Files


def test_openslide_opens_a_drawn_slide_with_its_pixel_size(drawn):
    folder, rows = drawn
    for row in rows:
        with open_slide(slide_path(folder, row.slide_id)) as slide:
            assert slide.mpp == pytest.approx(0.5)
            assert len(slide.downsamples) >= 2
            width, height = slide.dimensions
        mask = read_mask(folder, "concept", row)
        assert (width, height) == (mask.shape[1] * FINE, mask.shape[0] * FINE)


def test_equal_arguments_give_equal_bytes(drawn, tmp_path):
    folder, rows = drawn
    assert simulate_pixels("camelyon16", tmp_path, **FEW) == rows
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert len(made) == 3 * 4 + 3
    for name in made:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_segmenter_keeps_every_drawn_lesion(tmp_path):
    for profile, slides in (("camelyon16", 2), ("luad", 1)):
        folder = tmp_path / profile
        rows = simulate_pixels(
            profile, folder, size="tiny", slides=slides, patches=(20, 20), seed=1
        )
        report = patch_slides([folder / "slides"], folder)
        assert not report.problems
        for row in rows:
            grid = read_patch_file(patches_path(folder, SETTINGS, row.slide_id))
            squares = [side // SQUARE for side in reversed(read_mask(folder, "concept", row).shape)]
            every = np.stack(np.meshgrid(*map(np.arange, squares)), axis=-1).reshape(-1, 2) * PATCH
            wanted = every[
                read_pixel_truth(folder, row.slide_id, every, float(PATCH))["evidence"] == 1
            ]
            assert {*map(tuple, wanted.tolist())} <= {*map(tuple, grid.coords.tolist())}
