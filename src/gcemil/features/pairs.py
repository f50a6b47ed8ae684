"""Pairs for the bridge: the same patches as the cohort's encoder and as a text-aligned encoder see them.

Both folders were encoded from the same slides; a pair is a patch whose slide and level-0 position occur in both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from gcemil.bags import store
from gcemil.bags.arrays import read_coords
from gcemil.errors import InputError

DEFAULT_PAIRS = 4000


def write_pairs(
    cohort: Path, aligned: Path, *, n_pairs: int = DEFAULT_PAIRS, seed: int = 0
) -> tuple[Path, int]:
    """cohort/anchor_pairs.h5 from the feature files of two folders, and how many pairs it holds."""
    names = sorted(path.name for path in (cohort / "features").glob("*.h5"))
    shared = [name for name in names if (aligned / "features" / name).is_file()]
    if not shared:
        raise InputError(
            f"{cohort} and {aligned} share no slide. Encode the same slides into both, each with its encoder."
        )
    generator = np.random.default_rng(seed)
    per_slide = -(-n_pairs // len(shared))
    parts = [_slide_pairs(cohort, aligned, name, per_slide, generator) for name in shared]
    features, anchor_space = (np.concatenate(side) for side in zip(*parts, strict=True))
    if not len(features):
        raise InputError(
            f"{cohort} and {aligned} share no patch position. Patch both with the same --patch-size and --target-mpp."
        )
    path = cohort / "anchor_pairs.h5"
    encoder = str(store.attributes(aligned / "features" / shared[0]).get("encoder", "unknown"))
    store.write(path, {"features": features, "anchor_space": anchor_space}, {"anchor_encoder": encoder})
    return path, len(features)


def _slide_pairs(
    cohort: Path, aligned: Path, name: str, wanted: int, generator: np.random.Generator
) -> tuple[Float[np.ndarray, "p d"], Float[np.ndarray, "p a"]]:
    first, second = cohort / "features" / name, aligned / "features" / name
    left, right = _matching(read_coords(first), read_coords(second))
    chosen = np.sort(generator.choice(len(left), min(wanted, len(left)), replace=False))
    left, right = left[chosen], right[chosen]
    order = np.argsort(right)
    # Rows are read in the order of the second file, then put back.
    anchor_space = store.read(second, "features", right[order])[np.argsort(order)]
    return store.read(first, "features", left).astype(np.float32), anchor_space.astype(np.float32)


def _matching(
    first: Int[np.ndarray, "n 2"], second: Int[np.ndarray, "k 2"]
) -> tuple[Int[np.ndarray, "q"], Int[np.ndarray, "q"]]:
    """Rows of equal coordinates, sorted by the first."""
    _, left, right = np.intersect1d(_keys(first), _keys(second), return_indices=True)
    order = np.argsort(left)
    return left[order], right[order]


def _keys(coords: Int[np.ndarray, "n 2"]) -> Int[np.ndarray, "n"]:
    """One number per position."""
    wide = coords.astype(np.int64)
    return np.asarray((wide[:, 0] << 32) + wide[:, 1])
