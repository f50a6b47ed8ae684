"""Connected patches as units: who touches whom, which region alone suffices, which is needed."""

import numpy as np
import pytest
import torch

from builders.runs import TrainedRuns
from gcemil.bags.bag import case_bag, slide_bag
from gcemil.diagnostics.regions import RegionJudge, find_regions, measure_regions, region_figures
from gcemil.diagnostics.snr import OutputScale, RiskScale, Tolerances
from gcemil.diagnostics.trained_fold import TrainedFold, predict_bag
from gcemil.errors import UsageError
from gcemil.hosts.adapters import CallableHost
from gcemil.metrics import METRICS

CELLS = np.array([[0, 0], [1, 1], [4, 0], [4, 1], [7, 7], [2, 5]])
"""A pair that touches at a corner, a pair side by side, two alone."""


def toy_bag(values, coords=CELLS, size=256):
    features = np.array(values, dtype=np.float32)[:, None]
    return slide_bag("s", features, None if coords is None else coords * size, size)


def mean_logit(features):
    return torch.stack([torch.zeros(()), features.mean()])


def toy_view(bag):
    host = CallableHost(mean_logit, in_dim=1, n_outputs=2, scores="keep-one").eval()
    return predict_bag(host, torch.from_numpy(bag.features), None)


def test_patches_that_touch_at_a_side_or_a_corner_are_one_region_and_the_largest_mass_is_first():
    bag = toy_bag([0.0] * 6)
    selected = torch.tensor([True, True, True, True, True, False])
    found = find_regions(bag, selected, torch.tensor([0.0, 0.0, 3.0, 0.0, 1.0, 9.0]))
    assert found.number.tolist() == [3, 3, 1, 1, 2, 0]
    assert found.sizes.tolist() == [2, 1, 2]
    assert found.masses.tolist() == sorted(found.masses.tolist(), reverse=True)


def test_slides_of_a_case_share_no_region_even_where_their_coordinates_do():
    one, other = (
        slide_bag(name, np.zeros((2, 1), np.float32), CELLS[[2, 3]] * 256, 256)
        for name in ("a", "b")
    )
    found = find_regions(
        case_bag("case", [one, other]), torch.ones(4, dtype=torch.bool), torch.zeros(4)
    )
    assert found.number.tolist() == [1, 1, 2, 2]


def test_a_bag_without_coordinates_has_no_regions():
    bag = toy_bag([0.0] * 6, coords=None)
    assert find_regions(bag, torch.ones(6, dtype=torch.bool), torch.zeros(6)) is None


class TestVerdictsOfAHostSolvableByHand:
    """The host's logit is the mean feature: sigmoid(mean) is the probability of class 1."""

    judge = RegionJudge(OutputScale(2, RiskScale()), Tolerances(0.05, 0.05))

    def test_a_region_that_carries_the_mean_is_sufficient_and_one_that_shifts_it_is_necessary(self):
        # Mean 2: the first pair has it, the pair side by side lies above, the single ones below.
        bag = toy_bag([2.0, 2.0, 6.0, 6.0, -2.0, -2.0])
        view = toy_view(bag)
        selected = torch.tensor([True] * 5 + [False])
        regions = find_regions(bag, selected, torch.tensor([5.0, 5.0, 1.0, 1.0, 0.0, 0.0]))
        first, second, third = self.judge.judge(view.outcome, bag, regions)
        assert (first.n_patches, first.sufficient, first.necessary) == (2, True, False)
        assert first.kept == pytest.approx(1 / (1 + np.exp(-2.0)))
        assert (second.sufficient, second.necessary) == (False, True)
        assert second.removed == pytest.approx(0.5)
        assert third.sufficient is False
        assert self.judge.count_needed(view, regions) == 1

    def test_regions_that_suffice_only_together_are_counted_together(self):
        bag = toy_bag([5.0, 5.0, -1.0, -1.0, 2.0, 2.0])
        view = toy_view(bag)
        selected = torch.tensor([True] * 4 + [False] * 2)
        regions = find_regions(bag, selected, torch.tensor([3.0, 3.0, 1.0, 1.0, 0.0, 0.0]))
        found = region_figures(bag, view, regions, self.judge)
        assert found["regions_needed"] == 2
        assert found["region_sufficient_share"] == 0
        assert found["region_patches"] == 2

    def test_regions_beyond_the_limit_are_listed_without_a_verdict(self):
        bag = toy_bag([2.0, 2.0, 6.0, 6.0, -2.0, -2.0])
        view = toy_view(bag)
        regions = find_regions(bag, torch.ones(6, dtype=torch.bool), torch.arange(6.0))
        judge = RegionJudge(self.judge.output_scale, Tolerances(), limit=1)
        verdicts = judge.judge(view.outcome, bag, regions)
        assert [one.sufficient is None for one in verdicts] == [False, True, True, True]


class TestOfARun:
    def test_every_rule_has_its_row_under_every_network(self, classification_runs: TrainedRuns):
        fold = TrainedFold.open(classification_runs.gce, 0, against=classification_runs.host)
        found = measure_regions(fold, max_regions=4)
        rows = {(row.labels["rule"], row.labels["network"]): row.values for row in found.rows}
        assert set(rows) == {
            ("evidence", "wrapped"),
            *(
                (rule, network)
                for rule in ("attention", "random", "oracle")
                for network in fold.networks
            ),
        }
        assert all(set(values) <= set(METRICS) for values in rows.values())
        # As many patches, scattered: random is more regions than what lies together.
        assert (
            rows["random", "wrapped"]["regions_per_slide"]
            > rows["oracle", "wrapped"]["regions_per_slide"]
        )
        one = next(slide for slide in found.slides if slide["rule"] == "evidence")
        assert one["region_sufficient_share"] == float(
            any(region["sufficient"] for region in one["regions"])
        )

    def test_at_least_one_region_is_asked(self, classification_runs: TrainedRuns):
        with pytest.raises(UsageError, match="at least 1, got 0"):
            measure_regions(TrainedFold.open(classification_runs.gce, 0), max_regions=0)
