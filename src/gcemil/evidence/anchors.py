"""The anchor bank, M frozen concept embeddings a_m with their prompts; and how patches respond.

Control banks keep the size and, where stated, the geometry, but not the meaning.
Permuting the rows would not do that: the class-anchor weights are learned, so they follow any
permutation.

Responses r_im in (0, 1), from the cosines of the bridge:

  paper       r = sigma(gamma (cos - delta)),   gamma = 8, delta = 0.15                  (Eq. 2)
  calibrated  r = sigma(4 (cos - delta_m) / s_m), delta_m the 95 % quantile and s_m the standard
              deviation over reference patches

With the paper's constants a patch at a right angle to every anchor already responds 0.23 to each.

An anchor made of patches, which somebody named or which respond to a prompt, is the direction that
sets their mean apart:

  mu, Sigma   mean and covariance of the reference patches of the training fold
  B(h)        = h - mu
  a_m         = (Sigma + lambda I)^-1 (mean of the patches of concept m - mu)
  lambda      = 3 tr(Sigma) / d

Features of one encoder share a large mean, and most of their spread is common to all tissue;
cosines of raw features see little else. The bridge is fixed: anchors live in feature space.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from gcemil.errors import InputError, UsageError
from gcemil.families import load_family
from gcemil.shapes import AnchorEmbeddings, Features, Responses

if TYPE_CHECKING:
    from gcemil.features.loaders import WeightSource

PAPER_SHARPNESS, PAPER_OFFSET = 8.0, 0.15
SHARPNESS, REFERENCE_QUANTILE = 4.0, 0.95
BankKind = Literal["text", "prototypes", "examples", "prompt_patches"]
"""text: embedded prompts; prototypes: centres of tissue without a meaning; examples: named patches;
prompt_patches: prompts represented by the training patches closest to them. All but text live in
feature space."""
TextEncoder = Callable[[Sequence[str]], npt.NDArray[np.floating[Any]]]


@dataclass(frozen=True, eq=False)
class AnchorBank:
    """Concept embeddings that training never changes.

    `gcemil.anchors` is another name of this class.

    Args:
        embeddings: One row per anchor, (anchors, width); copied as float32.
        prompts: Name of each anchor.
        provenance: Where the anchors come from, for readers.
        kind: "text", "prototypes", "examples" or "prompt_patches"; all but text live in feature
            space.

    Raises:
        InputError: The prompts do not match the embeddings, or an embedding is zero or not finite.

    Example:
        >>> import gcemil, torch
        >>> bank = gcemil.AnchorBank(torch.eye(3), ("tumour", "stroma", "fat"), "unit vectors")
        >>> bank.n_anchors, bank.anchor_dim
        (3, 3)
    """

    embeddings: AnchorEmbeddings
    prompts: tuple[str, ...]
    provenance: str
    """Where the anchors come from, for readers; nothing depends on its wording."""
    kind: BankKind = "text"

    def __post_init__(self) -> None:
        # A private float32 copy, so that nobody who shares the tensor can move the anchors.
        object.__setattr__(
            self, "embeddings", self.embeddings.detach().to(torch.float32, copy=True)
        )
        if len(self.prompts) != len(self.embeddings) or not self.prompts:
            raise InputError(
                f"An anchor bank ({self.provenance}) needs one prompt per embedding and at least "
                f"one, got {len(self.prompts)} prompts for {len(self.embeddings)} embeddings."
            )
        norms = self.embeddings.norm(dim=1)
        usable = torch.isfinite(norms) & (norms > 0)
        if not bool(usable.all()):
            worst = int((~usable).nonzero()[0])
            raise InputError(
                f"Anchor {worst} ('{self.prompts[worst]}', {self.provenance}) is zero or not "
                "finite. Embed it again."
            )

    @property
    def n_anchors(self) -> int:
        """Number of anchors."""
        return len(self.prompts)

    @property
    def anchor_dim(self) -> int:
        """Width of the embeddings."""
        return int(self.embeddings.shape[1])

    @property
    def hash(self) -> str:
        """SHA-256 of prompts and embeddings: equal for equal banks, wherever they were read."""
        digest = hashlib.sha256(repr((tuple(self.embeddings.shape), self.prompts)).encode())
        digest.update(self.embeddings.cpu().numpy().astype("<f4").tobytes())
        return digest.hexdigest()

    @classmethod
    def from_file(cls, path: Path | str) -> "AnchorBank":
        """Read the bank of an anchors.h5 file.

        Args:
            path: The file.

        Returns:
            A bank of text anchors.

        Raises:
            StoreError: The file cannot be read or is not a bank.

        Example:
            >>> import gcemil, numpy, pathlib, tempfile
            >>> from gcemil.bags.store import write_anchors
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "anchors.h5"
            >>> write_anchors(path, numpy.eye(2, dtype="float32"), ["tumour", "stroma"])
            >>> gcemil.anchors.from_file(path).prompts
            ('tumour', 'stroma')
        """
        # Imported here so that the mathematics stays usable without the file layer.
        from gcemil.bags.store import read_anchors

        embeddings, prompts = read_anchors(Path(path))
        return cls(torch.as_tensor(embeddings), tuple(prompts), f"file {Path(path).name}")

    @classmethod
    def from_family(
        cls, family: str, encoder: TextEncoder | str, *, source: "WeightSource | None" = None
    ) -> "AnchorBank":
        """Embed the prompts of a disease family.

        Args:
            family: Name of a family, as `gcemil anchors list` prints them.
            encoder: A function from texts to an array (texts, width), or the name of a text
                encoder.
            source: Where the weights of a named encoder are; None takes its default.

        Returns:
            A bank of text anchors.

        Raises:
            UsageError: The family or the encoder is unknown.
            InputError: The encoder does not return one row per text.

        Example:
            >>> import gcemil, numpy
            >>> gcemil.anchors.from_family("generic", lambda texts: numpy.eye(len(texts))).kind
            'text'
        """
        prompts = load_family(family)
        if isinstance(encoder, str):
            # As 'gcemil anchors embed'. Imported here so that the mathematics needs no encoder.
            from gcemil.features.text_encoders import embed_prompts, load_text_encoder

            name = encoder
            embeddings = embed_prompts(prompts, load_text_encoder(name, source=source)).embeddings
        else:
            name = getattr(encoder, "__name__", type(encoder).__name__)
            embeddings = np.asarray(encoder(prompts.wordings), dtype=np.float32)
        if embeddings.ndim != 2:
            raise InputError(
                f"A text encoder returns (prompts, width), got shape {embeddings.shape}."
            )
        provenance = f"family {family}, text encoder {name}"
        return cls(torch.from_numpy(embeddings), prompts.wordings, provenance)

    @classmethod
    def prototypes(cls, features: Features, n_anchors: int = 8, seed: int = 0) -> "AnchorBank":
        """Take k-means centres of training patches, which live in feature space (identity bridge).

        Args:
            features: Patches of training slides, (patches, width).
            n_anchors: Number of centres.
            seed: Of the clustering.

        Returns:
            A bank with the largest cluster first.

        Raises:
            InputError: There are too few patches, or they are too alike.

        Example:
            >>> import gcemil, torch
            >>> gcemil.anchors.prototypes(torch.randn(60, 8), 3).prompts
            ('prototype 1', 'prototype 2', 'prototype 3')
        """
        rows = features.detach().cpu().numpy().astype(np.float32)
        if n_anchors < 1 or len(rows) < n_anchors:
            raise InputError(
                f"{n_anchors} prototypes need at least one prototype and as many patches, "
                f"got {len(rows)}."
            )
        with warnings.catch_warnings():
            # Too few distinct patches is reported below as an error instead.
            warnings.simplefilter("ignore", ConvergenceWarning)
            clusters = KMeans(n_clusters=n_anchors, n_init=4, random_state=seed).fit(rows)
        sizes = np.bincount(clusters.labels_, minlength=n_anchors)
        if (sizes == 0).any():
            raise InputError(
                f"The {len(rows)} patches are too alike for {n_anchors} prototypes. Take fewer."
            )
        largest_first = np.argsort(-sizes, kind="stable")
        centres = np.asarray(clusters.cluster_centers_[largest_first], dtype=np.float32)
        names = tuple(f"prototype {number}" for number in range(1, n_anchors + 1))
        provenance = f"prototypes of {len(features)} patches, seed {seed}"
        return cls(torch.from_numpy(centres), names, provenance, "prototypes")

    @classmethod
    def from_examples(
        cls,
        examples: Mapping[str, Float[Tensor, "_ d"]],
        patches: Float[Tensor, "p d"],
        *,
        source: str = "given patches",
    ) -> "AnchorBank":
        """Make one anchor per concept, the direction that sets its examples apart.

        Args:
            examples: Name of a concept to its example patches, (examples, width).
            patches: Patches of training slides, (patches, width).
            source: Where the examples come from, for readers.

        Returns:
            A bank in feature space.

        Raises:
            InputError: An anchor is zero or not finite.

        Example:
            >>> import gcemil, torch
            >>> examples = {"tumour": torch.randn(4, 8) + 3, "stroma": torch.randn(4, 8) - 3}
            >>> gcemil.anchors.from_examples(examples, torch.randn(60, 8)).prompts
            ('tumour', 'stroma')
        """
        means = torch.stack([rows.float().mean(dim=0) for rows in examples.values()])
        counts = sorted({len(rows) for rows in examples.values()})
        per_concept = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        provenance = f"examples: {per_concept} patches per concept, {source}"
        directions = directions_of_means(means, patches)
        return cls(directions, tuple(examples), provenance, "examples")

    @classmethod
    def random_like(cls, bank: "AnchorBank", generator: torch.Generator) -> "AnchorBank":
        """Make a control bank of random directions with the norms of another bank.

        Args:
            bank: The bank to imitate.
            generator: Source of the random numbers.

        Returns:
            A bank of the same size.

        Example:
            >>> import gcemil, torch
            >>> bank = gcemil.anchors.prototypes(torch.randn(60, 8), 3)
            >>> gcemil.anchors.random_like(bank, torch.Generator().manual_seed(0)).prompts
            ('random 1', 'random 2', 'random 3')
        """
        directions = torch.randn(bank.embeddings.shape, generator=generator)
        directions *= (bank.embeddings.norm(dim=1) / directions.norm(dim=1)).unsqueeze(1)
        names = tuple(f"random {number}" for number in range(1, bank.n_anchors + 1))
        return cls(directions, names, f"random directions in place of {bank.provenance}")

    @classmethod
    def shuffled(cls, bank: "AnchorBank", generator: torch.Generator) -> "AnchorBank":
        """Make a control bank by one permutation of the coordinates of all anchors.

        Args:
            bank: The bank to permute.
            generator: Source of the random numbers.

        Returns:
            A bank with the same norms and mutual angles.

        Example:
            >>> import gcemil, torch
            >>> bank = gcemil.anchors.prototypes(torch.randn(60, 8), 3)
            >>> gcemil.anchors.shuffled(bank, torch.Generator().manual_seed(0)).prompts[0]
            'shuffled prototype 1'
        """
        order = torch.randperm(bank.anchor_dim, generator=generator)
        names = tuple(f"shuffled {prompt}" for prompt in bank.prompts)
        return cls(bank.embeddings[:, order], names, f"shuffled coordinates of {bank.provenance}")


class PaperResponse(nn.Module):
    """The same constants for every anchor."""

    def forward(self, cosines: Responses) -> Responses:
        return torch.sigmoid(PAPER_SHARPNESS * (cosines - PAPER_OFFSET))

    def calibrate(self, cosines: Float[Tensor, "p m"]) -> None:
        """A reference changes nothing."""


class CalibratedResponse(nn.Module):
    """Offset and scale per anchor, so that an unrelated patch does not respond."""

    offset: Tensor
    scale: Tensor
    calibrated: Tensor

    def __init__(self, n_anchors: int) -> None:
        super().__init__()
        self.register_buffer("offset", torch.zeros(n_anchors))
        self.register_buffer("scale", torch.ones(n_anchors))
        self.register_buffer("calibrated", torch.tensor(False))

    def forward(self, cosines: Responses) -> Responses:
        if not bool(self.calibrated):
            raise UsageError(
                "These responses have no reference yet. Call calibrate() with reference cosines."
            )
        return torch.sigmoid(SHARPNESS * (cosines - self.offset) / self.scale)

    @torch.no_grad()
    def calibrate(self, cosines: Float[Tensor, "p m"]) -> None:
        """Take offsets and scales from the cosines of reference patches."""
        reference = cosines.detach().double().cpu().numpy()
        scale = reference.std(axis=0) if len(reference) else np.zeros(reference.shape[1])
        # Written so that NaN fails too; float32 cosines cannot resolve a smaller spread.
        if not (scale > 1e-7).all():
            worst = int(np.flatnonzero(~(scale > 1e-7))[0])
            raise InputError(
                f"The {len(reference)} reference patches have no spread of cosines for anchor "
                f"{worst}. Use at least two different patches."
            )
        # numpy, because torch.quantile refuses more than 16 million values.
        self.offset.copy_(torch.from_numpy(np.quantile(reference, REFERENCE_QUANTILE, axis=0)))
        self.scale.copy_(torch.from_numpy(scale))
        self.calibrated.fill_(True)


RIDGE = 3.0
"""Ridge as a share of the mean variance; with less, one example per concept is mostly noise."""


def directions_of_means(
    means: Float[Tensor, "m d"], reference: Float[Tensor, "p d"], *, ridge: float = RIDGE
) -> Float[Tensor, "m d"]:
    """(Sigma + lambda I)^-1 (mean - mu) over reference patches."""
    wide = reference.double()
    centred = wide - wide.mean(dim=0)
    covariance = centred.T @ centred / len(wide)
    scale = covariance.diagonal().mean()
    if not bool(scale > 0):
        raise InputError(
            f"The {len(reference)} reference patches are all alike, so they separate nothing."
        )
    covariance.diagonal().add_(ridge * scale)
    offsets = means.double() - wide.mean(dim=0)
    return torch.linalg.solve(covariance, offsets.T).T.to(means.dtype)
