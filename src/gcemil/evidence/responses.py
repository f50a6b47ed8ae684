"""Patch-anchor responses r_im in (0, 1) from the cosines of the bridge.

  paper       r = sigma(gamma (cos - delta)),   gamma = 8, delta = 0.15                                      (Eq. 2)
  calibrated  r = sigma(4 (cos - delta_m) / s_m), delta_m the 95 % quantile and s_m the sd over reference patches

With the paper's constants a patch at a right angle to every anchor already responds 0.23 to each.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import InputError, UsageError
from gcemil.shapes import Responses


class ResponseCurve(nn.Module):
    """Base: cosines in, responses out."""

    def forward(self, cosines: Responses) -> Responses:
        raise NotImplementedError

    def calibrate(self, cosines: Float[Tensor, "p m"]) -> None:
        """Take offsets and scales from the cosines of reference patches, where the curve has any."""
        raise NotImplementedError


class PaperResponse(ResponseCurve):
    """The same constants for every anchor; a reference changes nothing."""

    def __init__(self, *, sharpness: float = 8.0, response_offset: float = 0.15) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.response_offset = response_offset

    def forward(self, cosines: Responses) -> Responses:
        return torch.sigmoid(self.sharpness * (cosines - self.response_offset))

    def calibrate(self, cosines: Float[Tensor, "p m"]) -> None:
        """Nothing to do: the paper fixes both constants."""


class CalibratedResponse(ResponseCurve):
    """Offset and scale per anchor, so that an unrelated patch does not respond; calibrate again when the bridge moves."""

    offset: Tensor
    scale: Tensor
    calibrated: Tensor

    def __init__(self, n_anchors: int, *, sharpness: float = 4.0, quantile: float = 0.95) -> None:
        super().__init__()
        if not 0 < quantile < 1:
            raise UsageError(f"The reference quantile lies between 0 and 1, got {quantile}.")
        self.sharpness = sharpness
        self.quantile = quantile
        self.register_buffer("offset", torch.zeros(n_anchors))
        self.register_buffer("scale", torch.ones(n_anchors))
        self.register_buffer("calibrated", torch.tensor(False))

    def forward(self, cosines: Responses) -> Responses:
        if not bool(self.calibrated):
            raise UsageError(
                "These responses have no reference yet. Call calibrate() with reference cosines first."
            )
        return torch.sigmoid(self.sharpness * (cosines - self.offset) / self.scale)

    @torch.no_grad()
    def calibrate(self, cosines: Float[Tensor, "p m"]) -> None:
        reference = cosines.detach().double().cpu().numpy()
        scale = reference.std(axis=0) if len(reference) else np.zeros(reference.shape[1])
        # Written so that NaN fails too; float32 cosines cannot resolve a smaller spread.
        if not (scale > 1e-7).all():
            worst = int(np.flatnonzero(~(scale > 1e-7))[0])
            raise InputError(
                f"The {len(reference)} reference patches have no spread of cosines for anchor {worst}. "
                f"Use at least two different patches."
            )
        # numpy, because torch.quantile refuses more than 16 million values.
        self.offset.copy_(torch.from_numpy(np.quantile(reference, self.quantile, axis=0)))
        self.scale.copy_(torch.from_numpy(scale))
        self.calibrated.fill_(True)


def create_response(kind: str, n_anchors: int) -> ResponseCurve:
    """The paper's curve or the calibrated one, by name."""
    if kind == "paper":
        return PaperResponse()
    if kind == "calibrated":
        return CalibratedResponse(n_anchors)
    raise UsageError(f"There is no response curve '{kind}'. Choose paper or calibrated.")
