"""Curvature of bags whose redundancy is known."""

import math

import pytest
import torch

from gcemil.diagnostics.bounds import greedy_bound_factor, total_curvature

ONE = torch.ones(1, dtype=torch.float64)


def test_patches_that_share_no_anchor_have_no_curvature():
    responses = torch.tensor([[0.3, 0.0], [0.0, 0.8]], dtype=torch.float64)
    assert total_curvature(responses, torch.tensor([1.0, 2.0], dtype=torch.float64)) == pytest.approx(
        0.0, abs=1e-12
    )


def test_a_certain_twin_gives_curvature_one():
    assert total_curvature(torch.ones(2, 1, dtype=torch.float64), ONE) == pytest.approx(1.0)


def test_two_halves_have_curvature_one_half():
    # The second patch adds .25 to the first and .5 on its own.
    assert total_curvature(torch.full((2, 1), 0.5, dtype=torch.float64), ONE) == pytest.approx(0.5)


def test_patches_without_any_utility_do_not_count():
    responses = torch.tensor([[0.5], [0.0], [0.2]], dtype=torch.float64)
    assert total_curvature(responses, ONE) == pytest.approx(0.5)


def test_bound_is_one_without_curvature_and_one_minus_one_over_e_with_all_of_it():
    assert greedy_bound_factor(0.0) == pytest.approx(1.0)
    assert greedy_bound_factor(1.0) == pytest.approx(1 - 1 / math.e)
    assert greedy_bound_factor(0.5) == pytest.approx(0.7869386805747332)
