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
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def indices(self) -> Int[np.ndarray, "k"]:
        """The selected patches, sorted."""
        return np.flatnonzero(self.selected)

    @property
    def verdict(self) -> str:
        """What keeping and removing the patches showed, in words."""
        if self.is_sufficient is None or self.is_necessary is None:
            return "not checked"
        if not self.is_necessary:
            return "no evidence: without these patches the prediction stays as it is"
        return "sufficient and necessary" if self.is_sufficient else "necessary, not sufficient alone"

    @property
    def fraction(self) -> float:
        return float(self.selected.mean())
