"""The bridge B from features h into the anchor space, and cos(B(h_i), a_m) of Eq. 2.

  free        B(h) = L R h + b, unconstrained; a random start unless it is fitted
  proximal    the same map, fitted on pairs and held near the fit by |B - B0|^2 / |W0|^2
  frozen      the fit itself
  identity    B(h) = h, for anchors that live in feature space (prototypes)
  centred     B(h) = h - mu, for anchors made of patches (anchors.py)

A fit is made on pairs: the same patches seen by the patch encoder and by the text-aligned one.

  ridge         min |Y - X W^T - b|^2 + lambda P s |W|^2, s the mean variance of a feature
  reduced rank  W_q = P P^T W, P the q leading principal directions of the fitted values

No bridge forms B(h) for a cosine. The M inner products need M vectors in feature space. The norm
needs |h| (identity, centred), or R h and the q x q Gram matrix of L (affine kinds).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import InputError, UsageError
from gcemil.row_blocks import LinearRead, SquaredNorms, apply_reads
from gcemil.shapes import AnchorEmbeddings, Features, Responses, Scores

DEFAULT_BRIDGE_RANK = 128


class Bridge(nn.Module):
    """Base of the bridges: a subclass gives B(h), and its cosines in folded form."""

    needs_fit = False
    fitted: Tensor

    def __init__(self, in_dim: int, anchor_dim: int, *, rank: int = DEFAULT_BRIDGE_RANK) -> None:
        super().__init__()
        self.in_dim, self.anchor_dim = in_dim, anchor_dim
        self.register_buffer("fitted", torch.tensor(not self.needs_fit))

    def forward(self, features: Features) -> Float[Tensor, "n a"]:
        """B(h) itself; the cosines do not need it."""
        raise NotImplementedError

    def folded_cosines(self, directions: AnchorEmbeddings) -> LinearRead:
        """cos(B(h_i), u_m) for unit vectors u_m, without forming B(h_i)."""
        raise NotImplementedError

    def fit(
        self,
        features: Float[Tensor, "p d"],
        anchor_space: Float[Tensor, "p a"],
        *,
        ridge: float = 0.01,
    ) -> None:
        """Set the bridge to its closed-form fit on pairs."""
        raise UsageError(f"A {type(self).__name__} cannot be fitted. Use proximal or frozen.")

    def penalty(self) -> Float[Tensor, ""]:
        """What holds the bridge near its fit; zero where nothing does."""
        return torch.zeros((), device=self.fitted.device)

    def cosines(self, features: Features, anchors: AnchorEmbeddings) -> Responses:
        """cos(B(h_i), a_m); 0 for a patch that B maps to the origin."""
        return apply_reads(features, [self.read(anchors)])[0]

    def read(self, anchors: AnchorEmbeddings) -> LinearRead:
        """The cosines as a read, to be computed together with others of the same bag."""
        if not bool(self.fitted):
            raise UsageError(
                f"This {type(self).__name__} was never fitted. Call fit() with pairs first."
            )
        return self.folded_cosines(nn.functional.normalize(anchors, dim=1))


class IdentityBridge(Bridge):
    """Anchors and patches already share a space."""

    def __init__(self, in_dim: int, anchor_dim: int, *, rank: int = DEFAULT_BRIDGE_RANK) -> None:
        super().__init__(in_dim, anchor_dim, rank=rank)
        if in_dim != anchor_dim:
            raise UsageError(
                f"An identity bridge needs anchors as wide as the features, got {anchor_dim} and "
                f"{in_dim}. Use prototypes, or a bridge fitted on pairs."
            )

    def forward(self, features: Features) -> Float[Tensor, "n a"]:
        return features

    def folded_cosines(self, directions: AnchorEmbeddings) -> LinearRead:
        def finish(inner: Responses, squared_norms: SquaredNorms) -> Responses:
            return _quotient(inner, squared_norms())

        return LinearRead(directions, directions.new_zeros(len(directions)), finish)


class CentredBridge(IdentityBridge):
    """Anchors made of patches: features share a large mean, which must not dominate cosines."""

    needs_fit = True
    centre: Tensor

    def __init__(self, in_dim: int, anchor_dim: int, *, rank: int = DEFAULT_BRIDGE_RANK) -> None:
        super().__init__(in_dim, anchor_dim, rank=rank)
        self.register_buffer("centre", torch.zeros(in_dim))

    def set_centre(self, centre: Float[Tensor, "d"]) -> None:
        """Take the mean of reference patches."""
        self.centre.copy_(centre)
        self.fitted.fill_(True)

    def forward(self, features: Features) -> Float[Tensor, "n a"]:
        return features - self.centre

    def folded_cosines(self, directions: AnchorEmbeddings) -> LinearRead:
        rows = torch.cat([directions, self.centre.unsqueeze(0)])
        m, squared_centre = len(directions), self.centre @ self.centre

        def finish(products: Float[Tensor, "n r"], squared_norms: SquaredNorms) -> Responses:
            # |h - mu|^2 = |h|^2 - 2 (h - mu) mu - |mu|^2; the offsets have taken mu off the
            # products.
            squared = squared_norms() - 2 * products[:, m] - squared_centre
            return _quotient(products[:, :m], squared)

        return LinearRead(rows, -(rows @ self.centre), finish)


class FreeBridge(Bridge):
    """L R h + b, all learned; the rank keeps the exact norm cheap."""

    learned = True
    left: Tensor
    right: Tensor
    bias: Tensor

    def __init__(self, in_dim: int, anchor_dim: int, *, rank: int = DEFAULT_BRIDGE_RANK) -> None:
        super().__init__(in_dim, anchor_dim, rank=rank)
        self.rank = min(rank, in_dim, anchor_dim)
        self._own("left", nn.init.orthogonal_(torch.empty(anchor_dim, self.rank)))
        self._own("right", torch.randn(self.rank, in_dim) * in_dim**-0.5)
        self._own("bias", torch.zeros(anchor_dim))

    def _own(self, name: str, value: Tensor) -> None:
        if self.learned:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    def forward(self, features: Features) -> Float[Tensor, "n a"]:
        return (features @ self.right.T) @ self.left.T + self.bias

    def folded_cosines(self, directions: AnchorEmbeddings) -> LinearRead:
        onto_anchors, on_bias = self.left.T @ directions.T, directions @ self.bias
        gram, cross = self.left.T @ self.left, self.left.T @ self.bias
        constant = self.bias @ self.bias

        def finish(reduced: Float[Tensor, "n q"], _: SquaredNorms) -> Responses:
            squared = ((reduced @ gram + 2 * cross) * reduced).sum(dim=1) + constant
            return _quotient(reduced @ onto_anchors + on_bias, squared)

        return LinearRead(self.right, self.right.new_zeros(len(self.right)), finish)

    @torch.no_grad()
    def fit(
        self,
        features: Float[Tensor, "p d"],
        anchor_space: Float[Tensor, "p a"],
        *,
        ridge: float = 0.01,
    ) -> None:
        widths = (features.shape[1], anchor_space.shape[1])
        if widths != (self.in_dim, self.anchor_dim):
            raise InputError(
                f"Pairs of widths {widths[0]} and {widths[1]} do not fit a bridge from "
                f"{self.in_dim} to {self.anchor_dim}. Use the patch encoder and the anchors of "
                "this cohort."
            )
        if ridge <= 0:
            raise InputError(f"The ridge must be positive, got {ridge}. 0.01 is a usual choice.")
        left, right, bias = reduced_rank_fit(features, anchor_space, ridge=ridge, rank=self.rank)
        self.left.copy_(left)
        self.right.copy_(right)
        self.bias.copy_(bias)
        self.fitted.fill_(True)


class FrozenBridge(FreeBridge):
    """The fit itself: buffers, so that no optimiser can move it."""

    needs_fit = True
    learned = False


class ProximalBridge(FreeBridge):
    """Learned, but held near its fit by `penalty`."""

    needs_fit = True
    first_left: Tensor
    first_right: Tensor
    first_bias: Tensor
    first_weight: Tensor
    """W0 = L0 R0, made from the saved factors."""

    def __init__(self, in_dim: int, anchor_dim: int, *, rank: int = DEFAULT_BRIDGE_RANK) -> None:
        super().__init__(in_dim, anchor_dim, rank=rank)
        for name in ("left", "right", "bias"):
            self.register_buffer(f"first_{name}", getattr(self, name).detach().clone())
        self.register_buffer("first_weight", self.first_left @ self.first_right, persistent=False)
        self.register_load_state_dict_post_hook(lambda bridge, _: bridge._multiply_first())  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def fit(
        self,
        features: Float[Tensor, "p d"],
        anchor_space: Float[Tensor, "p a"],
        *,
        ridge: float = 0.01,
    ) -> None:
        super().fit(features, anchor_space, ridge=ridge)
        for name in ("left", "right", "bias"):
            getattr(self, f"first_{name}").copy_(getattr(self, name))
        self._multiply_first()

    @torch.no_grad()
    def _multiply_first(self) -> None:
        self.first_weight = self.first_left @ self.first_right

    def penalty(self) -> Float[Tensor, ""]:
        """|B - B0|^2 / |W0|^2, over weight and bias."""
        # In single precision: a small move would drown in the rounding of half precision.
        with torch.autocast(self.left.device.type, enabled=False):
            moved = (self.left @ self.right - self.first_weight).square().sum()
        moved = moved + (self.bias - self.first_bias).square().sum()
        return moved / self.first_weight.square().sum()


def _quotient(inner: Responses, squared_norms: Scores) -> Responses:
    return inner * squared_norms.clamp_min(1e-12).rsqrt().unsqueeze(1)


BRIDGES: dict[str, type[Bridge]] = {
    "free": FreeBridge,
    "proximal": ProximalBridge,
    "frozen": FrozenBridge,
    "identity": IdentityBridge,
    "centred": CentredBridge,
}


# Fits on pairs

PairedFeatures = Float[Tensor, "p d"]
PairedAnchorSpace = Float[Tensor, "p a"]


def ridge_fit(
    features: PairedFeatures, anchor_space: PairedAnchorSpace, ridge: float
) -> Float[Tensor, "a d"]:
    """The weight of the ridge regression from centred features to the centred anchor space."""
    gram = features.T @ features
    gram.diagonal().add_(ridge * gram.diagonal().mean())
    return torch.linalg.solve(gram, features.T @ anchor_space).T


def reduced_rank_fit(
    features: PairedFeatures, anchor_space: PairedAnchorSpace, *, ridge: float, rank: int
) -> tuple[Float[Tensor, "a q"], Float[Tensor, "q d"], Float[Tensor, "a"]]:
    """The ridge fit held to `rank` directions, left right h + bias."""
    # Gram matrices square the condition number, so float32 would lose half the digits.
    wide, wide_anchors = features.double(), anchor_space.double()
    means = wide.mean(dim=0), wide_anchors.mean(dim=0)
    centred, anchor_centred = wide - means[0], wide_anchors - means[1]
    for side, name in ((centred, "feature"), (anchor_centred, "anchor-space")):
        if len(side) < 2 or not bool(side.any()) or not bool(torch.isfinite(side).all()):
            raise InputError(
                f"The {name} side of the {len(side)} pairs is constant or not finite. "
                "Embed the pairs again."
            )
    weight = ridge_fit(centred, anchor_centred, ridge)
    fitted = weight @ (centred.T @ centred) @ weight.T
    left = torch.linalg.eigh(fitted).eigenvectors[:, -rank:].flip(1)
    right = left.T @ weight
    bias = means[1] - left @ (right @ means[0])
    return left.to(features.dtype), right.to(features.dtype), bias.to(features.dtype)
