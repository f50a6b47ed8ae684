"""Pools of labelled patches for tests: classes lie apart on axes of their own."""

from __future__ import annotations

import numpy as np

from gcemil.simulation.compose import ComposeSettings
from gcemil.simulation.patch_pool import PatchPool

CLASSES = ("normal", "fat", "tumour", "adenoma")


def make_pool(
    per_class: int = 60,
    *,
    dim: int = 12,
    patients: int | None = None,
    classes: tuple[str, ...] = CLASSES,
    seed: int = 0,
) -> PatchPool:
    """Class c is shifted by 6 along axis c; patients are dealt round-robin inside each class."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.array(classes), per_class)
    features = 3 + generator.normal(size=(len(labels), dim))
    features[np.arange(len(labels)), np.repeat(np.arange(len(classes)), per_class)] += 6
    owners = None
    if patients is not None:
        owners = np.array([f"p{index % patients}" for index in range(len(labels))])
    return PatchPool(features.astype(np.float16), labels, owners, "test-encoder", "pool.h5")


def make_recipe(**changes):
    """Two kinds of background, one label without evidence and two with."""
    values = {
        "background": ["normal", "fat"],
        "labels": {"healthy": [], "benign": ["adenoma"], "cancer": ["tumour"]},
        "slides": 30,
        "patches": (30, 60),
        "evidence": (0.05, 0.10),
        "folds": 3,
    }
    return ComposeSettings.model_validate({**values, **changes})
