"""Algorithm 1 on bags small enough to repair by hand."""

import pytest
import torch

from gcemil.errors import BagError, UsageError
from gcemil.recovery import Recovery, StopReason, recover


def bag(*rows: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def indices(recovery: Recovery) -> list[int]:
    return recovery.selected.nonzero().flatten().tolist()


def test_gates_that_cover_need_no_repair():
    recovery = recover(vector(0.9, 0.1), bag((0.97,), (0.99,)), vector(1))
    assert (indices(recovery), recovery.stop_reason) == ([0], StopReason.COVERED)
    assert recovery.added.tolist() == []
    assert recovery.gains.tolist() == []


def test_without_an_open_gate_the_first_highest_one_is_taken():
    recovery = recover(vector(0.1, 0.3, 0.3), bag((0.97,), (0.97,), (0.97,)), vector(1))
    assert indices(recovery) == [1]


def test_repair_adds_the_largest_marginal_gain_first():
    responses = bag((0.8, 0.0), (0.9, 0.1), (0.0, 0.96), (0.5, 0.5))
    recovery = recover(vector(0.9, 0.0, 0.0, 0.0), responses, vector(1, 1))
    # Missed after patch 0: (.2, 1). Gains: .28, .96, .6. Then missed (.2, .04): .184 against .12.
    assert recovery.added.tolist() == [2, 1]
    assert recovery.gains.tolist() == pytest.approx([0.96, 0.184])
    assert recovery.coverage.tolist() == pytest.approx([0.98, 0.964])
    assert recovery.stop_reason is StopReason.COVERED
    assert recovery.fraction == pytest.approx(0.75)


def test_equal_gains_go_to_the_lower_index():
    recovery = recover(
        vector(0.9, 0, 0, 0), bag((0.0,), (0.8,), (0.8,), (0.8,)), vector(1), coverage_target=0.9
    )
    assert recovery.added.tolist() == [1, 2]


def test_a_target_met_exactly_is_covered():
    # Coverage is summed in float64 and compared in the precision of the caller, where its rounding is gone.
    gates, responses = torch.tensor([1.0, 0.0]), torch.tensor([[0.5], [0.5]])
    recovery = recover(gates, responses, torch.ones(1), coverage_target=0.5)
    assert (indices(recovery), recovery.stop_reason) == ([0], StopReason.COVERED)


def test_an_unreachable_anchor_ends_without_gain_and_adds_no_empty_patch():
    recovery = recover(vector(1, 0, 0), bag((0.9, 0.0), (0.9, 0.0), (0.0, 0.0)), vector(1, 1))
    assert (indices(recovery), recovery.stop_reason) == ([0, 1], StopReason.NO_GAIN)


def test_weak_responses_exhaust_the_bag():
    recovery = recover(vector(1, 0, 0), bag((0.1,), (0.1,), (0.1,)), vector(1))
    assert (indices(recovery), recovery.stop_reason) == ([0, 1, 2], StopReason.EXHAUSTED)


def test_the_cap_stops_repair():
    recovery = recover(vector(1, 0, 0, 0), bag(*[(0.1,)] * 4), vector(1), max_fraction=0.5)
    assert (indices(recovery), recovery.stop_reason) == ([0, 1], StopReason.CAPPED)


def test_a_threshold_beyond_the_cap_keeps_the_highest_gates_and_says_capped():
    recovery = recover(vector(0.7, 0.9, 0.8, 0.9), bag(*[(1.0,)] * 4), vector(1), max_fraction=0.5)
    assert (indices(recovery), recovery.stop_reason) == ([1, 3], StopReason.CAPPED)
    assert recovery.coverage.tolist() == pytest.approx([1.0])


def test_reachable_targets_are_a_share_of_what_the_bag_offers():
    responses = bag((0.5, 0.0), (0.2, 0.0), (0.01, 0.0))
    recovery = recover(vector(1, 0, 0), responses, vector(1, 1), reachable=True)
    assert recovery.targets.tolist() == pytest.approx([0.95 * 0.604, 0.0])
    assert (indices(recovery), recovery.stop_reason) == ([0, 1], StopReason.COVERED)


def test_anchors_of_little_weight_neither_hold_repair_up_nor_steer_it():
    responses = bag((0.0, 0.0), (0.0, 0.99), (0.96, 0.0), (0.5, 0.99))
    recovery = recover(vector(1, 0, 0, 0), responses, vector(1, 0.49), min_weight_share=0.5)
    assert (indices(recovery), recovery.stop_reason) == ([0, 2], StopReason.COVERED)
    assert recovery.targets.tolist() == pytest.approx([0.95, 0.0])


@pytest.mark.parametrize(
    ("gates", "responses", "weights", "message"),
    [
        (
            vector(1),
            bag((0.5,), (0.5,)),
            vector(1),
            r"2 patches to 1 anchors .*, got \(1,\) and \(1,\)",
        ),
        (vector(1), bag((0.5,)), vector(1, 1), r"1 patches to 1 anchors .*, got \(1,\) and \(2,\)"),
        (vector(), torch.zeros(0, 3), vector(1, 1, 1), r"got torch.float32 of shape \(0, 3\)"),
        (
            vector(1),
            torch.ones(1, 1, dtype=torch.int64),
            vector(1),
            "in floating point, .* got torch.int64",
        ),
        (
            vector(1.5),
            bag((0.5,)),
            vector(1),
            r"Gates lie in \[0, 1\], but the one at \(0,\) is 1.5",
        ),
        (vector(1), bag((0.5, -0.1)), vector(1, 1), r"Responses lie in .* at \(0, 1\) is -0.1"),
        (vector(1), bag((torch.nan,)), vector(1), r"Responses lie in .* is nan"),
        (vector(1), bag((0.5,)), vector(-1), r"Anchor weights lie in .* is -1.0"),
        (vector(1), bag((0.5,)), vector(torch.inf), r"Anchor weights lie in .* is inf"),
    ],
)
def test_a_bag_that_does_not_fit_is_refused(gates, responses, weights, message):
    with pytest.raises(BagError, match=message):
        recover(gates, responses, weights)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.1}, "got 1.1, 0.0 and 0.95"),
        ({"coverage_target": 0.0}, "got 0.5, 0.0 and 0.0"),
        ({"max_fraction": 0.0}, "A fraction of the bag lies in"),
        ({"min_weight_share": -0.1}, "got 0.5, -0.1 and 0.95"),
    ],
)
def test_an_option_out_of_bounds_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        recover(vector(1), bag((0.5,)), vector(1), **options)
