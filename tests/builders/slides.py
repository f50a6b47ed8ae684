"""Slides for tests: from arrays, from scenes given in micrometres, and as files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from gcemil.simulation.pixels import write_pyramid_tiff
from gcemil.slides.reader import Bounds

ROOT = Path(__file__).parents[2]
REAL_SLIDE = ROOT / ".cache" / "slides" / "cmu_small_region.svs"

GLASS, PINK, PURPLE = (245, 244, 246), (226, 160, 196), (120, 80, 150)


@dataclass(eq=False)
class ArraySlide:
    """A slide in memory, with levels made by averaging."""

    image: np.ndarray
    mpp: float = 0.5
    downsamples: tuple[float, ...] = (1.0,)
    bounds_box: tuple[int, int, int, int] | None = None
    name: str = "array"

    def __post_init__(self):
        self.levels_read = []

    @property
    def dimensions(self):
        return self.image.shape[1], self.image.shape[0]

    @property
    def bounds(self):
        return Bounds(*(self.bounds_box or (0, 0, *self.dimensions)))

    def region(self, x, y, level, width, height):
        self.levels_read.append(level)
        factor = int(self.downsamples[level])
        pixels = (
            self.image if factor == 1 else np.asarray(Image.fromarray(self.image).reduce(factor))
        )
        left, top = round(x / factor), round(y / factor)
        result = np.full((height, width, 3), 255, np.uint8)
        inside = pixels[max(top, 0) : top + height, max(left, 0) : left + width]
        row, column = max(-top, 0), max(-left, 0)
        result[row : row + inside.shape[0], column : column + inside.shape[1]] = inside
        return result


@dataclass(eq=False)
class SceneSlide:
    """A scene in micrometres as a scanner of any pixel size sees it; nothing but what is asked for is drawn."""

    is_tissue: Callable[[np.ndarray, np.ndarray], np.ndarray]
    mpp: float
    width_um: float
    height_um: float
    downsamples: tuple[float, ...] = (1.0, 4.0, 16.0)
    name: str = "scene"

    @property
    def dimensions(self):
        return round(self.width_um / self.mpp), round(self.height_um / self.mpp)

    @property
    def bounds(self):
        return Bounds(0, 0, *self.dimensions)

    def region(self, x, y, level, width, height):
        step = self.mpp * self.downsamples[level]
        column = x * self.mpp + (np.arange(width) + 0.5) * step
        row = y * self.mpp + (np.arange(height) + 0.5) * step
        tissue = self.is_tissue(column[None, :], row[:, None])
        return np.where(tissue[..., None], np.uint8(PINK), np.uint8(GLASS))


def glass(height: int = 768, width: int = 1024) -> np.ndarray:
    return np.full((height, width, 3), GLASS, np.uint8)


def tissue_image(
    height: int = 768,
    width: int = 1024,
    box: tuple[int, int, int, int] = (256, 256, 768, 512),
    seed: int = 0,
) -> np.ndarray:
    """Glass with one piece of tissue in the box (left, top, right, bottom)."""
    image = glass(height, width)
    left, top, right, bottom = box
    noise = np.random.default_rng(seed).normal(0, 6, size=(bottom - top, right - left, 1))
    image[top:bottom, left:right] = np.clip(np.array(PINK) + noise, 0, 255)
    return image


def write_slide(path: Path, image: np.ndarray | None = None, mpp: float = 0.5) -> Path:
    write_pyramid_tiff(path, tissue_image() if image is None else image, mpp)
    return path


def write_plain_tiff(path: Path, image: np.ndarray, *, dpi: int | None = None) -> Path:
    """A tiled TIFF without a pixel size, or with that of a photograph."""
    import tifffile

    path.parent.mkdir(parents=True, exist_ok=True)
    resolution = {} if dpi is None else {"resolution": (dpi, dpi), "resolutionunit": "INCH"}
    tifffile.imwrite(
        path, image, tile=(256, 256), photometric="rgb", metadata=None, software=False, **resolution
    )
    return path


def damage_level(path: Path, level: int) -> None:
    """Overwrite the compressed pixels of one level with rubbish."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        page = file.pages[level]
        places = list(zip(page.dataoffsets, page.databytecounts, strict=True))
    with path.open("r+b") as file:
        for offset, count in places:
            file.seek(offset)
            file.write(b"\xff" * count)


def truncate(path: Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
