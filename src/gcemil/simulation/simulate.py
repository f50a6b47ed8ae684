"""Profile, size and seed in; a cohort folder with known evidence out.

Plans come first, then targets and sites follow from the plans, then slides are made and written one by one: memory
holds one slide at a time. Equal arguments give byte-identical files, so a simulation that was stopped goes on with the
slides it has not written yet. Nothing but `truth/` says where the evidence is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.random import Generator
from numpy.typing import NDArray

from gcemil import __version__
from gcemil.bags import store
from gcemil.bags.bag import sample_patches
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow
from gcemil.bags.targets import write_target_cohorts
from gcemil.errors import InputError, UsageError
from gcemil.files import LOCK_NAME, read_json, write_json
from gcemil.simulation.layout import TissueLayout, draw_layout
from gcemil.simulation.plan import (
    CasePlan,
    Region,
    corrupt_labels,
    draw_labels,
    draw_outcomes,
    plan_classification,
    plan_factors,
    plan_targets,
)
from gcemil.simulation.profile import (
    Dials,
    Profile,
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
    embed_generic,
    embed_specific,
    embed_unrelated,
    encode_latents,
    view_in_anchor_space,
)

_PATCH_SIZE = 512
"""Level-0 pixels of a patch: 256 at 20x on a slide scanned at 40x."""
GENERATION = 1
"""Raised whenever equal arguments would give another cohort than before."""
_MIN_DIM = 8
PLAN = "simulating.json"
"""There as long as a cohort is not whole: what is being made, so that nothing else is mixed into it."""
_PAIR_SLIDES = 20
"""Slides outside the cohort from which the anchor pairs come."""


@dataclass(frozen=True)
class PlannedSlide:
    """One slide with everything that is decided before its patches are drawn."""

    row: SlideRow
    n_patches: int
    regions: tuple[Region, ...]
    truth: dict[str, str | float]
    """What the slide would be labelled without noise: never written beside the features."""
    site: int = 0


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
    """Write a simulated cohort and return it; `dials` overrides the profile's, `on_slide(done, total)` is called after each slide.

    With `multilabel` every class that has a cause is a target of its own. Without `replace_files` a folder is accepted that is empty, or that holds this very simulation, whole or in part.
    """
    chosen, rung = load_profile(profile), find_size(size)
    chosen = as_targets(chosen) if multilabel else chosen
    check_arguments(seed, slides, dim)
    resolved = resolve_dials(chosen.dials, dials or {})
    feature_dim = dim or rung.feature_dim
    world = draw_world(
        chosen, resolved, feature_dim=feature_dim, anchor_dim=rung.anchor_dim, seed=seed
    )
    patches = patch_bounds(chosen, size)
    planned = plan_slides(world, chosen.name, slides or rung.slides or chosen.slides, patches)
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
            truth = {
                name: store.read(path, name)
                for name in ("evidence", "concept", "region", "overlap")
            }
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

    Where the same cohort was begun before, slides are kept that have the file which is written last of all.
    """
    plan = {"card": card, "slides": len(slides)}
    begun = _is_same_plan(out / PLAN, plan)
    others = [path.name for path in out.iterdir() if path.name != LOCK_NAME] if out.is_dir() else []
    if others and not begun and not replace_files:
        raise UsageError(
            f"{out} is not empty and holds something else ('{sorted(others)[0]}' …). Choose another folder, or add --force."
        )
    write_json(out / PLAN, plan)
    for done, slide in enumerate(slides, start=1):
        if not (begun and last_file(slide.row.slide_id).is_file()):
            write(slide)
        if on_slide is not None:
            on_slide(done, len(slides))
    yield
    (out / PLAN).unlink()


def _is_same_plan(path: Path, plan: Mapping[str, Any]) -> bool:
    try:
        return bool(read_json(path) == plan)
    except InputError:
        # Not there, or not written by us.
        return False


def check_arguments(seed: int, slides: int | None, dim: int | None) -> None:
    """Refuse sizes and seeds that no cohort can have."""
    if seed < 0:
        raise UsageError(f"A seed is 0 or more, got {seed}.")
    if slides is not None and slides < 1:
        raise UsageError(f"A cohort needs at least one slide, got {slides}.")
    if dim is not None and dim < _MIN_DIM:
        raise UsageError(f"Simulated features need at least {_MIN_DIM} dimensions, got {dim}.")


def plan_slides(
    world: World, prefix: str, n_slides: int, patches: tuple[int, int]
) -> list[PlannedSlide]:
    """Every slide of a cohort with its target and site; `prefix` names the cohort and its random streams."""
    plans = {"classification": plan_classification, "multilabel": plan_targets}
    plan = plans.get(world.profile.task, plan_factors)
    cases = plan(
        world.profile,
        world.dials,
        prefix=prefix,
        n_slides=n_slides,
        patches=patches,
        seed=world.seed,
    )
    targets = np.array([case.target for case in cases])
    sites = case_sites(
        site_preference(targets, bool(world.profile.factors)),
        world.dials,
        world.draws("sites of", prefix),
    )
    slides = target_slides(world.profile, world.dials, cases, world.draws("targets of", prefix))
    site_of = dict(zip((case.case_id for case in cases), sites.tolist(), strict=True))
    return [
        replace(slide, row=replace(slide.row, site=f"site-{site}"), site=site)
        for slide in slides
        for site in [site_of[slide.row.case_id]]
    ]


