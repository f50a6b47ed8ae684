"""The selector score and its terms."""

import math

import pytest
import torch
from torch import Tensor

from gcemil.evidence.selector import (
    Neighbourhood,
    Selector,
    class_likeness,
    log_odds,
    normal_rank,
    standardised_attention,
)
from gcemil.row_blocks import apply_reads


def make_selector(**options: float) -> Selector:
    torch.manual_seed(0)
    return Selector(12, adapter_rank=2, hidden=16, **options)  # type: ignore[arg-type]


def make_slide() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y, x = torch.meshgrid(torch.arange(5), torch.arange(4), indexing="ij")
    return torch.randn(20, 12, generator=generator), 256 * torch.stack(
        [x.flatten(), y.flatten()], dim=1
    )


def scored(selector: Selector, features: Tensor, coords: Tensor | None, **terms: Tensor) -> Tensor:
    around = None if coords is None else Neighbourhood.of(coords, 256)
    hidden = apply_reads(features, selector.reads()) if selector.reads() else []
    return selector.scores(
        list(hidden), coords, n_patches=len(features), neighbourhood=around, **terms
    )


def test_the_papers_score_is_an_mlp_on_adapted_features_and_coordinates() -> None:
    selector, (features, coords) = make_selector(smoothing=0.0), make_slide()
    mlp = selector.morphology
    centred = (2 * coords - torch.tensor([768, 1024])) / 1024
    hidden = mlp.feature_layer(mlp.adapter(features)) + centred @ mlp.coords_layer.weight.T
    expected = mlp.score_layer(torch.relu(hidden)).squeeze(1)
    torch.testing.assert_close(scored(selector, features, coords), expected)


def test_what_the_anchors_say_counts_as_much_as_what_the_host_says() -> None:
    selector, (features, _) = make_selector(morphology=False), make_slide()
    attention, contributions, presence = torch.randn(20), torch.randn(20), torch.rand(20)
    scores = scored(
        selector,
        features,
        None,
        attention_logits=attention,
        contributions=contributions,
        presence=presence,
    )
    host = 0.5 * standardised_attention(attention) + 0.5 * normal_rank(contributions)
    torch.testing.assert_close(scores, host + log_odds(presence), rtol=1e-4, atol=1e-5)


def test_the_selector_reads_without_pulling() -> None:
    selector, (features, coords) = make_selector(), make_slide()
    read = {
        name: torch.rand(20, requires_grad=True)
        for name in ("attention_logits", "contributions", "presence")
    }
    scored(selector, features, coords, **read).square().sum().backward()
    assert [value.grad for value in read.values()] == [None] * 3
    assert [name for name, parameter in selector.named_parameters() if parameter.grad is None] == []


def test_smoothing_comes_after_all_terms() -> None:
    (features, coords), attention = make_slide(), torch.randn(20)
    plain = scored(make_selector(smoothing=0.0), features, coords, attention_logits=attention)
    smooth = scored(make_selector(), features, coords, attention_logits=attention)
    torch.testing.assert_close(
        smooth, 0.5 * plain + 0.5 * Neighbourhood.of(coords, 256).mean(plain)
    )


def test_attention_is_standardised_and_clipped() -> None:
    spike = torch.zeros(1000)
    spike[0] = 1.0
    result = standardised_attention(spike)
    assert float(result[0]) == pytest.approx(6.0)
    assert float(standardised_attention(-spike)[0]) == pytest.approx(-3.0)
    assert standardised_attention(torch.tensor([1.0, 3.0])).tolist() == pytest.approx([-1.0, 1.0])


@pytest.mark.parametrize("constant", [0.0, 0.1, -1234.567])
def test_constant_attention_says_nothing(constant: float) -> None:
    assert standardised_attention(torch.full((777,), constant)).abs().max() == 0


def test_ranks_become_normal_quantiles_and_ties_share_theirs() -> None:
    quartile = 0.6744898
    assert normal_rank(torch.tensor([5.0, -1.0])).tolist() == pytest.approx([quartile, -quartile])
    assert normal_rank(torch.tensor([2.0, 2.0, 2.0])).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    tied = normal_rank(torch.tensor([1.0, 1.0, 9.0, 1.0])).tolist()
    assert tied[0] == pytest.approx(tied[1]) == pytest.approx(tied[3])
    assert tied[0] < tied[2] - 0.5


def test_likeness_is_what_the_likely_class_lies_along():
    products = torch.tensor([[1.0, 5.0], [3.0, 5.0], [2.0, 5.0]])
    # The second direction tells no patch from another, so it says nothing.
    found = class_likeness(products, torch.tensor([0.5, 0.5]))
    unit = math.sqrt(2 / 3)
    assert found.tolist() == pytest.approx([-0.5 / unit, 0.5 / unit, 0.0])
