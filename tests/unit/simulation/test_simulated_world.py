"""The geometry of a world is what its dials say."""

import numpy as np
import pytest

from gcemil.simulation.profile import Dials, load_profile
from gcemil.simulation.world import draw_world, embed_banks, view_in_anchor_space


def bracs_world(feature_dim=128, anchor_dim=96, seed=3, **dials):
    return draw_world(
        load_profile("bracs"),
        Dials(**dials),
        feature_dim=feature_dim,
        anchor_dim=anchor_dim,
        seed=seed,
    )


def test_concepts_are_unit_vectors_and_mimics_lie_at_their_cosine():
    world = bracs_world(mimic_similarity=0.6)
    assert np.allclose(np.linalg.norm(world.directions, axis=1), 1)
    cosine = world.direction_of("necrosis") @ world.direction_of("mimic of necrosis")
    assert cosine == pytest.approx(0.6)


def test_a_concept_lies_at_the_root_of_kinship_from_its_kind():
    world = bracs_world(kinship=0.49)
    assert world.direction_of("necrosis") @ world.kind_direction("necrosis") == pytest.approx(0.7)


def test_within_tissue_covariance_has_mean_eigenvalue_one_and_decays():
    root = bracs_world(covariance_decay=1.0).covariance_root
    eigenvalues = np.sort(np.linalg.eigvalsh(root @ root.T))
    assert eigenvalues.mean() == pytest.approx(1)
    assert eigenvalues[-1] / eigenvalues[-2] == pytest.approx(2)


def cosines(images, bank):
    embeddings, _ = bank
    return np.array(
        [
            [
                image @ prompt / np.linalg.norm(image) / np.linalg.norm(prompt)
                for prompt in embeddings
            ]
            for image in images
        ]
    )


def test_specific_prompts_see_their_concept_better_than_generic_ones_and_unrelated_ones_not():
    world = bracs_world(anchor_noise=0, prompt_noise=0.2, modality_gap=0)
    shown = [concept.name for concept in world.profile.concepts if concept.role == "cause"]
    latents = np.stack([world.direction_of(name) for name in shown])
    images = view_in_anchor_space(world, latents, np.random.default_rng(0))
    specific, generic, unrelated = (
        cosines(images, bank).max(axis=1).mean() for bank in embed_banks(world).values()
    )
    assert specific > 0.9
    assert specific > generic + 0.2 > unrelated + 0.2
