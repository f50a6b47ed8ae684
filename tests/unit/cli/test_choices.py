"""What a command lets one choose from is what the tables below it hold."""

import pytest

from gcemil.cli import predict, simulate, tables, train
from gcemil.config import RECIPES
from gcemil.runs.folder import MODES
from gcemil.simulation.profile import SIZES
from gcemil.tables import FORMATS


@pytest.mark.parametrize(
    ("choices", "known"),
    [
        (train.Recipe, RECIPES),
        (simulate.Size, SIZES),
        (tables.Format, FORMATS),
        (predict.Mode, (*MODES, "prefilter")),
    ],
)
def test_a_command_offers_what_its_table_holds(choices, known):
    assert [choice.value for choice in choices] == list(known)
