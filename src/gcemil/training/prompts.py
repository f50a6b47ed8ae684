"""Before training: the training patches that answer most to each prompt, which then stand for it.

  1. the bridge is fitted on pairs                       where a prompt lies, as well as pairs can say
  2. of every training slide, the first patches by smoothed cosine; of these, the first over all slides
  3. their mean, in whitened feature space               the anchor, as if somebody had named these patches (alignment.py)

A prompt and a patch meet through a text encoder and a map from one encoder to another, and both blur. The patches found this way
are tissue of the cohort's own encoder. A few per slide and no more, so that no slide speaks alone. No label is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.loader import SampleRule, load_bags
from gcemil.evidence.alignment import FactoredFit
from gcemil.evidence.anchors import MET, AnchorBank
from gcemil.evidence.bridge import Bridge
from gcemil.evidence.spatial import Neighbourhood, smoothed
from gcemil.explain import bag_tensors
from gcemil.row_blocks import widened

PER_SLIDE = 2
MOST_PATCHES = 4096
"""Of a slide that are looked at: a cohort is read once, at about the cost of an epoch."""


@torch.no_grad()
def meet_prompts(
    bank: AnchorBank,
    bridge: Bridge,
    fit: FactoredFit,
    cohort: Cohort,
    bags: Sequence[BagSpec],
    *,
    count: int,
    seed: int,
) -> AnchorBank:
    """The same prompts, each as the mean of the `count` training patches that answer to it most, in the space of the fit."""
    cosines, patches = torch.empty(0, bank.n_anchors), torch.empty(0, bank.n_anchors, bridge.in_dim)
    for _, bag in load_bags(cohort, bags, rule=SampleRule(MOST_PATCHES, seed=seed)):
        features, coords = bag_tensors(bag)
        found = bridge.cosines(features, bank.embeddings)
        if coords is not None:
            around = Neighbourhood.of(coords, bag.patch_size)
            found = torch.stack([smoothed(one, around) for one in found.unbind(dim=1)], dim=1)
        best = found.topk(min(PER_SLIDE, len(found)), dim=0)
        cosines, patches = _keep_first(
            torch.cat([cosines, best.values]), torch.cat([patches, widened(features[best.indices])]), count
        )
    provenance = f"{bank.provenance}, {MET}, {len(cosines)} per prompt"
    return AnchorBank(patches.mean(dim=0) @ fit.right.T + fit.bias, bank.prompts, provenance)


def _keep_first(
    cosines: Float[Tensor, "k m"], patches: Float[Tensor, "k m d"], count: int
) -> tuple[Float[Tensor, "j m"], Float[Tensor, "j m d"]]:
    """The highest `count` of each anchor."""
    first = cosines.topk(min(count, len(cosines)), dim=0)
    return first.values, patches.take_along_dim(first.indices.unsqueeze(2), dim=0)
