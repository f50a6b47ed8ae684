"""Gates pi from scores s: the rows of the paper's selector table.

  sigmoid_threshold  sigma(s - nu), temperature 1, never annealed
  top_k              the k largest scores open; gradient of sigma((s - nu) / T)
  gumbel_sigmoid     sigma(s - nu + logistic noise), temperature 1; no noise outside training
  concrete           sigma((s - nu + logistic noise) / T), annealed; no noise outside training
  sparsemax          p / max p, p = sparsemax(s / T); selected where p > 0
  entmax15           p / max p, p = entmax-1.5(s / T); selected where p > 0
  consecutive        sigma((s - nu) / T), annealed (Eq. 3): the selector of the paper

nu_x is 0 (the paper) or per slide: midway between the k-th and (k+1)-th largest score, k =
max(floor, round(rho N)), all open when N <= k. Log-gates come from logsigmoid: where a gate
underflows to 0, its logarithm is still right.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from entmax import entmax15, sparsemax
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.config import GateKind
from gcemil.shapes import Gates, LogGates, Scores, Selected

Centre = Literal["zero", "slide"]

CLOSED_GATE = 1e-6
"""What a closed patch weighs in a straight-through pass: a gradient needs some pi to act on."""
SHUT = 1e-3
"""Gates below this are 0 at inference: many tiny gates would influence transformers."""


@dataclass(frozen=True)
class GateOutput:
    """Gates of one bag, their logarithms (-inf where a gate is truly 0), and the open patches."""

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


GATES = get_args(GateKind)


class Gate(nn.Module):
    """Gates by one of the rules above.

    Args:
        kind: One of GATES.
        budget: Share of the patches meant to open.
        centre: What nu_x is: 0, or per slide.
        floor: Fewest patches meant to open.
    """

    def __init__(
        self, kind: GateKind, *, budget: float = 0.05, centre: Centre = "slide", floor: int = 1
    ) -> None:
        super().__init__()
        self.kind: GateKind = kind
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

        `count` patches are meant to open in place of the budget's.
        """
        if count is None:
            count = budget_count(len(scores), budget=self.budget, floor=self.floor)
        # A shift of the scores cancels in sparsemax and entmax, so they have no centre.
        if self.kind == "sparsemax":
            return simplex_gates(sparsemax(scores / temperature, dim=0))
        if self.kind == "entmax15":
            return simplex_gates(entmax15(scores / temperature, dim=0))
        if self.kind == "top_k":
            return self._open_top_k(scores, count, temperature)
        margins = scores if self.centre == "zero" else scores - slide_centre(scores, count)
        if self.kind in ("gumbel_sigmoid", "concrete") and self.training:
            margins = margins + logistic_noise(margins, generator)
        if self.kind in ("consecutive", "concrete"):
            margins = margins / temperature
        return GateOutput(
            nn.functional.logsigmoid(margins), torch.sigmoid(margins), margins.detach() > 0
        )

    def _open_top_k(self, scores: Scores, count: int, temperature: float) -> GateOutput:
        """Exactly k patches, ties to the lower index; the centre is per slide by construction."""
        order = torch.argsort(scores.detach(), descending=True, stable=True)
        selected = torch.zeros_like(scores, dtype=torch.bool)
        selected[order[:count]] = True
        if not self.training:
            gates = selected.to(scores.dtype)
            return GateOutput(gates.log(), gates, selected)
        soft = torch.sigmoid((scores - slide_centre(scores, count)) / temperature)
        return straight_through(soft, selected)


def budget_count(n_patches: int, *, budget: float, floor: int = 1) -> int:
    """k = max(floor, round(rho N)), and never more than there are."""
    return min(n_patches, max(floor, round(budget * n_patches)))


@torch.no_grad()
def slide_centre(scores: Scores, count: int) -> Float[Tensor, ""]:
    """nu_x midway between the k-th and (k+1)-th largest score; -inf for N <= k."""
    if len(scores) <= count:
        return scores.new_tensor(-torch.inf)
    last_in, first_out = scores.topk(count + 1).values[-2:]
    # Halved before the sum: two large scores must not overflow.
    return last_in / 2 + first_out / 2


def simplex_gates(probabilities: Scores) -> GateOutput:
    """p / max p with -inf where p is 0."""
    gates = probabilities / probabilities.max()
    selected = probabilities.detach() > 0
    log_gates = torch.where(selected, gates, 1.0).log().masked_fill(~selected, -torch.inf)
    return GateOutput(log_gates, gates, selected)


def straight_through(gates: Gates, selected: Selected) -> GateOutput:
    """Hard gates forward, the gradient of the soft ones backward.

    A true log-gate of -inf passes no gradient. A weight pi e^z / Z has d/d pi = e^z / Z at pi = 0
    too; a log-gate of log(CLOSED_GATE) with slope 1 / CLOSED_GATE reproduces it.
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