def target_slides(
    profile: Profile, dials: Dials, cases: Sequence[CasePlan], generator: Generator
) -> list[PlannedSlide]:
    """Every slide with what slides.csv says of its case, the noisy label or value or the censored time, and what is true."""
    targets = np.array([case.target for case in cases])
    if profile.task == "survival":
        seen = draw_outcomes(targets, dials, generator)
        rows = [
            SlideRow("", c.case_id, time=t, event=e) for c, (t, e) in zip(cases, seen, strict=True)
        ]
        truths: list[dict[str, str | float]] = [{"log_risk": float(target)} for target in targets]
    elif profile.task == "regression":
        values = draw_labels(targets, dials, generator)
        rows = [
            SlideRow("", c.case_id, value=value) for c, value in zip(cases, values, strict=True)
        ]
        truths = [{"value": float(target)} for target in targets]
    elif profile.task == "multilabel":
        shown = (targets[:, None] >> np.arange(len(profile.classes))) & 1
        columns = [
            corrupt_labels(column, 2, dials.label_noise, generator).tolist() for column in shown.T
        ]
        labels = zip(*columns, strict=True)
        rows = [
            SlideRow("", case.case_id, labels=one) for case, one in zip(cases, labels, strict=True)
        ]
        truths = [dict(zip(profile.class_names, one, strict=True)) for one in shown.tolist()]
    else:
        names = profile.class_names
        noisy = corrupt_labels(targets, len(names), dials.label_noise, generator)
        rows = [SlideRow("", c.case_id, label=names[k]) for c, k in zip(cases, noisy, strict=True)]
        truths = [{"label": names[target]} for target in targets]
    return [
        PlannedSlide(replace(row, slide_id=slide_id), n_patches, regions, truth)
        for case, row, truth in zip(cases, rows, truths, strict=True)
        for slide_id, n_patches, regions in zip(
            case.slide_ids, case.n_patches, case.regions, strict=True
        )
    ]


def site_preference(targets: NDArray[Any], is_ranked: bool) -> Float[np.ndarray, "n"]:
    """A number in [0, 1) per case by which sites are preferred: its class, or the rank of its risk or value."""
    order = np.argsort(np.argsort(targets, kind="stable"), kind="stable") if is_ranked else targets
    return order / (order.max() + 1)


def case_sites(
    preference: Float[np.ndarray, "n"], dials: Dials, generator: Generator
) -> Int[np.ndarray, "n"]:
    """The preferred site for the confounded share of cases, any site for the rest."""
    anywhere = generator.integers(dials.sites, size=len(preference))
    preferred = np.floor(preference * dials.sites).astype(np.int64)
    return np.where(generator.random(len(preference)) < dials.site_confounding, preferred, anywhere)


def _draw_latent_slide(world: World, slide: PlannedSlide) -> tuple[TissueLayout, Latents]:
    """Layout and latents of one slide from its own random streams."""
    name = slide.row.slide_id
    layout = draw_layout(
        world.profile, world.dials, slide.n_patches, slide.regions, world.draws("layout", name)
    )
    return layout, draw_latents(world, layout, slide.site, world.draws("latents", name))


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
    for suffix, bank in (
        ("", embed_specific),
        ("_generic", embed_generic),
        ("_unrelated", embed_unrelated),
    ):
        store.write_anchors(out / f"anchors{suffix}.h5", *bank(world))
    slides = plan_slides(world, f"{world.profile.name}-pairs", _PAIR_SLIDES, patches)
    parts = [_draw_pairs(world, slide, -(-world.dials.pairs // _PAIR_SLIDES)) for slide in slides]
    features, images = (
        np.concatenate(part)[: world.dials.pairs] for part in zip(*parts, strict=True)
    )
    store.write(out / "anchor_pairs.h5", {"features": features, "anchor_space": images})


def _draw_pairs(
    world: World, slide: PlannedSlide, wanted: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Some patches of a slide as the patch encoder and as the text-aligned encoder see them."""
    _, latents = _draw_latent_slide(world, slide)
    draws = world.draws("pairs", slide.row.slide_id)
    chosen = latents[sample_patches(len(latents), wanted, draws)]
    return encode_latents(world, chosen, draws), view_in_anchor_space(world, chosen, draws)


def _cohort_card(world: World, size: str, patches: tuple[int, int]) -> CohortCard:
    """The card, with all it takes to make the same cohort again."""
    profile = world.profile
    provenance = {
        "simulator": {"generation": GENERATION, "gcemil": __version__},
        "profile": profile.name,
        "size": size,
        "seed": world.seed,
        "patches": list(patches),
        "concepts": [concept.name for concept in profile.concepts],
        "kinds": [concept.kind for concept in profile.concepts],
        "dials": world.dials.model_dump(mode="json"),
    }
    return CohortCard(
        name=f"simulated-{profile.name}",
        task=profile.task,
        classes=profile.class_names,
        feature_dim=len(world.origin),
        encoder=f"simulated-{len(world.origin)}",
        patch_size_level0=_PATCH_SIZE,
        anchors="anchors.h5",
        provenance=provenance,
    )
