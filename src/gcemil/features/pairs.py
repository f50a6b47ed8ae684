"""Pairs for the bridge: the same patches through the cohort's and through a text-aligned encoder.

Both folders were encoded from the same slides; a pair is a patch whose slide and level-0 position
occur in both. The bridge is judged on pairs that it was not fitted on:

For pairs (h_i, y_i), in folds: fit B on the others, then over the held-out pairs
  cosine                 mean of cos(B(h_i), y_i)
  constant_cosine        the same for a B that always returns the mean y: high where a space is a
                         cone
  centred_cosine         mean of cos(B(h_i) - mean y, y_i - mean y): 0 for a bridge that learned
                         nothing
  response_correlation   per anchor, the correlation of cos(B(h_i), a_m) with cos(y_i, a_m)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from gcemil.bags import store
from gcemil.bags.store import read_coords
from gcemil.errors import InputError

PairFeatures = Float[np.ndarray, "p d"]
PairTargets = Float[np.ndarray, "p a"]
Anchors = Float[np.ndarray, "m a"]
GivenRows = Float[np.ndarray, "_ _"]
"""Arrays from files, whose shapes are checked by `judge_bridge`."""
FittedMap = Callable[[PairFeatures], PairTargets]
Fit = Callable[[PairFeatures, PairTargets], FittedMap]
_ALIGNED = 0.5
"""Centred cosine and response correlation from which text and feature spaces count as aligned."""
_FEWEST_PAIRS = 10


def write_pairs(
    cohort: Path, aligned: Path, *, n_pairs: int = 4000, seed: int = 0
) -> tuple[Path, int]:
    """cohort/anchor_pairs.h5 from the feature files of two folders, and how many pairs it holds."""
    if not aligned.is_dir():
        raise InputError(
            f"{aligned} does not exist, or is not a folder. Give the folder with the same slides, "
            "encoded by the other encoder."
        )
    ours, theirs = (
        {path.name for path in (folder / "features").glob("*.h5")} for folder in (cohort, aligned)
    )
    shared = sorted(ours & theirs)
    if not shared:
        raise InputError(
            f"{cohort} and {aligned} share no slide. Encode the same slides into both, each with "
            "its encoder."
        )
    generator = np.random.default_rng(seed)
    per_slide = -(-n_pairs // len(shared))
    parts = [_read_slide_pairs(cohort, aligned, name, per_slide, generator) for name in shared]
    features, anchor_space = (np.concatenate(side) for side in zip(*parts, strict=True))
    if not len(features):
        raise InputError(
            f"{cohort} and {aligned} share no patch position. Patch both with the same "
            "--patch-size and --target-mpp."
        )
    path = cohort / "anchor_pairs.h5"
    encoder = str(store.attributes(aligned / "features" / shared[0]).get("encoder", "unknown"))
    store.write(
        path, {"features": features, "anchor_space": anchor_space}, {"anchor_encoder": encoder}
    )
    return path, len(features)


def _read_slide_pairs(
    cohort: Path, aligned: Path, name: str, wanted: int, generator: np.random.Generator
) -> tuple[Float[np.ndarray, "p d"], Float[np.ndarray, "p a"]]:
    first, second = cohort / "features" / name, aligned / "features" / name
    # One number per position.
    ours, theirs = (
        (one[:, 0].astype(np.int64) << 32) + one[:, 1]
        for one in (read_coords(first), read_coords(second))
    )
    _, left, right = np.intersect1d(ours, theirs, return_indices=True)
    order = np.argsort(left)
    left, right = left[order], right[order]
    chosen = np.sort(generator.choice(len(left), min(wanted, len(left)), replace=False))
    left, right = left[chosen], right[chosen]
    order = np.argsort(right)
    # Rows are read in the order of the second file, then put back.
    anchor_space = store.read(second, "features", right[order])[np.argsort(order)]
    return store.read(first, "features", left).astype(np.float32), anchor_space.astype(np.float32)


@dataclass(frozen=True)
class BridgeReport:
    """The bridge on held-out pairs."""

    n_pairs: int
    folds: int
    cosine: float
    constant_cosine: float
    centred_cosine: float
    response_correlation: tuple[float, ...]
    """One per anchor; not a number for an anchor to which all pairs respond alike."""
    text_sees_images: bool | None
    """Whether the text encoder was trained with images; None if unknown."""

    @property
    def mean_response_correlation(self) -> float:
        """Mean over the anchors that have one."""
        known = [value for value in self.response_correlation if value == value]
        return float(np.mean(known)) if known else float("nan")

    @property
    def aligned(self) -> bool:
        """Whether grounding in the prompts is reliable."""
        return not self.warnings

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why grounding in the prompts cannot be taken for granted; empty when it can."""
        lines = []
        if self.text_sees_images is False:
            lines.append(
                "The anchors come from a text encoder that was not trained on images, so no patch "
                "lies near its own words."
            )
        if not self.centred_cosine >= _ALIGNED:
            lines.append(
                "Held-out features reach the anchors' space with a centred cosine of "
                f"{self.centred_cosine:.2f}, below {_ALIGNED}."
            )
        if not self.mean_response_correlation >= _ALIGNED:
            lines.append(
                "Responses through the bridge follow the true ones with a correlation of "
                f"{self.mean_response_correlation:.2f}, below {_ALIGNED}."
            )
        if lines:
            lines.append(
                "Text and feature spaces are not aligned: grounding is only as good as training "
                "makes it."
            )
        return tuple(lines)


