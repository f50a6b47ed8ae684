"""The two ways to find neighbours are one answer."""

import pytest
import torch

from gcemil.evidence import spatial
from gcemil.evidence.spatial import Neighbourhood


@pytest.mark.parametrize("n", [1, 2, 300])
def test_a_table_and_a_search_find_the_same_neighbours(n, monkeypatch):
    coords = 256 * torch.randint(0, 20, (n, 2), generator=torch.Generator().manual_seed(n))
    table = Neighbourhood.of(coords, 256)
    monkeypatch.setattr(spatial, "LARGEST_TABLE", 0)
    search = Neighbourhood.of(coords, 256)
    assert torch.equal(table.around_cell, search.around_cell)
    assert torch.equal(table.patches_around, search.patches_around)


def test_a_grid_too_large_for_a_table_is_searched():
    coords = torch.tensor([[0, 0], [1, 1], [200_000, 200_000]])
    scores = torch.tensor([1.0, 3.0, 7.0])
    assert Neighbourhood.of(coords, 1).mean(scores).tolist() == pytest.approx([2.0, 2.0, 7.0])
