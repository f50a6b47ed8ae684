"""Results as frozen values, free of torch: what a run writes, a report reads and a script may rely on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True, eq=False)
class SlideEvidence:
    """The evidence of one slide, per patch in the order of its feature file."""

    slide_id: str
    selected: Bool[np.ndarray, "n"]
    coords: Int[np.ndarray, "n 2"] | None
    gates: Float[np.ndarray, "n"]
    scores: Float[np.ndarray, "n"]
    """The host's raw patch scores on the ungated bag."""
    evidence_scores: Float[np.ndarray, "n"]
    """The selector's scores, from which the gates are made."""
    responses: Float[np.ndarray, "n m"]
    marginal_gain: Float[np.ndarray, "n"]
    """What each patch adds to the coverage of the evidence (or costs it, when it is selected and taken away)."""
    coverage: Float[np.ndarray, "m"]
    stop_reason: str
    prompts: tuple[str, ...]
    ranking: str = "mixture"
    """Which ranking the evidence was taken from: the selector's mixture, or one led by the host's own."""
    is_sufficient: bool | None = None
    """Whether the patches alone keep the prediction; of a case with several slides, those of all of them. None: not asked."""
    is_necessary: bool | None = None
    """Whether the prediction moves without them."""
    anchor_weights: Float[np.ndarray, "m"] | None = None
    """How much each anchor matters to the predicted class, or to the risk. None: not written."""
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def indices(self) -> Int[np.ndarray, "k"]:
        """The selected patches, sorted."""
        return np.flatnonzero(self.selected)

    @property
    def is_no_evidence(self) -> bool:
        """Whether the prediction stays without the patches, so that they mark nothing."""
        return self.is_necessary is False

    @property
    def verdict(self) -> str:
        """What keeping and removing the patches showed, in words."""
        return describe_verdict(self.is_sufficient, self.is_necessary)

    @property
    def fraction(self) -> float:
        return float(self.selected.mean())


def describe_verdict(is_sufficient: bool | None, is_necessary: bool | None) -> str:
    """What keeping and removing patches showed, in words; None: not asked."""
    if is_sufficient is None or is_necessary is None:
        return "not checked"
    if not is_necessary:
        return "no evidence: without these patches the prediction stays as it is"
    return "sufficient and necessary" if is_sufficient else "necessary, not sufficient alone"


@dataclass(frozen=True)
class RegionVerdict:
    """One connected region of evidence, kept alone and removed; None where it was not asked."""

    number: int
    """From 1, the region of largest score mass first; of a case, over all its slides."""
    slide_id: str
    n_patches: int
    mass: float
    """Sum over the region of the softmax of the scores over the bag."""
    kept: float | None = None
    """Phi of the region alone."""
    removed: float | None = None
    """Phi of the bag without it; None also where nothing would be left."""
    sufficient: bool | None = None
    necessary: bool | None = None
