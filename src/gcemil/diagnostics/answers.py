"""When two predictions for one bag are the same answer, and how far apart they are.

  Phi     classification: the probability of the class predicted on X; survival: the risk in units of the training risks
  agree   classification: the class predicted on X is predicted again; survival: |Phi(X) - Phi| <= risk_tolerance

A risk has no class to keep. It is the same answer while it moves by no more than a stated part of the spread of the
training risks: 0.2 of a deviation is to risks, most of which lie within four, what 0.05 is to a probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gcemil.diagnostics.bench import NetworkName, TrainedFold
from gcemil.diagnostics.snr import RiskScale
from gcemil.errors import UsageError
from gcemil.shapes import Logits

RISK_TOLERANCE = 0.2


@dataclass(frozen=True)
class Answers:
    """How the predictions of one network are compared."""

    n_outputs: int
    scale: RiskScale
    risk_tolerance: float = RISK_TOLERANCE

    def __post_init__(self) -> None:
        if not self.risk_tolerance >= 0:
            raise UsageError(f"risk_tolerance is at least 0, got {self.risk_tolerance}.")
        if self.is_risk and not self.scale.deviation > 0:
            raise UsageError(
                f"The training risks have standard deviation {self.scale.deviation}: "
                "a model that says the same of everyone has no unit of risk."
            )

    @property
    def is_risk(self) -> bool:
        return self.n_outputs == 1

    def outputs(self, full: Logits, logits: Float[Tensor, "k c"]) -> Float[Tensor, "k"]:
        """Phi of several predictions for the bag on which the host says `full`."""
        if self.is_risk:
            return (logits[:, 0].double() - self.scale.mean) / self.scale.deviation
        return torch.softmax(logits.double(), dim=1)[:, full.argmax()]

    def drops(self, full: Logits, logits: Float[Tensor, "k c"]) -> Float[Tensor, "k"]:
        """Phi(X) - Phi of each: what of the prediction is lost. A risk can move either way, so its size counts."""
        lost = self.outputs(full, full.unsqueeze(0)) - self.outputs(full, logits)
        return lost.abs() if self.is_risk else lost

    def agree(self, full: Logits, logits: Float[Tensor, "k c"]) -> Bool[Tensor, "k"]:
        """Which of the predictions are the answer given on the whole bag."""
        if self.is_risk:
            return self.drops(full, logits) <= self.risk_tolerance
        return logits.argmax(dim=1) == full.argmax()


def answers_of(fold: TrainedFold, network: NetworkName, *, risk_tolerance: float = RISK_TOLERANCE) -> Answers:
    """The comparison under one network of a fold, in units of that network's own training risks."""
    return Answers(fold.task.n_outputs, fold.scale_of(network), risk_tolerance)
