"""Occlusion the long way: the host asked again for every patch, or for every block of patches, taken out or left alone.

  leave one out  f(X) - f(X without i)      keep one  f({i})      f the predicted logit or the risk
Patches are really removed, never zeroed: to most hosts a zero patch is still a patch.

`leave_one_out` and `keep_one` are one pass per patch: what closed_form.py must equal. `captum_occlusion` is the same
through captum's FeatureAblation. Hosts whose patches depend on each other have nothing faster, so their tables use
blocks: at most 29 square pieces of the patch grid (runs of rows where a bag has no coordinates), of which every patch
gets the score. A removal that leaves nothing scores 0.
"""

from __future__ import annotations

import torch
from captum.attr import FeatureAblation  # type: ignore[import-untyped]
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.diagnostics.attribution.predicted import Predicted
from gcemil.evidence.spatial import common_step
from gcemil.shapes import Coords, Scores, Selected

MAX_BLOCKS = 29
"""With the whole bag, 30 passes."""


@torch.no_grad()
def leave_one_out(bag: Predicted) -> Scores:
    """f(X) - f(X without i), one pass per patch."""
    patches = torch.arange(len(bag), device=bag.logit.device)
    return torch.stack([bag.logit - logit_of(bag, patches != patch) for patch in patches])


@torch.no_grad()
def keep_one(bag: Predicted) -> Scores:
    """f({i}), one pass per patch."""
    patches = torch.arange(len(bag), device=bag.logit.device)
    return torch.stack([logit_of(bag, patches == patch) for patch in patches])


def captum_occlusion(bag: Predicted) -> Scores:
    """f(X) - f(X without i) by captum, one pass per patch."""
    return captum_ablation(bag, torch.arange(len(bag), device=bag.logit.device))


def block_occlusion(bag: Predicted) -> Scores:
    """f(X) - f(X without the block of i)."""
    return captum_ablation(bag, blocks_of(bag.coords, len(bag)).to(bag.logit.device))


@torch.no_grad()
def block_single(bag: Predicted) -> Scores:
    """f(the block of i alone)."""
    blocks = blocks_of(bag.coords, len(bag)).to(bag.logit.device)
    alone = [logit_of(bag, blocks == block) for block in range(int(blocks.max()) + 1)]
    return torch.stack(alone)[blocks]


@torch.no_grad()
def captum_ablation(bag: Predicted, groups: Int[Tensor, "n"]) -> Scores:
    """The fall of the predicted output when each group of patches is removed."""

    def kept_output(kept: Float[Tensor, "1 n"]) -> Float[Tensor, "1"]:
        return logit_of(bag, kept[0] > 0).unsqueeze(0)

    present = bag.logit.new_ones(1, len(bag))
    return FeatureAblation(kept_output).attribute(present, feature_mask=groups.unsqueeze(0))[0]


def logit_of(bag: Predicted, kept: Selected) -> Float[Tensor, ""]:
    """The explained output on the kept patches; without any, that of the whole bag."""
    if not bool(kept.any()):
        return bag.logit
    rows = None if bag.coords is None else bag.coords[kept]
    return bag.host.aggregate(bag.embedded.rows(kept), rows).logits[bag.index]


def blocks_of(coords: Coords | None, n_patches: int) -> Int[Tensor, "n"]:
    """The block of each patch, numbered from 0: squares of the grid, as small as the limit on blocks allows."""
    if coords is None:
        return torch.arange(n_patches) * min(MAX_BLOCKS, n_patches) // n_patches
    cells = (coords - coords.amin(dim=0)) // common_step(coords)
    side = 1
    while len(torch.unique(cells // side, dim=0)) > MAX_BLOCKS:
        side += 1
    return torch.unique(cells // side, dim=0, return_inverse=True)[1]