def judge_bridge(
    features: GivenRows,
    anchor_space: GivenRows,
    anchors: GivenRows,
    fit: Fit,
    *,
    text_sees_images: bool | None = None,
    folds: int = 5,
    seed: int = 0,
) -> BridgeReport:
    """Judge a way to fit bridges on pairs it has not seen; every pair is held out once."""
    if len(features) != len(anchor_space) or len(features) < _FEWEST_PAIRS:
        raise InputError(
            f"A report needs at least {_FEWEST_PAIRS} pairs, got {len(features)} features and "
            f"{len(anchor_space)} in anchor space."
        )
    if anchors.shape[1] != anchor_space.shape[1]:
        raise InputError(
            f"Anchors of width {anchors.shape[1]} and pairs of width {anchor_space.shape[1]} are "
            "not of one space. Embed the prompts with the text side of the encoder that saw the "
            "pairs."
        )
    if not np.isfinite(features).all() or not np.isfinite(anchor_space).all():
        raise InputError("Some pairs are not finite. Make anchor_pairs.h5 again.")
    parts = np.array_split(np.random.default_rng(seed).permutation(len(features)), folds)
    mapped, constant = np.empty_like(anchor_space), np.empty_like(anchor_space)
    for held_out in parts:
        rest = np.setdiff1d(np.arange(len(features)), held_out)
        mapped[held_out] = fit(features[rest], anchor_space[rest])(features[held_out])
        constant[held_out] = anchor_space[rest].mean(axis=0)
    return BridgeReport(
        n_pairs=len(features),
        folds=folds,
        cosine=_mean_cosine(mapped, anchor_space),
        constant_cosine=_mean_cosine(constant, anchor_space),
        centred_cosine=_mean_cosine(mapped - constant, anchor_space - constant),
        response_correlation=_correlate_responses(mapped, anchor_space, anchors),
        text_sees_images=text_sees_images,
    )


def _mean_cosine(left: PairTargets, right: PairTargets) -> float:
    return float((_normalise_rows(left) * _normalise_rows(right)).sum(axis=1).mean())


def _normalise_rows(rows: Float[np.ndarray, "r a"]) -> Float[np.ndarray, "r a"]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _correlate_responses(
    mapped: PairTargets, anchor_space: PairTargets, anchors: Anchors
) -> tuple[float, ...]:
    """Pearson's r of both responses to each anchor; NaN where all pairs respond alike."""
    directions = _normalise_rows(anchors).T
    left, right = (_normalise_rows(rows) @ directions for rows in (mapped, anchor_space))
    first, second = left - left.mean(axis=0), right - right.mean(axis=0)
    spread = np.sqrt((first**2).sum(axis=0) * (second**2).sum(axis=0))
    # A constant column leaves rounding errors only, whose correlation would mean nothing.
    known = spread > 1e-9 * len(left)
    together = (first * second).sum(axis=0)
    return tuple(np.where(known, together / np.where(known, spread, 1), np.nan).tolist())
