"""How often a training step reads a number off the device: on a GPU each of them waits for all that was asked before."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gcemil.hosts.table import HOSTS, create_host
from gcemil.tasks.task import ClassificationTask
from gcemil.training.epochs import LossMeans
from gcemil.training.objective import TrainingBag, host_terms

DIM = 16
aten = torch.ops.aten
READS = {
    aten._local_scalar_dense.default,  # item(), float(), int(), bool(), and an index that is a tensor of one number
    aten.nonzero.default,
    aten._unique2.default,
    aten.masked_select.default,
    aten.equal.default,
}
OF_THE_HOST = {
    # Once for every host: whether its answer is finite, so that a damaged bag is named and not learned from.
    "abmil": 1,
    "dsmil": 1,
    "ibmil": 1,
    # The label picks the instance heads.
    "clam_sb": 2,
    "hdmil": 8,
    # Which pseudo-bags hold a patch.
    "dtfd": 2,
    # Its stage, how far it is, and whether everything is masked.
    "mhim": 5,
    # Whether a landmark matrix is finite; on a processor only, where it is decomposed.
    "transmil": 3,
    "camil": 2,
}


class CountedReads(TorchDispatchMode):
    """Counts every operation after which the processor waits for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in READS
        return function(*args, **(kwargs or {}))


def make_host(name):
    torch.manual_seed(0)
    options = {"landmarks": 4} if name in ("transmil", "camil") else None
    host = create_host(name, in_dim=DIM, n_outputs=2, options=options)
    for stage in host.stages():
        host.begin_stage(stage, lambda: torch.randn(8, 512), 10)
    return host.train()


def make_bags(n_bags):
    row = torch.arange(40)
    coords = 256 * torch.stack([row % 8, row // 8], dim=1)
    return [TrainingBag(torch.randn(40, DIM), coords, 256, torch.tensor(1)) for _ in range(n_bags)]


@pytest.mark.parametrize("name", HOSTS)
def test_a_training_step_reads_few_numbers(name):
    host, task = make_host(name), ClassificationTask(("0", "1"))
    optimizer = torch.optim.AdamW(host.parameters(), lr=1e-3, fused=True)
    sums = LossMeans()

    def step(n_bags):
        terms = host_terms(host, task, make_bags(n_bags))
        optimizer.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()
        optimizer.step()
        sums.add(terms)

    # What is asked once in the life of a model is not counted.
    step(1)
    for n_bags in (1, 3):
        with CountedReads() as reads:
            step(n_bags)
        assert reads.count == n_bags * OF_THE_HOST[name]


def test_the_means_of_an_epoch_are_those_of_its_steps():
    sums = LossMeans()
    for value in (1.0, 2.0, 6.0):
        sums.add({"task": torch.tensor(value)})
    assert sums.means() == {"task": pytest.approx(3.0)}
