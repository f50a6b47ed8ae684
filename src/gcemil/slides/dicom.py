"""DICOM slides: a series of files, one per level, which OpenSlide opens by any one of them.

A folder with one series is one slide of the folder's name; a series of one file has the name of the
file. Labels and overviews of a series are not slides.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gcemil.errors import MissingExtraError, UsageError

DICOM = ".dcm"


def join_series(files: Iterable[Path]) -> list[tuple[str, Path]]:
    """Name and file of every slide: of a DICOM series the finest level, any other file as it is."""
    named: list[tuple[str, Path]] = []
    folders: dict[Path, list[Path]] = {}
    for path in files:
        if path.name.lower().endswith(DICOM):
            folders.setdefault(path.parent, []).append(path)
        else:
            named.append((path.name, path))
    for folder, paths in folders.items():
        named += [(paths[0].name, paths[0])] if len(paths) == 1 else _join_folder(folder, paths)
    return named


def name_slide(path: Path) -> str:
    """The name of the slide that this file is, or is a level of."""
    if not path.name.lower().endswith(DICOM):
        return path.name
    same = [one for one in sorted(path.parent.iterdir()) if one.name.lower().endswith(DICOM)]
    return next((name for name, one in join_series(same) if one == path), path.name)


def _join_folder(folder: Path, paths: list[Path]) -> list[tuple[str, Path]]:
    """The series of one folder."""
    try:
        import openslide
    except ImportError as error:
        raise MissingExtraError("openslide-python", "wsi") from error
    series: dict[str, list[tuple[int, Path]]] = {}
    for path in paths:
        try:
            with openslide.OpenSlide(path) as slide:
                found = slide.properties["dicom.SeriesInstanceUID"]
        except (openslide.OpenSlideError, OSError, KeyError):
            # A label, an overview or damaged. Where no file of the folder is a slide, all are kept
            # to be refused one by one.
            continue
        # OpenSlide does not say which level a file is: the finest is the largest.
        series.setdefault(found, []).append((path.stat().st_size, path))
    if not series:
        return [(path.name, path) for path in paths]
    finest = [max(found)[1] for found in series.values()]
    if len(finest) == 1:
        return [(folder.resolve().name, finest[0])]
    if several := next((found for found in series.values() if len(found) > 1), None):
        raise UsageError(
            f"{folder} holds {len(series)} DICOM series of several files each, such as "
            f"{several[0][1].name} and "
            f"{several[1][1].name}. Put every slide into a folder of its own, named as the slide."
        )
    return [(path.name, path) for path in finest]
