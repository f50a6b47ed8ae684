"""What can be laid over a slide: one number per patch and layer, sent as typed arrays.

  heat   attention, gate, evidence score, marginal gain, one layer per anchor      a colour scale from low to high
  set    evidence, truth                                                           1 = member
  group  disjoint sufficient subsets, numbered from 1; computed when asked for, because a host that does not pool
         linearly needs seconds for them

Bytes of `patch_arrays`, little-endian: int32 corners x, y of every patch from the frame's corner, then float32 values layer
by layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int

from gcemil.diagnostics.regions import find_regions
from gcemil.diagnostics.subsets import MAX_STEPS, SIZES, Sufficiency, disjoint_candidates
from gcemil.diagnostics.trained_fold import network_view
from gcemil.recovery.recover import ranking
from gcemil.viewer.session import OpenedSlide

Values = Float[np.ndarray, "n"]
EVIDENCE_LABELS = {
    False: "evidence: what the model found",
    True: "found by the model, no evidence",
}
"""By whether the slide has no evidence."""


@dataclass(frozen=True, eq=False)
class Layer:
    """One number per patch of the slide."""

    key: str
    label: str
    kind: Literal["heat", "set"]
    values: Values
    natural: tuple[float, float] | None = None
    """Ends of the scale; None where a score has none, so that its own extremes serve."""

    def describe(self) -> dict[str, Any]:
        """What the page needs to draw it."""
        low, high = self.natural or (float(self.values.min()), float(self.values.max()))
        return {"key": self.key, "label": self.label, "kind": self.kind, "low": low, "high": high}


def slide_layers(slide: OpenedSlide) -> list[Layer]:
    """Every layer the slide has, in the order of the page."""
    share, rows, evidence = (0.0, 1.0), slide.rows, slide.evidence
    layers = [
        Layer("attention", "attention of the host", "heat", _to_float32(slide.full.scores.numpy()[rows]))
    ]
    if evidence is not None:
        layers += [
            Layer("gate", "gate", "heat", _to_float32(evidence.gates), share),
            Layer("evidence_score", "evidence score", "heat", _to_float32(evidence.evidence_scores)),
            Layer("marginal_gain", "marginal gain", "heat", _to_float32(evidence.marginal_gain)),
        ]
        layers += [
            Layer(
                f"anchor_{index}",
                f"concept: {prompt}",
                "heat",
                _to_float32(evidence.responses[:, index]),
                share,
            )
            for index, prompt in enumerate(evidence.prompts)
        ]
    label = EVIDENCE_LABELS[slide.evidence.is_no_evidence] if slide.evidence is not None else slide.rule
    layers.append(Layer("evidence", label, "set", _to_float32(slide.chosen.numpy()[rows]), share))
    truth = slide.bench.truth
    if truth is not None and len(truth) == len(slide.bench):
        layers.append(Layer("truth", "annotated truth", "set", _to_float32(truth.numpy()[rows]), share))
    return layers


def patch_arrays(slide: OpenedSlide) -> bytes:
    """Corners and all layers of the slide in one answer."""
    frame = slide.tiles.frame
    corners = (slide.coords - (frame.left, frame.top)).astype("<i4")
    return corners.tobytes() + b"".join(layer.values.astype("<f4").tobytes() for layer in slide_layers(slide))


def region_numbers(slide: OpenedSlide) -> list[int]:
    """The connected region of each patch that the model chose, over the bag; none for a bag without coordinates."""
    found = slide.bench.explanation
    scores = slide.full.scores if found is None else found.output.scores
    regions = find_regions(slide.bench.bag, slide.chosen, scores)
    return [] if regions is None else regions.number[slide.chosen].tolist()


@torch.no_grad()
def subset_groups(slide: OpenedSlide) -> Int[np.ndarray, "n"]:
    """Which disjoint sufficient subset each patch is in, 0 = none; the shortest prefixes by attention, in steps of 8."""
    view = network_view(slide.fold, slide.bench, "wrapped")
    judge = Sufficiency(slide.fold.answers("wrapped"))
    order = ranking(view.full.scores)
    groups = np.zeros(len(slide.bench), dtype=np.uint8)
    for number, one in enumerate(
        disjoint_candidates(view, order, judge, k=SIZES[0], steps=MAX_STEPS), start=1
    ):
        if one.is_sufficient:
            groups[one.patches.numpy()] = number
    return groups[slide.rows]


def _to_float32(values: np.ndarray) -> Values:
    return np.asarray(values, dtype=np.float32)
