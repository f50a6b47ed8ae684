"""Interventions on a bag, defined once: X, X_pi, X_S and X_notS.

  X       the host, ungated, all rows
  X_pi    the same host under the gates
  X_S     the same host on the kept rows alone; the others are really gone, gates are never recomputed
  X_notS  the same host without the selected rows, which are really gone

Every subset rule, ours or a rival's, is judged by these. The bag is embedded once; a subset only pools again.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.errors import BagError, UsageError
from gcemil.hosts.host import Embedded, Host, HostOutput, check_bag, embedded_bag
from gcemil.shapes import LogGates, Logits


class Interventions:
    """One bag, embedded once, asked many questions; no gradient."""

    def __init__(
        self, host: Host, features: Tensor, coords: Tensor | None = None, *, embedded: Embedded | None = None
    ) -> None:
        check_bag(features, coords, in_dim=host.in_dim)
        self._host = host
        self._features = features
        self._coords = coords
        with torch.no_grad():
            self._embedded = embedded_bag(host, features) if embedded is None else embedded

    @torch.no_grad()
    def full(self) -> HostOutput:
        """X."""
        return self._host.aggregate(self._embedded, self._coords)

    @torch.no_grad()
    def gated(self, log_gates: LogGates) -> HostOutput:
        """X_pi."""
        return self._host.gated(self._features, self._embedded, self._coords, log_gates)

    @torch.no_grad()
    def kept(self, selected: Tensor) -> HostOutput:
        """X_S: only the selected patches exist."""
        check_selected(selected, n_patches=len(self._features))
        if not bool(selected.any()):
            raise BagError(
                "A subset without a patch has no prediction. Keep at least the patch of highest score."
            )
        if bool(selected.all()):
            return self.full()
        coords = None if self._coords is None else self._coords[selected]
        return self._host.aggregate(self._embedded.rows(selected), coords)

    def removed(self, selected: Tensor) -> HostOutput | None:
        """X_notS: the selected patches do not exist. None when nothing is left."""
        check_selected(selected, n_patches=len(self._features))
        return None if bool(selected.all()) else self.kept(~selected)


def class_probability(logits: Logits, class_index: int) -> float:
    """Phi of classification: the probability of the class predicted on X."""
    return float(torch.softmax(logits.double(), dim=0)[class_index])


def standardised_risk(logits: Float[Tensor, "1"], *, mean: float, deviation: float) -> float:
    """Phi of survival: the risk in units of the training fold's risks."""
    if not deviation > 0:
        raise UsageError(
            f"The training risks have standard deviation {deviation}: a model that says the same of everyone has no unit of risk."
        )
    return (float(logits[0]) - mean) / deviation


def check_selected(selected: Tensor, *, n_patches: int) -> None:
    # The user's door: shapes are checked here with a message, not by annotation.
    if selected.dtype != torch.bool or selected.shape != (n_patches,):
        raise BagError(
            f"A selection is a bool mask over the bag's {n_patches} patches, got {selected.dtype} {tuple(selected.shape)}."
        )
