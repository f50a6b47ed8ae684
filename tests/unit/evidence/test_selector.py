"""The selector score and its terms."""

import pytest
import torch
from torch import Tensor

from gcemil.errors import UsageError
from gcemil.evidence.selector import Selector, normal_rank, standardised_attention
from gcemil.evidence.spatial import Neighbourhood


def make_selector(**options: float) -> Selector:
    torch.manual_seed(0)
    return Selector(12, adapter_rank=2, hidden=16, **options)  # type: ignore[arg-type]


def make_slide() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y, x = torch.meshgrid(torch.arange(5), torch.arange(4), indexing="ij")
    return torch.randn(20, 12, generator=generator), 256 * torch.stack([x.flatten(), y.flatten()], dim=1)


def test_the_score_is_an_mlp_on_adapted_features_and_coordinates() -> None:
    selector, (features, coords) = make_selector(smoothing=0.0), make_slide()
    centred = (2 * coords - torch.tensor([768, 1024])) / 1024
    hidden = selector.feature_layer(selector.adapter(features)) + centred @ selector.coords_layer.weight.T
    expected = selector.score_layer(torch.relu(hidden)).squeeze(1)
    torch.testing.assert_close(selector(features, coords), expected)


def test_shifting_or_scaling_a_slide_changes_no_score() -> None:
    selector, (features, coords) = make_selector(), make_slide()
    moved = coords * 2 + torch.tensor([10_000, 333])
    torch.testing.assert_close(selector(features, moved), selector(features, coords), rtol=0, atol=0)


def test_coordinates_matter_when_given_and_count_as_zero_when_not() -> None:
    selector, (features, coords) = make_selector(smoothing=0.0), make_slide()
    without = selector(features, None)
    assert not torch.allclose(selector(features, coords), without)
    with torch.no_grad():
        selector.coords_layer.weight.zero_()
    torch.testing.assert_close(selector(features, coords), without)


def test_host_terms_enter_with_weight_one_half() -> None:
    selector, (features, _) = make_selector(), make_slide()
    attention, contributions = torch.randn(20), torch.randn(20)
    plain = selector(features, None)
    scores = selector(features, None, attention_logits=attention, contributions=contributions)
    expected = 0.5 * standardised_attention(attention) + 0.5 * normal_rank(contributions)
    torch.testing.assert_close(scores - plain, expected, rtol=1e-4, atol=1e-5)


def test_the_selector_reads_the_host_without_pulling_it() -> None:
    selector, (features, coords) = make_selector(), make_slide()
    attention, contributions = torch.randn(20, requires_grad=True), torch.randn(20, requires_grad=True)
    selector(
        features, coords, attention_logits=attention, contributions=contributions
    ).square().sum().backward()
    assert attention.grad is None
    assert contributions.grad is None
    unused = [name for name, parameter in selector.named_parameters() if parameter.grad is None]
    assert unused == []


def test_smoothing_uses_the_given_neighbourhood_after_all_terms() -> None:
    selector, (features, coords) = make_selector(), make_slide()
    attention = torch.randn(20)
    neighbourhood = Neighbourhood.of(coords, 256)
    plain = make_selector(smoothing=0.0)(features, coords, attention_logits=attention)
    scores = selector(features, coords, attention_logits=attention, neighbourhood=neighbourhood)
    torch.testing.assert_close(scores, 0.5 * plain + 0.5 * neighbourhood.mean(plain))
    torch.testing.assert_close(selector(features, coords, attention_logits=attention), scores)


def test_a_selector_may_read_the_responses() -> None:
    selector, (features, _) = make_selector(n_anchors=3), make_slide()
    silent, loud = torch.zeros(20, 3), torch.ones(20, 3)
    assert not torch.allclose(
        selector(features, None, responses=silent), selector(features, None, responses=loud)
    )
    with pytest.raises(UsageError, match="needs the responses"):
        selector(features, None)


def test_attention_is_standardised_and_clipped() -> None:
    spike = torch.zeros(1000)
    spike[0] = 1.0
    result = standardised_attention(spike)
    assert float(result[0]) == 6.0
    assert float(standardised_attention(-spike)[0]) == -3.0
    assert standardised_attention(torch.tensor([1.0, 3.0])).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("constant", [0.0, 0.1, -1234.567])
def test_constant_attention_says_nothing(constant: float) -> None:
    assert standardised_attention(torch.full((777,), constant)).abs().max() == 0


def test_ranks_become_normal_quantiles_and_ties_share_theirs() -> None:
    quartile = 0.6744898
    assert normal_rank(torch.tensor([5.0, -1.0])).tolist() == pytest.approx([quartile, -quartile])
    assert normal_rank(torch.tensor([2.0, 2.0, 2.0])).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    tied = normal_rank(torch.tensor([1.0, 1.0, 9.0, 1.0])).tolist()
    assert tied[0] == tied[1] == tied[3] < tied[2]


def test_one_patch_has_finite_terms() -> None:
    assert standardised_attention(torch.tensor([3.0])).tolist() == [0.0]
    assert normal_rank(torch.tensor([3.0])).tolist() == pytest.approx([0.0], abs=1e-6)


def test_a_share_of_smoothing_beyond_one_is_refused() -> None:
    with pytest.raises(UsageError, match=r"between 0 and 1, got 1\.5"):
        Selector(4, smoothing=1.5)
