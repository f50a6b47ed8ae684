"""One catalogue says what a subset rule is called, how it looks and where it stands."""

from gcemil.diagnostics.attribution import ATTRIBUTIONS
from gcemil.rules import RULES, find_rule, order_rules


def test_every_attribution_is_in_the_catalogue():
    assert set(ATTRIBUTIONS) <= set(RULES)


def test_ours_come_first_and_controls_last():
    names = ["oracle", "lrp", "attention", "random", "evidence", "mine"]
    assert order_rules(names) == ["evidence", "attention", "lrp", "mine", "random", "oracle"]


def test_a_smoothed_rule_looks_like_its_own():
    rule = find_rule("attention_smoothed")
    assert (rule.label, rule.color) == ("attention, smoothed", find_rule("attention").color)


def test_scores_from_elsewhere_are_a_rival_under_their_own_name():
    assert find_rule("my_scores").label == "my scores"
