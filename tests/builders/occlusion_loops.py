"""Occlusion the plain way, one pass per patch: what the closed forms must equal."""

from __future__ import annotations

import torch

from gcemil.diagnostics.trained_fold import PredictedBag


def _logit_of(bag: PredictedBag, kept: torch.Tensor) -> torch.Tensor:
    if not bool(kept.any()):
        return bag.logit
    return bag.interventions.kept(kept).logits[bag.index]


def leave_one_out(bag: PredictedBag) -> torch.Tensor:
    """f(X) - f(X without i)."""
    patches = torch.arange(len(bag))
    return torch.stack([bag.logit - _logit_of(bag, patches != patch) for patch in patches])


def keep_one(bag: PredictedBag) -> torch.Tensor:
    """f({i})."""
    patches = torch.arange(len(bag))
    return torch.stack([_logit_of(bag, patches == patch) for patch in patches])
