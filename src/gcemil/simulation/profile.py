"""What is simulated: the profile of a dataset, the dials of the simulator, and the size ladder.

A profile is the stand-in for one dataset, as readable YAML in resources/simulator. It names the
tissues of the organ, what causes each class (or moves the risk or the value), what distracts, how
many slides and patches there are, and which dials differ from their defaults. Every concept has a
kind; concepts of a kind look alike.

Every dial is named, bounded, and saved in the cohort's card. `evidence_strength` is the main
difficulty dial of every task. `label_noise` (classification, regression) and `risk_effect`
(survival) limit what even a perfect reader of the slides could reach. Lengths are in units of the
within-tissue standard deviation of the latent space; shares are of the slide's patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gcemil.bags.cohort import Task
from gcemil.errors import ConfigError, UsageError
from gcemil.resources import read_shipped
from gcemil.wording import readable

Kind = Literal[
    "tumor",
    "benign",
    "stroma",
    "inflammation",
    "necrosis",
    "vessel",
    "adipose",
    "muscle",
    "artifact",
]
Role = Literal["tissue", "cause", "mimic", "distractor"]


class Dials(BaseModel):
    """Settings of one simulated cohort; the description of a field is its meaning."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    evidence_strength: float = Field(default=5.0, ge=0, le=12)
    """Length of the shift that an evidence concept gives a patch; 0 hides the evidence."""
    label_noise: float = Field(default=0.0, ge=0, le=0.8)
    """Share of recorded labels replaced by another class, or noise share of a value's variance."""
    evidence_min: float = Field(default=0.01, gt=0, le=0.5)
    """Smallest share of a slide's patches that is evidence, where there is any."""
    evidence_max: float = Field(default=0.06, gt=0, le=0.5)
    """Largest share of a slide's patches that is evidence."""
    regions_max: int = Field(default=3, ge=1, le=8)
    """Most disjoint evidence regions on a slide; their number is uniform."""
    redundancy: float = Field(default=0.25, ge=0, le=1)
    """Chance that a slide shows a second sufficient cause of its class, if there is one."""
    decoy_rate: float = Field(default=0.2, ge=0, le=1)
    """Chance of one half of a cause of two concepts, on a slide of another class."""
    comorbidity: float = Field(default=0.05, ge=0, le=1)
    """Chance of a lesion of an earlier class, which is not evidence."""

    mimic_rate: float = Field(default=0.5, ge=0, le=1)
    """Chance that a slide holds a benign mimic of a random evidence concept."""
    mimic_similarity: float = Field(default=0.6, ge=0, lt=1)
    """Cosine of a mimic's direction to the concept it imitates."""
    distractor_rate: float = Field(default=0.3, ge=0, le=1)
    """Chance of each salient distractor on a slide, were it unrelated to the label."""
    distractor_correlation: float = Field(default=0.35, ge=0, le=1)
    """How far that chance moves to 1 on slides of its associated classes and to 0 on all others."""
    distractor_salience: float = Field(default=1.4, ge=0, le=4)
    """Length of a distractor's shift as a multiple of `evidence_strength`."""
    bystander_min: float = Field(default=0.01, gt=0, le=0.2)
    """Smallest share of a slide's patches in one mimic, distractor, decoy or comorbid region."""
    bystander_max: float = Field(default=0.05, gt=0, le=0.2)
    """Largest share of a slide's patches in one mimic, distractor, decoy or comorbid region."""

    tissue_strength: float = Field(default=3.0, ge=0, le=12)
    """Length of the shift of background tissues (stroma, fat, muscle, normal epithelium)."""
    composition_spread: float = Field(default=0.7, ge=0, le=3)
    """Standard deviation over slides of the log-weight of each background tissue."""
    kinship: float = Field(default=0.3, ge=0, lt=1)
    """Cosine between two concepts of one kind; what a generic prompt can see of either."""
    region_scale: float = Field(default=6.0, ge=2, le=64)
    """Width in patches of background tissue regions and of smooth variation inside them."""
    pieces_max: int = Field(default=4, ge=1, le=12)
    """Most separate pieces of tissue on a slide."""
    border_mixing: float = Field(default=0.35, ge=0, lt=0.5)
    """Share of a patch that resembles its eight neighbours, so that borders are mixed."""

    latent_dim: int = Field(default=32, ge=8, le=512)
    """Rank of the tissue-driven part of the features, at most the feature width."""
    covariance_decay: float = Field(default=0.7, ge=0, le=2)
    """Power law of the within-tissue covariance spectrum; 0 is isotropic."""
    spatial_correlation: float = Field(default=0.3, ge=0, le=1)
    """Share of the within-tissue variance that neighbouring patches have in common."""
    noise_spread: float = Field(default=0.2, ge=0, le=1)
    """Log-standard deviation of a patch's own noise level, which makes the tails heavy."""
    expression_spread: float = Field(default=0.35, ge=0, le=1)
    """Coefficient of variation of how strongly a patch expresses its concepts."""
    slide_variation: float = Field(default=0.25, ge=0, le=2)
    """Length of a slide's own deviation of each concept, as a multiple of the concept's shift."""
    slide_shift: float = Field(default=0.3, ge=0, le=4)
    """Standard deviation per latent axis of the shift common to all patches of a slide."""
    residual_noise: float = Field(default=0.3, ge=0, le=4)
    """Standard deviation per feature of noise outside the latent space."""

    sites: int = Field(default=4, ge=1, le=20)
    """Number of sites, each with a stain of its own."""
    site_shift: float = Field(default=0.3, ge=0, le=4)
    """Standard deviation per latent axis of the shift common to all slides of a site."""
    site_confounding: float = Field(default=0.2, ge=0, le=1)
    """Share of cases from the site preferred by their class or risk instead of any site."""
    slides_per_case: float = Field(default=1.0, ge=1, le=3)
    """Mean number of slides per case; a case has one to three."""

    anchor_noise: float = Field(default=0.5, ge=0, le=4)
    """Standard deviation per axis of the noise of an image in anchor space."""
    modality_gap: float = Field(default=0.5, ge=0, le=4)
    """Constant offset between images and prompts, as a multiple of a prompt's length."""
    prompt_noise: float = Field(default=0.4, ge=0, le=4)
    """Length of a prompt's deviation from its concept, as a multiple of the prompt's length."""
    pairs: int = Field(default=2000, ge=8, le=1_000_000)
    """Number of unlabelled patches seen by both encoders, from slides outside the cohort."""

    risk_effect: float = Field(default=4.0, ge=0, le=20)
    """Log-hazard, or value, of a full dose of a concept of weight 1."""
    dose_exponent: float = Field(default=0.5, ge=0, le=2)
    """Dose = (coverage / evidence_max) to this power, at most 1: 0 is presence alone."""
    weibull_shape: float = Field(default=1.2, gt=0.2, le=5)
    """Shape of the survival time distribution; above 1 the hazard grows with time."""
    median_time: float = Field(default=40.0, gt=0, le=1000)
    """Median time in months of a case whose log-risk is 0."""
    censoring: float = Field(default=0.6, ge=0, lt=1)
    """Share of cases whose event is not seen."""

    @model_validator(mode="after")
    def _ranges_are_ordered(self) -> Dials:
        for low, high in (("evidence_min", "evidence_max"), ("bystander_min", "bystander_max")):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low} {getattr(self, low)} exceeds {high} {getattr(self, high)}")
        return self


