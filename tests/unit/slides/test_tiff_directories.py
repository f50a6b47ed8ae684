import os
from pathlib import Path

import numpy as np
import pytest

from gcemil.errors import InputError
from gcemil.slides import tiff_directories
from gcemil.slides.reader import open_slide
from gcemil.slides.tiff_directories import refuse_absurd_sizes
from slide_builders import REAL_SLIDE, tissue_image, write_slide

tifffile = pytest.importorskip("tifffile")

DESCRIPTION, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS, TILE_BYTE_COUNTS = 270, 322, 323, 324, 325
KINDS = [(False, "<"), (False, ">"), (True, "<"), (True, ">")]


def write_tiled(path: Path, *, bigtiff: bool = False, byteorder: str = "<", pages: int = 1) -> Path:
    with tifffile.TiffWriter(path, bigtiff=bigtiff, byteorder=byteorder) as writer:
        for _ in range(pages):
            writer.write(
                tissue_image(600, 600, (100, 100, 500, 500)),
                tile=(256, 256),
                photometric="rgb",
                description="a slide",
                metadata=None,
            )
    return path


def change(path: Path, tag: int, number: int, *, place: int = 0, of: str = "value", page: int = 0) -> None:
    """Write a number over a value of a tag, or over its count."""
    with tifffile.TiffFile(path) as file:
        found = file.pages[page].tags[tag]
        kind = np.dtype(file.byteorder + {3: "u2", 4: "u4", 16: "u8"}.get(int(found.dtype), "u4"))
        if of == "count":
            kind = np.dtype(file.byteorder + ("u8" if file.is_bigtiff else "u4"))
            offset = found.offset + 4
        else:
            offset = found.valueoffset + place * kind.itemsize
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(np.array(number, dtype=kind).tobytes())


@pytest.mark.parametrize(("bigtiff", "byteorder"), KINDS)
def test_a_tile_that_claims_more_than_it_can_hold_is_refused(tmp_path, bigtiff, byteorder):
    path = write_tiled(tmp_path / "s.tif", bigtiff=bigtiff, byteorder=byteorder)
    refuse_absurd_sizes(path)
    change(path, TILE_BYTE_COUNTS, 3 * 2**30, place=4)
    with pytest.raises(
        InputError, match=r"s.tif: a tile of 256 x 256 pixels claims 3,221,225,472 bytes, more than"
    ):
        refuse_absurd_sizes(path)


def test_a_tile_of_a_later_directory_is_judged_too(tmp_path):
    path = write_tiled(tmp_path / "s.tif", pages=3)
    change(path, TILE_BYTE_COUNTS, 2**30, page=2)
    with pytest.raises(InputError, match="claims 1,073,741,824 bytes"):
        refuse_absurd_sizes(path)


def test_a_slide_with_absurd_tiles_and_holes_is_not_opened(tmp_path):
    path = write_slide(tmp_path / "s.tif", tissue_image(1100, 1300))
    change(path, TILE_BYTE_COUNTS, 2**31)
    os.truncate(path, 2**40)
    with pytest.raises(InputError, match=r"s.tif: a tile .* copy it again or leave it out"), open_slide(path):
        pass


@pytest.mark.parametrize(("bigtiff", "byteorder"), KINDS)
def test_a_tag_of_absurd_length_is_refused(tmp_path, bigtiff, byteorder):
    path = write_tiled(tmp_path / "s.tif", bigtiff=bigtiff, byteorder=byteorder)
    change(path, DESCRIPTION, 2**32 - 1, of="count")
    with pytest.raises(InputError, match=r"s.tif: TIFF tag 270 claims 4,294,967,295 bytes"):
        refuse_absurd_sizes(path)


def test_a_tile_of_absurd_sides_is_refused(tmp_path):
    path = write_tiled(tmp_path / "s.tif")
    change(path, TILE_WIDTH, 65520)
    change(path, TILE_HEIGHT, 65520)
    with pytest.raises(InputError, match="a tile of 65520 x 65520 pixels cannot be"):
        refuse_absurd_sizes(path)


def test_tables_of_tiles_are_bounded_together(tmp_path, monkeypatch):
    monkeypatch.setattr(tiff_directories, "LARGEST_TAG", 60)
    # Nine tiles, four bytes each.
    refuse_absurd_sizes(write_tiled(tmp_path / "one.tif"))
    with pytest.raises(InputError, match="two.tif: its tables of tiles take more than 60 bytes"):
        refuse_absurd_sizes(write_tiled(tmp_path / "two.tif", pages=2))


def test_directories_that_follow_each_other_in_a_ring_are_read_once(tmp_path):
    path = write_tiled(tmp_path / "s.tif", pages=2)
    with tifffile.TiffFile(path) as file:
        first, last = (page.offset for page in file.pages)
        n_tags = len(file.pages[1].tags)
    with path.open("r+b") as file:
        file.seek(last + 2 + 12 * n_tags)
        file.write(first.to_bytes(4, "little"))
    refuse_absurd_sizes(path)


@pytest.mark.parametrize("bigtiff", [False, True])
def test_what_lies_beyond_the_end_is_left_to_the_library(tmp_path, bigtiff):
    path = write_tiled(tmp_path / "s.tif", bigtiff=bigtiff)
    with tifffile.TiffFile(path) as file:
        entry = file.pages[0].tags[TILE_BYTE_COUNTS].offset
    size = 8 if bigtiff else 4
    with path.open("r+b") as file:
        file.seek(entry + 4 + size)
        file.write(b"\xff" * size)
    refuse_absurd_sizes(path)


@pytest.mark.parametrize("length", [0, 1, 8, 15, 16, 40, 200])
def test_a_cut_file_is_left_to_the_library(tmp_path, length):
    path = write_tiled(tmp_path / "s.tif")
    os.truncate(path, length)
    refuse_absurd_sizes(path)


def test_files_of_hamamatsu_are_not_judged(tmp_path):
    path = write_tiled(tmp_path / "s.tif")
    change(path, TILE_BYTE_COUNTS, 2**30)
    with tifffile.TiffFile(path) as file:
        entry = file.pages[0].tags[DESCRIPTION].offset
    with path.open("r+b") as file:
        file.seek(entry)
        file.write((65420).to_bytes(2, "little"))
    refuse_absurd_sizes(path)


def test_a_file_of_another_format_passes(tmp_path):
    path = tmp_path / "s.mrxs"
    path.write_bytes(b"\xff\xd8\xff\xe0" + bytes(100))
    refuse_absurd_sizes(path)


@pytest.mark.skipif(not REAL_SLIDE.is_file(), reason=f"{REAL_SLIDE} is absent; 'make install' fetches it")
def test_a_real_slide_passes():
    refuse_absurd_sizes(REAL_SLIDE)
