"""The patch grid: neighbours, step, smoothing, coordinates."""

import pytest
import torch
from torch import Tensor

from gcemil.evidence.selector import Neighbourhood, common_step, normalised_coords, smoothed


def grid(columns: int, rows: int, *, step: int = 256) -> Tensor:
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return step * torch.stack([x.flatten(), y.flatten()], dim=1)


def smoothed_by_hand(scores: Tensor, coords: Tensor, step: int) -> Tensor:
    near = ((coords.unsqueeze(0) - coords.unsqueeze(1)).abs() <= step).all(dim=2).to(scores.dtype)
    return 0.5 * scores + 0.5 * (near @ scores) / near.sum(dim=1)


def test_an_isolated_patch_keeps_its_score() -> None:
    coords = torch.tensor([[0, 0], [512, 0], [0, 5120]])
    scores = torch.tensor([1.0, -2.0, 7.0])
    torch.testing.assert_close(smoothed(scores, Neighbourhood.of(coords, 256)), scores)


def test_smoothing_agrees_with_all_pairs_on_a_ragged_slide() -> None:
    generator = torch.Generator().manual_seed(0)
    coords = grid(20, 15)[torch.randperm(300, generator=generator)[:140]] + torch.tensor([913, 77])
    scores = torch.randn(140, generator=generator, dtype=torch.float64)
    result = smoothed(scores, Neighbourhood.of(coords, 256))
    torch.testing.assert_close(result, smoothed_by_hand(scores, coords, 256))


def test_the_step_is_the_smallest_common_gap() -> None:
    assert common_step(grid(7, 4, step=448)) == 448
    assert (
        common_step(
            grid(40, 40)[torch.randperm(1600, generator=torch.Generator().manual_seed(1))[:200]]
        )
        == 256
    )
    assert common_step(torch.tensor([[5, 9]])) == 1
    assert common_step(torch.tensor([[0, 0], [300, 300]])) == 300


def test_the_step_survives_a_second_contour_off_the_grid() -> None:
    second = grid(5, 5) + torch.tensor([256 * 10 + 3, 0])
    assert common_step(torch.cat([grid(5, 5), second])) == 256


def test_normalised_coordinates_span_the_longer_side() -> None:
    coords = torch.tensor([[100, 0], [500, 200], [300, 100]])
    expected = torch.tensor([[-1.0, -0.5], [1.0, 0.5], [0.0, 0.0]])
    torch.testing.assert_close(normalised_coords(coords), expected)


def test_shifting_or_scaling_a_slide_leaves_its_coordinates() -> None:
    coords = torch.randint(0, 1000, (50, 2), generator=torch.Generator().manual_seed(3))
    moved = coords * 4 + torch.tensor([150_000, -7])
    torch.testing.assert_close(normalised_coords(moved), normalised_coords(coords))


def test_a_slide_of_few_patches_may_be_huge():
    coords = torch.tensor([[0, 0], [1, 1], [200_000, 200_000]])
    scores = torch.tensor([1.0, 3.0, 7.0])
    assert Neighbourhood.of(coords, 1).mean(scores).tolist() == pytest.approx([2.0, 2.0, 7.0])
