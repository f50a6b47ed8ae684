"""Bags composed from labelled patches of real tissue: features as an encoder gives them, evidence
known by construction.

A recipe states which classes of patches are background and which are evidence for which slide label
(or move the hazard by how much). Plans, tissue outlines, regions and survival times are those of
the simulator (plan.py, layout.py); only the patches themselves are real. Patches are dealt to the
parts of the cohort before any bag is filled, so no bag of one part holds a patch (or, where they
are known, a patient) of another: training, validation and test never meet.

A slide draws its background from its own random share of the patches of its part, so that slides
differ as slides do. If all slides of a part held the same patches, one misread patch would change
the prediction of every slide without evidence, and a test of 200 slides would be a test of one. A
patch stands as rarely as possible on a slide. What that means for the bags at hand is stated in the
notes, with all other assumptions.

Held-out patches enter no bag. They are written as examples.h5 and, on request, as a stand-in for a
text bank:
  space    the leading principal axes of the held-out patches about their mean, turned by a random
           rotation
  anchors  the mean of each class there, moved by `prompt_noise` times its length in a random
           direction
  pairs    the held-out patches in feature space and in that space
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from gcemil import __version__
from gcemil.bags import store
from gcemil.bags.cohort import Cohort, CohortCard
from gcemil.bags.folds import PARTS, Fold, make_folds, make_parts, write_folds
from gcemil.config import Settings
from gcemil.errors import UsageError
from gcemil.simulation.layout import draw_layout
from gcemil.simulation.patch_pool import UNUSED, Parts, PatchPool, Rows, deal_patches, hold_out
from gcemil.simulation.plan import PlannedSlide, plan_cases, plan_slides, stream
from gcemil.simulation.profile import ClassRule, Dials, Profile, Tissue
from gcemil.simulation.simulate import is_whole, write_layout, writing_slides

GENERATION = 2
"""Raised whenever equal arguments would give another cohort than before."""
PATCH_SIZE = 256
"""Grid step in level-0 pixels of a composed slide."""
EXAMPLES = "examples.h5"


class ComposeSettings(Settings):
    """What composed slides are made of."""

    background: dict[str, float]
    """Classes of patches that mean nothing for the label, with their usual shares of a slide."""
    labels: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Slide labels in order, each with the classes any of which is its evidence; A+B needs both."""
    hazards: dict[str, float] = Field(default_factory=dict)
    """Survival in place of labels: log-hazard weight per evidence class; negative protects."""
    slides: int = Field(150, ge=5, le=1_000_000)
    patches: tuple[int, int] = (150, 900)
    """Fewest and most patches of a slide, log-uniform."""
    evidence: tuple[float, float] = (0.01, 0.10)
    """Smallest and largest share of a slide that is evidence."""
    regions_max: int = Field(3, ge=1, le=8)
    """Most contiguous evidence regions on a slide."""
    redundancy: float = Field(0.0, ge=0, le=1)
    """Chance of a second class of evidence for the same label, where it has one."""
    region_scale: float = Field(6.0, ge=2, le=64)
    """Width in patches of background regions."""
    censoring: float = Field(0.4, ge=0, lt=1)
    """Survival: share of cases whose event is not seen."""
    folds: int = Field(5, ge=3, le=50)
    """Folds of cross-validation."""
    parts: tuple[int, int, int] | None = None
    """One split in place of folds: slides to train, validate and test on."""
    slide_pool: float = Field(0.25, gt=0, le=1)
    """Share of the background patches of its part that a slide draws from."""
    pool_shares: tuple[float, float, float] = (0.5, 0.15, 0.35)
    """With parts: shares of the patches that each of the three gets."""
    examples_per_class: int = Field(0, ge=0, le=100_000)
    """Patches of each class held out as examples."""
    text_like: bool = False
    """Write a stand-in for a text bank, with pairs."""
    pairs: int = Field(300, ge=10, le=1_000_000)
    """Further held-out patches for its pairs."""
    anchor_dim: int = Field(96, ge=8, le=4096)
    prompt_noise: float = Field(0.4, ge=0, le=4)

    @field_validator("background", mode="before")
    @classmethod
    def _shares_may_be_left_out(cls, value: Any) -> Any:
        return dict.fromkeys(value, 1.0) if isinstance(value, list | tuple) else value

    @field_validator("labels", mode="before")
    @classmethod
    def _one_class_needs_no_list(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            name: () if own is None else (own,) if isinstance(own, str) else own
            for name, own in value.items()
        }

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ComposeSettings:
        causes = [cause for own in self.labels.values() for cause in own]
        both = sorted({*self.background} & {*self.evidence_classes})
        contradictions = {
            "give either labels (classification) or hazards (survival)": (
                bool(self.labels) == bool(self.hazards)
            ),
            "background needs at least one class, with a share above 0": (
                min(self.background.values(), default=0) <= 0
            ),
            "slides need at least two labels": len(self.labels) == 1,
            "only the first label may be without evidence: put it first": any(
                not own for own in [*self.labels.values()][1:]
            ),
            f"class '{''.join(both[:1])}' is background and evidence at once": bool(both),
            "a class is evidence for two labels": len(set(causes)) < len(causes),
            f"patches go from a smaller to a larger number above 0, got {self.patches}": (
                not 0 < self.patches[0] <= self.patches[1]
            ),
            f"evidence goes from a smaller to a larger share, at most half, got {self.evidence}": (
                not 0 < self.evidence[0] <= self.evidence[1] <= 0.5
            ),
            f"parts are slides to train, validate and test on, at least one each: {self.parts}": (
                self.parts is not None and min(self.parts) < 1
            ),
            f"pool_shares lie above 0, got {self.pool_shares}": min(self.pool_shares) <= 0,
            "text_like needs examples_per_class, whose means its anchors are": (
                self.text_like and not self.examples_per_class
            ),
        }
        for message, is_broken in contradictions.items():
            if is_broken:
                raise ValueError(message)
        return self

    @property
    def evidence_classes(self) -> tuple[str, ...]:
        """Every class that is evidence, in the order of first mention."""
        named = [name for own in self.labels.values() for cause in own for name in cause.split("+")]
        return tuple(dict.fromkeys([*named, *self.hazards]))

    @property
    def classes(self) -> tuple[str, ...]:
        """Every class of patches that is used; truth numbers them in this order."""
        return (*self.background, *self.evidence_classes)

    @property
    def n_slides(self) -> int:
        return self.slides if self.parts is None else sum(self.parts)


