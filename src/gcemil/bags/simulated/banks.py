"""Prompt embeddings of the simulated text encoder: the family's own bank and its controls.

specific   the eight prompts of the disease family; one whose concept no patch shows has no tissue behind it
generic    prompts of pathology in general; each sees the direction common to a kind of tissue
unrelated  another organ's prompts; none has tissue behind it here, even where the words coincide
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from gcemil.bags.simulated.profile import Kind
from gcemil.bags.simulated.prompts import GENERIC, family_prompts, plain
from gcemil.bags.simulated.world import PROMPT_LENGTH, Vector, World, prompt_norm, unit

Embeddings = Float32[np.ndarray, "m a"]
Bank = tuple[Embeddings, list[str]]
"""Embeddings and the wording of each."""

KINDS_BY_WORD: dict[str, tuple[Kind, ...]] = {
    "tumor": ("tumor",),
    "normal": ("benign", "stroma"),
    "epithelium": ("tumor", "benign"),
    "stroma": ("stroma",),
    "immune": ("inflammation",),
    "inflammation": ("inflammation",),
    "dead": ("necrosis",),
    "necrosis": ("necrosis",),
    "vessel": ("vessel",),
    "vessels": ("vessel",),
    "adipose": ("adipose",),
}
"""What a generic prompt sees, by the first of its words found here."""


def specific_bank(world: World) -> Bank:
    family = world.profile.family
    return bank(world, family, [world.direction_of(prompt.concept) for prompt in family_prompts(family)])


def generic_bank(world: World) -> Bank:
    directions = []
    for prompt in family_prompts(GENERIC):
        kinds = next(KINDS_BY_WORD[word] for word in plain(prompt.concept).split() if word in KINDS_BY_WORD)
        together = np.sum([world.kind_direction(kind) for kind in kinds], axis=0)
        directions.append(together / np.linalg.norm(together))
    return bank(world, GENERIC, directions)


def unrelated_bank(world: World) -> Bank:
    family = world.profile.unrelated_family
    draws = [world.draws("unrelated", family, plain(prompt.concept)) for prompt in family_prompts(family)]
    return bank(world, family, [unit(draw, world.latent_dim) for draw in draws])


def bank(world: World, family: str, directions: Sequence[Vector]) -> Bank:
    """Embeddings and wordings: concept through the anchor map, the text side of the modality gap, prompt noise."""
    anchor_dim, dials, prompts = len(world.image_gap), world.dials, family_prompts(family)
    norm = prompt_norm(anchor_dim, world.latent_dim)
    text_gap = dials.modality_gap * norm * unit(world.draws("text gap"), anchor_dim)
    draws = [world.draws("prompt", family, plain(prompt.concept)) for prompt in prompts]
    noise = np.stack([unit(draw, anchor_dim) for draw in draws])
    concepts = PROMPT_LENGTH * np.stack(directions) @ world.anchor_map.T
    embeddings = concepts + text_gap + dials.prompt_noise * norm * noise
    return embeddings.astype(np.float32), [prompt.wording for prompt in prompts]