def resolve_dials(profile_dials: Mapping[str, object], overrides: Mapping[str, object]) -> Dials:
    """The defaults, changed by the profile, changed by the caller."""
    try:
        return Dials.model_validate({**profile_dials, **overrides})
    except ValidationError as error:
        raise ConfigError(
            f"Simulator dials: {readable(error, Dials)}. docs/simulator.md explains every dial."
        ) from error


def plain_words(concept: str) -> str:
    """The words of a concept's name, however its key is spelled."""
    return concept.lower().replace("_", " ").replace("-", " ")


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClassRule(_Closed):
    """A class, its slides in the real dataset, and its causes, any of which suffices."""

    name: str
    slides: int = Field(ge=1)
    causes: tuple[tuple[str, ...], ...] = ()


class Tissue(_Closed):
    """Background that means nothing for the label, with its usual share of the slide."""

    name: str
    kind: Kind
    share: float = Field(gt=0)


class Distractor(_Closed):
    """Salient tissue that goes with some classes or with severe cases, and causes nothing."""

    name: str
    kind: Kind
    goes_with: tuple[str, ...] = ()


class Concept(_Closed):
    """A kind of tissue that a patch can show; a mimic names the concept it imitates."""

    name: str
    kind: Kind
    role: Role
    imitates: str | None = None


