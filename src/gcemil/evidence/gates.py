"""Gates pi from scores s: the rows of the paper's selector table behind one base.

  sigmoid_threshold  sigma(s - nu), temperature 1, never annealed
  top_k              the k largest scores open, the rest closed; straight-through gradient of sigma((s - nu) / T)
  gumbel_sigmoid     sigma(s - nu + logistic noise), temperature 1; no noise outside training
  concrete           sigma((s - nu + logistic noise) / T), annealed; no noise outside training
  sparsemax          p / max p, p = sparsemax(s / T); selected where p > 0
  entmax15           p / max p, p = entmax-1.5(s / T); selected where p > 0
  consecutive        sigma((s - nu) / T), annealed (Eq. 3): the selector of the paper

nu_x is 0 (the paper) or per slide: midway between the k-th and (k+1)-th largest score, k = max(floor, round(rho N)),
all open when N <= k. Log-gates come from logsigmoid: where a gate underflows to 0, its logarithm is still right.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from entmax import entmax15, sparsemax
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.shapes import Gates, LogGates, Scores, Selected

Centre = Literal["zero", "slide"]

CLOSED_GATE = 1e-6
"""What a closed patch weighs in a straight-through pass: the gradient of a weight pi e^z / Z needs some pi to act on."""


SHUT = 1e-3
"""Gates below this are set to 0 at inference; thousands of tiny gates would still influence transformer hosts."""


@dataclass(frozen=True)
class GateOutput:
    """Gates of one bag, their logarithms (-inf where a gate is truly 0), and the patches open before any repair."""

    log_gates: LogGates
    gates: Gates
    selected: Selected

    def shut(self) -> "GateOutput":
        """The same with every gate below SHUT at 0; open patches stay as they are."""
        is_shut = (self.gates < SHUT) & ~self.selected
        return GateOutput(
            self.log_gates.masked_fill(is_shut, -torch.inf),
            self.gates.masked_fill(is_shut, 0.0),
            self.selected,
        )


class Gate(nn.Module):
    """Base: `budget` is the share of patches meant to open, and no fewer than `floor`; `centre` says what nu_x is."""

    def __init__(self, *, budget: float = 0.05, centre: Centre = "slide", floor: int = 1) -> None:
        super().__init__()
        self.budget, self.floor = budget, floor
        self.centre: Centre = centre

    def forward(
        self,
        scores: Scores,
        *,
        temperature: float,
        count: int | None = None,
        generator: torch.Generator | None = None,
    ) -> GateOutput:
        """Gates at this temperature; only noisy gates in training draw from the generator.

        `count` patches are meant to open in place of the budget's; a gate without a centre per slide decides by itself.
        """
        if not temperature > 0:
            raise UsageError(f"The temperature of a gate is positive, got {temperature}.")
        if count is None:
            count = self.count_open(len(scores))
        return self.opened(scores, count, temperature, generator)

    def opened(
        self, scores: Scores, count: int, temperature: float, generator: torch.Generator | None
    ) -> GateOutput:
        raise NotImplementedError

    def count_open(self, n_patches: int) -> int:
        """How many patches the budget opens."""
        return budget_count(n_patches, budget=self.budget, floor=self.floor)

    def centred(self, scores: Scores, count: int) -> Scores:
        """s - nu_x."""
        return scores if self.centre == "zero" else scores - slide_centre(scores, count)


class ConsecutiveGate(Gate):
    """The annealed sigmoid."""

    def opened(
        self, scores: Scores, count: int, temperature: float, generator: torch.Generator | None
    ) -> GateOutput:
        return sigmoid_gates(self.centred(scores, count) / temperature)


class SigmoidThresholdGate(Gate):
    """The sigmoid at temperature 1, whatever the schedule says."""

    def opened(
        self, scores: Scores, count: int, temperature: float, generator: torch.Generator | None
    ) -> GateOutput:
        return sigmoid_gates(self.centred(scores, count))


class TopKGate(Gate):
    """Exactly k patches open, ties to the lower index; its centre is per slide by construction."""

    def opened(
        self, scores: Scores, count: int, temperature: float, generator: torch.Generator | None
    ) -> GateOutput:
        order = torch.argsort(scores.detach(), descending=True, stable=True)
        selected = torch.zeros_like(scores, dtype=torch.bool)
        selected[order[:count]] = True
        if not self.training:
            return hard_gates(selected, dtype=scores.dtype)
        soft = torch.sigmoid((scores - slide_centre(scores, count)) / temperature)
        return straight_through(soft, selected)


class ConcreteGate(Gate):
    """The binary Concrete relaxation: a sigmoid of a noisy score, annealed."""

    def opened(
        self, scores: Scores, count: int, temperature: float, generator: torch.Generator | None
    ) -> GateOutput:
        centred = self.centred(scores, count)
        if self.training:
            centred = centred + logistic_noise(centred, generator)
        return sigmoid_gates(centred / temperature)


class GumbelSigmoidGate(ConcreteGate):
    """The same noise at temperature 1, whatever the schedule says."""

    def opened(
        self, scores: Scores, count: int, temperature: float, generator: torch.Generator | None
    ) -> GateOutput:
        return super().opened(scores, count, 1.0, generator)


class SparsemaxGate(Gate):
    """p / max p with p = sparsemax(s / T); a shift of the scores cancels, so there is no centre."""

    def opened(
        self, scores: Scores, count: int, temperature: float, generator: torch.Generator | None
    ) -> GateOutput:
        return simplex_gates(sparsemax(scores / temperature, dim=0))


class Entmax15Gate(Gate):
    """p / max p with p = entmax-1.5(s / T)."""

    def opened(
        self, scores: Scores, count: int, temperature: float, generator: torch.Generator | None
    ) -> GateOutput:
        return simplex_gates(entmax15(scores / temperature, dim=0))


GATES: dict[str, type[Gate]] = {
    "sigmoid_threshold": SigmoidThresholdGate,
    "top_k": TopKGate,
    "gumbel_sigmoid": GumbelSigmoidGate,
    "concrete": ConcreteGate,
    "sparsemax": SparsemaxGate,
    "entmax15": Entmax15Gate,
    "consecutive": ConsecutiveGate,
}


def create_gate(kind: str, *, budget: float = 0.05, centre: Centre = "slide", floor: int = 1) -> Gate:
    """A gate by its name: a row of the paper's selector table."""
    if kind not in GATES:
        raise UsageError(f"There is no gate '{kind}'. Choose one of {', '.join(GATES)}.")
    return GATES[kind](budget=budget, centre=centre, floor=floor)


