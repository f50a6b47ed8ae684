"""What every attribution explains: the logit of the class predicted on the whole bag, or the risk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.errors import UsageError
from gcemil.hosts.host import Host, HostOutput, check_bag, check_finite, embedded_bag


@dataclass(frozen=True, eq=False)
class PredictedBag:
    """A bag embedded and pooled once by a host in evaluation mode: the pass that every attribution starts from."""

    host: Host
    features: Tensor
    """As stored: those of a large bag in half precision where the file has them so."""
    coords: Tensor | None
    embedded: Any
    """An `Embedded` of the host's own kind."""
    full: HostOutput

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def index(self) -> int:
        """The output that is explained."""
        return int(self.full.logits.argmax())

    @property
    def logit(self) -> Float[Tensor, ""]:
        return self.full.logits[self.index]


@torch.no_grad()
def predict_bag(host: Host, features: Tensor, coords: Tensor | None) -> PredictedBag:
    """One pass of a host in evaluation mode over the whole bag."""
    # The user's door: shapes are checked here with a message, not by annotation.
    check_bag(features, coords, in_dim=host.in_dim)
    if getattr(host, "training", False):
        raise UsageError("A host is explained in evaluation mode. Call host.eval() first.")
    embedded = embedded_bag(host, features)
    full = host.aggregate(embedded, coords)
    check_finite(full, features)
    return PredictedBag(host, features, coords, embedded, full)
