import io

import numpy as np
import pytest
from PIL import Image

from builders.slides import write_slide
from gcemil.bags.cohort import find_slide_file
from gcemil.errors import UsageError
from gcemil.exports.overlay import Thumbnail
from gcemil.viewer.tiles import (
    GLASS,
    PATCH_GREY,
    Frame,
    GridTiles,
    SlideTiles,
    ThumbnailTiles,
    open_slide_tiles,
)

RED, BLUE = (200, 10, 10), (10, 10, 200)


def picture(tile):
    return np.asarray(Image.open(io.BytesIO(tile)).convert("RGB"))


def test_levels_halve_until_the_frame_is_one_pixel():
    frame = Frame(0, 0, 1000, 600)
    assert frame.max_level == 10
    assert (frame.scale(10), frame.scale(8), frame.scale(0)) == (1, 4, 1024)
    assert frame.box(10, 3, 2) == (768, 512, 1000, 600)
    assert frame.box(8, 0, 0) == (0, 0, 250, 150)
    assert frame.box(0, 0, 0) == (0, 0, 1, 1)


@pytest.mark.parametrize("at", [(11, 0, 0), (-1, 0, 0), (10, 4, 0), (10, 0, 3), (10, -1, 0)])
def test_a_tile_outside_the_frame_does_not_exist(at):
    with pytest.raises(UsageError, match="There is no tile"):
        Frame(0, 0, 1000, 600).box(*at)


def two_patches():
    coords = np.array([[1000, 2000], [1256, 2000]])
    return GridTiles(coords, 256)


def test_a_patch_without_tissue_is_grey_where_it_lies():
    tiles = two_patches()
    assert tuple(picture(tiles.tile(10, 1, 1))[100, 100]) == PATCH_GREY
    assert tuple(picture(tiles.tile(10, 2, 1))[100, 100]) == PATCH_GREY
    assert (picture(tiles.tile(10, 0, 0)) == GLASS).all()


def test_patches_smaller_than_two_pixels_are_points():
    # At level 2 the frame is 4 by 3 pixels and a patch is one of them.
    small = picture(two_patches().tile(2, 0, 0))
    assert small.shape == (3, 4, 3)
    assert [tuple(pixel) for pixel in small[1]] == [GLASS, PATCH_GREY, PATCH_GREY, GLASS]


def test_a_thumbnail_is_cut_into_tiles_where_it_lies_on_the_slide():
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :4], pixels[:, 4:] = RED, BLUE
    tiles = ThumbnailTiles(Thumbnail(pixels, 64.0, (100, 200)))
    assert tiles.frame == Frame(100, 200, 512, 256)
    assert np.abs(picture(tiles.tile(9, 0, 0)).astype(int)[100, 100] - RED).max() < 8
    assert np.abs(picture(tiles.tile(9, 1, 0)).astype(int)[100, 200] - BLUE).max() < 8
    assert picture(tiles.tile(6, 0, 0)).shape == (32, 64, 3)


def test_a_slide_file_gives_its_own_pixels(tmp_path):
    image = np.full((600, 1000, 3), 240, np.uint8)
    image[256:512, 512:768] = (180, 60, 120)
    (tmp_path / "slides").mkdir()
    write_slide(tmp_path / "slides" / "A.tif", image)
    tiles, note = open_slide_tiles(find_slide_file(tmp_path, "A"))
    assert isinstance(tiles, SlideTiles)
    assert note is None
    assert tiles.frame == Frame(0, 0, 1000, 600)
    assert np.abs(picture(tiles.tile(10, 2, 1)).astype(int) - (180, 60, 120)).max() < 8
    assert picture(tiles.tile(10, 3, 2)).shape == (88, 232, 3)
    assert picture(tiles.tile(8, 0, 0)).shape == (150, 250, 3)


def test_without_a_slide_file_or_with_a_damaged_one_the_reason_is_said(tmp_path):
    tiles, note = open_slide_tiles(find_slide_file(tmp_path, "A"))
    assert tiles is None
    assert "No slide file" in note
    (tmp_path / "slides").mkdir()
    (tmp_path / "slides" / "A.svs").write_bytes(b"no slide")
    tiles, note = open_slide_tiles(find_slide_file(tmp_path, "A"))
    assert tiles is None
    assert "cannot be opened as a slide" in note
