"""Rules that choose a subset from one score per patch."""

import pytest
import torch

from gcemil.errors import BagError
from gcemil.recovery import above_threshold, random_k, ranking, subset_size, top_k

SCORES = torch.tensor([0.2, 0.9, 0.2, 0.9, 0.1])


def indices(selected: torch.Tensor) -> list[int]:
    return selected.nonzero().flatten().tolist()


def test_top_k_breaks_a_tie_towards_the_lower_index():
    assert indices(top_k(SCORES, 1)) == [1]
    assert indices(top_k(SCORES, 3)) == [0, 1, 3]


def test_threshold_is_strict():
    assert indices(above_threshold(SCORES, 0.2)) == [1, 3]


def test_an_empty_threshold_falls_back_on_the_first_best_patch():
    assert indices(above_threshold(SCORES, 0.9)) == [1]


@pytest.mark.parametrize("rule", [ranking, lambda scores: above_threshold(scores, 0.5)])
def test_nan_cannot_be_ranked(rule):
    with pytest.raises(BagError, match="Patch 1 of 2 has score NaN"):
        rule(torch.tensor([0.0, torch.nan]))


def test_random_k_is_k_distinct_patches_repeated_by_its_seed():
    first, again, other = (
        random_k(100, 10, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)
    )
    assert int(first.sum()) == 10
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("n_patches", "fraction", "size"),
    [(100, 0.05, 5), (100, 0.29, 29), (3, 0.05, 1), (16, 0.1, 2), (7, 1.0, 7)],
)
def test_a_fraction_is_a_rounded_number_of_patches_and_at_least_one(n_patches, fraction, size):
    assert subset_size(n_patches, fraction) == size