@dataclass(frozen=True, eq=False)
class Composition:
    """The cohort that was written and everything that was assumed."""

    cohort: Cohort
    notes: tuple[str, ...]


def compose(
    pool: PatchPool,
    recipe: ComposeSettings,
    out: Path,
    *,
    seed: int = 0,
    replace_files: bool = True,
    on_slide: Callable[[int, int], None] | None = None,
) -> Composition:
    """Write a composed cohort with truth and folds, and what the recipe holds out."""
    known = pool.classes
    if unknown := [name for name in recipe.classes if name not in known]:
        raise UsageError(
            f"{pool.source} has no patches of class '{unknown[0]}'; it has: {', '.join(known)}."
        )
    if seed < 0:
        raise UsageError(f"A seed is 0 or more, got {seed}.")
    profile, dials = _make_profile(recipe), _make_dials(recipe)
    cases = plan_cases(
        profile,
        dials,
        prefix="composed",
        n_slides=recipe.n_slides,
        patches=recipe.patches,
        seed=seed,
    )
    slides = plan_slides(profile, dials, cases, stream(seed, "outcomes"))
    cohort = Cohort(out, _cohort_card(pool, recipe, seed), tuple(slide.row for slide in slides))
    if recipe.parts:
        folds = [make_parts(cohort, recipe.parts, generator=stream(seed, "slides of parts"))]
    else:
        folds = make_folds(cohort, n_folds=recipe.folds, seed=seed)
    n_pairs = recipe.pairs if recipe.text_like else 0
    draws = stream(seed, "held out")
    held = hold_out(pool, recipe.classes, recipe.examples_per_class, n_pairs, draws)
    shares = recipe.pool_shares if recipe.parts else (1.0,) * (2 * recipe.folds)
    part = deal_patches(pool, recipe.classes, np.concatenate(held), shares, stream(seed, "parts"))
    part_of = _pool_part(folds, recipe)
    notes = _list_assumptions(pool, recipe, slides, part, part_of, held)
    if not replace_files and is_whole(cohort):
        return Composition(cohort, notes)

    def write_slide(slide: PlannedSlide) -> None:
        """features/<slide>.h5 and truth/<slide>.h5 from the patches that this slide may hold."""
        name, own = slide.row.slide_id, np.flatnonzero(part == part_of[slide.row.slide_id])
        draws = stream(seed, "layout", name)
        layout = draw_layout(profile, dials, slide.n_patches, slide.regions, draws)
        own = _draw_slide_pool(pool, recipe, own, stream(seed, "slide pool", name))
        rows = _choose_patches(pool, profile, layout.concept, own, stream(seed, "patches", name))
        place = stream(seed, "offset", name)
        write_layout(
            out, slide, layout, pool.features[rows], PATCH_SIZE, place, more_truth={"patch": rows}
        )

    with writing_slides(
        out,
        cohort.card.model_dump(mode="json"),
        slides,
        write_slide,
        last_file=cohort.truth_file,
        replace_files=replace_files,
        on_slide=on_slide,
    ):
        _write_held_out(pool, recipe, held, out, seed)
        write_folds(cohort, folds, kind="official" if recipe.parts else "partition")
        cohort.save()
    return Composition(cohort, notes)


