"""Prompts of a disease family as the simulator names its concepts: in plain words."""

from __future__ import annotations

from gcemil.families import GENERIC_FAMILY as GENERIC
from gcemil.families import AnchorPrompt as Prompt
from gcemil.families import load_family

__all__ = ["GENERIC", "Prompt", "family_prompts", "plain"]


def family_prompts(family: str) -> list[Prompt]:
    """The prompts of one family in their order."""
    return list(load_family(family).prompts)


def plain(concept: str) -> str:
    """The words of a concept's name, however its key is spelled."""
    return concept.lower().replace("_", " ").replace("-", " ")
