"""The two ways to find neighbours are one answer."""

import pytest
import torch

from gcemil.evidence import spatial
from gcemil.evidence.spatial import Neighbourhood


@pytest.mark.parametrize("n", [1, 2, 300])
def test_a_box_and_a_list_of_cells_find_the_same_neighbours(n, monkeypatch):
    generator = torch.Generator().manual_seed(n)
    coords = 256 * torch.randint(0, 10, (n, 2), generator=generator)
    scores = torch.randn(n, generator=generator)
    cells = Neighbourhood.of(coords, 256)
    monkeypatch.setattr(spatial, "SMALL_BAG", 0)
    box = Neighbourhood.of(coords, 256)
    assert type(box.cells) is not type(cells.cells)
    assert torch.equal(box.patches_around, cells.patches_around)
    torch.testing.assert_close(box.mean(scores), cells.mean(scores))


def test_few_patches_on_a_wide_slide_are_searched():
    coords = torch.tensor([[0, 0], [1, 1], [200_000, 200_000]])
    scores = torch.tensor([1.0, 3.0, 7.0])
    assert Neighbourhood.of(coords, 1).mean(scores).tolist() == pytest.approx([2.0, 2.0, 7.0])


@pytest.mark.parametrize("small_bag", [0, 2048])
def test_the_gradient_of_a_mean_is_that_of_its_definition(small_bag, monkeypatch):
    monkeypatch.setattr(spatial, "SMALL_BAG", small_bag)
    # Two patches share a cell, one lies alone.
    around = Neighbourhood.of(256 * torch.tensor([[0, 0], [0, 0], [1, 0], [1, 1], [5, 3]]), 256)
    scores = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(around.mean, (scores,))
