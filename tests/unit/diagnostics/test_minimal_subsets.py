"""Toys whose disjoint sufficient subsets can be counted by hand, and prefixes in one pass."""

import pytest
import torch

from builders.folds import few_bags
from builders.runs import TrainedRuns
from builders.wrappers import prepared_host, tensor_bag
from gcemil.diagnostics import subsets
from gcemil.diagnostics.snr import OutputScale, RiskScale
from gcemil.diagnostics.subsets import Sufficiency, disjoint_candidates, subset_figures
from gcemil.diagnostics.trained_fold import TrainedFold, linear_form, predict_bag, prefix_logits
from gcemil.errors import UsageError
from gcemil.hosts.adapters import CallableHost
from gcemil.hosts.table import HOSTS
from gcemil.recovery import members

NORMAL, TUMOUR = torch.tensor([4.0, -4.0]), torch.tensor([-4.0, 4.0])
# What is lost when a bag of class tumour looks normal.
LOST = float(torch.tensor(8.0).sigmoid() - torch.tensor(-8.0).sigmoid())
LINEAR_HOSTS = ("abmil", "additive", "clam_sb", "ibmil", "linear", "mean", "mhim")


def view_of(host, features, coords=None):
    return predict_bag(host, features, coords)


def toy(model, *values, n_outputs=2):
    host = CallableHost(model, in_dim=1, n_outputs=n_outputs, scores="keep-one").eval()
    return view_of(host, torch.tensor(values, dtype=torch.float32).unsqueeze(1))


def any_positive(features):
    return TUMOUR if bool((features > 0).any()) else NORMAL


def two_positives(features):
    return TUMOUR if int((features > 0).sum()) >= 2 else NORMAL


def mean_risk(features):
    return features.mean().unsqueeze(0)


CLASSES = Sufficiency(OutputScale(2, RiskScale()))
RISK = Sufficiency(OutputScale(1, RiskScale(mean=1.0, deviation=2.0), risk_tolerance=0.2))


def searched(view, *, judge=CLASSES, k=1, steps=1):
    order = torch.arange(len(view.embedded.tokens))
    candidates = disjoint_candidates(view, order, judge, k=k, steps=steps)
    return candidates, subset_figures(view, candidates, judge.output_scale, order)


def test_each_of_two_tumour_patches_is_a_subset_of_its_own():
    candidates, figures = searched(toy(any_positive, 1, 1, -1, -1))
    assert [candidate.patches.tolist() for candidate in candidates] == [[0], [1], [2]]
    assert [candidate.is_sufficient for candidate in candidates] == [True, True, False]
    assert figures["subsets_per_slide"] == pytest.approx(2)
    assert (figures["two_subsets_share"], figures["three_subsets_share"]) == pytest.approx((1, 0))
    # The candidate that failed counts too.
    assert figures["kept_output_drop"] == pytest.approx(LOST / 3)
    assert figures["subset_patches"] == pytest.approx(1)
    assert figures["remove_union_1"] == pytest.approx(0, abs=1e-6)
    assert figures["remove_union_2"] == pytest.approx(LOST)
    assert figures["remove_union_3"] is None
    # The first two of the order used as the random one here are the tumour patches.
    assert figures["remove_random"] == pytest.approx(LOST)


def test_a_prefix_grows_in_steps_of_k_until_it_is_sufficient():
    candidates, figures = searched(toy(two_positives, 1, 1, 1, 1, -1, -1, -1), steps=16)
    assert [candidate.patches.tolist() for candidate in candidates] == [[0, 1], [2, 3], [4, 5, 6]]
    assert figures["subsets_per_slide"] == pytest.approx(2)
    assert figures["subset_patches"] == pytest.approx(2)


def test_a_higher_probability_is_sufficient():
    def strongest(features):
        return torch.stack([torch.zeros(()), features.mean()])

    candidates, _ = searched(toy(strongest, 6, 1, 1))
    assert candidates[0].is_sufficient
    assert candidates[0].drop < -0.05


