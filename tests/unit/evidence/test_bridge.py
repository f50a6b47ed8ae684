"""Bridges, their fits and their folded cosines."""

import pytest
import torch
from torch import Tensor

from gcemil.errors import InputError, UsageError
from gcemil.evidence.bridge import (
    BRIDGES,
    Bridge,
    CentredBridge,
    FrozenBridge,
    ProximalBridge,
    reduced_rank_fit,
)

WIDTHS = [
    ("free", 12, 9),
    ("proximal", 12, 9),
    ("proximal", 9, 12),
    ("frozen", 12, 9),
    ("identity", 10, 10),
    ("centred", 10, 10),
]


def pairs(in_dim: int, anchor_dim: int, *, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(in_dim * 100 + anchor_dim)
    features = torch.randn(200, in_dim, generator=generator) + 0.5
    mixing = torch.randn(in_dim, anchor_dim, generator=generator)
    return features, features @ mixing + 1 + noise * torch.randn(
        200, anchor_dim, generator=generator
    )


def ready_bridge(
    kind: str, in_dim: int, anchor_dim: int, dtype: torch.dtype = torch.float64
) -> Bridge:
    """A bridge with its fit, then pushed away from it as training would."""
    bridge = BRIDGES[kind](in_dim, anchor_dim).to(dtype)
    if isinstance(bridge, CentredBridge):
        bridge.set_centre(torch.randn(in_dim, dtype=dtype))
    elif bridge.needs_fit:
        features, anchor_space = pairs(in_dim, anchor_dim)
        bridge.fit(features.to(dtype), anchor_space.to(dtype))
    with torch.no_grad():
        for parameter in bridge.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return bridge


def plain_cosines(bridge: Bridge, features: Tensor, anchors: Tensor) -> Tensor:
    return torch.cosine_similarity(bridge(features).unsqueeze(1), anchors.unsqueeze(0), dim=2)


@pytest.mark.parametrize(("kind", "in_dim", "anchor_dim"), WIDTHS)
def test_folded_cosines_are_the_cosines_of_the_mapped_patches(
    kind: str, in_dim: int, anchor_dim: int
) -> None:
    bridge = ready_bridge(kind, in_dim, anchor_dim)
    features = torch.randn(30, in_dim, dtype=torch.float64)
    anchors = 5 * torch.randn(8, anchor_dim, dtype=torch.float64)
    torch.testing.assert_close(
        bridge.cosines(features, anchors), plain_cosines(bridge, features, anchors)
    )


@pytest.mark.parametrize(
    ("kind", "in_dim", "anchor_dim"), [w for w in WIDTHS if w[0] == "proximal"]
)
def test_folded_cosines_have_the_gradient_of_the_plain_ones(
    kind: str, in_dim: int, anchor_dim: int
) -> None:
    bridge = ready_bridge(kind, in_dim, anchor_dim)
    features = torch.randn(30, in_dim, dtype=torch.float64)
    anchors = torch.randn(8, anchor_dim, dtype=torch.float64)
    parameters = list(bridge.parameters())
    gradients = torch.autograd.grad(bridge.cosines(features, anchors).sin().sum(), parameters)
    expected = torch.autograd.grad(plain_cosines(bridge, features, anchors).sin().sum(), parameters)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize(("kind", "anchor_dim"), [("free", 48), ("proximal", 48)])
def test_cosines_in_float32_agree_with_float64_at_fifty_thousand_patches(
    kind: str, anchor_dim: int
) -> None:
    torch.manual_seed(5)
    bridge = ready_bridge(kind, 64, anchor_dim, torch.float32)
    features, anchors = torch.randn(50_000, 64), torch.randn(8, anchor_dim)
    with torch.no_grad():
        narrow = bridge.cosines(features, anchors)
        wide = bridge.double().cosines(features.double(), anchors.double())
    assert (narrow - wide).abs().max() < 1e-5


@pytest.mark.parametrize(("in_dim", "anchor_dim"), [(6, 4), (4, 6)])
def test_a_bridge_of_full_rank_solves_the_normal_equations_of_the_ridge(
    in_dim: int, anchor_dim: int
) -> None:
    features, anchor_space = (side.double() for side in pairs(in_dim, anchor_dim, noise=1.0))
    bridge = FrozenBridge(in_dim, anchor_dim).double()
    bridge.fit(features, anchor_space, ridge=0.1)
    residual = anchor_space - bridge(features)
    centred = features - features.mean(dim=0)
    strength = 0.1 * centred.square().sum(dim=0).mean()
    weight = bridge.left @ bridge.right
    torch.testing.assert_close(residual.mean(dim=0), torch.zeros(anchor_dim).double())
    torch.testing.assert_close(centred.T @ residual, strength * weight.T)


def test_a_bridge_of_low_rank_recovers_a_map_of_that_rank() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(300, 20, generator=generator, dtype=torch.float64)
    mixing = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    anchor_space = features @ mixing @ torch.randn(3, 15, generator=generator, dtype=torch.float64)
    bridge = FrozenBridge(20, 15, rank=3).double()
    bridge.fit(features, anchor_space, ridge=1e-9)
    torch.testing.assert_close(bridge(features), anchor_space, rtol=1e-6, atol=1e-6)


def test_a_loaded_bridge_is_held_near_the_saved_fit() -> None:
    saved = ready_bridge("proximal", 12, 9)
    loaded = ProximalBridge(12, 9).double()
    loaded.load_state_dict(saved.state_dict())
    assert loaded.penalty().item() == pytest.approx(saved.penalty().item())
    assert "first_weight" not in saved.state_dict()


def test_the_proximal_penalty_is_zero_at_the_fit_and_quadratic_around_it() -> None:
    bridge = ProximalBridge(12, 9).double()
    bridge.fit(*(side.double() for side in pairs(12, 9)))
    assert float(bridge.penalty().detach()) == pytest.approx(0, abs=1e-12)
    fitted = bridge.first_left @ bridge.first_right
    with torch.no_grad():
        bridge.right.mul_(1.5)
        bridge.bias.add_(2.0)
    expected = 0.25 + 9 * 4 / fitted.square().sum()
    torch.testing.assert_close(bridge.penalty(), expected)


@pytest.mark.parametrize("kind", sorted(BRIDGES))
def test_a_bridge_survives_its_state_dict(kind: str) -> None:
    bridge = ready_bridge(kind, 10, 10)
    copy = BRIDGES[kind](10, 10).double()
    copy.load_state_dict(bridge.state_dict())
    features, anchors = (
        torch.randn(4, 10, dtype=torch.float64),
        torch.randn(2, 10, dtype=torch.float64),
    )
    torch.testing.assert_close(copy.cosines(features, anchors), bridge.cosines(features, anchors))


def test_bridges_refuse_what_does_not_fit() -> None:
    with pytest.raises(UsageError, match="as wide as the features, got 5 and 4"):
        BRIDGES["identity"](4, 5)
    with pytest.raises(UsageError, match="IdentityBridge cannot be fitted"):
        BRIDGES["identity"](4, 4).fit(torch.ones(3, 4), torch.ones(3, 4))
    with pytest.raises(InputError, match="widths 3 and 4 do not fit a bridge from 4 to 4"):
        FrozenBridge(4, 4).fit(torch.randn(5, 3), torch.randn(5, 4))
    for sides, name in (((0, 1), "feature"), ((1, 0), "anchor-space")):
        features, anchor_space = (torch.ones(5, 3) + side * torch.randn(5, 3) for side in sides)
        with pytest.raises(InputError, match=f"{name} side of the 5 pairs is constant"):
            reduced_rank_fit(features, anchor_space, ridge=0.1, rank=3)