def _make_profile(recipe: ComposeSettings) -> Profile:
    """The recipe for the planner: equally frequent labels, no mimics and no distractors."""
    return Profile(
        name="composed",
        dataset="composed",
        source="patches of real tissue",
        task="classification" if recipe.labels else "survival",
        family="none",
        unrelated_family="none",
        slides=recipe.n_slides,
        patches=recipe.patches,
        kinds=dict.fromkeys(recipe.evidence_classes, "tumor"),
        classes=tuple(
            ClassRule(name=name, slides=1, causes=tuple(tuple(cause.split("+")) for cause in own))
            for name, own in recipe.labels.items()
        ),
        factors=recipe.hazards,
        tissues=tuple(
            Tissue(name=name, kind="benign", share=share)
            for name, share in recipe.background.items()
        ),
    )


def _make_dials(recipe: ComposeSettings) -> Dials:
    """Patches are what they are: nothing is mixed, mimicked or mislabelled."""
    return Dials(
        evidence_min=recipe.evidence[0],
        evidence_max=recipe.evidence[1],
        regions_max=recipe.regions_max,
        redundancy=recipe.redundancy,
        region_scale=recipe.region_scale,
        censoring=recipe.censoring,
        mimic_rate=0.0,
        comorbidity=0.0,
        border_mixing=0.0,
        label_noise=0.0,
    )


def _pool_part(folds: Sequence[Fold], recipe: ComposeSettings) -> dict[str, int]:
    """The part of the patches that each slide may hold.

    In cross-validation a slide belongs to the fold that tests it and to the half of that fold that
    validates or does not.
    """
    if recipe.parts:
        return {name: PARTS.index(part) for name, part in folds[0].part_of.items()}
    part_of = {}
    for fold in folds:
        before = folds[fold.index - 1]
        for name in fold.slides("test"):
            part_of[name] = 2 * fold.index + (before.part_of[name] == "val")
    return part_of


def _draw_slide_pool(
    pool: PatchPool, recipe: ComposeSettings, own: Rows, generator: Generator
) -> Rows:
    """The patches of one slide: a share of those of each background class, and all others."""
    labels, kept = pool.labels[own], [own[~np.isin(pool.labels[own], [*recipe.background])]]
    for name in recipe.background:
        candidates = own[labels == name]
        count = max(1, round(recipe.slide_pool * len(candidates)))
        kept.append(generator.choice(candidates, size=count, replace=False))
    return np.sort(np.concatenate(kept))


