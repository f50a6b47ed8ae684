"""A world: the geometry that all slides of one seed share.

Latent space of rank k. Concept c moves a patch by length_c v_c with unit v_c = sqrt(q) kind + sqrt(1 - q) own,
q the kinship; a mimic's own part is replaced by similarity * v_imitated + sqrt(1 - similarity^2) * own.
Within a tissue, patches vary by N(0, R diag(eigenvalues) R'), the same everywhere, with mean eigenvalue 1.

Patch encoder:  h = origin + sqrt(d / k) E z + residual noise,   E (d, k) with orthonormal columns
Text-aligned:   g = A z + gap_image + noise,                     A (a, k) Gaussian, hence g is linear in h
Prompt:         t = A l v + gap_text + prompt noise,             l the background tissue length
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.random import Generator

from gcemil.bags.simulated.dials import Dials
from gcemil.bags.simulated.profile import Concept, Profile
from gcemil.bags.simulated.prompts import plain
from gcemil.bags.simulated.streams import stream

ORIGIN_SPREAD = 0.3
PROMPT_LENGTH = 3.0
"""Prompts lie this far out whatever the dials say of the tissue, as their text encoder never saw the slides."""

Directions = Float[np.ndarray, "concepts k"]
Vector = Float[np.ndarray, "k"]


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
        return self.encoder.shape[1]

    def draws(self, *words: str | int) -> Generator:
        """The random stream of one named part of this world."""
        return stream(self.seed, self.profile.name, *words)

    def kind_direction(self, kind: str) -> Vector:
        return unit(self.draws("kind", kind), self.latent_dim)

    def direction_of(self, concept: str) -> Vector:
        """The direction of a concept; one that no patch of this world shows has a direction of its own too."""
        names = [plain(own.name) for own in self.profile.concepts]
        if plain(concept) in names:
            return self.directions[names.index(plain(concept))]
        return unit(self.draws("absent", plain(concept)), self.latent_dim)


def draw_world(profile: Profile, dials: Dials, *, feature_dim: int, anchor_dim: int, seed: int) -> World:
    """The world of this seed; the latent part does not depend on either encoder's width."""
    rank = min(dials.latent_dim, feature_dim)

    def draws(*words: str | int) -> Generator:
        return stream(seed, profile.name, *words)

    gap = unit(draws("image gap"), anchor_dim) * prompt_norm(anchor_dim, rank) * dials.modality_gap
    return World(
        seed=seed,
        profile=profile,
        dials=dials,
        directions=concept_directions(profile, dials, rank, seed),
        lengths=np.array([concept_length(concept, dials) for concept in profile.concepts]),
        covariance_root=covariance_root(draws("covariance"), rank, dials.covariance_decay),
        site_shifts=dials.site_shift * draws("sites").standard_normal((dials.sites, rank)),
        origin=ORIGIN_SPREAD * draws("origin").standard_normal(feature_dim),
        encoder=orthonormal(draws("encoder"), feature_dim, rank) * np.sqrt(feature_dim / rank),
        anchor_map=draws("anchor map").standard_normal((anchor_dim, rank)) / np.sqrt(rank),
        image_gap=gap,
    )


def concept_directions(profile: Profile, dials: Dials, rank: int, seed: int) -> Directions:
    """Unit directions in the order of the profile's concepts."""
    found: dict[str, Vector] = {}
    for concept in profile.concepts:
        own = unit(stream(seed, profile.name, "concept", concept.name), rank)
        kind = unit(stream(seed, profile.name, "kind", concept.kind), rank)
        if concept.imitates is None:
            found[concept.name] = blended(kind, own, dials.kinship**0.5)
        else:
            found[concept.name] = blended(found[concept.imitates], own, dials.mimic_similarity)
    return np.stack(list(found.values()))


def concept_length(concept: Concept, dials: Dials) -> float:
    """How far the concept moves a patch."""
    if concept.role == "tissue":
        return dials.tissue_strength
    return dials.evidence_strength * (dials.distractor_salience if concept.role == "distractor" else 1.0)


def blended(towards: Vector, own: Vector, cosine: float) -> Vector:
    """The unit vector at exactly this cosine to `towards`, the rest along `own`."""
    across = own - (own @ towards) * towards
    return cosine * towards + np.sqrt(1 - cosine**2) * across / np.linalg.norm(across)


def covariance_root(draws: Generator, rank: int, decay: float) -> Float[np.ndarray, "k k"]:
    """A matrix whose product with standard normals has the within-tissue covariance, with mean eigenvalue 1."""
    eigenvalues = np.arange(1, rank + 1) ** -decay
    return orthonormal(draws, rank, rank) * np.sqrt(eigenvalues / eigenvalues.mean())


def prompt_norm(anchor_dim: int, rank: int) -> float:
    """Expected length of a prompt before gap and noise."""
    return float(PROMPT_LENGTH * np.sqrt(anchor_dim / rank))


def orthonormal(draws: Generator, rows: int, columns: int) -> Float[np.ndarray, "{rows} {columns}"]:
    basis, triangle = np.linalg.qr(draws.standard_normal((rows, columns)))
    # QR leaves the signs to the library; fixing them makes the draw the same everywhere.
    return basis * np.sign(np.diag(triangle))


def unit(draws: Generator, length: int) -> Float[np.ndarray, "{length}"]:
    vector = draws.standard_normal(length)
    return vector / np.linalg.norm(vector)
