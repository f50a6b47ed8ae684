"""Checks of the HDF5 files of a cohort: features, truth, anchors and pairs, a few MB in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gcemil.bags import store
from gcemil.bags.arrays import coords_problem, features_problem, read_anchors, read_pairs, read_truth
from gcemil.bags.cohort import CohortCard
from gcemil.bags.problems import Problem, Row, error, warning
from gcemil.errors import StoreError

TRUTH_COLUMNS = ("evidence", "concept", "region", "overlap")


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
    yield from _bank_problems(card, folder)


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
    if problem := features_problem(layouts["features"]):
        yield error(slide_id, problem, "Extract it with the cohort's encoder.")
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
    yield from _value_problems(slide_id, path, first_with)
    yield from _truth_problems(slide_id, path.parent.parent / "truth" / path.name, shape[0])


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
    if problem := coords_problem(store.read(path, "coords")):
        yield error(
            slide_id, problem, "Extract the slide again, or import it with 'gcemil import', which converts."
        )


def _value_problems(slide_id: str, path: Path, first_with: dict[str, str]) -> Iterator[Problem]:
    digest, done, unfit, first_unfit = hashlib.sha256(), 0, 0, -1
    first_row, all_alike = None, True
    for block in store.read_blocks(path, "features"):
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            unfit += int((~finite).sum())
            first_unfit = done + int(np.argmin(finite)) if first_unfit < 0 else first_unfit
        first_row = block[0].copy() if first_row is None else first_row
        all_alike = all_alike and not (block != first_row).any()
        digest.update(block.tobytes())
        done += len(block)
    if unfit:
        yield error(
            slide_id,
            f"{unfit} patches have NaN or infinite features, the first is row {first_unfit}",
            "Extract the slide again.",
        )
    elif done > 1 and all_alike:
        yield error(
            slide_id, "all patches have the same features", "The encoder saw no tissue; extract it again."
        )
    other = first_with.setdefault(digest.hexdigest(), slide_id)
    if other != slide_id:
        yield error(
            slide_id, f"its features are identical to those of '{other}'", "Remove one of the two slides."
        )


def _truth_problems(slide_id: str, path: Path, n_patches: int) -> Iterator[Problem]:
    """Training never reads truth, but what is measured against it would be wrong or stop hours later."""
    if not path.exists():
        return
    remedy = "Write the truth again, or remove the file."
    try:
        for name in TRUTH_COLUMNS:
            if store.has(path, name):
                read_truth(path, name, n_patches)
    except StoreError as fault:
        yield error(slide_id, str(fault), remedy)


def _bank_problems(card: CohortCard, folder: Path) -> Iterator[Problem]:
    """Anchors and pairs, where the cohort has them."""
    own = card.anchors if card.anchors is not None and card.anchors.endswith(".h5") else "anchors.h5"
    widths: dict[str, int] = {}
    for name in dict.fromkeys((own, "anchors_generic.h5", "anchors_unrelated.h5")):
        path = folder / name
        if path.parent == folder and path.exists():
            try:
                widths[name] = read_anchors(path)[0].shape[1]
            except StoreError as fault:
                yield error(name, str(fault), "Write the anchors again with 'gcemil anchors embed'.")
    path = folder / "anchor_pairs.h5"
    if not path.exists():
        return
    try:
        features, anchor_space = (side.shape[1] for side in read_pairs(path))
    except StoreError as fault:
        yield error(path.name, str(fault), "Write the pairs again with 'gcemil anchors pairs'.")
        return
    if features != card.feature_dim or anchor_space != widths.get(own, anchor_space):
        yield error(
            path.name,
            f"pairs of width {features} and {anchor_space} for features of width {card.feature_dim} and anchors of width "
            f"{widths.get(own, 'unknown')}",
            "Write the pairs again with 'gcemil anchors pairs'.",
        )
