"""Lazy greedy steps against the gains computed from scratch."""

import pytest
import torch

from gcemil import recovery
from gcemil.evidence.coverage import marginal_gains
from gcemil.recovery import LazyGreedy, greedy_subset


def lazy(responses: torch.Tensor, weights: torch.Tensor) -> LazyGreedy:
    nobody = torch.zeros(len(responses), dtype=torch.bool)
    return LazyGreedy(responses, weights, selected=nobody, candidates=~nobody)


def recomputed_order(responses: torch.Tensor, weights: torch.Tensor, steps: int) -> list[int]:
    gates = torch.zeros(len(responses), dtype=torch.float64)
    order = []
    for _ in range(steps):
        gains = marginal_gains(gates, responses, weights).masked_fill(gates == 1, -1.0)
        order.append(int(gains.argmax()))
        gates[order[-1]] = 1.0
    return order


def lazy_order(responses: torch.Tensor, weights: torch.Tensor, steps: int) -> list[int]:
    greedy = lazy(responses, weights)
    order = []
    for _ in range(steps):
        patch, _ = greedy.best()
        greedy.add(patch)
        order.append(patch)
    return order


@pytest.mark.parametrize("pool_size", [1, 2, 7, 512])
@pytest.mark.parametrize("power", [1, 6])
def test_any_pool_gives_the_order_of_recomputing(monkeypatch, pool_size: int, power: int):
    monkeypatch.setattr(recovery, "POOL_SIZE", pool_size)
    generator = torch.Generator().manual_seed(power)
    responses = 0.2 * torch.rand(300, 5, generator=generator, dtype=torch.float64) ** power
    weights = torch.rand(5, generator=generator, dtype=torch.float64)
    assert lazy_order(responses, weights, 60) == recomputed_order(responses, weights, 60)


@pytest.mark.parametrize("n_anchors", [1, 5, 7, 13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_patches_are_taken_in_the_order_of_the_bag(
    monkeypatch, n_anchors: int, dtype: torch.dtype
):
    monkeypatch.setattr(recovery, "POOL_SIZE", 16)
    row = 0.01 * torch.rand(n_anchors, generator=torch.Generator().manual_seed(0), dtype=dtype)
    responses = row.expand(1037, n_anchors).contiguous()
    assert lazy_order(responses, torch.ones(n_anchors, dtype=dtype), 40) == list(range(40))


def test_most_steps_look_at_the_pool_alone(monkeypatch):
    fills = []
    fill = LazyGreedy._fill_pool
    monkeypatch.setattr(LazyGreedy, "_fill_pool", lambda self: fills.append(1) or fill(self))
    responses = 0.1 * torch.rand(5000, 8, generator=torch.Generator().manual_seed(0)) ** 4
    lazy_order(responses, torch.ones(8), 100)
    assert len(fills) <= 15


def test_greedy_subset_stops_when_the_next_patch_adds_nothing():
    responses = torch.tensor([[0.0], [1.0], [0.7]])
    assert greedy_subset(responses, torch.ones(1), 3).tolist() == [False, True, False]
