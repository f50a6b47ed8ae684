"""The feature layouts gcemil reads; a new one is a file with a FeatureLayout, and an entry here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gcemil.bags import store
from gcemil.bags.foreign import clam, stamp, torchmil, trident, wsidata
from gcemil.bags.foreign.source import (
    FeatureLayout,
    ForeignFolder,
    ForeignSlide,
    ReadOptions,
    check_finite,
    plain_id,
    read_each,
)
from gcemil.errors import CohortError, StoreError
from gcemil.files import require_file
from gcemil.wording import is_there, near_path

LAYOUTS: dict[str, FeatureLayout] = {
    "wsidata": wsidata.LAYOUT,
    "stamp": stamp.LAYOUT,
    "trident": trident.LAYOUT,
    "clam": clam.LAYOUT,
    "torchmil": torchmil.LAYOUT,
}
"""In order of preference; a plain file of features and coordinates is CLAM's, and ours."""


def find_layout(folder: Path) -> FeatureLayout | None:
    """The layout of a features folder, from its names and its first file; None if unknown."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    for layout in LAYOUTS.values():
        if layout.owns_folder(folder, names):
            return layout
    if first := find_first_h5(folder):
        return find_file_layout(first)
    return next((layout for layout in LAYOUTS.values() if layout.owns_loose(names)), None)


def find_file_layout(path: Path) -> FeatureLayout | None:
    """The layout of an HDF5 feature file, by its datasets and the attributes of its coordinates."""
    datasets, attributes = set(store.describe(path)), store.attributes(path, "coords")
    fitting = (one for one in LAYOUTS.values() if one.owns_file(datasets, attributes))
    return next(fitting, None)


def read_feature_file(path: Path, options: ReadOptions | None = None) -> ForeignSlide:
    """One file of patch features, ours or of a known tool: .h5, or a bare tensor in a .pt file."""
    require_file(path)
    layout = clam.LAYOUT if path.suffix.lower() == ".pt" else find_file_layout(path)
    if layout is None:
        raise StoreError(
            f"{path} holds no known patch features, only: "
            f"{', '.join(store.describe(path)) or 'nothing'}. "
            f"Try 'gcemil inspect {path}'."
        )
    return layout.read_slide(path, plain_id(path.name), options or ReadOptions())


def find_first_h5(folder: Path) -> Path | None:
    """The first HDF5 file of a folder, or below it."""
    return min(folder.glob("*.h5"), default=None) or min(folder.rglob("*.h5"), default=None)


def read_folder(source: Path, options: ReadOptions) -> ForeignFolder:
    """The features folder, read by the reader of the tool that wrote it."""
    if not is_there(source):
        raise CohortError(
            f"{source} does not exist.{near_path(source)} Give the folder that holds the features "
            "of your slides."
        )
    if source.is_file():
        raise CohortError(
            f"{source} is a file. Give the folder that holds the features of your slides."
        )
    if (source / "cohort.yaml").is_file():
        raise CohortError(
            f"{source} is a cohort already. Use it as it is: 'gcemil validate {source}'."
        )
    layout = find_layout(source)
    if layout is None:
        *others, last = (known.name for known in LAYOUTS.values())
        raise CohortError(
            f"{source} is not a features folder of {', '.join(others)} or {last}. Try 'gcemil "
            f"inspect {source}'."
        )
    folder = layout.read(source, options)
    return folder if options.skipped is None else _leave_out_broken(folder, options.skipped)


def _leave_out_broken(folder: ForeignFolder, skipped: list[str]) -> ForeignFolder:
    """The folder without slides whose features cannot be read whole or are not finite."""

    def check(slide: ForeignSlide) -> ForeignSlide:
        check_finite(slide.path, slide.load()[0])
        return slide

    slides = read_each(folder.slides, check, folder.path, skipped)
    return replace(folder, slides=slides, broken=tuple(skipped))
