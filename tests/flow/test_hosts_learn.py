"""Every host learns from bag labels alone: classes and risks carried by one patch in ten.

A bag is an 8 x 8 grid of noise with a 2 x 3 block of signal; the loop honours stages, task weights and host losses.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gcemil.hosts.host import MilHost
from gcemil.hosts.table import HOSTS, create_host

WIDTH = 64
GRID = 8
SEEDS = range(5)
# Narrow hosts with few landmarks, for time; dsmil has no width of its own.
SMALL: dict[str, dict[str, object]] = {
    "dsmil": {},
    "transmil": {"width": 128, "landmarks": 16},
    "camil": {"width": 128, "landmarks": 16},
}

WindowLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Example:
    features: Tensor
    coords: Tensor
    target: Tensor


def small_host(name: str, *, n_outputs: int) -> MilHost:
    return create_host(name, in_dim=WIDTH, n_outputs=n_outputs, options=SMALL.get(name, {"width": 128}))


def grid_coords() -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(GRID), torch.arange(GRID), indexing="ij")
    return 256 * torch.stack([columns.flatten(), rows.flatten()], dim=1)


def noise_with_block(signal: Tensor) -> Tensor:
    features = torch.randn(GRID, GRID, WIDTH)
    row, column = int(torch.randint(GRID - 1, ())), int(torch.randint(GRID - 2, ()))
    features[row : row + 2, column : column + 3] += signal
    return features.reshape(-1, WIDTH)


def classified_bags(n_bags: int, directions: Tensor) -> list[Example]:
    """Classes in the proportions 2 : 1 : 1, so that a majority exists."""
    labels = torch.tensor([0, 0, 1, 2]).repeat(n_bags // 4)
    return [Example(noise_with_block(6.0 * directions[y]), grid_coords(), y) for y in labels]


def survival_bags(n_bags: int, directions: Tensor) -> list[Example]:
    """Weibull times of shape 3 whose scale falls with the strength of the signal; a quarter is censored."""
    bags = []
    for risk in 3 * torch.rand(n_bags):
        time = (-torch.rand(()).clamp(min=1e-6).log()) ** (1 / 3) * torch.exp(-risk)
        event = (torch.rand(()) > 0.25).float()
        features = noise_with_block(2.5 * risk * directions[0])
        bags.append(Example(features, grid_coords(), torch.stack([time, event])))
    return bags


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits, targets)


def cox(risks: Tensor, targets: Tensor) -> Tensor:
    """Negative partial log-likelihood of one window, averaged over its events."""
    latest_first = targets[:, 0].argsort(descending=True)
    risk, event = risks[latest_first, 0], targets[latest_first, 1]
    return ((risk.logcumsumexp(dim=0) - risk) * event).sum() / event.sum().clamp(min=1)


def windows(bags: list[Example], size: int) -> Iterator[list[Example]]:
    order = torch.randperm(len(bags)).tolist()
    for start in range(0, len(order), size):
        yield [bags[i] for i in order[start : start + size]]


def total_loss(host: MilHost, window: list[Example], task_loss: WindowLoss) -> Tensor:
    outputs = [host(bag.features, bag.coords, target=bag.target) for bag in window]
    targets = torch.stack([bag.target for bag in window])
    loss = host.task_weights["bag"] * task_loss(torch.stack([o.logits for o in outputs]), targets)
    for name in outputs[0].auxiliary_logits:
        logits = torch.stack([o.auxiliary_logits[name] for o in outputs])
        loss = loss + host.task_weights[name] * task_loss(logits, targets)
    return loss + sum(term for o in outputs for term in o.losses.values()) / len(window)


def train(
    host: MilHost, bags: list[Example], task_loss: WindowLoss, *, epochs: int, window_size: int
) -> None:
    for stage in host.stages():
        n_steps = epochs * -(-len(bags) // window_size)
        host.begin_stage(stage, lambda: torch.stack([o.bag_feature for o in evaluated(host, bags)]), n_steps)
        host.train()
        trainable = [p for p in host.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(trainable, lr=2e-3, weight_decay=1e-5)
        for _ in range(epochs):
            for window in windows(bags, window_size):
                optimiser.zero_grad()
                total_loss(host, window, task_loss).backward()
                torch.nn.utils.clip_grad_norm_(trainable, 5.0)
                optimiser.step()
                host.after_step()


@torch.no_grad()
def evaluated(host: MilHost, bags: list[Example]) -> list:
    host.eval()
    return [host(bag.features, bag.coords) for bag in bags]


def concordance(risks: Tensor, targets: Tensor) -> float:
    """Share of comparable pairs in which the earlier event has the higher risk."""
    time, event = targets.T
    comparable = (time.unsqueeze(1) < time) & event.bool().unsqueeze(1)
    agrees = (risks.unsqueeze(1) > risks)[comparable].float()
    return float(agrees.mean())


def held_out_accuracy(name: str, seed: int) -> tuple[float, float]:
    """The host's accuracy and the majority class's, on fresh bags."""
    torch.manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(WIDTH, 3)).Q.T
    host = small_host(name, n_outputs=3)
    train(host, classified_bags(48, directions), cross_entropy, epochs=6, window_size=4)
    fresh = classified_bags(60, directions)
    labels = torch.stack([bag.target for bag in fresh])
    predicted = torch.stack([o.logits.argmax() for o in evaluated(host, fresh)])
    return float((predicted == labels).float().mean()), float(labels.bincount().max()) / len(labels)


def held_out_concordance(name: str, seed: int) -> float:
    torch.manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(WIDTH, 1)).Q.T
    host = small_host(name, n_outputs=1)
    train(host, survival_bags(96, directions), cox, epochs=5, window_size=8)
    fresh = survival_bags(100, directions)
    risks = torch.cat([o.logits for o in evaluated(host, fresh)])
    return concordance(risks, torch.stack([bag.target for bag in fresh]))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_host_beats_the_majority_class_on_fresh_bags(name: str) -> None:
    accuracies, majorities = torch.tensor([held_out_accuracy(name, seed) for seed in SEEDS]).T
    assert accuracies.mean() > majorities.mean() + 0.2, accuracies
    assert (accuracies > majorities).all(), accuracies


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS)
def test_host_ranks_the_risks_of_fresh_bags(name: str) -> None:
    concordances = torch.tensor([held_out_concordance(name, seed) for seed in SEEDS])
    assert concordances.mean() > 0.6, concordances
    assert (concordances > 0.5).all(), concordances
