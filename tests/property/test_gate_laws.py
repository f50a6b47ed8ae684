"""Laws that hold for every gate on every bag."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcemil.evidence.gates import GATES, Gate, budget_count, slide_centre

SCORE_LISTS = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40)
BUDGETS = st.sampled_from([0.01, 0.05, 0.3, 0.99, 1.0])
TEMPERATURES = st.sampled_from([0.1, 0.4, 1.0])


@pytest.mark.parametrize("kind", sorted(GATES))
@settings(deadline=None)
@given(values=SCORE_LISTS, budget=BUDGETS, temperature=TEMPERATURES)
def test_gates_lie_in_the_unit_interval_and_agree_with_their_logarithms(
    kind: str, values: list[float], budget: float, temperature: float
) -> None:
    output = Gate(kind, budget=budget).eval()(torch.tensor(values), temperature=temperature)
    assert bool(((output.gates >= 0) & (output.gates <= 1)).all())
    torch.testing.assert_close(output.log_gates.exp(), output.gates, rtol=1e-4, atol=1e-6)
    assert bool((output.log_gates <= 0).all())


@pytest.mark.parametrize("kind", sorted(GATES))
@settings(deadline=None)
@given(values=SCORE_LISTS, temperature=TEMPERATURES)
def test_a_higher_score_never_has_a_lower_gate(
    kind: str, values: list[float], temperature: float
) -> None:
    scores = torch.tensor(values).sort().values
    gates = Gate(kind, budget=0.3).eval()(scores.unique(), temperature=temperature).gates
    assert bool((gates.diff() >= -1e-6).all())


@pytest.mark.parametrize("kind", sorted(GATES))
@settings(deadline=None)
@given(
    values=st.lists(st.integers(-40, 40), min_size=2, max_size=30, unique=True),
    seed=st.integers(0, 99),
)
def test_gates_follow_a_permutation_of_the_patches(kind: str, values: list[int], seed: int) -> None:
    scores = torch.tensor(values, dtype=torch.float64)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    gate = Gate(kind, budget=0.3).eval()
    straight, shuffled = gate(scores, temperature=0.5), gate(scores[order], temperature=0.5)
    torch.testing.assert_close(shuffled.gates, straight.gates[order])
    assert torch.equal(shuffled.selected, straight.selected[order])


@settings(deadline=None)
@given(
    values=st.lists(st.integers(-1000, 1000), min_size=1, max_size=60, unique=True), budget=BUDGETS
)
def test_distinct_scores_select_exactly_the_budget(values: list[int], budget: float) -> None:
    scores = torch.tensor(values, dtype=torch.float64)
    for kind in ("consecutive", "top_k"):
        selected = Gate(kind, budget=budget)(scores, temperature=1.0).selected
        assert int(selected.sum()) == budget_count(len(values), budget=budget)


@settings(deadline=None)
@given(
    values=st.lists(st.integers(-1000, 1000), min_size=2, max_size=60),
    shift=st.integers(-500, 500),
    budget=st.sampled_from([0.05, 0.3]),
)
def test_a_shift_of_all_scores_changes_no_gate(
    values: list[int], shift: int, budget: float
) -> None:
    scores = torch.tensor(values, dtype=torch.float64)
    count = budget_count(len(values), budget=budget)
    torch.testing.assert_close(
        slide_centre(scores + shift, count), slide_centre(scores, count) + shift
    )
    for kind in sorted(GATES):
        gate = Gate(kind, budget=budget).eval()
        torch.testing.assert_close(
            gate(scores + shift, temperature=0.4).gates, gate(scores, temperature=0.4).gates
        )
