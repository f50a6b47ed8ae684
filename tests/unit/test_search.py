"""Rankings chosen by intervention, on bags whose answer is known by hand."""

import pytest
import torch

from builders.wrappers import prepared_host, tensor_bag
from gcemil.outputs import AskedOutput, ClassOutput, RiskOutput, Tolerances, Verdict
from gcemil.search import Search, measure_class_support

FULL = torch.tensor([0.0, 2.0])


def search(predict):
    return Search(predict, FULL, ClassOutput(2), Tolerances())


def voting_host(votes):
    """The bag says class 1 as surely as its patches vote for it, up to what the whole bag says."""
    votes = torch.tensor(votes)
    return lambda selected: torch.tensor([0.0, float((votes * selected).sum().clamp(max=2.0))])


def ranking(*scores):
    return torch.tensor(scores)


def test_a_subset_that_carries_the_prediction_is_sufficient_and_necessary():
    ask = voting_host([2.0, 0.0, 0.0])
    found = search(ask).judge_set(torch.tensor([True, False, False]))
    assert found == Verdict(
        is_sufficient=True, is_necessary=True, keeps_class=True, changes_class=True
    )


def test_what_another_patch_says_as_well_is_not_necessary():
    ask = voting_host([2.0, 2.0, 0.0])
    found = search(ask).judge_set(torch.tensor([True, False, False]))
    assert (found.is_sufficient, found.is_necessary, found.changes_class) == (True, False, False)


def test_the_first_ranking_that_passes_is_taken():
    rankings = {
        "wrong": ranking(0.0, 1.0, 2.0),
        "right": ranking(2.0, 1.0, 0.0),
        "also": ranking(3.0, 0.0, 1.0),
    }
    found = search(voting_host([2.0, 0.0, 0.0])).choose_ranking(rankings.values(), 1)
    assert found.scores is rankings["right"]
    assert found.verdict.is_faithful


def test_where_none_passes_the_one_that_keeps_the_prediction_is_taken():
    # Two patches say the same, so neither is necessary; a third says nothing.
    rankings = {"empty": ranking(0.0, 0.0, 1.0), "redundant": ranking(1.0, 0.0, 0.0)}
    found = search(voting_host([2.0, 2.0, 0.0])).choose_ranking(rankings.values(), 1)
    assert (found.scores is rankings["redundant"], found.verdict.is_faithful) == (True, False)


def test_equal_subsets_are_asked_once():
    asked = []
    ask = voting_host([0.0, 0.0, 0.0])

    def counted(selected):
        asked.append(selected)
        return ask(selected)

    same = {"a": ranking(1.0, 0.0, 0.0), "b": ranking(5.0, 0.0, 0.0)}
    search(counted).choose_ranking(same.values(), 1)
    assert len(asked) == 2


def test_patches_that_keep_less_than_the_best_so_far_are_not_removed():
    asked = []
    ask = voting_host([2.0, 2.0, 0.0])

    def counted(selected):
        asked.append(selected)
        return ask(selected)

    # The first is redundant and keeps the class; the second is empty, says nothing, and cannot be better.
    rankings = {"redundant": ranking(1.0, 0.0, 0.0), "empty": ranking(0.0, 0.0, 1.0)}
    assert search(counted).choose_ranking(rankings.values(), 1).scores is rankings["redundant"]
    assert [int(selected.sum()) for selected in asked] == [1, 2, 1]


def test_a_risk_is_compared_in_its_unit():
    full, other = torch.tensor([1.0]), torch.tensor([1.5])
    assert RiskOutput(5.0).gap(full, other) == pytest.approx(0.1)
    tried = Search(lambda _: other, full, RiskOutput(5.0), Tolerances(0.1, 0.1 - 1e-9))
    found = tried.judge_set(torch.tensor([True, False]))
    assert found == Verdict(
        is_sufficient=True, is_necessary=True, keeps_class=True, changes_class=False
    )


def test_of_risks_that_stray_the_nearest_is_taken_and_near_ones_are_equal():
    # Kept alone, the patches leave the risk 2, 1, 0.4 and 0.2 units away; none is within the tolerance.
    away = torch.tensor([2.0, 1.0, 0.4, 0.2])

    def ask(selected):
        return away[selected] if int(selected.sum()) == 1 else torch.tensor([0.0])

    def take(*patches):
        tried = Search(ask, torch.tensor([0.0]), RiskOutput(), Tolerances())
        return int(
            tried.choose_ranking([torch.eye(4)[patch] for patch in patches], 1).scores.argmax()
        )

    assert take(0, 1) == take(1, 0) == 1
    assert take(0, 2, 3) == 2
    assert take(0, 3, 2) == 3


BY_INDEX = [ranking(3.0, 2.0, 1.0, 0.0)]
"""One ranking: the first patch first."""


def test_evidence_grows_to_the_first_size_that_is_sufficient_and_necessary():
    # One of the two patches that decide is not enough, three are no better than two.
    found = search(voting_host([1.0, 1.0, 0.0, 0.0])).choose(BY_INDEX, [1, 2, 3])
    assert (int(found.selected.sum()), found.verdict.is_faithful) == (2, True)


def test_where_growing_does_not_help_the_budget_is_kept():
    # Every patch says it all: no set is necessary, and a larger one is no better.
    found = search(voting_host([2.0, 2.0, 2.0, 2.0])).choose(BY_INDEX, [1, 2, 3])
    assert (int(found.selected.sum()), found.verdict.is_faithful) == (1, False)
    with pytest.raises(ValueError, match="no size"):
        search(voting_host([2.0])).choose(BY_INDEX, [])


@pytest.mark.parametrize("name", ["abmil", "dsmil", "clam_mb"])
def test_class_support_is_how_the_log_odds_move_with_the_weight_of_a_patch(name):
    host, (features, coords) = prepared_host(name, mode="deletion"), tensor_bag(20)
    questions = [AskedOutput(3, index) for index in range(3)]
    embedded = host.embed(features)
    support = measure_class_support(host, features, embedded, coords, questions)
    assert len(support) == 3
    for patch in (0, 7):
        step = torch.zeros(20).index_fill(0, torch.tensor([patch]), 0.02)
        with torch.no_grad():
            after, before = (
                host.gated(features, embedded, coords, sign * step).logits for sign in (1, -1)
            )
        for asked, found in zip(questions, support, strict=True):
            moved = (asked.margins(after.unsqueeze(0)) - asked.margins(before.unsqueeze(0)))[
                0
            ] / 0.04
            assert float(found[patch]) == pytest.approx(float(moved), rel=0.05, abs=2e-4)


def test_of_two_classes_what_speaks_for_one_speaks_against_the_other():
    host, (features, coords) = prepared_host("abmil", n_outputs=2), tensor_bag(20)
    questions = [AskedOutput(2, 0), AskedOutput(2, 1)]
    first, second = measure_class_support(host, features, host.embed(features), coords, questions)
    torch.testing.assert_close(first, -second)
    assert float(first.abs().max()) > 0
