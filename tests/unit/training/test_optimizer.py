"""Which weights learn at which rate, and by which optimiser."""

import pytest
import torch

from builders.wrappers import prepared_host, wrapped
from gcemil.config import TrainSettings
from gcemil.runs import checkpoint
from gcemil.training.optimizer import LookaheadRAdam, create_optimizer


@pytest.mark.parametrize(("rate", "narrow"), [(2.5e-4, 2e-3), (2e-3, 2e-3), (5e-3, 5e-3)])
@pytest.mark.parametrize("kind", ["adamw", "adam", "lookahead_radam"])
def test_what_reads_anchors_and_scores_keeps_its_rate_at_any_width(rate, narrow, kind):
    model = wrapped(prepared_host("abmil"))
    optimizer = create_optimizer(model, rate, TrainSettings(optimizer=kind))
    rates = {
        id(weight): group["base_rate"]
        for group in optimizer.param_groups
        for weight in group["params"]
    }
    found = {
        name: rates[id(weight)] for name, weight in model.named_parameters() if weight.requires_grad
    }
    assert len(found) == len(rates)
    assert {name for name in found if found[name] == narrow} >= {
        "utility.raw_weights",
        "utility.bias",
        "selector.attention_weight",
        "selector.contribution_weight",
        "selector.presence_weight",
    }
    assert {found[name] for name in found if name.startswith(("host.", "bridge."))} == {rate}


def test_the_settings_name_optimiser_averages_and_decay():
    settings = TrainSettings(optimizer="adam", betas=(0.5, 0.9), weight_decay=0.25)
    optimizer = create_optimizer(prepared_host("abmil"), 1e-3, settings)
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["betas"] == (0.5, 0.9)
    assert optimizer.defaults["weight_decay"] == 0.25
    common = create_optimizer(prepared_host("abmil"), 1e-3, TrainSettings())
    assert type(common) is torch.optim.AdamW
    assert common.defaults["betas"] == (0.9, 0.999)


def test_biases_and_norms_do_not_decay_under_radam():
    settings = TrainSettings(optimizer="lookahead_radam", weight_decay=0.25)
    groups = create_optimizer(prepared_host("transmil"), 1e-3, settings).param_groups
    decays = {
        weight.ndim > 1: group["weight_decay"] for group in groups for weight in group["params"]
    }
    assert decays == {True: 0.25, False: 0.0}


def stepped(optimizer, weight, n_steps):
    for _ in range(n_steps):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()


def test_lookahead_goes_half_the_way_after_every_six_steps():
    ahead, plain = (torch.nn.Parameter(torch.tensor([[4.0, -2.0]])) for _ in range(2))
    start = plain.detach().clone()
    optimizer, twin = LookaheadRAdam([ahead], lr=0.1), torch.optim.RAdam([plain], lr=0.1)
    stepped(optimizer, ahead, 5)
    stepped(twin, plain, 5)
    torch.testing.assert_close(ahead, plain)
    stepped(optimizer, ahead, 1)
    stepped(twin, plain, 1)
    half = (start + plain.detach()) / 2
    torch.testing.assert_close(ahead.detach(), half)
    # From there it goes on, and the next return starts from where this one ended.
    stepped(optimizer, ahead, 5)
    fast = ahead.detach().clone()
    stepped(optimizer, ahead, 1)
    assert (ahead.detach() - half).abs().max() < (fast - half).abs().max()


def test_lookahead_goes_on_after_saving_and_loading():
    whole, broken = (torch.nn.Parameter(torch.tensor([[4.0, -2.0]])) for _ in range(2))
    optimizer = LookaheadRAdam([whole], lr=0.1)
    stepped(optimizer, whole, 15)
    first = LookaheadRAdam([broken], lr=0.1)
    stepped(first, broken, 8)
    second = LookaheadRAdam([broken], lr=0.1)
    checkpoint.load_optimizer(second, checkpoint.optimizer_state(first))
    stepped(second, broken, 7)
    torch.testing.assert_close(broken, whole)