def budget_count(n_patches: int, *, budget: float, floor: int = 1) -> int:
    """k = max(floor, round(rho N)), and never more than there are."""
    return min(n_patches, max(floor, round(budget * n_patches)))


@torch.no_grad()
def slide_centre(scores: Scores, count: int) -> Float[Tensor, ""]:
    """nu_x midway between the k-th and (k+1)-th largest score, k the count; -inf, so that all open, when there is no (k+1)-th."""
    if len(scores) <= count:
        return scores.new_tensor(-torch.inf)
    last_in, first_out = scores.topk(count + 1).values[-2:]
    # Halved before the sum: two large scores must not overflow.
    return last_in / 2 + first_out / 2


def sigmoid_gates(margins: Scores) -> GateOutput:
    """sigma and log sigma of the margins, selected above one half."""
    return GateOutput(nn.functional.logsigmoid(margins), torch.sigmoid(margins), margins.detach() > 0)


def simplex_gates(probabilities: Scores) -> GateOutput:
    """p / max p with -inf where p is 0."""
    gates = probabilities / probabilities.max()
    selected = probabilities.detach() > 0
    log_gates = torch.where(selected, gates, 1.0).log().masked_fill(~selected, -torch.inf)
    return GateOutput(log_gates, gates, selected)


def hard_gates(selected: Selected, *, dtype: torch.dtype) -> GateOutput:
    """1 and 0, with logarithms 0 and -inf."""
    gates = selected.to(dtype)
    return GateOutput(gates.log(), gates, selected)


def straight_through(gates: Gates, selected: Selected) -> GateOutput:
    """Hard gates forward, the gradient of the soft ones backward, for open and closed patches alike.

    A true log-gate of -inf passes no gradient. A weight pi e^z / Z has d/d pi = e^z / Z at pi = 0 too; a log-gate of
    log(CLOSED_GATE) with slope 1 / CLOSED_GATE reproduces it, for a millionth of weight left on a closed patch.
    """
    passed = gates - gates.detach()
    slope = torch.where(selected, 1.0, 1.0 / CLOSED_GATE).to(gates.dtype)
    log_hard = torch.where(selected, 1.0, CLOSED_GATE).to(gates.dtype).log()
    return GateOutput(log_hard + slope * passed, selected.to(gates.dtype) + passed, selected)


def logistic_noise(like: Scores, generator: torch.Generator | None) -> Scores:
    """log u - log(1 - u): the difference of two Gumbel draws."""
    uniform = torch.rand(like.shape, generator=generator, device=like.device, dtype=like.dtype)
    # rand may return exactly 0, whose logit is -inf.
    return torch.logit(uniform, eps=torch.finfo(like.dtype).eps)
