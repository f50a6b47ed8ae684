"""A slide encoder as a host: any callable from all patches to one vector, and a linear head on it.

  s = encoder(h_1 ... h_N, coords),  logits = head(s)
TITAN, PRISM, GigaPath's slide encoder or a transformer of one's own: a black box over the whole
bag. As in adapters.py, a soft gate multiplies the features and a gate of 0 removes the row.

Evidence by blocks. Removing one patch of ten thousand shows nothing and costs a pass. So the
patches are split into at most `n_blocks` blocks of equal size, by halving along the longer side of
the slide (along the rows where there are no coordinates), and a patch's score is what the predicted
output loses without its block:

  score_i = f_c(X) - f_c(X without the block of i)
The scores of a bag take `n_passes` = n_blocks + 1 passes of the encoder. Only a whole bag without
gates gets them; under gates, of a subset and in training, scores are 0 and there is one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.adapters import CallableHost, ScoreSource
from gcemil.hosts.host import Embedded, GateMode, HostOutput
from gcemil.shapes import Coords, Features, LogGates, Logits, Scores


@dataclass(frozen=True)
class WholeBag(Embedded):
    bag_size: Int[Tensor, "n"]
    """How many patches the bag had; a subset of its rows has fewer."""


class SlideEncoderHost(CallableHost):
    """A slide encoder with a linear head.

    Args:
        encoder: `encoder(features)`, or `encoder(features, coords)`, to the slide vector. A module
            moves to the device with the host and is saved with it.
        in_dim: Width of the patch features.
        n_outputs: Number of classes; 1 for a risk or a value.
        gate_mode: What a gate does to its patch (hosts/host.py).
        width: Width of the slide vector.
        takes_coords: Whether the encoder takes level-0 coordinates.
        n_blocks: Blocks whose removal scores their patches.
        frozen: Whether the head alone learns.

    Raises:
        UsageError: A number is below 1.

    Example:
        >>> import gcemil, torch
        >>> encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> mean = lambda bag: encoder(bag[None]).mean(dim=1)
        >>> host = gcemil.SlideEncoderHost(mean, 8, 2, width=8, n_blocks=4).train(False)
        >>> features = torch.randn(20, 8)
        >>> output = host(features)
        >>> output.logits.shape, host.encode(features, None).shape
        (torch.Size([2]), torch.Size([8]))
        >>> torch.equal(output.scores, host.block_losses(features, None, output.logits))
        True
        >>> host.embed_bag(features).bag_size[0]
        tensor(20)
    """

    def __init__(
        self,
        encoder: Callable[..., Any],
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "deletion",
        *,
        width: int,
        takes_coords: bool = False,
        n_blocks: int = 64,
        frozen: bool = True,
    ) -> None:
        if width < 1 or n_blocks < 1:
            raise UsageError(
                f"A slide encoder needs width and n_blocks >= 1, got {width} and {n_blocks}."
            )
        source: ScoreSource = "slope" if isinstance(encoder, nn.Module) else "keep-one"
        super().__init__(
            encoder, in_dim, n_outputs, gate_mode, takes_coords=takes_coords, scores=source
        )
        self.width, self.n_blocks, self.frozen = width, n_blocks, frozen
        self.head = nn.Linear(width, n_outputs)
        if isinstance(encoder, nn.Module) and frozen:
            encoder.requires_grad_(False).eval()

    @property
    def n_passes(self) -> int:
        """Passes of the encoder that the scores of one bag take."""
        return self.n_blocks + 1

    def train(self, mode: bool = True) -> SlideEncoderHost:
        """Set training mode; a frozen encoder stays in evaluation mode.

        Args:
            mode: Training (True) or evaluation (False).

        Returns:
            The host itself.
        """
        super().train(mode)
        if self.frozen and isinstance(self.model, nn.Module):
            self.model.eval()
        return self

    def embed(self, features: Features) -> WholeBag:
        return WholeBag(features, torch.full_like(features[:, 0], len(features), dtype=torch.int64))

    def embed_bag(self, features: Features) -> WholeBag:
        """Embed the whole bag at once; an encoder of whole slides cannot take it in blocks.

        Args:
            features: Patch features, (patches, in_dim).

        Returns:
            The features with the size of the bag.
        """
        return self.embed(features.float())

    def embed_scaled(self, features: Features, factors: Tensor, plain: Embedded | None) -> WholeBag:
        return self.embed(features.float() * factors.unsqueeze(1))

    def pool(
        self,
        embedded: Embedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        features = embedded.tokens
        if log_gates is not None:
            features = features * log_gates.exp().unsqueeze(1)
        slide = self.encode(features, coords)
        logits = self.head(slide)
        is_whole = isinstance(embedded, WholeBag) and int(embedded.bag_size[0]) == len(features)
        scores = features.new_zeros(len(features))
        if is_whole and log_gates is None and not self.training:
            scores = self.block_losses(features, coords, logits)
        return HostOutput(logits=logits, bag_feature=slide, scores=scores)

    def encode(self, features: Features, coords: Coords | None) -> Float[Tensor, "w"]:
        """Encode a bag; gradients are computed only if the encoder is trained.

        Args:
            features: Patch features, (patches, in_dim).
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.

        Returns:
            The slide vector, (width,).

        Raises:
            UsageError: The encoder returns a vector of another width.
        """
        learns = torch.is_grad_enabled() and (features.requires_grad or not self.frozen)
        with torch.set_grad_enabled(learns):
            answer = self.model(features, coords) if self.takes_coords else self.model(features)
        vector = torch.as_tensor(answer[0] if isinstance(answer, tuple) else answer)
        slide = vector.to(features).flatten()
        if len(slide) != self.width:
            raise UsageError(
                f"The slide encoder gave {len(slide)} numbers for one bag; "
                f"this host has width={self.width}."
            )
        return slide

    @torch.no_grad()
    def block_losses(self, features: Features, coords: Coords | None, logits: Logits) -> Scores:
        """Score patches by what the predicted output loses without their block.

        Args:
            features: Patch features, (patches, in_dim).
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
            logits: The prediction on all patches, (n_outputs,).

        Returns:
            One score per patch, (patches,); 0 for a bag of one patch.
        """
        index = int(logits.argmax())
        blocks = halved_blocks(coords, len(features), self.n_blocks).to(features.device)
        scores = features.new_zeros(len(features))
        for block in range(int(blocks.max()) + 1):
            rest = blocks != block
            if bool(rest.any()):
                slide = self.encode(features[rest], None if coords is None else coords[rest])
                scores[~rest] = logits[index].detach() - self.head(slide)[index]
        return scores


def halved_blocks(coords: Coords | None, n_patches: int, n_blocks: int) -> Int[Tensor, "n"]:
    """The block of each patch; the largest is halved along its longer side, again and again."""
    places = torch.arange(n_patches).unsqueeze(1) if coords is None else coords.cpu()
    blocks = [torch.arange(n_patches)]
    while len(blocks) < min(n_blocks, n_patches):
        largest = blocks.pop(max(range(len(blocks)), key=lambda one: len(blocks[one])))
        extent = places[largest].amax(dim=0) - places[largest].amin(dim=0)
        order = largest[places[largest, int(extent.argmax())].argsort(stable=True)]
        blocks += [order[: len(order) // 2], order[len(order) // 2 :]]
    numbers = torch.empty(n_patches, dtype=torch.int64)
    for number, block in enumerate(blocks):
        numbers[block] = number
    return numbers
