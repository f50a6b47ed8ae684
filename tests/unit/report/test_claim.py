"""The sentence follows the numbers, whoever they favour."""

import pytest

from builders.reports import judged_slide
from gcemil.report.claim import (
    SAME_NETWORK_MEANING,
    Count,
    RuleSlides,
    explain_counts,
    make_claim,
    sign_test,
)


def test_the_interval_of_a_share_is_wilsons():
    # z^2 / (n + z^2) with z^2 = 3.8415 and n = 10.
    assert Count(0, 10).interval == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert Count(10, 10).interval == pytest.approx((1 - 0.27753, 1.0), abs=1e-5)
    assert Count(0, 0).interval == (0.0, 1.0)


def test_a_slide_counts_only_where_all_criteria_can_be_asked():
    records = [
        {"sufficient": True, "recoverable": None},
        {"sufficient": True, "recoverable": True},
        {"sufficient": False, "recoverable": True},
    ]
    slides = RuleSlides("evidence", "", records)
    assert slides.count("sufficient") == Count(2, 3)
    assert slides.count("sufficient", "recoverable") == Count(1, 2)
    assert RuleSlides("evidence", "", []).count("sufficient").words == "0 of 0"


def judged(rule, held, *, of=4, network="wrapped", **more):
    """So many slides hold, the first ones; the others are not necessary."""
    return [
        judged_slide(
            f"s{number}", rule=rule, necessary=number < held, network=network, fold=0, **more
        )
        for number in range(of)
    ]


def claim_of(*groups, is_same_network=False):
    records = [record for group in groups for record in group]
    return make_claim(records, rule="evidence", is_same_network=is_same_network)


def test_a_rival_that_does_better_is_named_and_said_to_do_better():
    claim = claim_of(
        judged("evidence", 2),
        judged("attention", 1, network="plain"),
        judged("contribution", 3, network="plain"),
        judged("attention", 4),
    )
    text = " ".join(claim.sentences())
    assert "in 2 of 4 test slides" in text
    assert "Best rival at the same size, contribution of the plain host: 3 of 4." in text
    assert (
        "It does better than the evidence (only the evidence holds in 0, only the rival in 1)."
        in text
    )
    # The wrapped network's attention is shown, and is no rival: it is nobody else's model.
    assert "attention of the plain host 1 of 4; attention of the wrapped host 4 of 4" in text


@pytest.mark.parametrize(
    ("ours", "theirs", "of", "words"),
    [
        (2, 2, 4, "It does as well as the evidence"),
        (4, 3, 4, "a difference that chance could make"),
        (12, 2, 12, "more than chance would make"),
    ],
)
def test_the_comparison_with_the_rival_follows_the_counts(ours, theirs, of, words):
    claim = claim_of(
        judged("evidence", ours, of=of), judged("attention", theirs, of=of, network="plain")
    )
    assert words in " ".join(claim.sentences())


def test_controls_are_never_the_best_rival():
    claim = claim_of(
        judged("evidence", 1), judged("attention", 0), judged("oracle", 4), judged("random", 3)
    )
    assert claim.rival.rule == "attention"
    assert "name the plain host's run with --against" in claim.remarks()[0]


def test_one_network_is_shown_once_and_said_to_be_one():
    groups = [
        judged("evidence", 2),
        judged("attention", 1),
        judged("attention", 1, network="plain"),
    ]
    claim = claim_of(*groups, is_same_network=True)
    assert [rule.words for rule in claim.rules] == ["GCE evidence", "attention"]
    assert claim.remarks() == [SAME_NETWORK_MEANING]


def test_the_verdict_counts_slides_without_evidence_whatever_the_tolerance_of_the_diagnostic():
    slides = judged("evidence", 4, no_evidence=True)
    assert claim_of(slides).count_without_evidence() == Count(4, 4)


def test_without_judged_slides_nothing_is_claimed():
    assert make_claim([], rule="evidence", is_same_network=False) is None


def test_the_sign_test_is_that_of_a_fair_coin():
    # Of ten differences nine or more on one side: 2 (1 + 10) / 1024.
    assert sign_test(9, 1) == pytest.approx(22 / 1024)
    assert sign_test(0, 0) == 1
    assert sign_test(3, 3) == 1


def records(n, **values):
    return [{"phi_full": 0.6, "phi_kept": 0.6, "phi_removed": 0.3, **values} for _ in range(n)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"phi_kept": 0.97, "sufficient": False, "keeps_class": True},
            ["from 0.60 to 0.97 on average (+0.37)", "the class stays on 4 of 4", "under-fitting"],
        ),
        (
            {"phi_full": 0.9, "phi_kept": 0.99, "sufficient": False, "keeps_class": True},
            ["only surer", "over-confident"],
        ),
        (
            {"phi_kept": 0.2, "sufficient": False, "keeps_class": False},
            ["too small", "evidence.budget"],
        ),
        (
            {"phi_removed": 0.59, "necessary": False, "changes_class": False},
            ["the class changes on 0 of 4", "other patches suffice", "--only subsets"],
        ),
    ],
)
def test_a_definition_that_fails_comes_with_direction_cause_and_next_step(values, words):
    text = " ".join(explain_counts(records(4, **values), "slide"))
    assert all(word in text for word in words), text


def test_evidence_that_holds_needs_no_cause():
    assert len(explain_counts(records(4, sufficient=True, necessary=True), "slide")) == 2
    assert explain_counts([{"sufficient": True}], "slide") == []
