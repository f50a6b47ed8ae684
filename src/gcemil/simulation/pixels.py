"""The same cohorts as drawn slides: `gcemil simulate PROFILE --pixels`.

Plans, labels, outcomes, sites and layouts come from the functions that make simulated features, so a label is caused by
what is drawn. Only the last step differs: a layout is painted (painting.py) instead of being encoded.

slides/<id>.tif                                   pyramidal TIFF, 0.5 micrometres per pixel
masks/{concept,evidence,tissue}/<id>.png          truth at 2 micrometres per pixel: index of the concept + 1, number of the
                                                  evidence region, tissue
annotations/<id>.xml                              the evidence as ASAP polygons
slides.csv  targets.csv  pixels.yaml              what is recorded · what would be recorded without noise · all it takes to draw
                                                  the slides again

Patches come from `gcemil encode`, which knows nothing of the plan; what is true of each is read off the masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jaxtyping import Float, Int
from numpy.typing import NDArray

from gcemil import __version__
from gcemil.bags import store
from gcemil.bags.cohort import CohortCard, SlideRow, write_slide_table
from gcemil.bags.tables import read_table
from gcemil.errors import CohortError
from gcemil.files import read_yaml, validate_as, write_table, write_text
from gcemil.simulation.drawn_slide import (
    DRAWN_MPP,
    MASK_DOWNSAMPLE,
    mask_path,
    read_drawn_mask,
    slide_path,
    write_drawn_slide,
)
from gcemil.simulation.layout import TissueLayout, draw_layout
from gcemil.simulation.painting import STANDARD, LabelMap, choose_styles, draw_labels, paint_tissue, vary_dyes
from gcemil.simulation.profile import find_size, load_profile, resolve_dials
from gcemil.simulation.simulate import PLAN, PlannedSlide, check_arguments, plan_slides, writing_slides
from gcemil.simulation.world import World, draw_world
from gcemil.slides.grid import PatchGrid, covered_share
from gcemil.slides.reader import Pixels

GENERATION = 2
"""Raised whenever equal arguments would draw other slides than before."""
_PIXEL_SIZES: dict[str, tuple[int, tuple[int, int]]] = {
    "tiny": (8, (64, 64)),
    "default": (120, (64, 160)),
    "wide": (120, (64, 160)),
}
"""Slides, and fewest and most patches of a slide; `full` has those of the profile."""
PIXEL_DIALS: dict[str, object] = {"evidence_min": 0.05, "evidence_max": 0.15}
"""Drawn slides are small: a share of 0.4 % of 64 patches is not even one."""
SITE_STAIN, SLIDE_STAIN = 0.7, 0.25
"""How far stains move per unit of the dials `site_shift` and `slide_shift`."""
PIXEL_CARD = "pixels.yaml"
_EVIDENT = 0.5
"""A patch is evidence when more than this share of it lies inside the annotation."""
Coords = Int[np.ndarray, "n 2"]


@dataclass(frozen=True)
class PixelCohort:
    """A cohort of drawn slides, not yet encoded."""

    folder: Path
    card: Mapping[str, Any]
    slides: tuple[SlideRow, ...]


def simulate_pixels(
    profile: str,
    out: Path,
    *,
    size: str = "default",
    seed: int = 0,
    slides: int | None = None,
    patches: tuple[int, int] | None = None,
    dials: Mapping[str, object] | None = None,
    replace_files: bool = True,
    on_slide: Callable[[int, int], None] | None = None,
) -> PixelCohort:
    """Draw a cohort; `patches` are the fewest and most per slide, the rest is as for simulated features."""
    chosen, rung = load_profile(profile), find_size(size)
    check_arguments(seed, slides, None)
    resolved = resolve_dials(chosen.dials, {**PIXEL_DIALS, **(dials or {})})
    world = draw_world(chosen, resolved, feature_dim=rung.feature_dim, anchor_dim=rung.anchor_dim, seed=seed)
    count, bounds = _PIXEL_SIZES.get(size, (chosen.slides, chosen.patches))
    planned = plan_slides(world, chosen.name, slides or count, patches or bounds)
    cohort = PixelCohort(
        out, _pixel_card(world, size, patches or bounds), tuple(slide.row for slide in planned)
    )
    if not replace_files and _is_drawn_whole(cohort):
        return cohort
    with writing_slides(
        out,
        cohort.card,
        planned,
        partial(_write_pixels, world, out),
        last_file=partial(slide_path, out),
        replace_files=replace_files,
        on_slide=on_slide,
    ):
        write_slide_table(out, cohort.card["task"], cohort.slides)
        truth = [{"slide_id": slide.row.slide_id, **slide.truth} for slide in planned]
        write_table(out / "targets.csv", list(truth[0]), truth)
        write_text(out / PIXEL_CARD, yaml.safe_dump(dict(cohort.card), sort_keys=False))
    return cohort


def _is_drawn_whole(cohort: PixelCohort) -> bool:
    """Whether the folder holds these drawn slides already; encoded or not, as their names and card stay."""
    path = cohort.folder / PIXEL_CARD
    if (cohort.folder / PLAN).exists() or not path.is_file():
        return False
    names = [row["slide_id"] for row in read_table(cohort.folder / "slides.csv", ("slide_id",))]
    return bool(read_yaml(path) == cohort.card) and names == [row.slide_id for row in cohort.slides]


def _write_pixels(world: World, out: Path, slide: PlannedSlide) -> None:
    """Slide, masks and annotations of one planned slide."""
    layout, labels, image = draw_pixels(world, slide)
    names = [concept.name for concept in world.profile.concepts]
    region_names = {
        int(number): names[int(layout.concept[layout.region == number][0])]
        for number in np.unique(layout.region[layout.evidence])
    }
    write_drawn_slide(image, labels, out, slide.row.slide_id, region_names)


def draw_pixels(world: World, slide: PlannedSlide) -> tuple[TissueLayout, LabelMap, Pixels]:
    """The layout that the plan gets, its map, and its image, from random streams of their own."""
    name, dials = slide.row.slide_id, world.dials
    layout = draw_layout(world.profile, dials, slide.n_patches, slide.regions, world.draws("layout", name))
    draws = world.draws("pixels", name)
    labels = draw_labels(layout.cells, layout.concept, layout.region, draws)
    # The stain of the slide's site, and what is its own.
    site = vary_dyes(STANDARD, SITE_STAIN * dials.site_shift, world.draws("stain of site", slide.site))
    dyes = vary_dyes(site, SLIDE_STAIN * dials.slide_shift, world.draws("stain of slide", name))
    styles = choose_styles(world.profile, dials.mimic_similarity)
    return layout, labels, paint_tissue(labels, styles, dyes, draws)


def _pixel_card(world: World, size: str, patches: tuple[int, int]) -> dict[str, Any]:
    """All it takes to draw the slides again."""
    profile = world.profile
    return {
        "name": f"drawn-{profile.name}",
        "task": profile.task,
        "classes": list(profile.class_names),
        "anchors": profile.family,
        "provenance": {
            "simulator": {"pixel_generation": GENERATION, "gcemil": __version__},
            "profile": profile.name,
            "size": size,
            "seed": world.seed,
            "patches": list(patches),
            "mpp": DRAWN_MPP,
            "mask_downsample": MASK_DOWNSAMPLE,
            "concepts": [concept.name for concept in profile.concepts],
            "kinds": [concept.kind for concept in profile.concepts],
            "dials": world.dials.model_dump(mode="json"),
        },
    }


def read_encoded_card(folder: Path, *, feature_dim: int, encoder: str, patch_size_level0: int) -> CohortCard:
    """The card of a drawn cohort once its slides are encoded; CohortCard.save writes cohort.yaml from it."""
    path = folder / PIXEL_CARD
    if not path.is_file():
        raise CohortError(
            f"{folder} holds no drawn slides: it has no {PIXEL_CARD}. Make them with 'gcemil simulate --pixels'."
        )
    stated = read_yaml(path)
    made = {"feature_dim": feature_dim, "encoder": encoder, "patch_size_level0": patch_size_level0}
    values = {**stated, **made} if isinstance(stated, dict) else stated
    return validate_as(values, CohortCard, path, error=CohortError, remedy="Simulate the slides again.")


def write_pixel_truth(folder: Path, slide_id: str, grid: PatchGrid) -> Path:
    """truth/<slide>.h5 for these patches of a drawn slide, laid out as that of simulated features."""
    path = folder / "truth" / f"{slide_id}.h5"
    truth = read_pixel_truth(folder, slide_id, grid.coords, grid.level0_side)
    store.write(path, truth, _read_true_target(folder, slide_id))
    return path


def read_pixel_truth(folder: Path, slide_id: str, coords: Coords, side: float) -> dict[str, NDArray[Any]]:
    """Evidence, concept, region and overlap of square patches of this level-0 side."""
    (regions, region_share), (concepts, concept_share) = (
        _measure_shares(mask_path(folder, what, slide_id), coords, side) for what in ("evidence", "concept")
    )
    overlap = np.clip(region_share.sum(axis=1), 0, 1)
    evidence = overlap > _EVIDENT
    region = regions[region_share.argmax(axis=1)] if len(regions) else np.zeros(len(coords), np.int64)
    return {
        "evidence": evidence.astype(np.uint8),
        "concept": (concepts[concept_share.argmax(axis=1)] - 1).astype(np.uint8),
        "region": np.where(evidence, region, 0).astype(np.uint16),
        "overlap": overlap.astype(np.float32),
    }


def _measure_shares(
    path: Path, coords: Coords, side: float
) -> tuple[Int[np.ndarray, "values"], Float[np.ndarray, "n values"]]:
    """The values of a mask apart from 0, and the share of every patch that each covers."""
    mask = read_drawn_mask(path)
    values = np.unique(mask[mask > 0]).astype(np.int64)
    corner, wide = coords / MASK_DOWNSAMPLE, side / MASK_DOWNSAMPLE
    shares = [covered_share(mask == value, corner, (wide, wide)) for value in values]
    return values, np.stack(shares, axis=1) if shares else np.zeros((len(coords), 0))


def _read_true_target(folder: Path, slide_id: str) -> dict[str, str | int | float | bool]:
    """The label or log-risk of a slide without noise."""
    for row in read_table(folder / "targets.csv", ("slide_id",)):
        if row["slide_id"] == slide_id:
            return {"label": row["label"]} if "label" in row else {"log_risk": float(row["log_risk"])}
    raise CohortError(f"{folder / 'targets.csv'} does not name slide '{slide_id}'.")
