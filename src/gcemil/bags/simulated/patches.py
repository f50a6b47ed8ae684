"""Patches as both encoders see them.

z_i = shift_site + shift_slide + expression_i * sum_c share_ic length_c (v_c + deviation_slide,c) + level_i noise_i
noise = R sqrt(eigenvalues) (sqrt(s) smooth field + sqrt(1 - s) white), s the spatial correlation
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float16
from numpy.random import Generator

from gcemil.bags.simulated.dials import Dials
from gcemil.bags.simulated.fields import smooth_fields
from gcemil.bags.simulated.tissue import Layout
from gcemil.bags.simulated.world import World

Latents = Float[np.ndarray, "n k"]


def slide_latents(world: World, layout: Layout, site: int, generator: Generator) -> Latents:
    """What there is to see in every patch, before any encoder."""
    dials, rank = world.dials, world.latent_dim
    shift = world.site_shifts[site] + dials.slide_shift * generator.standard_normal(rank)
    deviation = dials.slide_variation / np.sqrt(rank) * generator.standard_normal(world.directions.shape)
    concepts = world.lengths[:, None] * (world.directions + deviation)
    signal = expression(len(layout.cells), dials, generator)[:, None] * (layout.composition @ concepts)
    return shift + signal + within_tissue(world, layout, generator)


def within_tissue(world: World, layout: Layout, generator: Generator) -> Latents:
    """Variation of patches of one tissue, partly common to neighbours, at a level of each patch's own."""
    dials, n_patches = world.dials, len(layout.cells)
    smooth = smooth_fields(layout.cells, dials.region_scale, world.latent_dim, generator)
    white = generator.standard_normal((n_patches, world.latent_dim))
    noise = np.sqrt(dials.spatial_correlation) * smooth + np.sqrt(1 - dials.spatial_correlation) * white
    level = np.exp(dials.noise_spread * generator.standard_normal(n_patches) - dials.noise_spread**2)
    return level[:, None] * (noise @ world.covariance_root.T)


def expression(n_patches: int, dials: Dials, generator: Generator) -> Float[np.ndarray, "{n_patches}"]:
    """How strongly each patch shows its concepts: gamma distributed with mean 1."""
    variance = dials.expression_spread**2
    return generator.gamma(1 / variance, variance, size=n_patches) if variance else np.ones(n_patches)


def encoded(world: World, latents: Latents, generator: Generator) -> Float16[np.ndarray, "n d"]:
    """The patch encoder's features, as they are stored."""
    features = (latents @ world.encoder.T + world.origin).astype(np.float32)
    noise = generator.standard_normal(features.shape, dtype=np.float32)
    return (features + np.float32(world.dials.residual_noise) * noise).astype(np.float16)


def anchor_view(world: World, latents: Latents, generator: Generator) -> Float[np.ndarray, "n a"]:
    """The same patches seen by the text-aligned encoder."""
    images = latents @ world.anchor_map.T + world.image_gap
    noise = world.dials.anchor_noise * generator.standard_normal(images.shape)
    return (images + noise).astype(np.float32)
