"""Both ways to the pseudo-inverse are the published iteration, in values and in slopes."""

import pytest
import torch

from builders.published import published_iteration
from gcemil.hosts.pseudo_inverse import PseudoInverse

WAYS = pytest.mark.parametrize("decomposes", [True, False])


def create_inverse(matrix, decomposes, **options):
    inverse = PseudoInverse(matrix, **options)
    assert inverse.decomposes
    inverse.decomposes = decomposes
    return inverse


def row_stochastic(seed=0, *, size=6, sharpness=4.0):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(3, size, size, generator=generator, dtype=torch.float64)
    return torch.softmax(logits, dim=-1)


def thin(columns=2, seed=1, *, size=6):
    return torch.randn(
        3, size, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


@WAYS
@pytest.mark.parametrize("iterations", [1, 2, 6])
def test_operator_is_the_published_iteration_from_both_sides(decomposes, iterations):
    matrix = row_stochastic()
    inverse, expected = (
        create_inverse(matrix, decomposes, iterations=iterations),
        published_iteration(matrix, iterations),
    )
    identity = torch.eye(6, dtype=torch.float64).expand(3, 6, 6)
    torch.testing.assert_close(inverse.times(identity), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(inverse.under(identity), expected, rtol=0, atol=1e-10)


@WAYS
def test_many_iterations_reach_the_pseudo_inverse(decomposes):
    matrix = row_stochastic()
    identity = torch.eye(6, dtype=torch.float64).expand(3, 6, 6)
    inverse = create_inverse(matrix, decomposes, iterations=30).times(identity)
    torch.testing.assert_close(inverse, torch.linalg.pinv(matrix), rtol=1e-8, atol=1e-8)


@WAYS
@pytest.mark.parametrize("iterations", [1, 6])
@pytest.mark.parametrize("side", ["times", "under"])
def test_slopes_are_those_of_the_published_iteration(decomposes, iterations, side):
    found = []
    for operator in ("ours", "published"):
        # At the logits: the published form has a slope through its row sums too, which a softmax holds at 1.
        logits, given = row_stochastic().log().requires_grad_(), thin().requires_grad_()
        matrix = torch.softmax(logits, dim=-1)
        if operator == "ours":
            inverse = create_inverse(matrix, decomposes, iterations=iterations)
            result = inverse.times(given) if side == "times" else inverse.under(given.mT)
        else:
            whole = published_iteration(matrix, iterations)
            result = whole @ given if side == "times" else given.mT @ whole
        result.pow(3).sum().backward()
        found.append((logits.grad, given.grad))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


@WAYS
@pytest.mark.parametrize("side", ["times", "under"])
def test_a_landmark_counted_three_times_is_three_equal_landmarks(decomposes, side):
    logits = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    spread = torch.tensor([0, 0, 0, 1, 2, 3])
    long = torch.softmax(logits[:, spread][:, :, spread], dim=-1)
    counts = torch.tensor([3.0, 1, 1, 1], dtype=torch.float64)
    short = torch.softmax(logits + counts.log(), dim=-1)
    given = thin(size=4)
    ours = create_inverse(short, decomposes, iterations=6, copies=3)
    expected = published_iteration(long, 6)
    if side == "times":
        torch.testing.assert_close(
            ours.times(given), (expected @ given[:, spread])[:, [0, 3, 4, 5]], rtol=0, atol=1e-10
        )
        return
    # A row over equal landmarks holds the weight of each; over a counted one, that of all of them.
    row = (given / counts.unsqueeze(1)).mT[:, :, spread]
    summed = torch.zeros(3, 2, 4, dtype=torch.float64).index_add_(2, spread, row @ expected)
    torch.testing.assert_close(ours.under(given.mT), summed, rtol=0, atol=1e-10)


def test_slopes_stay_finite_and_right_where_eigenvalues_coincide():
    # Equal rows: one eigenvalue is not 0, all others are; and an identity, where all are 1.
    equal = torch.full((1, 6, 6), 1 / 6, dtype=torch.float64)
    for matrix in (equal, torch.eye(6, dtype=torch.float64).unsqueeze(0)):
        found = []
        for decomposes in (True, False):
            given = matrix.clone().requires_grad_()
            create_inverse(given, decomposes, iterations=6).times(thin()[:1]).pow(
                3
            ).sum().backward()
            found.append(given.grad)
        assert found[0].abs().max() > 0
        torch.testing.assert_close(*found, rtol=1e-7, atol=1e-7)


def test_half_precision_and_nan_take_the_iteration_without_an_error():
    matrix = row_stochastic()
    assert not PseudoInverse(matrix.bfloat16(), iterations=6).decomposes
    matrix[1, 2, 3] = torch.nan
    assert PseudoInverse(matrix, iterations=6).times(thin()).isnan().any()
