"""Rates over time, which weights learn at which rate, clipping, and the optimisers."""

import pytest
import torch

from builders.wrappers import prepared_host, wrapped
from gcemil.config import TrainSettings
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.hosts.table import HOSTS
from gcemil.runs import checkpoint
from gcemil.runs.checkpoint import LoadedNetwork
from gcemil.training.epochs import EpochFigures, find_failures
from gcemil.training.optimizer import (
    READ_TEMPERATURE,
    LookaheadRAdam,
    clip_gradients,
    create_optimizer,
    evidence_weight,
    scheduled_rate,
)


@pytest.mark.parametrize(
    ("settings", "n_bags", "survival", "epochs"),
    [
        ({}, 30, False, 67),
        ({}, 90, False, 23),
        ({}, 400, False, 15),
        ({"bags_per_step": 4}, 90, False, 87),
        # A survival window counts once per bag, whatever the setting for classes.
        ({"bags_per_step": 4}, 90, True, 23),
        ({"min_steps": 90, "min_epochs": 3}, 30, False, 3),
        ({"epochs": 2}, 30, False, 2),
    ],
)
def test_small_cohorts_take_more_epochs_so_that_the_steps_are_as_many(
    settings, n_bags, survival, epochs
):
    assert TrainSettings(**settings).count_epochs(n_bags, survival=survival) == epochs


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [1.0, 0.5, 0.0]),
        ({"final_rate": 0.2}, [1.0, 0.6, 0.2]),
        ({"schedule": "constant"}, [1.0, 1.0, 1.0]),
        ({"schedule": "step"}, [1.0, 0.2, 0.2]),
    ],
)
def test_the_rate_follows_its_schedule(settings, rates):
    found = [scheduled_rate(TrainSettings(**settings), 1.0, progress) for progress in (0, 0.5, 1)]
    assert found == pytest.approx(rates)


def test_the_evidence_acts_on_the_host_only_after_its_warmup():
    weights = [evidence_weight(0.4, 0.2, progress) for progress in (0.0, 0.39, 0.5, 0.6, 1.0)]
    assert weights == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])
    assert evidence_weight(0.4, 0.0, 0.4) == pytest.approx(1.0)


def test_gates_around_an_untaught_host_are_read_cold_whichever_epoch_was_chosen(
    classification_runs,
):
    model = TrainedFold.open(classification_runs.gce, 0).model
    assert float(model.temperature) == pytest.approx(READ_TEMPERATURE)


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


# Clipping


def test_host_and_wrapper_are_clipped_each_by_its_own_norm():
    model = wrapped(prepared_host("abmil"))
    own = {id(weight) for weight in model.host.parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    next(model.host.parameters()).grad.view(-1)[0] = 2.0
    wrapper = next(weight for weight in model.parameters() if id(weight) not in own)
    wrapper.grad.view(-1)[0] = 1e6
    norms = clip_gradients(LoadedNetwork(model.host, model, None), 5.0)
    assert (float(norms["host"]), float(norms["wrapper"])) == (2.0, 1e6)
    host = torch.stack([weight.grad.norm() for weight in model.host.parameters()]).norm()
    whole = torch.stack([weight.grad.norm() for weight in model.parameters()]).norm()
    torch.testing.assert_close(host, torch.tensor(2.0))
    torch.testing.assert_close(whole, torch.tensor(29.0).sqrt(), rtol=1e-4, atol=0)


def test_a_limit_that_cuts_most_steps_to_less_than_a_fifth_is_a_warning():
    figures = EpochFigures(5.0)
    for norm in (4.0, 60.0, 70.0):
        figures.add({}, {"host": torch.tensor(norm)})
    assert find_failures(figures.summarise(), {}) == [
        "the gradient of the host was cut to less than a fifth in 67% of the steps (median norm 60): "
        "lower the learning rate, or raise 'clip'."
    ]


def test_the_rate_falls_with_the_width_unless_the_host_table_says_otherwise():
    abmil = HOSTS["abmil"]
    assert [abmil.default_rate(width) for width in (32, 128)] == [5e-4, 5e-4]
    assert abmil.default_rate(1024) == pytest.approx(5e-4 / 8**0.75)
    for name, rate in {"dsmil": 5e-4, "transmil": 2e-4, "camil": 2e-4}.items():
        assert {HOSTS[name].default_rate(width) for width in (128, 1024)} == {rate}
