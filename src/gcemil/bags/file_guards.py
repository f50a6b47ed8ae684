"""Checks of the feature files of a cohort, one slide in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gcemil.bags import store
from gcemil.bags.cohort import CohortCard
from gcemil.bags.problems import Problem, Row, error, warning
from gcemil.errors import StoreError


def file_problems(
    rows: list[Row], card: CohortCard, folder: Path, on_slide: Callable[[int, int], None] | None
) -> Iterator[Problem]:
    first_with: dict[str, str] = {}
    names = list(dict.fromkeys(row["slide_id"] for row in rows))
    for done, slide_id in enumerate(names, start=1):
        path = folder / "features" / f"{slide_id}.h5"
        try:
            yield from _feature_problems(slide_id, path, card, first_with)
        except StoreError as fault:
            yield error(slide_id, str(fault), "Extract the slide again, or remove its line.")
        if on_slide:
            on_slide(done, len(names))
    listed = {f"{name}.h5" for name in names}
    if unused := sorted(path.name for path in (folder / "features").glob("*.h5") if path.name not in listed):
        yield warning(
            unused[0],
            f"{len(unused)} feature files have no line in slides.csv",
            "Add the slides or remove the files.",
        )


def _feature_problems(
    slide_id: str, path: Path, card: CohortCard, first_with: dict[str, str]
) -> Iterator[Problem]:
    layouts = store.describe(path)
    if "features" not in layouts:
        found = ", ".join(layouts) or "nothing"
        yield error(
            slide_id, f"{path.name} has no dataset 'features', only: {found}", "Read it with 'gcemil import'."
        )
        return
    shape = layouts["features"].shape
    if len(shape) != 2 or shape[1] != card.feature_dim:
        yield error(
            slide_id,
            f"features have shape {shape}, cohort.yaml says width {card.feature_dim}",
            "Extract it with the cohort's encoder.",
        )
        return
    if shape[0] == 0:
        yield error(slide_id, "the slide has no patches", "Remove its line, or segment its tissue again.")
        return
    if layouts["features"].is_slow:
        yield warning(
            slide_id,
            f"features are stored in chunks of {layouts['features'].chunks}, which read slowly",
            "Rewrite them with 'gcemil repack'.",
        )
    yield from _coord_problems(slide_id, path, shape[0], layouts)
    yield from _value_problems(slide_id, store.read(path, "features"), first_with)


def _coord_problems(
    slide_id: str, path: Path, n_patches: int, layouts: dict[str, store.Layout]
) -> Iterator[Problem]:
    if "coords" not in layouts:
        yield warning(
            slide_id, "the file has no coordinates", "Spatial steps are switched off for this slide."
        )
        return
    if layouts["coords"].shape != (n_patches, 2):
        yield error(
            slide_id,
            f"{layouts['coords'].shape} coordinates for {n_patches} feature rows",
            "Extract the slide again.",
        )
        return
    if layouts["coords"].dtype.kind == "f":
        coords = store.read(path, "coords")
        if not np.array_equal(coords, np.round(coords)):
            yield error(
                slide_id,
                f"coordinates are fractions such as {coords.max():.2f}: they look like micrometres",
                "Import the folder with 'gcemil import', which converts them.",
            )


def _value_problems(slide_id: str, features: np.ndarray, first_with: dict[str, str]) -> Iterator[Problem]:
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        yield error(
            slide_id,
            f"{(~finite).sum()} patches have NaN or infinite features, the first is row {int(np.argmin(finite))}",
            "Extract the slide again.",
        )
    elif len(features) > 1 and not (features != features[0]).any():
        yield error(
            slide_id, "all patches have the same features", "The encoder saw no tissue; extract it again."
        )
    digest = hashlib.sha256(features.tobytes()).hexdigest()
    other = first_with.setdefault(digest, slide_id)
    if other != slide_id:
        yield error(
            slide_id, f"its features are identical to those of '{other}'", "Remove one of the two slides."
        )
