"""Every entry of HOSTS needs memory linear in the bag: no N x N matrix anywhere."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gcemil.hosts.table import HOSTS, create_host

every_host = pytest.mark.parametrize("name", list(HOSTS))


class LargestTensor(TorchDispatchMode):
    """Watches every operation and keeps the size of the largest storage any of them returned."""

    def __init__(self):
        super().__init__()
        self.n_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        # A sparse tensor is made of dense ones, seen when they were made.
        dense = [t.untyped_storage().nbytes() for t in tensors if t.layout == torch.strided]
        self.n_bytes = max([self.n_bytes, *dense])
        return result


@every_host
@pytest.mark.parametrize("mode", ["paper", "deletion"])
def test_no_tensor_grows_faster_than_the_bag(name, mode):
    host = create_host(name, in_dim=16, n_outputs=3, gate_mode=mode).eval()
    assert largest_tensor(host, 4000) <= 4.5 * largest_tensor(host, 1000)


@torch.no_grad()
def largest_tensor(host, n):
    coords = 256 * torch.stack([torch.arange(n) % 50, torch.arange(n) // 50], dim=1)
    with LargestTensor() as watch:
        host(torch.randn(n, 16), coords, gates=torch.full((n,), 0.5))
    return watch.n_bytes


# VmHWM rather than ru_maxrss: the latter starts at the size of the process that spawned this one.
PEAK_MEMORY = """
import sys, torch
from pathlib import Path
from gcemil.hosts.table import create_host

def peak_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

@torch.no_grad()
def grown(n):
    row = torch.arange(n)
    host(torch.randn(n, 16), 256 * torch.stack([row % 250, row // 250], dim=1), gates=torch.full((n,), 0.5))
    return peak_kib()

host = create_host(sys.argv[1], in_dim=16, n_outputs=2, gate_mode="deletion").eval()
start = grown(500)
print(grown(10_000) - start, grown(50_000) - start)
"""


@pytest.mark.slow
@every_host
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc"
)
def test_50000_patches_need_memory_linear_in_the_bag(name):
    command = [sys.executable, "-c", PEAK_MEMORY, name]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    small, large = map(int, run.stdout.split())
    # The allocator keeps some freed blocks, hence 64 MiB on top of the fivefold bag.
    assert large <= 5.5 * small + 64 * 1024
