"""A world: the geometry that all slides of one seed share, and what both encoders make of a patch
and of a prompt.

Latent space of rank k. Concept c moves a patch by length_c v_c with unit v_c = sqrt(q) kind +
sqrt(1 - q) own, q the kinship; a mimic's own part is replaced by similarity * v_imitated + sqrt(1 -
similarity^2) * own. Within a tissue, patches vary by N(0, R diag(eigenvalues) R'), the same
everywhere, with mean eigenvalue 1.

Patch i:        z_i = shift_site + shift_slide + expression_i * sum_c share_ic length_c (v_c +
                deviation_slide,c) + level_i noise_i noise = R sqrt(eigenvalues) (sqrt(s) smooth
                field + sqrt(1 - s) white), s the spatial correlation
Patch encoder:  h = origin + sqrt(d / k) E z + residual noise,   E (d, k) with orthonormal columns
Text-aligned:   g = A z + gap_image + noise,   A (a, k) Gaussian, hence g is linear in h
Prompt:         t = A l v + gap_text + prompt noise,             l the background tissue length

Banks of prompts:
specific   the eight prompts of the disease family; one whose concept no patch shows has no tissue
           behind it
generic    prompts of pathology in general; each sees the direction common to a kind of tissue
unrelated  another organ's prompts; none has tissue behind it here, even where the words coincide
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float16, Float32
from numpy.random import Generator

from gcemil.families import GENERIC_FAMILY, load_family
from gcemil.simulation.layout import TissueLayout, smooth_fields
from gcemil.simulation.plan import stream
from gcemil.simulation.profile import Dials, Kind, Profile, plain_words

_ORIGIN_SPREAD = 0.3
_PROMPT_LENGTH = 3.0
"""Length of a prompt for all dials: its text encoder was not trained on the slides."""
Directions = Float[np.ndarray, "concepts k"]
Vector = Float[np.ndarray, "k"]
Latents = Float[np.ndarray, "n k"]
Embeddings = Float32[np.ndarray, "m a"]
Bank = tuple[Embeddings, list[str]]
"""Embeddings and the wording of each."""
_KINDS_BY_WORD: dict[str, tuple[Kind, ...]] = {
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


@dataclass(frozen=True, eq=False)
class World:
    """Concept shifts, covariance and both encoders of one seed."""

    seed: int
    profile: Profile
    dials: Dials
    directions: Directions
    lengths: Float[np.ndarray, "concepts"]
    covariance_root: Float[np.ndarray, "k k"]
    site_shifts: Float[np.ndarray, "sites k"]
    origin: Float[np.ndarray, "d"]
    encoder: Float[np.ndarray, "d k"]
    anchor_map: Float[np.ndarray, "a k"]
    image_gap: Float[np.ndarray, "a"]

    @property
    def latent_dim(self) -> int:
        """Rank of the latent space."""
        return self.encoder.shape[1]

    def draws(self, *words: str | int) -> Generator:
        """The random stream of one named part of this world."""
        return stream(self.seed, self.profile.name, *words)

    def kind_direction(self, kind: str) -> Vector:
        """The direction that all concepts of a kind share."""
        return _draw_unit(self.draws("kind", kind), self.latent_dim)

    def direction_of(self, concept: str) -> Vector:
        """The direction of a concept, also of one that no patch of this world shows."""
        names = [plain_words(own.name) for own in self.profile.concepts]
        if plain_words(concept) in names:
            return self.directions[names.index(plain_words(concept))]
        return _draw_unit(self.draws("absent", plain_words(concept)), self.latent_dim)


def draw_world(
    profile: Profile, dials: Dials, *, feature_dim: int, anchor_dim: int, seed: int
) -> World:
    """The world of this seed; the latent part does not depend on either encoder's width."""
    rank = min(dials.latent_dim, feature_dim)

    def draws(*words: str | int) -> Generator:
        return stream(seed, profile.name, *words)

    gap = _draw_unit(draws("image gap"), anchor_dim)
    lengths = {
        "tissue": dials.tissue_strength,
        "cause": dials.evidence_strength,
        "mimic": dials.evidence_strength,
        "distractor": dials.evidence_strength * dials.distractor_salience,
    }
    return World(
        seed=seed,
        profile=profile,
        dials=dials,
        directions=_concept_directions(profile, dials, rank, seed),
        lengths=np.array([lengths[concept.role] for concept in profile.concepts]),
        covariance_root=_covariance_root(draws("covariance"), rank, dials.covariance_decay),
        site_shifts=dials.site_shift * draws("sites").standard_normal((dials.sites, rank)),
        origin=_ORIGIN_SPREAD * draws("origin").standard_normal(feature_dim),
        encoder=_draw_orthonormal(draws("encoder"), feature_dim, rank)
        * np.sqrt(feature_dim / rank),
        anchor_map=draws("anchor map").standard_normal((anchor_dim, rank)) / np.sqrt(rank),
        image_gap=gap * _prompt_norm(anchor_dim, rank) * dials.modality_gap,
    )


def _concept_directions(profile: Profile, dials: Dials, rank: int, seed: int) -> Directions:
    """Unit directions in the order of the profile's concepts."""
    directions: dict[str, Vector] = {}
    for concept in profile.concepts:
        own = _draw_unit(stream(seed, profile.name, "concept", concept.name), rank)
        kind = _draw_unit(stream(seed, profile.name, "kind", concept.kind), rank)
        if concept.imitates is None:
            directions[concept.name] = _blend(kind, own, dials.kinship**0.5)
        else:
            directions[concept.name] = _blend(
                directions[concept.imitates], own, dials.mimic_similarity
            )
    return np.stack(list(directions.values()))