def _choose_patches(
    pool: PatchPool, profile: Profile, concept: Parts, own: Rows, generator: Generator
) -> Rows:
    """A patch of the pool for every place, each as rarely as possible."""
    rows = np.empty(len(concept), dtype=np.int64)
    for index in np.unique(concept):
        places = np.flatnonzero(concept == index)
        candidates = own[pool.labels[own] == profile.concepts[index].name]
        rounds = [
            generator.permutation(candidates) for _ in range(-(-len(places) // len(candidates)))
        ]
        rows[generator.permutation(places)] = np.concatenate(rounds)[: len(places)]
    return rows


def _write_held_out(
    pool: PatchPool, recipe: ComposeSettings, held: tuple[Rows, Rows], out: Path, seed: int
) -> None:
    """examples.h5 and, optionally, the stand-in for a text bank."""
    examples, more = held
    if not recipe.examples_per_class:
        return
    pool.take(examples).write(out / EXAMPLES)
    if recipe.text_like:
        rows = np.concatenate([examples, more])
        anchors, images = _text_like_bank(pool, recipe, rows, stream(seed, "text-like bank"))
        store.write_anchors(
            out / "anchors.h5", anchors, recipe.classes, {"source": "class means, composed"}
        )
        store.write(
            out / "anchor_pairs.h5", {"features": pool.features[rows], "anchor_space": images}
        )


def _text_like_bank(
    pool: PatchPool, recipe: ComposeSettings, rows: Rows, generator: Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One anchor per class, and these patches in the anchors' space."""
    centred = pool.features[rows].astype(np.float64)
    centred -= centred.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][: recipe.anchor_dim]
    rotation = np.linalg.qr(generator.standard_normal((recipe.anchor_dim, recipe.anchor_dim)))[0]
    images = centred @ axes.T @ rotation[:, : len(axes)].T
    means = np.stack([images[pool.labels[rows] == name].mean(axis=0) for name in recipe.classes])
    noise = generator.standard_normal(means.shape)
    lengths, own = (np.linalg.norm(rows, axis=1, keepdims=True) for rows in (means, noise))
    noise *= recipe.prompt_noise * lengths / own
    return (means + noise).astype(np.float32), images.astype(np.float32)


def _list_assumptions(
    pool: PatchPool,
    recipe: ComposeSettings,
    slides: Sequence[PlannedSlide],
    part: Parts,
    part_of: Mapping[str, int],
    held: tuple[Rows, Rows],
) -> tuple[str, ...]:
    """Every choice that affects the results, with its numbers."""
    per_part = [
        ", ".join(
            f"{name} {int(((part == own) & (pool.labels == name)).sum())}"
            for name in recipe.classes
        )
        for own in range(int(part.max()) + 1)
    ]
    unit = "patch" if pool.patients is None else "patient"
    if recipe.parts:
        dealt = "; ".join(f"{name}: {text}" for name, text in zip(PARTS, per_part, strict=True))
    else:
        dealt = (
            f"{len(per_part)} parts, two per fold (its validation half apart), "
            f"the first of {per_part[0]}"
        )
    notes = [
        f"patches: {len(pool.labels)} of {pool.source}, encoder {pool.encoder}; no {unit} is "
        f"shared between parts ({dealt})",
        "background: "
        + ", ".join(f"{name} {share:g}" for name, share in recipe.background.items()),
        *(
            f"label '{name}': {' or '.join(own) if own else 'background alone'}"
            for name, own in recipe.labels.items()
        ),
        *(
            f"hazard of {name}: {weight:+g} per full dose"
            for name, weight in recipe.hazards.items()
        ),
        f"evidence: {recipe.evidence[0]:.1%} to {recipe.evidence[1]:.1%} of a slide in up to "
        f"{recipe.regions_max} contiguous regions; labels are equally frequent and never wrong",
        f"places: tissue outlines and regions are simulated on a grid of {PATCH_SIZE} pixels; a "
        "real patch stands anywhere inside the region of its class, so neighbours of one class "
        "are as alike as any two patches of it",
        _describe_repeats(pool, recipe, slides, part, part_of),
    ]
    if pool.patients is None:
        notes.append("patients: not known, so tissue of one patient may stand in several parts")
    if unused := sorted(set(pool.classes) - set(recipe.classes)):
        notes.append(f"left out: patches of {', '.join(unused)}")
    if recipe.examples_per_class:
        notes.append(
            f"held out of all bags: {len(held[0])} examples ({recipe.examples_per_class} per "
            f"class, {EXAMPLES})"
            + (f" and {len(held[1])} patches for pairs" if recipe.text_like else "")
        )
    if recipe.text_like:
        notes.append(
            "anchors.h5 stands in for a text bank: class means of held-out patches in a turned "
            f"space of {recipe.anchor_dim} axes, moved by {recipe.prompt_noise:g} of their length; "
            "no text encoder was used"
        )
    return tuple(notes)


def _describe_repeats(
    pool: PatchPool,
    recipe: ComposeSettings,
    slides: Sequence[PlannedSlide],
    part: Parts,
    part_of: Mapping[str, int],
) -> str:
    """How often one background patch stands on one slide and in all bags of its part."""
    background = np.isin(pool.labels, [*recipe.background]) & (part != UNUSED)
    available = np.bincount(part[background], minlength=int(part.max()) + 1)
    ratios = [
        slide.n_patches / (recipe.slide_pool * available[part_of[slide.row.slide_id]])
        for slide in slides
    ]
    uses = sum(slide.n_patches for slide in slides) / available.sum()
    once = "at most once" if max(ratios) <= 1 else f"about {max(ratios):.1f} times"
    return (
        f"repeats: a slide draws from {recipe.slide_pool:.0%} of the background patches of its part"
        f"; on the largest slide for its part a background patch stands {once}, over all bags "
        f"about {uses:.1f} times"
    )


def _cohort_card(pool: PatchPool, recipe: ComposeSettings, seed: int) -> CohortCard:
    """The card, with all it takes to compose the same cohort again."""
    digest = hashlib.sha256(np.ascontiguousarray(pool.features).tobytes())
    for column in (pool.labels, pool.patients):
        digest.update(b"none" if column is None else "\n".join(column.tolist()).encode())
    return CohortCard(
        name="composed",
        task="classification" if recipe.labels else "survival",
        classes=tuple(recipe.labels),
        feature_dim=int(pool.features.shape[1]),
        encoder=pool.encoder,
        patch_size_level0=PATCH_SIZE,
        anchors="anchors.h5" if recipe.text_like else None,
        provenance={
            "composed": {"generation": GENERATION, "gcemil": __version__},
            "patches": {"source": Path(pool.source).name, "sha256": digest.hexdigest()},
            "seed": seed,
            "concepts": list(recipe.classes),
            "recipe": recipe.model_dump(mode="json"),
        },
    )
