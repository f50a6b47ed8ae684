"""A slide predicted from the patches that a prefilter kept, with its doubt.

The wrapper's budget and the cap of recovery are shares of the slide. On a bag of kept patches they are scaled up, so that the same
number of patches may be evidence as on the whole bag: budget N / k, at most 1. A least number of patches is one already and stays.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int

from gcemil.bags.bag import Bag
from gcemil.explain import Explanation, explain_bag
from gcemil.model import GceMil
from gcemil.shapes import Logits


@dataclass(frozen=True, eq=False)
class KeptAnswer:
    """What the model says of the kept patches of a bag."""

    rows: Int[np.ndarray, "k"]
    """The kept patches, as rows of the whole bag."""
    explanation: Explanation
    doubt: float

    @property
    def logits(self) -> Logits:
        """The prediction: the host on the evidence found among the kept patches."""
        return self.explanation.discrete.logits

    @property
    def evidence_rows(self) -> Int[np.ndarray, "e"]:
        """The evidence, as rows of the whole bag."""
        return self.rows[self.explanation.recovery.selected.cpu().numpy()]


def answer_from_kept(model: GceMil, bag: Bag, rows: Int[np.ndarray, "k"], *, deviation: float) -> KeptAnswer:
    """Evidence and prediction from these sorted rows of a bag; `deviation` is that of the training risks."""
    explanation = explain_bag(scaled_to_bag(model, share=len(rows) / len(bag)), bag.sampled(rows))
    doubt = doubt_of(explanation.discrete.logits, explanation.output.full_logits, deviation=deviation)
    return KeptAnswer(rows, explanation, doubt)


def scaled_to_bag(model: GceMil, *, share: float) -> GceMil:
    """The same weights with a budget and a cap that count patches of the whole bag, of which this share is left."""
    settings = model.settings
    budget = min(1.0, settings.budget / share)
    recovery = settings.recovery.model_copy(
        update={"max_fraction": min(1.0, settings.recovery.max_fraction / share)}
    )
    gate = copy(model.gate)
    gate.budget = budget
    scaled = copy(model)
    # A shallow copy shares its table of modules; the gate with the other budget goes into a table of its own.
    scaled._modules = {**model._modules, "gate": gate}
    scaled.settings = settings.model_copy(update={"budget": budget, "recovery": recovery})
    return scaled


def doubt_of(evidence: Logits, everyone: Logits, *, deviation: float) -> float:
    """How far the evidence is from deciding alone what all kept patches decide."""
    if len(evidence) == 1:
        return abs(float(evidence[0]) - float(everyone[0])) / deviation
    said = int(evidence.argmax())
    sure = torch.minimum(
        torch.softmax(evidence.double(), dim=0)[said], torch.softmax(everyone.double(), dim=0)[said]
    )
    return 1 - float(sure)


def is_changed(answer: Logits, full: Logits, *, deviation: float, tolerance: float) -> bool:
    """Whether an answer is another one than that of the whole bag."""
    if len(full) == 1:
        return abs(float(answer[0]) - float(full[0])) > tolerance * deviation
    return int(answer.argmax()) != int(full.argmax())
