"""Profile, size and seed in; a cohort folder with known evidence out.

Plans come first, then targets and sites follow from the plans, then slides are made and written one
by one: memory holds one slide at a time. Equal arguments give byte-identical files, so a simulation
that was stopped goes on with the slides it has not written yet. Only `truth/` holds where the
evidence is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from gcemil import __version__
from gcemil.bags import store
from gcemil.bags.bag import sample_patches
from gcemil.bags.cohort import Cohort, CohortCard
from gcemil.bags.targets import write_target_cohorts
from gcemil.errors import UsageError
from gcemil.files import LOCK_NAME, is_file, read_json, write_json
from gcemil.simulation.layout import TissueLayout, draw_layout
from gcemil.simulation.plan import PlannedSlide, draw_sites, plan_cases, plan_slides
from gcemil.simulation.profile import (
    Profile,
    Size,
    as_targets,
    find_size,
    load_profile,
    patch_bounds,
    resolve_dials,
)
from gcemil.simulation.world import (
    Latents,
    World,
    draw_latents,
    draw_world,
    embed_banks,
    encode_latents,
    view_in_anchor_space,
)

_PATCH_SIZE = 512
"""Level-0 pixels of a patch: 256 at 20x on a slide scanned at 40x."""
GENERATION = 1
"""Raised whenever equal arguments would give another cohort than before."""
_MIN_DIM = 8
PLAN = "simulating.json"
"""The cohort that is being made; there until it is whole."""
_PAIR_SLIDES = 20
"""Slides outside the cohort from which the anchor pairs come."""


def simulate(
    profile: str,
    out: Path,
    *,
    size: str = "default",
    seed: int = 0,
    slides: int | None = None,
    dim: int | None = None,
    dials: Mapping[str, object] | None = None,
    multilabel: bool = False,
    replace_files: bool = True,
    on_slide: Callable[[int, int], None] | None = None,
) -> Cohort:
    """Write a simulated cohort and return it; `dials` overrides the profile's.

    With `multilabel` every class that has a cause is a target of its own. Without `replace_files`
    the folder must be empty or hold this very simulation, whole or in part. `on_slide(done, total)`
    is called after each slide.
    """
    chosen, rung = load_profile(profile), find_size(size)
    chosen = as_targets(chosen) if multilabel else chosen
    world = open_world(chosen, rung, seed=seed, slides=slides, dim=dim, dials=dials or {})
    patches = patch_bounds(chosen, size)
    planned = plan_cohort(world, chosen.name, slides or rung.slides or chosen.slides, patches)
    cohort = Cohort(out, _cohort_card(world, size, patches), tuple(slide.row for slide in planned))
    if not replace_files and is_whole(cohort):
        return cohort
    with writing_slides(
        out,
        cohort.card.model_dump(mode="json"),
        planned,
        partial(_write_slide, world, out),
        last_file=cohort.truth_file,
        replace_files=replace_files,
        on_slide=on_slide,
    ):
        _write_anchors(world, patches, out)
        cohort.save()
        if multilabel:
            _write_target_truth(cohort, chosen)
    return cohort


def _write_target_truth(cohort: Cohort, profile: Profile) -> None:
    """The evidence of each target alone: patches of a concept of its causes."""
    concepts = [concept.name for concept in profile.concepts]
    for rule, target in zip(profile.classes, write_target_cohorts(cohort), strict=True):
        own = [concepts.index(name) for name in {name for cause in rule.causes for name in cause}]
        for row in target.slides:
            path = cohort.truth_file(row.slide_id)
            parts = ("evidence", "concept", "region", "overlap")
            truth = {name: store.read(path, name) for name in parts}
            is_own = np.isin(truth["concept"], own)
            for name in ("evidence", "region", "overlap"):
                truth[name] = truth[name] * is_own.astype(truth[name].dtype)
            label = store.attributes(path)[rule.name]
            store.write(
                target.truth_file(row.slide_id), truth, {"label": target.card.classes[label]}
            )


def is_whole(cohort: Cohort) -> bool:
    """Whether the folder holds this very cohort already."""
    if (cohort.folder / PLAN).exists() or not (cohort.folder / "cohort.yaml").is_file():
        return False
    written = Cohort.load(cohort.folder)
    return written.card == cohort.card and written.slides == cohort.slides


@contextmanager
def writing_slides(
    out: Path,
    card: Mapping[str, Any],
    slides: Sequence[PlannedSlide],
    write: Callable[[PlannedSlide], None],
    *,
    last_file: Callable[[str], Path],
    replace_files: bool,
    on_slide: Callable[[int, int], None] | None,
) -> Iterator[None]:
    """Write the slides of a cohort; the block then writes its tables.

    Where the same cohort was begun before, slides are kept that have the file which is written last
    of all.
    """
    plan = {"card": card, "slides": len(slides)}
    begun = is_file(out / PLAN) and read_json(out / PLAN) == plan
    others = [path.name for path in out.iterdir() if path.name != LOCK_NAME] if out.is_dir() else []
    if others and not begun and not replace_files:
        raise UsageError(
            f"{out} is not empty and holds something else ('{sorted(others)[0]}' …). "
            "Choose another folder, or add --force."
        )
    write_json(out / PLAN, plan)
    for done, slide in enumerate(slides, start=1):
        if not (begun and last_file(slide.row.slide_id).is_file()):
            write(slide)
        if on_slide is not None:
            on_slide(done, len(slides))
    yield
    (out / PLAN).unlink()


def open_world(
    profile: Profile,
    size: Size,
    *,
    seed: int,
    slides: int | None,
    dim: int | None,
    dials: Mapping[str, object],
) -> World:
    """The world of a cohort; sizes, seeds and dials that no cohort can have are refused."""
    if seed < 0:
        raise UsageError(f"A seed is 0 or more, got {seed}.")
    if slides is not None and slides < 1:
        raise UsageError(f"A cohort needs at least one slide, got {slides}.")
    if dim is not None and dim < _MIN_DIM:
        raise UsageError(f"Simulated features need at least {_MIN_DIM} dimensions, got {dim}.")
    resolved, width = resolve_dials(profile.dials, dials), dim or size.feature_dim
    return draw_world(profile, resolved, feature_dim=width, anchor_dim=size.anchor_dim, seed=seed)


def plan_cohort(
    world: World, prefix: str, n_slides: int, patches: tuple[int, int]
) -> list[PlannedSlide]:
    """Every slide of a cohort; `prefix` names the cohort and its random streams."""
    profile, dials = world.profile, world.dials
    cases = plan_cases(
        profile, dials, prefix=prefix, n_slides=n_slides, patches=patches, seed=world.seed
    )
    targets, is_ranked = np.array([case.target for case in cases]), bool(profile.factors)
    sites = draw_sites(targets, dials, world.draws("sites of", prefix), is_ranked=is_ranked)
    draws = world.draws("targets of", prefix)
    return plan_slides(profile, dials, cases, draws, sites.tolist())


def _draw_latent_slide(world: World, slide: PlannedSlide) -> tuple[TissueLayout, Latents]:
    """Layout and latents of one slide from its own random streams."""
    name, draws = slide.row.slide_id, world.draws
    layout = draw_layout(
        world.profile, world.dials, slide.n_patches, slide.regions, draws("layout", name)
    )
    return layout, draw_latents(world, layout, slide.site, draws("latents", name))


def _write_slide(world: World, out: Path, slide: PlannedSlide) -> None:
    """features/<slide>.h5 and truth/<slide>.h5."""
    name = slide.row.slide_id
    layout, latents = _draw_latent_slide(world, slide)
    features = encode_latents(world, latents, world.draws("residual", name))
    write_layout(out, slide, layout, features, _PATCH_SIZE, world.draws("offset", name))


def write_layout(
    out: Path,
    slide: PlannedSlide,
    layout: TissueLayout,
    features: NDArray[Any],
    patch_size: int,
    generator: Generator,
    *,
    more_truth: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """The features of a slide at a random place of a grid with this step, and its truth."""
    name = slide.row.slide_id
    offset = generator.integers(4, 64, size=2)
    # Cells are (row, column); coordinates are (x, y).
    coords = ((layout.cells[:, ::-1] + offset) * patch_size).astype(np.int64)
    store.write(out / "features" / f"{name}.h5", {"features": features, "coords": coords})
    truth: dict[str, NDArray[Any]] = {
        "evidence": layout.evidence.astype(np.uint8),
        "concept": layout.concept.astype(np.uint8),
        "region": layout.region.astype(np.uint16),
        "overlap": layout.overlap.astype(np.float32),
        **(more_truth or {}),
    }
    store.write(out / "truth" / f"{name}.h5", truth, slide.truth)


def _write_anchors(world: World, patches: tuple[int, int], out: Path) -> None:
    """The prompt bank, its controls, and the pairs that identify the bridge."""
    for suffix, bank in embed_banks(world).items():
        store.write_anchors(out / f"anchors{suffix}.h5", *bank)
    wanted = world.dials.pairs
    features, images = [], []
    for slide in plan_cohort(world, f"{world.profile.name}-pairs", _PAIR_SLIDES, patches):
        # Some patches as the patch encoder and as the text-aligned encoder see them.
        _, latents = _draw_latent_slide(world, slide)
        draws = world.draws("pairs", slide.row.slide_id)
        chosen = latents[sample_patches(len(latents), -(-wanted // _PAIR_SLIDES), draws)]
        features.append(encode_latents(world, chosen, draws))
        images.append(view_in_anchor_space(world, chosen, draws))
    pairs = {"features": features, "anchor_space": images}
    store.write(
        out / "anchor_pairs.h5",
        {name: np.concatenate(parts)[:wanted] for name, parts in pairs.items()},
    )


def _cohort_card(world: World, size: str, patches: tuple[int, int]) -> CohortCard:
    """The card, with all it takes to make the same cohort again."""
    return CohortCard(
        name=f"simulated-{world.profile.name}",
        task=world.profile.task,
        classes=world.profile.class_names,
        feature_dim=len(world.origin),
        encoder=f"simulated-{len(world.origin)}",
        patch_size_level0=_PATCH_SIZE,
        anchors="anchors.h5",
        provenance=record_origin(world, size, patches, {"generation": GENERATION}),
    )


def record_origin(
    world: World, size: str, patches: tuple[int, int], generation: dict[str, int], **more: Any
) -> dict[str, Any]:
    """All it takes to simulate a cohort again."""
    return {
        "simulator": {**generation, "gcemil": __version__},
        "profile": world.profile.name,
        "size": size,
        "seed": world.seed,
        "patches": list(patches),
        **more,
        "concepts": [concept.name for concept in world.profile.concepts],
        "kinds": [concept.kind for concept in world.profile.concepts],
        "dials": world.dials.model_dump(mode="json"),
    }
