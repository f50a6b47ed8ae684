import pytest
import torch

from gcemil.diagnostics.cost import peak_bytes
from gcemil.hosts.table import create_host


def test_what_is_freed_no_longer_counts():
    def one_after_another():
        for _ in range(5):
            torch.ones(1000)

    assert peak_bytes(one_after_another) == 4000
    assert peak_bytes(lambda: [torch.ones(1000) for _ in range(5)]) == 20_000


def test_views_and_tensors_from_before_count_nothing():
    before = torch.ones(1000)
    assert peak_bytes(lambda: before.view(10, 100).T[:5]) == 0
    assert peak_bytes(lambda: before.add_(1)) == 0
    assert peak_bytes(lambda: torch.ones(1000).view(10, 100)) == 4000


@torch.no_grad()
def test_the_allocators_own_record_says_the_same():
    host = create_host("abmil", in_dim=16, n_outputs=2).eval()
    features = torch.randn(200, 16)

    def recorded():
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            host(features)
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        held = torch.tensor([event.nbytes() for event in sorted(events, key=lambda e: e.start_ns())])
        return int(held.cumsum(0).max())

    assert peak_bytes(lambda: host(features)) == pytest.approx(recorded(), rel=0.01)
