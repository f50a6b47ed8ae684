"""From drawn slides to evidence on their lesions, all by commands: simulate, patch, encode, annotate, split, train, explain, diagnose.

Every second slide is scanned again at 40x, so that a level-0 pixel and a pixel of a patch are not the same. The drawn masks, at 2
micrometres per pixel, are the measure: whatever the chain says in level-0 pixels must agree with them in micrometres.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from builders.commands import succeeded
from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import Fold, read_fold, write_folds
from gcemil.bags.tables import read_table
from gcemil.exports.geojson import EVIDENCE
from gcemil.exports.overlay import MARGIN, TITLE_HEIGHT, draw_overlay
from gcemil.exports.overlay import read_thumbnail as read_picture
from gcemil.simulation.pixels import read_pixel_truth, write_pyramid_tiff
from gcemil.slides.reader import open_slide

pytestmark = pytest.mark.slow

MASK_UM = 2.0
"""Micrometres per pixel of the drawn masks."""
PATCH_UM = 128.0
CLOSE = 0.05
"""Outlines are sampled at 32 points across a patch."""


@dataclass(frozen=True)
class Flow:
    """What the commands left behind; read-only."""

    drawn: Path
    cohort: Path
    run: Path
    mpp: dict[str, float]
    lesions: tuple[str, ...]

    def lesion_mask(self, slide_id):
        with Image.open(self.drawn / "masks" / "evidence" / f"{slide_id}.png") as image:
            return np.asarray(image) > 0

    def truth(self, slide_id):
        return store.read(self.cohort / "truth" / f"{slide_id}.h5", "overlap")

    def coords(self, slide_id):
        return store.read(self.cohort / "features" / f"{slide_id}.h5", "coords")

    def explained(self, slide_id):
        return self.run.parent / "explained" / slide_id


def scanned_at_40x(slide: Path, outlines: Path, folder: Path):
    """The same glass under a scanner with pixels half as wide, annotated in its own pixels."""
    with open_slide(slide) as reader:
        pixels = reader.region(0, 0, 0, *reader.dimensions)
    write_pyramid_tiff(
        folder / "slides" / slide.name, pixels.repeat(2, axis=0).repeat(2, axis=1), 0.25
    )
    tree = ElementTree.parse(outlines)
    for vertex in tree.iter("Coordinate"):
        for axis in ("X", "Y"):
            vertex.set(axis, f"{2 * float(vertex.get(axis)):.1f}")
    tree.write(folder / "annotations" / outlines.name, encoding="utf-8", xml_declaration=True)


def laboratory(drawn: Path, folder: Path):
    """What a laboratory has: slides of two scanners, annotations of the lesions, a label table. Returns the pixel sizes."""
    (folder / "slides").mkdir(parents=True)
    (folder / "annotations").mkdir()
    sizes = {}
    for position, row in enumerate(read_table(drawn / "slides.csv")):
        name = row["slide_id"]
        slide, outlines = drawn / "slides" / f"{name}.tif", drawn / "annotations" / f"{name}.xml"
        sizes[name] = 0.5 if position % 2 else 0.25
        if sizes[name] == 0.25:
            scanned_at_40x(slide, outlines, folder)
        else:
            shutil.copy(slide, folder / "slides")
            shutil.copy(outlines, folder / "annotations")
        if row["label"] == "normal":
            (folder / "annotations" / outlines.name).unlink()
    shutil.copy(drawn / "slides.csv", folder / "labels.csv")
    return sizes


def split(cohort: Path):
    """The command validates on half a fold, here a single slide; the one fold of the test has both classes in every part."""
    succeeded("split", cohort, "--folds", 3)
    shutil.rmtree(cohort / "splits")
    loaded, part_of = Cohort.load(cohort), {}
    for label in loaded.card.classes:
        names = [row.slide_id for row in loaded.slides if row.label == label]
        part_of |= dict(zip(names, ("test", "val", "train"), strict=True))
    write_folds(loaded, [Fold(0, part_of)])


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flow")
    drawn, lab, cohort, run = (folder / name for name in ("drawn", "lab", "cohort", "run"))
    succeeded(
        "simulate",
        "camelyon16",
        "--pixels",
        "--size",
        "tiny",
        "--slides",
        6,
        "--seed",
        3,
        "--out",
        drawn,
    )
    sizes = laboratory(drawn, lab)
    succeeded("patch", lab / "slides", "--out", cohort)
    succeeded("encode", lab / "slides", "--out", cohort, "--labels", lab / "labels.csv")
    succeeded("annotate", cohort, lab / "annotations", "--negative-class", "normal")
    split(cohort)
    succeeded("train", cohort, "--out", run, "--folds", 0, "--epochs", 3, "--jobs", 1)
    rows = read_table(drawn / "slides.csv")
    lesions = tuple(row["slide_id"] for row in rows if row["label"] == "tumor")
    for name in lesions:
        out = folder / "explained" / name
        succeeded("explain", run, "--slide", name, "--all-patches", "--out", out)
    return Flow(drawn, cohort, run, sizes, lesions)


def share_inside(mask, squares):
    """Share of each square (left, top, side in micrometres) that lies on the lesions of a drawn mask."""
    edges = np.rint(np.array(squares) / MASK_UM).astype(int)
    # A square beyond the edge of the picture has no lesion there.
    return np.array(
        [mask[max(y, 0) : y + side, max(x, 0) : x + side].sum() / side**2 for x, y, side in edges]
    )


def squares_of(features, mpp):
    """The polygons of a GeoJSON file as left, top and side in micrometres."""
    rings = np.array([feature["geometry"]["coordinates"][0] for feature in features])
    low, high = rings.min(axis=1), rings.max(axis=1)
    assert ((high - low)[:, 0] == (high - low)[:, 1]).all()
    return np.column_stack([low, high[:, 0] - low[:, 0]]) * mpp


def read_features(flow, slide_id):
    return json.loads((flow.explained(slide_id) / "evidence.geojson").read_text())["features"]


def is_evidence(feature):
    return feature["properties"]["classification"]["name"] == EVIDENCE.name


def painted(shape, squares, scale):
    """A picture of this shape with the squares (micrometres) filled in."""
    picture = np.zeros(shape, dtype=bool)
    for x, y, side in np.array(squares) * scale:
        picture[round(y) : round(y + side), round(x) : round(x + side)] = True
    return picture


def test_annotations_in_level_0_pixels_give_the_truth_that_the_simulator_knows(flow):
    for name in flow.mpp:
        at_20x = np.rint(flow.coords(name) * flow.mpp[name] / 0.5).astype(np.int64)
        known = read_pixel_truth(flow.drawn, name, at_20x, 256.0)
        np.testing.assert_allclose(flow.truth(name), known["overlap"], atol=CLOSE)
        assert (known["evidence"].sum() > 0) == (name in flow.lesions)
        mpp = store.attributes(flow.cohort / "truth" / f"{name}.h5")["microns_per_pixel"]
        assert mpp == pytest.approx(flow.mpp[name], rel=1e-3)


def test_polygons_for_qupath_overlap_the_drawn_lesions_as_the_truth_of_their_patches_says(flow):
    for name in flow.lesions:
        features, mask = read_features(flow, name), flow.lesion_mask(name)
        squares = squares_of(features, flow.mpp[name])
        assert squares[:, 2].tolist() == [PATCH_UM] * len(flow.coords(name))
        order = [int(feature["properties"]["metadata"]["patch"]) for feature in features]
        expected = flow.truth(name)[order]
        np.testing.assert_allclose(share_inside(mask, squares), expected, atol=CLOSE)
        # The measure would notice a polygon one patch away, and level-0 pixels taken for those of the other scanner.
        for wrong in (
            squares + np.array([PATCH_UM, 0, 0]),
            squares * (2 if flow.mpp[name] == 0.25 else 0.5),
        ):
            assert np.abs(share_inside(mask, wrong) - expected).max() > 0.5


def test_evidence_polygons_are_the_selected_patches(flow):
    for name in flow.lesions:
        features = read_features(flow, name)
        marked = sorted(
            int(one["properties"]["metadata"]["patch"]) for one in features if is_evidence(one)
        )
        assert marked == store.read(flow.explained(name) / "evidence.h5", "selected").tolist()
        assert 0 < len(marked) < len(features)


def test_the_overlay_shows_the_evidence_where_the_polygons_lie(flow):
    for name in flow.lesions:
        record = flow.explained(name) / "evidence.h5"
        coords, scores = (store.read(record, key) for key in ("coords", "scores"))
        width = store.attributes(flow.cohort / "features" / f"{name}.h5", "coords")["level0_width"]
        thumbnail = read_picture(flow.cohort / "thumbnails" / f"{name}.jpg", level0_width=width)
        with Image.open(flow.explained(name) / "overlay.png") as image:
            shown = np.asarray(image).astype(int)
        nothing = draw_overlay(
            name,
            coords,
            scores,
            np.zeros(len(coords), dtype=bool),
            patch_size=round(PATCH_UM / flow.mpp[name]),
            thumbnail=thumbnail,
        )
        top = MARGIN + 2 * TITLE_HEIGHT
        red = np.abs(shown - np.asarray(nothing)).max(axis=2)[top:-MARGIN] > 0
        width_shown = (red.shape[1] - 3 * MARGIN) // 2
        panel = red[:, -MARGIN - width_shown : -MARGIN]
        squares = squares_of(
            [one for one in read_features(flow, name) if is_evidence(one)], flow.mpp[name]
        )
        expected = painted(panel.shape, squares, panel.shape[1] / (width * flow.mpp[name]))
        assert (panel & expected).sum() / (panel | expected).sum() > 0.9


def test_localisation_knows_the_lesions_and_ranks_oracle_above_chance(flow):
    held_out = [
        name
        for name in read_fold(Cohort.load(flow.cohort), 0).slides("test")
        if name in flow.lesions
    ]
    output = succeeded("diagnose", flow.run, "--only", "localisation", "--folds", 0, "--jobs", 1)
    finding = json.loads((flow.run / "fold_0" / "diagnostics" / "localisation.json").read_text())
    assert "localisation" in output
    assert not [note for note in finding["notes"] if "Excluded" in note or "not known" in note]
    found = {
        row["labels"]["rule"]: row["values"]["dice"]
        for row in finding["rows"]
        if "froc" not in row["labels"]
    }
    assert found["oracle"] == 1.0
    assert found["random"] < 0.9
    assert {"attention", "evidence scores", "gates"} <= set(found)
    for name in held_out:
        mask = flow.lesion_mask(name)
        squares = squares_of(
            [one for one in read_features(flow, name) if is_evidence(one)], flow.mpp[name]
        )
        marked = painted(mask.shape, squares, 1 / MASK_UM)
        both = (marked & mask).sum()
        print(
            f"{name}: evidence on drawn lesions, pixel by pixel: Dice {2 * both / (marked.sum() + mask.sum()):.2f}, "
            f"precision {both / marked.sum():.2f}; Dice of patches {found}"
        )
