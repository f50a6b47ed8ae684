"""A slide encoder as a host, with an untrained transformer: what a pass costs, what scores mean, evidence around it."""

import pytest
import torch
from torch import nn

import gcemil
from builders.wrappers import PATCH, tensor_bag
from gcemil.bags.bag import slide_bag
from gcemil.errors import UsageError
from gcemil.hosts.host import Host
from gcemil.hosts.slide_encoder import SlideEncoderHost, halved_blocks

DIM, WIDTH = 16, 12


class Slides(nn.Module):
    """A class token over a transformer with places, as slide encoders have it."""

    def __init__(self):
        super().__init__()
        self.project, self.place = nn.Linear(DIM, WIDTH), nn.Linear(2, WIDTH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.calls = 0

    def forward(self, features, coords):
        self.calls += 1
        tokens = self.project(features) + self.place(coords / 1000)
        return self.layers(torch.cat([self.token, tokens.unsqueeze(0)], dim=1))[:, 0]


def make_host(n_outputs=3, n_blocks=8, **options):
    torch.manual_seed(0)
    return SlideEncoderHost(
        Slides(), DIM, n_outputs, width=WIDTH, takes_coords=True, n_blocks=n_blocks, **options
    ).eval()


def test_it_honours_the_protocol():
    host = make_host()
    assert isinstance(host, Host)
    assert host.n_passes == 9


@torch.no_grad()
def test_a_score_is_what_the_prediction_loses_without_the_block():
    host, (features, coords) = make_host(), tensor_bag(40)
    output = host(features, coords)
    assert host.model.calls == host.n_passes
    torch.testing.assert_close(output.logits, host.head(host.model(features, coords)[0]))
    blocks = halved_blocks(coords, 40, 8)
    index = int(output.logits.argmax())
    for block in range(8):
        rest = blocks != block
        loss = output.logits[index] - host(features[rest], coords[rest]).logits[index]
        torch.testing.assert_close(output.scores[~rest], loss.expand(int((~rest).sum())))


@torch.no_grad()
def test_a_subset_and_a_gated_bag_take_one_pass():
    host, (features, coords) = make_host(), tensor_bag(40)
    embedded = host.embed_bag(features)
    host.model.calls = 0
    rows = torch.arange(20)
    part = host.aggregate(embedded.rows(rows), coords[rows])
    assert host.model.calls == 1
    torch.testing.assert_close(part.logits, host(features[rows], coords[rows]).logits)
    host.model.calls = 0
    kept = torch.arange(40) % 2 == 0
    gated = host(features, coords, gates=kept.float())
    assert host.model.calls == 1
    torch.testing.assert_close(gated.logits, host(features[kept], coords[kept]).logits)


def test_blocks_are_of_equal_size_and_near_each_other():
    side = torch.arange(8)
    coords = PATCH * torch.cartesian_prod(side, side)
    blocks = halved_blocks(coords, 64, 16)
    assert blocks.bincount().tolist() == [4] * 16
    for block in range(16):
        extent = coords[blocks == block].amax(dim=0) - coords[blocks == block].amin(dim=0)
        assert extent.tolist() == [PATCH, PATCH]
    assert halved_blocks(None, 10, 3).bincount().sort().values.tolist() == [2, 3, 5]
    assert sorted(halved_blocks(None, 3, 64).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_encoder_is_left_alone_and_one_pass_trains_the_head(frozen):
    host, (features, coords) = make_host(frozen=frozen).train(), tensor_bag(40)
    assert host.model.training is not frozen
    host.model.calls = 0
    host(features, coords).logits.sum().backward()
    assert host.model.calls == 1
    assert host.head.weight.grad.any()
    learned = [name for name, weight in host.named_parameters() if weight.grad is not None]
    assert ("model.token" in learned) is not frozen
    # Gates pass gradients through a frozen encoder too.
    gates = torch.full((40,), 0.5, requires_grad=True)
    host.eval()(features, coords, gates=gates).logits.max().backward()
    assert gates.grad.any()


def test_evidence_around_a_trained_slide_encoder_takes_a_stated_number_of_passes():
    host, (features, coords) = make_host(n_outputs=2), tensor_bag(60)
    model = gcemil.wrap(host, 4, patches=torch.randn(200, DIM))
    host.model.calls = 0
    found = gcemil.explain(model, slide_bag("s", features.numpy(), coords.numpy(), PATCH))
    assert 0 < found.selected.sum() <= 60
    # The scores, and at most sixty subsets on the way to the set.
    assert host.n_passes < host.model.calls <= host.n_passes + 60


class Untrained(SlideEncoderHost):
    """As a user writes it: the encoder is made in the constructor."""

    def __init__(self, in_dim, n_outputs, gate_mode="deletion"):
        torch.manual_seed(0)
        super().__init__(
            Slides(), in_dim, n_outputs, gate_mode, width=WIDTH, takes_coords=True, n_blocks=4
        )


def test_a_class_of_the_users_own_is_fitted_and_explained():
    torch.manual_seed(0)
    bags, labels = [], [0, 1] * 8
    for number, label in enumerate(labels):
        features, coords = tensor_bag(30, seed=number)
        features[:6, 0] += 6.0 * label
        bags.append(slide_bag(f"s{number}", features.numpy(), coords.numpy(), PATCH))
    model = gcemil.fit(bags, labels, host=Untrained, epochs=2)
    assert gcemil.explain(model, bags[1]).selected.any()


@torch.no_grad()
def test_any_callable_is_an_encoder_and_a_wrong_width_is_said():
    host = SlideEncoderHost(lambda bag: bag.mean(dim=0), DIM, 1, width=DIM, n_blocks=4).eval()
    features, _ = tensor_bag(12)
    torch.testing.assert_close(host(features).logits, host.head(features.mean(dim=0)))
    assert host(features[:1]).scores.tolist() == [0.0]
    narrow = SlideEncoderHost(lambda bag: bag.mean(dim=0), DIM, 2, width=5).eval()
    with pytest.raises(UsageError, match="gave 16 numbers for one bag; this host has width=5"):
        narrow(features)
    with pytest.raises(UsageError, match="width and n_blocks >= 1, got 4 and 0"):
        SlideEncoderHost(lambda bag: bag, DIM, 2, width=4, n_blocks=0)
