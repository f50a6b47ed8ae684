"""Large bags in blocks of rows give what the whole bag gives, at less memory, for every host and every attribution."""

import pytest
import torch
from captum.attr import InputXGradient, IntegratedGradients, Saliency

from builders.wrappers import PATCH, prepared_host, tensor_bag, wrapped
from gcemil import row_blocks
from gcemil.bags.bag import slide_bag
from gcemil.diagnostics import attribution as gradient
from gcemil.diagnostics.attribution import ATTRIBUTIONS, supported_attributions
from gcemil.diagnostics.cost import peak_bytes
from gcemil.diagnostics.trained_fold import predict_bag
from gcemil.explanation import explain_slide
from gcemil.hosts.adapters import CallableHost
from gcemil.hosts.host import embedded_bag, log_with_zero
from gcemil.hosts.table import HOSTS
from gcemil.row_blocks import mapped_rows, to_float32

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
SLOPES = {
    "saliency": Saliency,
    "gradient_x_input": InputXGradient,
    "integrated_gradients": IntegratedGradients,
}
N = 24


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 7 rows, and of 5 where activations are kept: a bag of 24 is large."""
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 7)
    monkeypatch.setattr(gradient, "BLOCK_ROWS", 5)


def half_bag():
    features, coords = tensor_bag(N)
    return features.half(), coords


def captum_scores(name, host, features, coords):
    """The same attribution by captum, of the whole bag at once."""
    index = predict_bag(host, features, coords).index

    def output(batch):
        return host(batch[0], coords).logits[index].unsqueeze(0)

    batch = features.clone().unsqueeze(0).requires_grad_()
    more = {}
    if name == "integrated_gradients":
        more = {"n_steps": gradient.N_STEPS, "method": "gausslegendre", "internal_batch_size": 1}
    return SLOPES[name](output).attribute(batch, **more).detach()[0].sum(dim=1)


@torch.no_grad()
def test_half_precision_is_widened_block_by_block(small_blocks):
    seen = []
    (found,) = mapped_rows(
        lambda r: [seen.append((r.dtype, len(r))) or r], torch.ones(16, 2).half()
    )
    assert seen == [(torch.float32, 7), (torch.float32, 7), (torch.float32, 2)]
    assert found.dtype == torch.float32


@torch.no_grad()
def test_rows_handed_through_are_not_copied(small_blocks):
    rows = torch.randn(N, 3)
    found, norms = mapped_rows(lambda r: [r.detach(), r.norm(dim=1)], rows)
    assert found.data_ptr() == rows.data_ptr()
    torch.testing.assert_close(norms, rows.norm(dim=1))


def test_no_more_than_the_result_and_a_block_exist_at_once(monkeypatch):
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 100)
    rows = torch.zeros(4000, 8, dtype=torch.float16)
    with torch.no_grad():
        peak = peak_bytes(lambda: mapped_rows(lambda r: [torch.tanh(r + 1)], rows))
    result, block = 4000 * 8 * 4, 100 * 8 * 4
    assert result <= peak <= result + 4 * block


@torch.no_grad()
@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("mode", ["paper", "deletion"])
@pytest.mark.parametrize("name", HOSTS)
def test_a_stored_bag_in_blocks_is_predicted_as_the_wide_one_at_once(
    name, mode, places, monkeypatch
):
    host, (features, coords) = prepared_host(name, mode=mode), half_bag()
    coords = coords if places else None
    gates = torch.rand(N, generator=torch.Generator().manual_seed(1))
    gates[::5] = 0
    wide = to_float32(features)
    whole = [host(wide, coords), host(wide, coords, gates=gates)]
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 7)
    embedded = embedded_bag(host, features)
    parts = [host(features, coords), host(features, coords, gates=gates)]
    parts.append(host.gated(features, embedded, coords, log_with_zero(gates)))
    for one, other in zip([*whole, whole[1]], parts, strict=True):
        torch.testing.assert_close(other.logits, one.logits, **CLOSE)
        torch.testing.assert_close(other.scores, one.scores, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("bridge", ["free", "proximal", "frozen"])
def test_a_stored_bag_in_blocks_has_the_evidence_of_the_wide_one(bridge, monkeypatch):
    model, (features, coords) = wrapped(prepared_host("abmil"), bridge=bridge), half_bag()
    whole = model(to_float32(features), coords, patch_size=PATCH)
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 7)
    parts = model(features, coords, patch_size=PATCH)
    for name in ("gates", "scores", "responses", "coverage", "logits", "full_logits"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), **CLOSE)


def test_the_evidence_of_a_large_slide_is_found_without_a_wide_copy_of_it(monkeypatch):
    features, coords = tensor_bag(1500, dim=1024)
    bag = slide_bag("large", features.half().numpy(), coords.numpy(), PATCH)
    model = wrapped(prepared_host("abmil", dim=1024))
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 100)
    assert peak_bytes(lambda: explain_slide(model, bag)) < 1500 * 1024 * 4 / 2


@pytest.mark.parametrize("name", HOSTS)
def test_slopes_are_those_of_captum(name, monkeypatch):
    monkeypatch.setattr(gradient, "N_STEPS", 3)
    host, (features, coords) = prepared_host(name), tensor_bag(N)
    bag = predict_bag(host, features, coords)
    for slope in SLOPES:
        expected = captum_scores(slope, host, features, coords)
        torch.testing.assert_close(ATTRIBUTIONS[slope].scores(bag), expected, **CLOSE)


@pytest.mark.parametrize("name", HOSTS)
def test_every_attribution_in_blocks_is_that_of_the_bag_at_once(name, monkeypatch):
    monkeypatch.setattr(gradient, "N_STEPS", 3)
    host, (features, coords) = prepared_host(name), half_bag()
    bag = predict_bag(host, to_float32(features), coords)
    expected = {name: one.scores(bag) for name, one in supported_attributions(host).items()}
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 7)
    monkeypatch.setattr(gradient, "BLOCK_ROWS", 5)
    bag = predict_bag(host, features, coords)
    for name, scores in expected.items():
        found = ATTRIBUTIONS[name].scores(bag)
        assert not found.requires_grad
        torch.testing.assert_close(found, scores, **CLOSE)


def test_a_black_box_is_explained_in_blocks(small_blocks):
    host = CallableHost(
        lambda features: features.square().mean(dim=0), in_dim=2, n_outputs=2
    ).eval()
    features = torch.randn(N, 2).half()
    bag = predict_bag(host, features, None)
    expected = 2 * to_float32(features)[:, bag.index].square() / N
    torch.testing.assert_close(ATTRIBUTIONS["gradient_x_input"].scores(bag), expected, **CLOSE)
