"""bfloat16 over every host: products change a little, and everything after the embedding is float32."""

import numpy as np
import pytest
import torch
from torch import nn

from builders.wrappers import PATCH, prepared_host, tensor_bag, training_bags, wrapped
from gcemil.bags.bag import slide_bag
from gcemil.config import TrainSettings
from gcemil.device import computing_in
from gcemil.explanation import explain_bag
from gcemil.features.encoders import find_encoder_spec, prepare_encoder
from gcemil.hosts.host import embedded_bag
from gcemil.hosts.table import HOSTS
from gcemil.tasks.task import ClassificationTask
from gcemil.training.objective import host_terms

every_host = pytest.mark.parametrize("name", list(HOSTS))
DOES_NOT_MULTIPLY = {"linear", "mean", "max"}


@every_host
@torch.no_grad()
def test_a_bag_embedded_in_bfloat16_is_pooled_in_float32(name):
    features, coords = tensor_bag(40)
    host = prepared_host(name)
    exact = host(features, coords)
    host.precision = "bf16"
    embedded = embedded_bag(host, features)
    assert {one.dtype for one in embedded.present().values() if one.is_floating_point()} == {
        torch.float32
    }
    near = host(features, coords)
    assert near.logits.dtype == near.scores.dtype == torch.float32
    assert not torch.equal(near.scores, exact.scores) or name in DOES_NOT_MULTIPLY
    torch.testing.assert_close(near.logits, exact.logits, rtol=0.05, atol=0.05)


@every_host
def test_a_training_step_in_bfloat16_leaves_weights_and_losses_in_float32(name):
    host = prepared_host(name).train()
    with computing_in("bf16", torch.device("cpu")):
        terms = host_terms(host, ClassificationTask(tuple("abc")), training_bags(3))
    loss = torch.stack([one.float() for one in terms.values()]).sum()
    loss.backward()
    assert terms["task"].dtype == torch.float32
    assert bool(torch.isfinite(loss))
    grown = [one.grad for one in host.parameters() if one.grad is not None]
    assert {one.dtype for one in grown} == {torch.float32}
    assert all(bool(torch.isfinite(one).all()) for one in grown)


def test_evidence_of_a_bag_in_bfloat16_is_float32():
    model = wrapped(prepared_host("abmil"))
    features, coords = tensor_bag(40)
    bag = slide_bag("bag", features.numpy(), coords.numpy(), patch_size=PATCH)
    model.host.precision = "bf16"
    found = explain_bag(model, bag)
    assert {found.output.scores.dtype, found.output.responses.dtype, found.kept.logits.dtype} == {
        torch.float32
    }


def test_precision_of_earlier_runs_and_of_yaml_is_understood():
    assert {TrainSettings(precision=one).precision for one in (32, "32")} == {"32"}


class Watched(nn.Module):
    """A convolution that remembers how its pixels lie in memory."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Conv2d(3, 4, 3), []

    def forward(self, images):
        self.seen.append(images.is_contiguous(memory_format=torch.channels_last))
        return self.layer(images).mean(dim=(2, 3))


def test_an_encoder_computes_in_the_precision_that_is_asked_for():
    network = Watched()
    spec = find_encoder_spec("random:vit_s")
    spec = spec.__class__(4, 16, spec.colours, "none", "none", lambda source: network)
    pixels = np.random.default_rng(0).integers(0, 255, (3, 16, 16, 3), dtype=np.uint8)
    usual, half = (
        prepare_encoder("watched", spec, device="cpu", precision=one) for one in (None, "bf16")
    )
    assert (usual.precision, half.precision) == ("float32", "bfloat16 mixed")
    exact, near = usual(pixels), half(pixels)
    assert exact.dtype == near.dtype == np.float32
    assert not np.array_equal(exact, near)
    np.testing.assert_allclose(near, exact, atol=0.02)
    assert usual.fingerprint == half.fingerprint
    assert all(network.seen)
