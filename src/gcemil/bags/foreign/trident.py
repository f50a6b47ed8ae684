"""TRIDENT: <job>/<mag>x_<ps>px_<ov>px_overlap/features_<encoder>/<slide>.h5.

Coordinates are level-0 pixels but `patch_size` counts pixels at the target magnification, so the size on the slide is
`patch_size_level0` = patch_size * level0_magnification // target_magnification. `None` is stored as the text 'None'.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from gcemil.bags import store
from gcemil.bags.arrays import stated_number
from gcemil.bags.foreign.source import (
    Attributes,
    Facts,
    FeatureLayout,
    ForeignFolder,
    ForeignSlide,
    ReadOptions,
    describe_stripped_ids,
    infer_patch_size,
    plain_id,
    plain_ids,
    read_bag_coords,
    read_each,
    read_plain_slide,
    require_one_encoder,
)
from gcemil.errors import CohortError, UsageError
from gcemil.units import LevelZeroPx

PREFIX = "features_"
RUN_FOLDER = re.compile(r"[\d.]+x_\d+px_\d+px_overlap$")
OWN_ATTRIBUTES = frozenset({"patch_size_level0", "target_magnification", "level0_magnification"})


def read_trident(source: Path, options: ReadOptions = ReadOptions()) -> ForeignFolder:
    """The slides of one features folder of a TRIDENT job."""
    folder = _find_features_folder(source, options.encoder)
    files = sorted(folder.glob("*.h5"))
    if not files:
        raise CohortError(
            f"{folder} holds no .h5 files. Run TRIDENT's feature extraction, or point elsewhere."
        )
    ids = plain_ids((path.name for path in files), where=str(folder))
    lines = [
        *describe_stripped_ids((path.name.removesuffix(".h5") for path in files), where=str(folder)),
        "TRIDENT coordinates are level-0 pixels; the patch size is patch_size_level0, not patch_size.",
    ]
    inferred: list[str] = []
    overlaps: set[str] = set()

    pictures = _find_thumbnails(folder)

    def read_one(path: Path) -> ForeignSlide:
        slide, has_coords = read_plain_slide(path, ids[path.name]), store.has(path, "coords")
        attributes = store.attributes(path, "coords") if has_coords else {}
        size = options.patch_size or find_patch_size(attributes)
        if size is None and slide.n_patches and has_coords:
            size = infer_patch_size(read_bag_coords(path))
            inferred.append(slide.slide_id)
        overlaps.add(_to_text(attributes.get("overlap")))
        encoder = _to_text(store.attributes(path, "features").get("encoder"))
        return replace(slide, patch_size=size, encoder=encoder, thumbnail=pictures.get(slide.slide_id))

    slides = read_each(files, read_one, folder, options.skipped)
    if n_pictures := sum(slide.thumbnail is not None for slide in slides):
        lines.append(f"Thumbnails of {n_pictures} slides were found beside the features and are shown.")
    if options.patch_size:
        lines.append(f"Patch size {options.patch_size} level-0 px as given.")
    if inferred:
        lines.append(
            f"Patch size inferred from the stride of {len(inferred)} slides without attributes ('{inferred[0]}')."
        )
    lines += [
        f"Patches overlap by {overlap} px at the target magnification." for overlap in overlaps - {"", "0"}
    ]
    found = require_one_encoder((slide.encoder for slide in slides), folder)
    if found == "unknown" and folder.name.startswith(PREFIX):
        found = folder.name.removeprefix(PREFIX)
        lines.append(f"Encoder '{found}' taken from the folder name; the files do not say it.")
    return ForeignFolder("trident", folder, slides, found, tuple(lines))


def _find_thumbnails(features: Path) -> dict[str, Path]:
    """Slide → <job>/thumbnails/<slide>.jpg of the job that this features folder is of."""
    jobs = (parent / "thumbnails" for parent in (*features.resolve().parents[:2], features))
    folder = next((one for one in jobs if one.is_dir()), None)
    return {} if folder is None else {plain_id(path.stem): path for path in sorted(folder.glob("*.jpg"))}


def _read_file(path: Path, options: ReadOptions) -> ForeignSlide:
    """One file; its patch size is the one it states."""
    stated = find_patch_size(store.attributes(path, "coords") if store.has(path, "coords") else {})
    return replace(read_plain_slide(path, plain_id(path.name)), patch_size=options.patch_size or stated)


def _find_features_folder(source: Path, encoder: str | None) -> Path:
    """The features folder of this encoder inside a job; the only one when none is named."""
    if any(source.glob("*.h5")):
        return source
    candidates = (*source.glob(f"{PREFIX}*"), *source.glob(f"*_overlap/{PREFIX}*"))
    folders = sorted(path for path in candidates if path.is_dir())
    chosen = [path for path in folders if encoder is None or path.name == f"{PREFIX}{encoder}"]
    if len(chosen) != 1:
        names = ", ".join(str(path.relative_to(source)) for path in chosen or folders) or "none"
        raise UsageError(
            f"{source} must have one folder of patch features{f' of {encoder}' if encoder else ''}; found: {names}. "
            "Point at one of them."
        )
    return chosen[0]


def find_patch_size(attributes: Attributes) -> LevelZeroPx | None:
    """Patch size in level-0 pixels, or None when the attributes do not give it."""
    direct, size, own, target = (
        None if (number := stated_number(attributes, name)) is None else round(number)
        for name in ("patch_size_level0", "patch_size", "level0_magnification", "target_magnification")
    )
    if direct:
        return LevelZeroPx(direct)
    # Rounded down, as TRIDENT does it.
    return LevelZeroPx(max(1, size * own // target)) if size and own and target else None


def _to_text(value: Any) -> str:
    return "" if value is None or value == "None" else str(value)


def _describe_file(path: Path) -> Facts:
    return (("encoder", str(store.attributes(path, "features").get("encoder", "unknown"))),)


def find_job_folders(folder: Path) -> list[Path]:
    """The folders inside the runs of a TRIDENT job; none where it is not one."""
    if any(folder.glob("*.h5")):
        return []
    runs = sorted(run for run in folder.iterdir() if RUN_FOLDER.search(run.name))
    return [path for run in runs for path in sorted(run.iterdir()) if path.is_dir()]


LAYOUT = FeatureLayout(
    tool="trident",
    name="TRIDENT",
    title="TRIDENT features",
    read=read_trident,
    read_file=_read_file,
    owns_folder=lambda folder, names: any(RUN_FOLDER.search(name) for name in (folder.name, *names)),
    owns_file=lambda datasets, attributes: "features" in datasets and bool(OWN_ATTRIBUTES & set(attributes)),
    describe_file=_describe_file,
    patch_size=find_patch_size,
)
