"""Cox against torchsurv; the C-index against scikit-survival and lifelines."""

import warnings

import numpy as np
import pytest
import torch
from lifelines.utils import concordance_index
from sksurv.metrics import concordance_index_censored

from gcemil.tasks.survival import c_index, cox_loss

with warnings.catch_warnings():
    # torchsurv compiles its validators with torch.jit.script, which torch has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
    from torchsurv.loss.cox import neg_partial_log_likelihood

SEEDS = range(6)


def tied_window(
    seed: int, *, n: int = 32, n_times: int = 8
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Risks on a coarse grid and few distinct times: ties of both kinds, across events and censorings."""
    generator = np.random.default_rng(seed)
    risks = generator.integers(-6, 7, size=n) / 3
    times = generator.integers(1, n_times + 1, size=n).astype(float)
    return risks, times, generator.random(n) < 0.6


def torchsurv_loss(risks: torch.Tensor, times: torch.Tensor, events: torch.Tensor) -> torch.Tensor:
    """torchsurv's sum over our mean's count: its own mean is over distinct event times when there are ties."""
    with warnings.catch_warnings():
        # torchsurv announces every tie; ties are what this test is about.
        warnings.filterwarnings("ignore", message="Ties in `time` detected")
        total = neg_partial_log_likelihood(
            risks, events, times, ties_method="efron", reduction="sum"
        )
    return total / events.sum()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("n_times", [8, 10_000], ids=["ties", "no ties"])
def test_cox_loss_and_gradient_equal_torchsurvs(seed, n_times, dtype):
    risks, times, events = (
        torch.from_numpy(column) for column in tied_window(seed, n_times=n_times)
    )
    # torchsurv computes in float32 whatever it is given; ours in float64 shows that its rounding is all that differs.
    ours_at, theirs_at = risks.to(dtype).requires_grad_(), risks.float().requires_grad_()
    ours, theirs = (
        cox_loss(ours_at, times, events),
        torchsurv_loss(theirs_at, times, events),
    )
    assert ours is not None
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    (gradient,) = torch.autograd.grad(ours, ours_at)
    (expected,) = torch.autograd.grad(theirs, theirs_at)
    torch.testing.assert_close(gradient.float(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_times", [8, 10_000], ids=["ties", "no ties"])
def test_the_c_index_is_that_of_scikit_survival(seed, n_times):
    risks, times, events = tied_window(seed, n=80, n_times=n_times)
    expected = concordance_index_censored(events, times, risks)[0]
    assert c_index(risks, times, events) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_c_index_equals_lifelines_of_minus_the_risk(seed):
    risks, times, events = tied_window(seed, n=80)
    assert c_index(risks, times, events) == pytest.approx(
        concordance_index(times, -risks, events), abs=1e-12
    )
