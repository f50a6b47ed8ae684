"""Squaring, the grid, the class token's row, and gates inside the sequence."""

import pytest
import torch

from gcemil.hosts.transmil import PyramidPosition, TransMil, squared


def make_host(*, gate_mode="deletion", dropout=0.1):
    torch.manual_seed(0)
    return TransMil(6, 2, gate_mode, width=16, heads=2, landmarks=8, dropout=dropout).eval()


def make_features(n, *, seed=1):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("n", "rows"), [(1, [0]), (2, [0, 1, 0, 1]), (4, [0, 1, 2, 3]), (3, [0, 1, 2, 0])]
)
def test_the_first_rows_are_repeated_until_the_grid_is_square(n, rows):
    assert squared(torch.arange(n).float().unsqueeze(1)).flatten().tolist() == rows


def test_scores_are_the_row_of_the_second_layer():
    host, features = make_host(), make_features(11)
    sequence = torch.cat([host.class_token, squared(host.project(features))])
    sequence = host.position(sequence + host.first(host.first_norm(sequence)), None)
    _, rows = host.second.first_row(host.second_norm(sequence))
    expected = rows.mean(dim=0)[1:12].clone()
    expected[:5] += rows.mean(dim=0)[12:]
    torch.testing.assert_close(host(features).scores, expected)


def test_summed_kernel_is_three_convolutions_and_the_identity():
    torch.manual_seed(0)
    position, sequence = PyramidPosition(4), torch.randn(26, 4)
    grid = sequence[1:].T.reshape(1, 4, 5, 5)
    apart = grid + position.wide(grid) + position.middle(grid) + position.narrow(grid)
    expected = torch.cat([sequence[:1], apart.flatten(2)[0].T])
    torch.testing.assert_close(position(sequence, None), expected, rtol=0, atol=1e-5)


def test_a_closed_patch_is_not_read_by_its_grid_neighbours():
    torch.manual_seed(0)
    position, sequence, log_gates = PyramidPosition(4), torch.randn(26, 4), torch.zeros(26)
    log_gates[13] = -90.0
    changed = sequence.clone()
    changed[13] += 3
    others = torch.arange(26) != 13
    torch.testing.assert_close(
        position(sequence, log_gates)[others], position(changed, log_gates)[others]
    )


@pytest.mark.parametrize("n", [20, 36])
def test_a_vanishing_gate_hides_the_content_of_its_patch(n):
    # Enough landmarks to average, so that no landmark consists of the closed patch alone.
    host, features = make_host(), make_features(n)
    gates = torch.ones(n)
    gates[7] = 1e-30
    changed = features.clone()
    changed[7] = -4 * changed[7] + 1
    before, after = host(features, gates=gates).logits, host(changed, gates=gates).logits
    torch.testing.assert_close(before, after, rtol=0, atol=1e-5)
    assert (host(features).logits - host(changed).logits).abs().max() > 1e-4
