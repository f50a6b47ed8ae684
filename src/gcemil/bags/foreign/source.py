"""What the layouts of features share: slide ids, the slides of a folder, what had to be assumed.

Known extensions come off the end of an id, every other dot stays:
'TCGA-05-4244-01Z-00-DX1.d4ff.svs' and 'TCGA-05-4244-01Z-00-DX1.d4ff.h5' are one slide; cutting at
the first dot would merge it with every other slide of the same block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from gcemil.bags import store
from gcemil.bags.bag import CoordRows, FeatureRows, grid_stride
from gcemil.errors import CohortError, InputError
from gcemil.slides.reader import ANY_EXTENSIONS
from gcemil.units import LevelZeroPx

_KNOWN = (*ANY_EXTENSIONS, ".h5", ".hdf5", ".pt", ".npy")
_TCGA = re.compile(r"TCGA-\w{2}-\w{4}(?:-|$)")
_LINKABLE_DTYPES = (np.dtype(np.float16), np.dtype(np.float32))
UNKNOWN_ENCODER = "unknown"

T = TypeVar("T")
Result = TypeVar("Result")
Rows = tuple[FeatureRows, CoordRows | None]
Names = Set[str]
Truth = dict[str, NDArray[Any]]
Mpp = float | Mapping[str, float] | None
"""Micrometres per level-0 pixel: of all slides, or by slide."""


def plain_id(name: str) -> str:
    """The last part of a path without known slide and feature extensions."""
    base = name.strip().replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    # There may be several, as in slide.svs.h5.
    while extension := next(
        (e for e in _KNOWN if base.lower().endswith(e) and len(base) > len(e)), None
    ):
        base = base[: -len(extension)]
    return base


def plain_ids(names: Iterable[str], *, where: str) -> dict[str, str]:
    """Name → plain id; two names that would become one slide are refused."""
    ids = {name: plain_id(name) for name in names}
    first: dict[str, str] = {}
    for name, plain in ids.items():
        if first.setdefault(plain, name) != name:
            raise CohortError(
                f"{where}: '{first[plain]}' and '{name}' would both be slide '{plain}'. "
                "Rename one of them."
            )
    return ids


def describe_stripped_ids(names: Iterable[str], *, where: str) -> tuple[str, ...]:
    """One line with the number of ids that lost an extension or a folder, or none."""
    changed = [name for name in names if plain_id(name) != name]
    taken = f"{where}: folders and known extensions taken off {len(changed)} ids"
    return (f"{taken} ('{changed[0]}' is slide '{plain_id(changed[0])}').",) if changed else ()


def is_tcga(name: str) -> bool:
    """Whether the name begins with a TCGA barcode."""
    return _TCGA.match(name) is not None


def tcga_case_id(barcode: str) -> str:
    """The patient of a TCGA barcode: its first twelve characters."""
    if not is_tcga(barcode):
        raise CohortError(
            f"'{barcode}' is not a TCGA barcode (TCGA-XX-XXXX…), so its case is unknown. "
            "Add a case_id column."
        )
    return barcode[:12]


@dataclass(frozen=True, eq=False)
class ForeignSlide:
    """One slide: where its features lie and how to read them."""

    slide_id: str
    path: Path
    n_patches: int
    feature_dim: int
    patch_size: LevelZeroPx | None
    load: Callable[[], Rows]
    linkable: bool = False
    """Whether the file is already laid out as ours."""
    has_coords: bool = True
    size_is_inferred: bool = False
    """Whether the patch size is the stride, as no better source exists."""
    notes: tuple[str, ...] = ()
    """Assumptions; those of slides of one folder are mostly equal."""
    read_truth: Callable[[], Truth] | None = None
    """The content of truth/<slide>.h5, if the layout labels patches."""
    encoder: str = UNKNOWN_ENCODER
    attributes_files: tuple[Path, ...] = ()
    """Files whose attributes of `features` and `coords` a copy keeps."""
    thumbnail: Path | None = None
    """A picture of the whole slide."""


@dataclass(frozen=True, eq=False)
class ForeignFolder:
    """A features folder of another tool: its slides, their encoder, and what had to be assumed."""

    tool: str
    path: Path
    slides: tuple[ForeignSlide, ...]
    encoder: str
    assumptions: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    """Why slides were left out that cannot be read."""

    @property
    def empty(self) -> tuple[str, ...]:
        """Slides in which the tool found no tissue."""
        return tuple(slide.slide_id for slide in self.slides if slide.n_patches == 0)


@dataclass(frozen=True)
class ReadOptions:
    """What a user may state about a features folder; a layout takes what it needs."""

    patch_size: LevelZeroPx | None = None
    mpp: Mpp = None
    encoder: str | None = None
    coords_dir: Path | None = None
    skipped: list[str] | None = None
    """Filled with the reasons why slides were left out; None refuses broken slides."""


@dataclass(frozen=True)
class FeatureLayout:
    """How one tool lays out its features: how to recognise, find and read them."""

    tool: str
    """As the card of a cohort has it."""
    name: str
    """As messages have it."""
    title: str
    """Title of a folder of this layout, or of a file of it."""
    find_files: Callable[[Path, ReadOptions], tuple[Path, Sequence[Path]]]
    """The folder of the features inside a given one, and one path per slide."""
    read_slide: Callable[[Path, str, ReadOptions], ForeignSlide]
    """The slide at this path under this id."""
    assumes: str
    """What is assumed of every folder."""
    owns_folder: Callable[[Path, Names], bool] = lambda folder, names: False
    """By the names inside a folder."""
    owns_file: Callable[[Names, store.Attributes], bool] = lambda datasets, attributes: False
    """By the datasets of an HDF5 file and the attributes of its coordinates."""
    owns_loose: Callable[[Names], bool] = lambda names: False
    """By the names inside a folder without any HDF5 file."""
    needs: str = ""
    """Options of 'gcemil import' that cannot be left out."""
    read_labels: Callable[[Path, str | None], dict[str, str]] | None = None
    """Labels by bag, where the layout holds them."""

    def read(self, source: Path, options: ReadOptions = ReadOptions()) -> ForeignFolder:
        """The slides of a folder, and every assumption made about them."""
        folder, files = self.find_files(source, options)
        if not files:
            raise CohortError(
                f"{folder} holds no features of {self.name}. "
                "Run its feature extraction, or point elsewhere."
            )
        names = {path: path.relative_to(folder).as_posix().removesuffix(".zarr") for path in files}
        ids = plain_ids(names.values(), where=str(folder))
        slides = read_each(
            files,
            lambda path: self.read_slide(path, ids[names[path]], options),
            folder,
            options.skipped,
        )
        lines = [
            *describe_stripped_ids((path.stem for path in files), where=str(folder)),
            self.assumes,
            *dict.fromkeys(note for slide in slides for note in slide.notes),
        ]
        if options.patch_size is not None:
            lines.append(f"Patch size {options.patch_size} level-0 px as given.")
        if inferred := [slide for slide in slides if slide.size_is_inferred]:
            shown = "; ".join(
                f"{one.slide_id}: {one.patch_size or 'unknown, too few patches'}"
                for one in inferred[:3]
            )
            lines.append(
                f"Patch size inferred from the stride of {len(inferred)} slides, true only without "
                f"overlap: {shown}{' …' if len(inferred) > 3 else ''}."
            )
        if placeless := [slide.slide_id for slide in slides if not slide.has_coords]:
            lines.append(
                f"{len(placeless)} slides have no coordinates ('{placeless[0]}'): "
                "hosts that need positions cannot use them."
            )
        if n_pictures := sum(slide.thumbnail is not None for slide in slides):
            lines.append(
                f"Thumbnails of {n_pictures} slides were found beside the features and are shown."
            )
        encoders = sorted({slide.encoder for slide in slides} - {"", UNKNOWN_ENCODER})
        if len(encoders) > 1:
            raise CohortError(
                f"{folder}: features of several encoders ({', '.join(encoders)}). "
                "Point at the folder of one of them."
            )
        encoder = encoders[0] if encoders else UNKNOWN_ENCODER
        return ForeignFolder(self.tool, folder, slides, encoder, tuple(lines))


def read_plain_slide(
    path: Path, slide_id: str, options: ReadOptions, stated_size: LevelZeroPx | None
) -> ForeignSlide:
    """The slide of a file with `features` and `coords`."""
    datasets = store.describe(path)
    n_patches, dim = check_feature_shape(path, datasets)
    features, coords = datasets["features"], datasets.get("coords")
    is_batch = len(features.shape) == 3
    # A link cannot take off the 1 of a batch of one, nor round coordinates that are fractions.
    linkable = features.dtype in _LINKABLE_DTYPES and not is_batch
    if coords is not None:
        linkable = linkable and coords.dtype.kind in "iu" and len(coords.shape) == 2

    def load() -> Rows:
        rows = as_float(squeeze_bag(store.read(path, "features")))
        return rows, None if coords is None else read_bag_coords(path)

    note = "Slides stored as (1, patches, dimension) lose the 1, so they are copied."
    slide = ForeignSlide(
        slide_id,
        path,
        n_patches,
        dim,
        options.patch_size or stated_size,
        load,
        linkable,
        has_coords=coords is not None,
        notes=(note,) if is_batch else (),
        attributes_files=(path,),
    )
    return slide if coords is None else infer_patch_size(slide, path)


def infer_patch_size(slide: ForeignSlide, coords_file: Path) -> ForeignSlide:
    """The slide with its stride as patch size where it has none, which is right without overlap."""
    if slide.patch_size is not None or not slide.n_patches:
        return slide
    stride = grid_stride(read_bag_coords(coords_file))
    return replace(
        slide,
        patch_size=None if stride is None else LevelZeroPx(round(stride)),
        size_is_inferred=True,
    )


def read_each(
    files: Sequence[T], read: Callable[[T], Result], folder: Path, skipped: list[str] | None = None
) -> tuple[Result, ...]:
    """Read every file; broken ones are added to `skipped`, or named together in one error."""
    results, errors = [], []
    for file in files:
        try:
            results.append(read(file))
        except InputError as error:
            errors.append(error)
    if skipped is not None and results:
        skipped += map(str, errors)
        return tuple(results)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        shown = " ".join(map(str, errors[:3]))
        more = f" And {len(errors) - 3} more." if len(errors) > 3 else ""
        raise CohortError(
            f"{folder}: {len(errors)} of {len(files)} slides cannot be used. {shown}{more} "
            "Extract them again, or leave them out with 'gcemil import --skip-broken'."
        )
    return tuple(results)


def check_finite(path: Path, features: FeatureRows) -> None:
    """Refuse features with NaN or infinite numbers."""
    if problem := store.nan_problem(features):
        raise CohortError(f"{path}: {problem}.")


def check_feature_shape(
    path: Path, layouts: dict[str, store.DatasetInfo], dataset: str = "features"
) -> tuple[int, int]:
    """Patches and dimension of a feature file, checked against the shape of its coordinates."""
    if dataset not in layouts:
        raise CohortError(
            f"{path} has no dataset '{dataset}', only: {', '.join(layouts) or 'nothing'}. "
            f"Try 'gcemil inspect {path}'."
        )
    shape = bag_shape(layouts[dataset].shape)
    check_features(shape, layouts[dataset].dtype, path)
    if "coords" in layouts and bag_shape(layouts["coords"].shape) != (shape[0], 2):
        raise CohortError(
            f"{path}: coords of shape {layouts['coords'].shape} for {shape[0]} feature rows. "
            "Extract the slide again."
        )
    return shape[0], shape[1]


def bag_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without a leading 1: some tools write a slide as a batch of one."""
    return shape[1:] if len(shape) == 3 and shape[0] == 1 else shape


def squeeze_bag(values: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """The rows of a slide, without the leading 1 of a batch of one."""
    return values.reshape(bag_shape(values.shape))


def check_features(shape: tuple[int, ...], dtype: np.dtype[Any], path: Path) -> None:
    """Refuse integers, complex numbers and vectors of whole slides under the name of features."""
    if problem := store.features_problem(shape, dtype):
        raise CohortError(
            f"{path}: {problem}. "
            "Point at the features of patches; slide-level vectors cannot be a bag."
        )


def read_bag_coords(path: Path) -> CoordRows:
    """The coordinates of a feature file, whether or not it is a batch of one."""
    return store.check_coords(squeeze_bag(store.read(path, "coords")), path)


def as_float(values: Shaped[np.ndarray, "n d"]) -> FeatureRows:
    """float16 and float32 as they are, anything else as float32."""
    return values if values.dtype in _LINKABLE_DTYPES else values.astype(np.float32)
