"""Response curves."""

import math

import pytest
import torch

from gcemil.errors import InputError, UsageError
from gcemil.evidence.anchors import CalibratedResponse, PaperResponse


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_the_paper_response_at_three_cosines() -> None:
    cosines = torch.tensor([[0.15, 0.0, 1.0]])
    assert PaperResponse()(cosines)[0].tolist() == pytest.approx([0.5, sigmoid(-1.2), sigmoid(6.8)])


def test_calibration_takes_quantile_and_deviation_of_each_anchor() -> None:
    curve = CalibratedResponse(2)
    reference = torch.stack([torch.linspace(0, 1, 101), torch.linspace(-2, 2, 101)], dim=1)
    curve.calibrate(reference)
    torch.testing.assert_close(curve.offset, torch.tensor([0.95, 1.8]))
    torch.testing.assert_close(curve.scale, reference.std(dim=0, correction=0))
    at_offset = curve(torch.tensor([[0.95, 1.8]]))
    torch.testing.assert_close(at_offset, torch.full((1, 2), 0.5))
    one_deviation_up = curve(curve.offset.unsqueeze(0) + curve.scale)
    assert one_deviation_up[0].tolist() == pytest.approx([sigmoid(4)] * 2)


def test_after_calibration_an_unrelated_patch_hardly_responds() -> None:
    curve = CalibratedResponse(1)
    reference = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0))
    curve.calibrate(reference)
    responses = curve(reference)
    assert float(responses.median()) < 0.01
    assert float((responses > 0.5).float().mean()) == pytest.approx(0.05, abs=1e-3)


def test_responses_without_a_reference_are_refused() -> None:
    with pytest.raises(UsageError, match="no reference yet"):
        CalibratedResponse(2)(torch.zeros(3, 2))


@pytest.mark.parametrize(
    "reference", [torch.ones(5, 2), torch.zeros(0, 2), torch.full((3, 2), torch.nan)]
)
def test_a_reference_without_spread_is_refused(reference: torch.Tensor) -> None:
    with pytest.raises(InputError, match="no spread of cosines for anchor 0"):
        CalibratedResponse(2).calibrate(reference)
