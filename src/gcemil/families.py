"""Prompts by disease family: the six rows of the paper's anchor table and a generic control, eight
prompts each.

The paper prints categories, not wordings; the wordings in resources/anchors/*.yaml are ours, fixed
before any training.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gcemil.errors import InputError, UsageError
from gcemil.files import read_yaml
from gcemil.resources import HERE
from gcemil.wording import readable

ORGAN_FAMILIES = ("breast", "endometrial", "gastric", "lung", "prostate", "renal")
GENERIC_FAMILY = "generic"


class AnchorPrompt(BaseModel):
    """A concept by its short key for tables, and the wording for text encoders."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    concept: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    wording: str = Field(min_length=3)


class AnchorFamily(BaseModel):
    """The prompts of one organ and the datasets they serve."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    source: str = Field(min_length=3)
    datasets: tuple[str, ...]
    prompts: tuple[AnchorPrompt, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _prompts_differ(self) -> "AnchorFamily":
        for values in (self.concepts, self.wordings):
            if len(set(values)) < len(values):
                raise ValueError("two prompts have the same concept or wording")
        return self

    @property
    def concepts(self) -> tuple[str, ...]:
        """The short keys of the prompts."""
        return tuple(prompt.concept for prompt in self.prompts)

    @property
    def wordings(self) -> tuple[str, ...]:
        """The texts for a text encoder."""
        return tuple(prompt.wording for prompt in self.prompts)


def load_family(name: str) -> AnchorFamily:
    """A family that ships with the package."""
    known = (*ORGAN_FAMILIES, GENERIC_FAMILY)
    if name not in known:
        raise UsageError(
            f"There is no anchor family '{name}'. Choose one of {', '.join(sorted(known))}."
        )
    return read_family(HERE / "anchors" / f"{name}.yaml")


def read_family(path: Path) -> AnchorFamily:
    """A family from a YAML file with family, source, datasets and prompts."""
    try:
        return AnchorFamily.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InputError(
            f"{path} is not an anchor family: {readable(error, AnchorFamily)}. It needs family, "
            "source, datasets and prompts with concept and wording."
        ) from error