def _blend(towards: Vector, own: Vector, cosine: float) -> Vector:
    """The unit vector at exactly this cosine to `towards`, the rest along `own`."""
    across = own - (own @ towards) * towards
    return cosine * towards + np.sqrt(1 - cosine**2) * across / np.linalg.norm(across)


def _covariance_root(draws: Generator, rank: int, decay: float) -> Float[np.ndarray, "k k"]:
    """A root of the within-tissue covariance, with mean eigenvalue 1."""
    eigenvalues = np.arange(1, rank + 1) ** -decay
    return _draw_orthonormal(draws, rank, rank) * np.sqrt(eigenvalues / eigenvalues.mean())


def _prompt_norm(anchor_dim: int, rank: int) -> float:
    """Expected length of a prompt before gap and noise."""
    return float(_PROMPT_LENGTH * np.sqrt(anchor_dim / rank))


def _draw_orthonormal(
    draws: Generator, rows: int, columns: int
) -> Float[np.ndarray, "{rows} {columns}"]:
    basis, triangle = np.linalg.qr(draws.standard_normal((rows, columns)))
    # QR leaves the signs to the library; fixing them makes the draw the same everywhere.
    return basis * np.sign(np.diag(triangle))


def _draw_unit(draws: Generator, length: int) -> Float[np.ndarray, "{length}"]:
    vector = draws.standard_normal(length)
    return vector / np.linalg.norm(vector)


def draw_latents(world: World, layout: TissueLayout, site: int, generator: Generator) -> Latents:
    """What there is to see in every patch, before any encoder."""
    dials, rank = world.dials, world.latent_dim
    shift = world.site_shifts[site] + dials.slide_shift * generator.standard_normal(rank)
    deviation = (
        dials.slide_variation / np.sqrt(rank) * generator.standard_normal(world.directions.shape)
    )
    concepts = world.lengths[:, None] * (world.directions + deviation)
    # How strongly each patch shows its concepts: gamma distributed with mean 1.
    variance, n_patches = dials.expression_spread**2, len(layout.cells)
    expression = (
        generator.gamma(1 / variance, variance, n_patches) if variance else np.ones(n_patches)
    )
    signal = expression[:, None] * (layout.composition @ concepts)
    return shift + signal + _draw_variation(world, layout, generator)


def _draw_variation(world: World, layout: TissueLayout, generator: Generator) -> Latents:
    """Variation within a tissue, partly common to neighbours, at a level of each patch."""
    dials, n_patches = world.dials, len(layout.cells)
    smooth = smooth_fields(layout.cells, dials.region_scale, world.latent_dim, generator)
    white = generator.standard_normal((n_patches, world.latent_dim))
    noise = (
        np.sqrt(dials.spatial_correlation) * smooth + np.sqrt(1 - dials.spatial_correlation) * white
    )
    # Minus the square, so that the mean square of the level stays 1.
    level = np.exp(
        dials.noise_spread * generator.standard_normal(n_patches) - dials.noise_spread**2
    )
    return level[:, None] * (noise @ world.covariance_root.T)


def encode_latents(
    world: World, latents: Latents, generator: Generator
) -> Float16[np.ndarray, "n d"]:
    """The patch encoder's features, as they are stored."""
    features = (latents @ world.encoder.T + world.origin).astype(np.float32)
    noise = generator.standard_normal(features.shape, dtype=np.float32)
    return (features + np.float32(world.dials.residual_noise) * noise).astype(np.float16)


def view_in_anchor_space(
    world: World, latents: Latents, generator: Generator
) -> Float[np.ndarray, "n a"]:
    """The same patches seen by the text-aligned encoder."""
    images = latents @ world.anchor_map.T + world.image_gap
    noise = world.dials.anchor_noise * generator.standard_normal(images.shape)
    return (images + noise).astype(np.float32)


def embed_banks(world: World) -> dict[str, Bank]:
    """The specific, the generic and the unrelated bank, by the suffix of their file."""
    family, other = world.profile.family, world.profile.unrelated_family
    specific = [world.direction_of(prompt.concept) for prompt in load_family(family).prompts]
    generic = []
    for prompt in load_family(GENERIC_FAMILY).prompts:
        words = plain_words(prompt.concept).split()
        kinds = next(_KINDS_BY_WORD[word] for word in words if word in _KINDS_BY_WORD)
        together = np.sum([world.kind_direction(kind) for kind in kinds], axis=0)
        generic.append(together / np.linalg.norm(together))
    unrelated = [
        _draw_unit(world.draws("unrelated", other, plain_words(one.concept)), world.latent_dim)
        for one in load_family(other).prompts
    ]
    return {
        "": _embed_prompts(world, family, specific),
        "_generic": _embed_prompts(world, GENERIC_FAMILY, generic),
        "_unrelated": _embed_prompts(world, other, unrelated),
    }


def _embed_prompts(world: World, family: str, directions: Sequence[Vector]) -> Bank:
    """Embeddings and wordings: concept, the text side of the modality gap, prompt noise."""
    anchor_dim, dials, prompts = len(world.image_gap), world.dials, load_family(family).prompts
    norm = _prompt_norm(anchor_dim, world.latent_dim)
    text_gap = dials.modality_gap * norm * _draw_unit(world.draws("text gap"), anchor_dim)
    draws = [world.draws("prompt", family, plain_words(prompt.concept)) for prompt in prompts]
    noise = np.stack([_draw_unit(draw, anchor_dim) for draw in draws])
    concepts = _PROMPT_LENGTH * np.stack(directions) @ world.anchor_map.T
    embeddings = concepts + text_gap + dials.prompt_noise * norm * noise
    return embeddings.astype(np.float32), [prompt.wording for prompt in prompts]