class Profile(_Closed):
    """The stand-in for one dataset."""

    name: str
    dataset: str
    source: str
    task: Task
    family: str
    unrelated_family: str
    slides: int = Field(ge=1)
    patches: tuple[int, int]
    """Fewest and most patches per slide at size `full`."""
    default_patches: tuple[int, int] = (200, 3000)
    """Fewest and most patches per slide at sizes `default` and `wide`."""
    kinds: dict[str, Kind]
    """The kind of every concept that causes a class or moves the risk or the value."""
    classes: tuple[ClassRule, ...] = ()
    factors: dict[str, float] = Field(default_factory=dict)
    """Survival and regression: weight per concept, negative where it lowers the target."""
    tissues: tuple[Tissue, ...]
    distractors: tuple[Distractor, ...] = ()
    dials: dict[str, float | int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Profile:
        used = {
            concept for rule in self.classes for cause in rule.causes for concept in cause
        } | set(self.factors)
        if used != set(self.kinds):
            raise ValueError(
                f"kinds and causes name different concepts: {sorted(used ^ set(self.kinds))}"
            )
        has_classes = self.task == "classification"
        if has_classes != bool(self.classes) or has_classes == bool(self.factors):
            raise ValueError(
                f"a {self.task} profile needs {'classes' if has_classes else 'factors'} only"
            )
        if any(not rule.causes for rule in self.classes[1:]):
            raise ValueError(
                "only the first class may have no cause: it is what a slide without evidence gets"
            )
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes in their order."""
        return tuple(rule.name for rule in self.classes)

    @property
    def concepts(self) -> tuple[Concept, ...]:
        """Every concept a patch can show; `truth/` numbers them in this order."""
        return (
            *(Concept(name=t.name, kind=t.kind, role="tissue") for t in self.tissues),
            *(Concept(name=name, kind=kind, role="cause") for name, kind in self.kinds.items()),
            *(
                Concept(name=name_mimic(name), kind="benign", role="mimic", imitates=name)
                for name in self.kinds
            ),
            *(Concept(name=d.name, kind=d.kind, role="distractor") for d in self.distractors),
        )


def as_targets(profile: Profile) -> Profile:
    """The profile with every class that has a cause as a target of its own."""
    classes = tuple(rule for rule in profile.classes if rule.causes)
    if len(classes) < 2:
        raise UsageError(
            f"Profile '{profile.name}' has {len(classes)} classes with a cause, and several "
            "targets need two or more. Use nsclc, brca, bracs or panda."
        )
    return profile.model_copy(update={"task": "multilabel", "classes": classes})


def name_mimic(concept: str) -> str:
    """What the benign mimic of a concept is called."""
    return f"mimic of {concept}"


@cache
def load_profile(name: str) -> Profile:
    """A profile that ships with the package."""
    return Profile.model_validate(read_shipped("simulator", name, "profile"))


@dataclass(frozen=True)
class Size:
    """One rung; None means that the profile decides."""

    slides: int | None
    patches: tuple[int, int] | None
    feature_dim: int
    anchor_dim: int


SIZES: dict[str, Size] = {
    "tiny": Size(24, (120, 300), 48, 32),
    "default": Size(150, None, 128, 96),
    "wide": Size(150, None, 1024, 768),
    "full": Size(None, None, 1024, 768),
}


def find_size(name: str) -> Size:
    """The rung of this name."""
    if name not in SIZES:
        raise UsageError(f"Unknown size '{name}'. Choose one of: {', '.join(SIZES)}.")
    return SIZES[name]


def patch_bounds(profile: Profile, size: str) -> tuple[int, int]:
    """Fewest and most patches of a slide of this profile on this rung."""
    own = profile.patches if size == "full" else profile.default_patches
    return find_size(size).patches or own
