"""Subset rules that look at one score per patch: ranking, top-k, threshold, random.

Ties go to the lower index, everywhere. A fraction of a bag is one number of patches, everywhere: max(1, round(f N)).
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from gcemil.errors import BagError, UsageError
from gcemil.shapes import Scores, Selected


def subset_size(n_patches: int, fraction: float) -> int:
    """The number of patches that a fraction of the bag stands for, at least one."""
    if not 0.0 < fraction <= 1.0:
        raise UsageError(f"A fraction of the bag lies in (0, 1], got {fraction}.")
    return max(1, round(fraction * n_patches))


def ranking(scores: Scores) -> Int[Tensor, "n"]:
    """Patch indices by decreasing score."""
    check_ranked(scores)
    return scores.sort(descending=True, stable=True).indices


def top_k(scores: Scores, k: int) -> Selected:
    """The k patches of highest score."""
    check_size(k, n_patches=len(scores))
    return members(ranking(scores)[:k], n_patches=len(scores))


def above_threshold(scores: Scores, threshold: float) -> Selected:
    """Patches strictly above the threshold or, when there are none, the single best one."""
    check_ranked(scores)
    above = scores > threshold
    return above if bool(above.any()) else members(scores.argmax().unsqueeze(0), n_patches=len(scores))


def random_k(n_patches: int, k: int, *, generator: torch.Generator) -> Selected:
    """k patches drawn without replacement."""
    check_size(k, n_patches=n_patches)
    order = torch.randperm(n_patches, generator=generator, device=generator.device)
    return members(order[:k], n_patches=n_patches)


def members(patches: Int[Tensor, "k"], *, n_patches: int) -> Selected:
    """Patch indices as a mask over the bag."""
    selected = torch.zeros(n_patches, dtype=torch.bool, device=patches.device)
    selected[patches] = True
    return selected


def check_ranked(scores: Scores) -> None:
    if bool(scores.isnan().any()):
        wrong = int(scores.isnan().nonzero()[0])
        raise BagError(f"Patch {wrong} of {len(scores)} has score NaN, so the patches cannot be ranked.")


def check_size(k: int, *, n_patches: int) -> None:
    if not 1 <= k <= n_patches:
        raise UsageError(f"A subset of {n_patches} patches holds 1 to {n_patches} of them, got k = {k}.")
