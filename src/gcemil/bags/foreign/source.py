"""What every reader of a foreign features folder hands over: slides, their patch size, and what had to be assumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from gcemil.bags import store
from gcemil.bags.arrays import read_coords
from gcemil.bags.bag import CoordRows, FeatureRows, grid_stride
from gcemil.errors import CohortError
from gcemil.units import LevelZeroPx

Tool = Literal["clam", "trident", "stamp", "torchmil"]
Rows = tuple[FeatureRows, CoordRows | None]

LINKABLE_DTYPES = (np.dtype(np.float16), np.dtype(np.float32))


@dataclass(frozen=True, eq=False)
class ForeignSlide:
    """One slide: where its features lie and how to read them; `linkable` when the file is already laid out as ours."""

    slide_id: str
    path: Path
    n_patches: int
    feature_dim: int
    patch_size: LevelZeroPx | None
    linkable: bool
    load: Callable[[], Rows]
    patch_labels: Path | None = None


@dataclass(frozen=True, eq=False)
class ForeignFolder:
    tool: Tool
    path: Path
    slides: tuple[ForeignSlide, ...]
    encoder: str
    assumptions: tuple[str, ...] = ()

    @property
    def empty(self) -> tuple[str, ...]:
        """Slides in which the tool found no tissue."""
        return tuple(slide.slide_id for slide in self.slides if slide.n_patches == 0)


def inferred_patch_size(coords: CoordRows) -> LevelZeroPx | None:
    """The stride as patch size: right when patches neither overlap nor leave gaps."""
    stride = grid_stride(coords)
    return None if stride is None else LevelZeroPx(round(stride))


def feature_rows(path: Path, layouts: dict[str, store.Layout], dataset: str = "features") -> tuple[int, int]:
    """Patches and dimension of a feature file, checked against its coordinates without reading either."""
    if dataset not in layouts:
        raise CohortError(
            f"{path} has no dataset '{dataset}', only: {', '.join(layouts) or 'nothing'}. Try 'gcemil inspect {path}'."
        )
    shape = layouts[dataset].shape
    refuse_other_types(layouts[dataset].dtype, path)
    if len(shape) != 2:
        raise CohortError(
            f"{path}: '{dataset}' has shape {shape}, not (patches, dimension). Slide-level vectors cannot be a bag; point at patch features."
        )
    if "coords" in layouts and layouts["coords"].shape != (shape[0], 2):
        raise CohortError(
            f"{path}: coords of shape {layouts['coords'].shape} for {shape[0]} feature rows. Extract the slide again."
        )
    return shape[0], shape[1]


def refuse_other_types(dtype: np.dtype[Any], path: Path) -> None:
    """Encoders give floating point numbers; integers and complex numbers are something else under that name."""
    if dtype.kind != "f" or not store.is_number_type(dtype):
        raise CohortError(
            f"{path}: features are {dtype}, not float16 or float32. Point at the features of an encoder."
        )


def is_linkable(layouts: dict[str, store.Layout]) -> bool:
    """Float features and integer coordinates under our names."""
    whole = "coords" not in layouts or layouts["coords"].dtype.kind in "iu"
    return layouts["features"].dtype in LINKABLE_DTYPES and whole


def load_plain(path: Path) -> Rows:
    """Features and coordinates of a file laid out as ours."""
    features = as_float(store.read(path, "features"))
    return features, read_coords(path) if store.has(path, "coords") else None


def as_float(values: Shaped[np.ndarray, "n d"]) -> FeatureRows:
    """float16 and float32 as they are, anything else as float32."""
    return values if values.dtype in LINKABLE_DTYPES else values.astype(np.float32)


def the_one_encoder(found: Iterable[str], path: Path) -> str:
    """The encoder all slides share; features of two encoders never mix."""
    names = sorted({name for name in found if name})
    if len(names) > 1:
        raise CohortError(
            f"{path}: features of several encoders ({', '.join(names)}). Point at the folder of one of them."
        )
    return names[0] if names else "unknown"


def the_one_patch_size(slides: Iterable[ForeignSlide]) -> tuple[LevelZeroPx | None, tuple[str, ...]]:
    """The patch size of the cohort, or None and a line when slides differ."""
    sizes = Counter(slide.patch_size for slide in slides if slide.patch_size is not None)
    if len(sizes) <= 1:
        return next(iter(sizes), None), ()
    counts = ", ".join(f"{size} px on {count} slides" for size, count in sorted(sizes.items()))
    return None, (
        f"Patch sizes differ ({counts}), so cohort.yaml names none and each slide's own grid step is used.",
    )