def test_a_risk_is_kept_within_the_tolerance_in_training_deviations():
    # Mean risk 2; 2.3 alone is 0.15 deviations off, 1.0 alone half a deviation.
    candidates, figures = searched(toy(mean_risk, 2.3, 1.0, 2.7, n_outputs=1), judge=RISK)
    assert [candidate.is_sufficient for candidate in candidates] == [True, False]
    assert [candidate.drop for candidate in candidates] == pytest.approx([0.15, 0.5])
    assert figures["remove_union_1"] == pytest.approx(0.075)


def test_a_bag_of_one_patch_is_its_own_subset_and_has_no_complement():
    candidates, figures = searched(toy(any_positive, 1), k=8, steps=16)
    assert [candidate.patches.tolist() for candidate in candidates] == [[0]]
    assert figures["subsets_per_slide"] == pytest.approx(1)
    assert figures["remove_union_1"] is None


def test_the_search_ends_after_three_subsets_where_every_patch_is_sufficient():
    candidates, figures = searched(toy(any_positive, 1, 1, 1, 1, 1))
    assert len(candidates) == 3
    assert figures["three_subsets_share"] == pytest.approx(1)
    assert figures["remove_union_3"] == pytest.approx(0, abs=1e-6)


def test_the_hosts_that_pool_linearly_are_known():
    assert {name for name in HOSTS if linear_form(prepared_host(name)) is not None} == set(
        LINEAR_HOSTS
    )


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("name", HOSTS)
def test_prefixes_in_one_pass_equal_prefixes_pooled_one_by_one(name, n_outputs):
    features, coords = tensor_bag(40)
    view = view_of(prepared_host(name, n_outputs=n_outputs), features, coords)
    assert (view.linear is not None) == (name in LINEAR_HOSTS)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    sizes = [1, 2, 3, 7, 20, 39, 40]
    naive = [view.interventions.kept(members(order[:size], n_patches=40)).logits for size in sizes]
    assert torch.allclose(prefix_logits(view, order, sizes), torch.stack(naive), atol=1e-5)


@pytest.mark.parametrize("name", [name for name in LINEAR_HOSTS if name not in ("linear", "mean")])
def test_no_prefix_underflows_however_far_apart_the_attention_logits_lie(name):
    features, _ = tensor_bag(30)
    host = prepared_host(name)
    attention = host.student.attention if name == "mhim" else host.attention
    with torch.no_grad():
        last = attention.score if hasattr(attention, "score") else attention[-1]
        last.weight.mul_(1e5)
    view = view_of(host, features)
    logits = view.linear.attention_logits
    assert float(logits.max() - logits.min()) > 1000
    # The worst patches first: their weights beside the best one's are below the smallest float64.
    order = logits.argsort()
    naive = [
        view.interventions.kept(members(order[:size], n_patches=30)).logits for size in range(1, 31)
    ]
    assert torch.allclose(prefix_logits(view, order, range(1, 31)), torch.stack(naive), atol=1e-4)


def test_a_size_without_patches_is_an_error(classification_runs: TrainedRuns):
    with pytest.raises(UsageError, match="each at least 1, got \\[8, 0\\]"):
        subsets.measure_subsets(TrainedFold.open(classification_runs.host, 0), sizes=(8, 0))


def test_sizes_seed_and_tolerance_are_the_papers(classification_runs: TrainedRuns):
    fold = few_bags(TrainedFold.open(classification_runs.host, 0), 4)
    found = subsets.measure_subsets(fold)
    assert found.settings["sizes"] == [8, 16, 32]
    assert (found.settings["seed"], found.settings["tolerance"], found.settings["max_subsets"]) == (
        42,
        0.05,
        3,
    )
    assert {row.labels["k"] for row in found.rows} == {"8", "16", "32"}
    assert (
        found.slides
        == subsets.measure_subsets(fold, sizes=(8, 16, 32), tolerance=0.05, seed=42).slides
    )
    assert found.slides != subsets.measure_subsets(fold, seed=7).slides


@pytest.mark.parametrize(("drop", "is_sufficient"), [(0.049, True), (0.051, False)])
def test_a_subset_may_lose_a_twentieth_of_the_probability(drop, is_sufficient):
    full, kept = (torch.tensor([[0.0, torch.tensor(p).logit()]]) for p in (0.9, 0.9 - drop))
    assert Sufficiency(OutputScale(2, RiskScale())).holds(full[0], kept).tolist() == [is_sufficient]
