"""One catalogue says what a subset rule is called, how it looks and where it stands."""

import re

from gcemil.diagnostics.attribution import ATTRIBUTIONS
from gcemil.rules import CONTROLS, GATED_RULES, RULES, find_rule, order_rules


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


def test_controls_are_never_made_from_gates():
    assert not set(CONTROLS) & set(GATED_RULES)


def test_colours_are_written_one_way():
    assert all(re.fullmatch("#[0-9a-f]{6}", rule.color) for rule in RULES.values())
