"""Leave-one-out of every patch: the closed form against captum's ablation, one pass per patch.

captum removes rows of a bag that is embedded once, so that its passes only pool.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from captum.attr import FeatureAblation
from torch import Tensor

from gcemil.diagnostics.attribution import occlusion
from gcemil.diagnostics.trained_fold import PredictedBag, predict_bag


@torch.no_grad()
def captum_occlusion(bag: PredictedBag) -> Tensor:
    """f(X) - f(X without i) by captum; the only patch of a bag has no complement."""

    def kept_output(kept: Tensor) -> Tensor:
        rows = kept[0] > 0
        if not bool(rows.any()):
            return bag.logit.unsqueeze(0)
        return bag.interventions.kept(rows).logits[bag.index].unsqueeze(0)

    return FeatureAblation(kept_output).attribute(bag.logit.new_ones(1, len(bag)))[0]


def compare_occlusions(
    host: Any, features: Tensor, coords: Tensor, *, runs: int
) -> tuple[float, float]:
    """CPU time of captum over ours, and the largest difference as a share of the largest logit."""

    def time_ours() -> float:
        start = time.process_time()
        occlusion(predict_bag(host, features, coords))
        return time.process_time() - start

    ours = [time_ours() for _ in range(runs + 1)][1:]
    start = time.process_time()
    reference = captum_occlusion(predict_bag(host, features, coords))
    captum = time.process_time() - start
    ours += [time_ours() for _ in range(runs)]
    bag = predict_bag(host, features, coords)
    largest = max(1.0, float(bag.full.logits.abs().max()))
    difference = float((occlusion(bag) - reference).abs().max()) / largest
    return captum / statistics.median(ours), difference
