"""TRIDENT: <job>/<mag>x_<ps>px_<ov>px_overlap/features_<encoder>/<slide>.h5.

Coordinates are level-0 pixels but `patch_size` counts pixels at the target magnification, so the
size on the slide is `patch_size_level0` = patch_size * level0_magnification //
target_magnification. `None` is stored as the text 'None'.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from gcemil.bags import store
from gcemil.bags.foreign.source import (
    UNKNOWN_ENCODER,
    FeatureLayout,
    ForeignSlide,
    ReadOptions,
    read_plain_slide,
)
from gcemil.bags.store import stated_number
from gcemil.errors import UsageError
from gcemil.units import LevelZeroPx

PREFIX = "features_"
RUN_FOLDER = re.compile(r"[\d.]+x_\d+px_\d+px_overlap$")
OWN_ATTRIBUTES = frozenset({"patch_size_level0", "target_magnification", "level0_magnification"})


def _find_files(source: Path, options: ReadOptions) -> tuple[Path, list[Path]]:
    folder = _find_features_folder(source, options.encoder)
    return folder, sorted(folder.glob("*.h5"))


def _read_slide(path: Path, slide_id: str, options: ReadOptions) -> ForeignSlide:
    attributes = store.attributes(path, "coords")
    slide = read_plain_slide(path, slide_id, options, find_patch_size(attributes))
    notes, overlap = [*slide.notes], _to_text(attributes.get("overlap"))
    if overlap not in {"", "0"}:
        notes.append(f"Patches overlap by {overlap} px at the target magnification.")
    encoder = _to_text(store.attributes(path, "features").get("encoder"))
    if not encoder and path.parent.name.startswith(PREFIX):
        encoder = path.parent.name.removeprefix(PREFIX)
        notes.append(f"Encoder '{encoder}' taken from the folder name; the files do not say it.")
    # <job>/thumbnails/<slide>.jpg of the job that this features folder is of.
    jobs = (*path.parent.resolve().parents[:2], path.parent)
    pictures = (
        job / "thumbnails" / f"{name}.jpg" for job in jobs for name in (slide_id, path.stem)
    )
    thumbnail = next((picture for picture in pictures if picture.is_file()), None)
    return replace(
        slide, encoder=encoder or UNKNOWN_ENCODER, thumbnail=thumbnail, notes=tuple(notes)
    )


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
            f"{source} must have one folder of patch "
            f"features{f' of {encoder}' if encoder else ''}; found: {names}. "
            "Point at one of them."
        )
    return chosen[0]


def find_patch_size(attributes: store.Attributes) -> LevelZeroPx | None:
    """Patch size in level-0 pixels, or None when the attributes do not give it."""
    direct, size, own, target = (
        None if (number := stated_number(attributes, name)) is None else round(number)
        for name in (
            "patch_size_level0",
            "patch_size",
            "level0_magnification",
            "target_magnification",
        )
    )
    if direct:
        return LevelZeroPx(direct)
    # Rounded down, as TRIDENT does it.
    return LevelZeroPx(max(1, size * own // target)) if size and own and target else None


def _to_text(value: Any) -> str:
    return "" if value is None or value == "None" else str(value)


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
    find_files=_find_files,
    read_slide=_read_slide,
    assumes=(
        "TRIDENT coordinates are level-0 pixels; "
        "the patch size is patch_size_level0, not patch_size."
    ),
    owns_folder=lambda folder, names: any(
        RUN_FOLDER.search(name) for name in (folder.name, *names)
    ),
    owns_file=lambda datasets, attributes: (
        "features" in datasets and bool(OWN_ATTRIBUTES & set(attributes))
    ),
)
