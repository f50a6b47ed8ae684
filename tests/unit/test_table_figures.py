"""How a figure is written, for a terminal and for a table."""

import pytest

from gcemil.tables import NOT_MEASURED, format_spread, metric_cell


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [(0.1234, 0.05, "0.123 ± 0.050"), (0.1234, None, "0.123"), (None, 0.1, "-")],
)
def test_a_mean_is_followed_by_its_deviation_where_there_is_one(mean, deviation, text):
    assert format_spread(mean, deviation) == text


def test_one_fold_has_no_deviation():
    assert format_spread(0.1234, 0.0, 1) == "0.123"
    assert format_spread(0.1234, 0.0, 2) == "0.123 ± 0.000"


def test_a_cell_keeps_the_numbers_behind_its_text():
    found = metric_cell("sufficient_share", 0.125, 0.01)
    assert (found.text, found.value, found.deviation) == ("12.5 %±1.0 %", 0.125, 0.01)
    assert found.mean_text == "12.5 %"


def test_a_cell_without_a_value_is_a_dash_and_a_deviation_of_zero_is_left_out():
    assert metric_cell("cd_gap", None) == NOT_MEASURED
    assert metric_cell("cd_gap", 0.1, 0.0).text == "0.100"
