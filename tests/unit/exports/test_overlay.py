import numpy as np
import pytest
from PIL import Image

from gcemil.errors import UsageError
from gcemil.exports.overlay import (
    GREY,
    KEY_HEIGHT,
    MARGIN,
    OPACITY,
    SWATCH,
    TITLE_HEIGHT,
    Thumbnail,
    color_ramp,
    draw_overlay,
    paint_patches,
    read_thumbnail,
)

VIOLET = (165, 15, 240)
TOP = MARGIN + 2 * TITLE_HEIGHT


def picture(coords, scores, selected, **options):
    image = draw_overlay(
        "slide", np.array(coords), np.array(scores, dtype=np.float32), np.array(selected), **options
    )
    return np.asarray(image)[:-KEY_HEIGHT]


def colors_of(pixels):
    return {tuple(color) for color in pixels.reshape(-1, 3).tolist()}


def test_patches_lie_where_their_coordinates_say():
    # Two columns, the second one patch lower: 16 pixels a patch.
    found = picture([[512, 0], [1024, 512]], [1.0, 2.0], [True, False], patch_size=512)
    left = found[TOP : TOP + 32, MARGIN : MARGIN + 32]
    low, high = color_ramp(np.array([0.5, 1.0])).tolist()
    assert colors_of(left[:16, :16]) == {tuple(low)}
    assert colors_of(left[16:, 16:]) == {tuple(high)}
    assert colors_of(left[16:, :16]) == {(255, 255, 255)}


def test_evidence_has_its_colour_and_the_rest_is_grey():
    found = picture([[0, 0], [512, 0]], [1.0, 2.0], [False, True], patch_size=512)
    assert (found == VIOLET).all(axis=2).sum() == 256
    assert (found[TOP:] == GREY).all(axis=2).sum() == 256


def test_where_patches_overlap_the_important_one_is_on_top():
    canvas = np.full((3, 4, 3), 255, dtype=np.uint8)
    colors = np.array([[9, 9, 9], [1, 1, 1]], dtype=np.uint8)
    found = paint_patches(
        canvas, np.array([[0, 0], [1, 1]]), colors, np.array([2.0, 1.0]), 2, opacity=1.0
    )
    assert found[:, :, 0].tolist() == [[9, 9, 255, 255], [9, 9, 1, 255], [255, 1, 1, 255]]


def test_patches_beyond_the_edge_are_cut():
    canvas = np.zeros((2, 2, 3), dtype=np.uint8)
    colors = np.array([[9, 9, 9]], dtype=np.uint8)
    found = paint_patches(canvas, np.array([[1, -1]]), colors, np.ones(1), 2, opacity=1.0)
    assert found[:, :, 0].tolist() == [[0, 9], [0, 0]]


def test_on_a_thumbnail_patches_lie_over_the_tissue_at_its_scale():
    thumbnail = Thumbnail(np.full((40, 60, 3), 100, dtype=np.uint8), downsample=16.0)
    found = picture(
        [[160, 320], [0, 0]], [1.0, 2.0], [True, False], patch_size=32, thumbnail=thumbnail
    )
    right = found[TOP : TOP + 40][:, -(MARGIN + 60) :]
    mixed = tuple(round(OPACITY * channel + (1 - OPACITY) * 100) for channel in VIOLET)
    rows, columns = np.nonzero((found == mixed).all(axis=2))
    assert len(rows) == 4
    assert (rows.min() - TOP, columns.max() - columns.min()) == (20, 1)
    # Unselected patches do not hide the tissue.
    assert colors_of(right) <= {(100, 100, 100), (255, 255, 255), mixed}


def test_a_thumbnail_takes_its_scale_from_the_width_of_the_slide(tmp_path):
    Image.new("RGB", (50, 30)).save(tmp_path / "t.png")
    assert read_thumbnail(tmp_path / "t.png", level0_width=1000).downsample == 20
    assert read_thumbnail(tmp_path / "t.png", downsample=8).pixels.shape == (30, 50, 3)


def test_thumbnails_that_cannot_be_used_are_named(tmp_path):
    (tmp_path / "t.png").write_text("no picture")
    with pytest.raises(UsageError, match="t.png cannot be read as a picture"):
        read_thumbnail(tmp_path / "t.png", downsample=8)
    Image.new("RGB", (5, 3)).save(tmp_path / "t.png")
    with pytest.raises(UsageError, match="needs a scale"):
        read_thumbnail(tmp_path / "t.png", downsample=0)


def test_a_key_below_the_panels_shows_their_colours():
    image = draw_overlay(
        "s", np.array([[0, 0], [512, 0]]), np.arange(2.0), np.array([True, False]), patch_size=512
    )
    key = np.asarray(image)[-KEY_HEIGHT:]
    ends = {tuple(color) for color in color_ramp(np.array([0.0, 1.0])).tolist()}
    assert ends | {VIOLET, GREY} <= colors_of(key)
    thumbnail = Thumbnail(np.full((40, 60, 3), 100, dtype=np.uint8), downsample=16.0)
    # On a thumbnail the other patches are not drawn, so that grey stands for nothing.
    over = draw_overlay(
        "s", np.array([[0, 0]]), np.ones(1), np.array([True]), patch_size=32, thumbnail=thumbnail
    )
    assert (key == GREY).all(axis=2).sum() >= SWATCH**2
    assert (np.asarray(over)[-KEY_HEIGHT:] == GREY).all(axis=2).sum() < SWATCH**2
