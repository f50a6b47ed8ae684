"""Occlusion the long way: the host asked again for every patch, or for every block of patches, taken out or left alone.

  leave one out  f(X) - f(X without i)      keep one  f({i})      f the predicted logit or the risk
Patches are really removed, never zeroed: to most hosts a zero patch is still a patch.

`leave_one_out` and `keep_one` are one pass per patch: what closed_form.py must equal. `captum_occlusion` is the same
through captum's FeatureAblation. Hosts whose patches depend on each other have nothing faster, so their tables use
blocks: at most 32 square pieces of the patch grid (runs of rows where a bag has no coordinates), of which every patch
gets the score. A removal that leaves nothing scores 0.
"""

from __future__ import annotations

from typing import Any

import torch
from captum.attr import FeatureAblation  # type: ignore[import-untyped]
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.diagnostics.attribution.predicted import Predicted, predicted
from gcemil.evidence.spatial import common_step
from gcemil.shapes import Coords, Scores, Selected

MAX_BLOCKS = 32


@torch.no_grad()
def leave_one_out(host: Any, features: Tensor, coords: Tensor | None) -> Scores:
    """f(X) - f(X without i), one pass per patch."""
    bag = predicted(host, features, coords)
    patches = torch.arange(len(features), device=features.device)
    return torch.stack([bag.logit - logit_of(host, bag, coords, patches != patch) for patch in patches])


@torch.no_grad()
def keep_one(host: Any, features: Tensor, coords: Tensor | None) -> Scores:
    """f({i}), one pass per patch."""
    bag = predicted(host, features, coords)
    patches = torch.arange(len(features), device=features.device)
    return torch.stack([logit_of(host, bag, coords, patches == patch) for patch in patches])


def captum_occlusion(host: Any, features: Tensor, coords: Tensor | None) -> Scores:
    """f(X) - f(X without i) by captum, one pass per patch."""
    return captum_ablation(host, features, coords, torch.arange(len(features), device=features.device))


def block_occlusion(host: Any, features: Tensor, coords: Tensor | None) -> Scores:
    """f(X) - f(X without the block of i)."""
    return captum_ablation(host, features, coords, blocks_of(coords, len(features)).to(features.device))


@torch.no_grad()
def block_single(host: Any, features: Tensor, coords: Tensor | None) -> Scores:
    """f(the block of i alone)."""
    bag = predicted(host, features, coords)
    blocks = blocks_of(coords, len(features)).to(features.device)
    alone = [logit_of(host, bag, coords, blocks == block) for block in range(int(blocks.max()) + 1)]
    return torch.stack(alone)[blocks]


@torch.no_grad()
def captum_ablation(host: Any, features: Tensor, coords: Tensor | None, groups: Int[Tensor, "n"]) -> Scores:
    """The fall of the predicted output when each group of patches is removed."""
    bag = predicted(host, features, coords)

    def kept_output(kept: Float[Tensor, "1 n"]) -> Float[Tensor, "1"]:
        return logit_of(host, bag, coords, kept[0] > 0).unsqueeze(0)

    present = features.new_ones(1, len(features))
    return FeatureAblation(kept_output).attribute(present, feature_mask=groups.unsqueeze(0))[0]


def logit_of(host: Any, bag: Predicted, coords: Tensor | None, kept: Selected) -> Float[Tensor, ""]:
    """The explained output on the kept patches; without any, that of the whole bag."""
    if not bool(kept.any()):
        return bag.logit
    rows = None if coords is None else coords[kept]
    return host.aggregate(bag.embedded.rows(kept), rows).logits[bag.index]


def blocks_of(coords: Coords | None, n_patches: int) -> Int[Tensor, "n"]:
    """The block of each patch, numbered from 0: squares of the grid, as small as the limit on blocks allows."""
    if coords is None:
        return torch.arange(n_patches) * min(MAX_BLOCKS, n_patches) // n_patches
    cells = (coords - coords.amin(dim=0)) // common_step(coords)
    side = 1
    while len(torch.unique(cells // side, dim=0)) > MAX_BLOCKS:
        side += 1
    return torch.unique(cells // side, dim=0, return_inverse=True)[1]
