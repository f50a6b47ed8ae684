"""What hypothesis draws for the laws of coverage and recovery."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

UNITS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.0, 1.0, allow_subnormal=False))


@st.composite
def anchored_bags(
    draw: st.DrawFn, max_patches: int = 8, max_weight: float = 5.0
) -> tuple[Tensor, ...]:
    """Gates (n,), responses (n, m) and anchor weights (m,)."""
    n, m = draw(st.integers(1, max_patches)), draw(st.integers(1, 4))
    row = st.lists(UNITS, min_size=m, max_size=m)
    gates = draw(st.lists(UNITS, min_size=n, max_size=n))
    responses = draw(st.lists(row, min_size=n, max_size=n))
    weight = st.one_of(st.just(0.0), st.floats(0.0, max_weight, allow_subnormal=False))
    weights = draw(st.lists(weight, min_size=m, max_size=m))
    return tuple(torch.tensor(one, dtype=torch.float64) for one in (gates, responses, weights))
