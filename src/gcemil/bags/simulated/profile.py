"""A profile: the stand-in for one dataset, as readable YAML in resources/simulator.

It names the tissues of the organ, what causes each class (or moves the risk), what distracts, how many slides and
patches there are, and which dials differ from their defaults. Every concept has a kind; concepts of a kind look alike.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gcemil.bags.cohort import Task
from gcemil.errors import UsageError

Kind = Literal[
    "tumor", "benign", "stroma", "inflammation", "necrosis", "vessel", "adipose", "muscle", "artifact"
]
Role = Literal["tissue", "cause", "mimic", "distractor"]


class Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ClassRule(Closed):
    """A class, its slides in the real dataset, and its causes: any one of them, all of whose concepts are present."""

    name: str
    slides: int = Field(ge=1)
    causes: tuple[tuple[str, ...], ...] = ()


class Tissue(Closed):
    """Background that means nothing for the label, with its usual share of the slide."""

    name: str
    kind: Kind
    share: float = Field(gt=0)


class Distractor(Closed):
    """Salient tissue that goes with these classes (or, for survival, with severe cases) and causes nothing."""

    name: str
    kind: Kind
    goes_with: tuple[str, ...] = ()


class Concept(Closed):
    """A kind of tissue that a patch can show; a mimic says whom it imitates."""

    name: str
    kind: Kind
    role: Role
    imitates: str | None = None


class Profile(Closed):
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
    """The kind of every concept that causes a class or moves the risk."""
    classes: tuple[ClassRule, ...] = ()
    factors: dict[str, float] = Field(default_factory=dict)
    """Survival: log-hazard weight per concept, negative where it protects."""
    tissues: tuple[Tissue, ...]
    distractors: tuple[Distractor, ...] = ()
    dials: dict[str, float | int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Profile:
        used = {concept for rule in self.classes for cause in rule.causes for concept in cause} | set(
            self.factors
        )
        if used != set(self.kinds):
            raise ValueError(f"kinds and causes name different concepts: {sorted(used ^ set(self.kinds))}")
        if (self.task == "survival") == bool(self.classes) or (self.task == "survival") != bool(self.factors):
            raise ValueError(
                f"a {self.task} profile needs {'factors' if self.task == 'survival' else 'classes'} only"
            )
        if any(not rule.causes for rule in self.classes[1:]):
            raise ValueError(
                "only the first class may have no cause: it is what a slide without evidence gets"
            )
        return self

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(rule.name for rule in self.classes)

    @property
    def concepts(self) -> tuple[Concept, ...]:
        """Every concept a patch can show; `truth/` numbers them in this order."""
        return (
            *(Concept(name=t.name, kind=t.kind, role="tissue") for t in self.tissues),
            *(Concept(name=name, kind=kind, role="cause") for name, kind in self.kinds.items()),
            *(
                Concept(name=mimic_of(name), kind="benign", role="mimic", imitates=name)
                for name in self.kinds
            ),
            *(Concept(name=d.name, kind=d.kind, role="distractor") for d in self.distractors),
        )


def mimic_of(concept: str) -> str:
    return f"mimic of {concept}"


def profile_names() -> list[str]:
    """Every profile that ships with the package."""
    folder = files("gcemil.resources") / "simulator"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


@cache
def profile_named(name: str) -> Profile:
    if name not in profile_names():
        raise UsageError(f"Unknown profile '{name}'. Choose one of: {', '.join(profile_names())}.")
    text = (files("gcemil.resources") / "simulator" / f"{name}.yaml").read_text(encoding="utf-8")
    return Profile.model_validate(yaml.safe_load(text))
