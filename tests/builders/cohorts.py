"""Bags and cohorts for tests, built from a seed and nothing hidden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gcemil.bags import store
from gcemil.bags.bag import Bag, slide_bag
from gcemil.bags.cohort import Cohort, CohortCard, SlideRow

PATCH = 512


def grid_coords(n_patches: int, width: int = 8) -> np.ndarray:
    """Raster coordinates of a full grid with this many columns."""
    index = np.arange(n_patches)
    return np.stack([index % width, index // width], axis=1).astype(np.int64) * PATCH


def make_bag(n_patches: int = 20, dim: int = 8, seed: int = 0, slide_id: str = "slide") -> Bag:
    features = np.random.default_rng(seed).normal(size=(n_patches, dim)).astype(np.float32)
    return slide_bag(slide_id, features, grid_coords(n_patches), PATCH)


def make_cohort(
    folder: Path,
    *,
    task: str = "classification",
    n_cases: int = 20,
    slides_per_case: int = 1,
    n_patches: int = 12,
    dim: int = 8,
    classes: tuple[str, ...] = ("benign", "malignant"),
    seed: int = 0,
    **card: Any,
) -> Cohort:
    """A whole cohort on disk: class k shifts the first feature by k; risk and value grow with the first feature."""
    generator = np.random.default_rng(seed)
    rows = []
    for case in range(n_cases):
        time, event = float(generator.integers(1, 100)), int(case % 3 > 0)
        for part in range(slides_per_case):
            slide_id, case_id = f"s{case:03d}_{part}", f"c{case:03d}"
            if task == "classification":
                rows.append(SlideRow(slide_id, case_id, label=classes[case % len(classes)]))
            elif task == "regression":
                rows.append(SlideRow(slide_id, case_id, value=10.0 / time + case / 1000))
            else:
                rows.append(SlideRow(slide_id, case_id, time=time, event=event))
            features = generator.normal(size=(n_patches, dim)).astype(np.float32)
            features[:, 0] += case % len(classes) if task == "classification" else 10.0 / time
            write_slide(folder, slide_id, features, grid_coords(n_patches))
    made = CohortCard(
        name="test",
        task=task,
        classes=classes if task == "classification" else (),
        feature_dim=dim,
        patch_size_level0=PATCH,
        **card,
    )
    cohort = Cohort(folder, made, tuple(rows))
    cohort.save()
    return cohort


def write_slide(
    folder: Path, slide_id: str, features: np.ndarray, coords: np.ndarray | None
) -> Path:
    path = folder / "features" / f"{slide_id}.h5"
    datasets = (
        {"features": features} if coords is None else {"features": features, "coords": coords}
    )
    store.write(path, datasets)
    return path
