"""What a command lets one choose from is what the tables below it hold."""

from typing import get_args

import pytest
import typer.main

from gcemil.cli import benchmark, main, options, predict, simulate, train
from gcemil.config import RECIPES, TrackerName
from gcemil.exports.evidence import HEATMAPS
from gcemil.exports.explain import Unit
from gcemil.prefilter.slide_files import FileMode
from gcemil.simulation.profile import SIZES
from gcemil.tables import FORMATS
from gcemil.training.trackers import TRACKERS


@pytest.mark.parametrize(
    ("choices", "known"),
    [
        (options.RecipeName, RECIPES),
        (train.Tracker, TRACKERS),
        (train.Tracker, get_args(TrackerName)),
        (simulate.Size, SIZES),
        (benchmark.Format, FORMATS),
        (predict.Mode, get_args(FileMode)),
        (options._read_heatmaps(options.HEATMAPS), HEATMAPS),
        (options.UnitName, get_args(Unit)),
    ],
)
def test_a_command_offers_what_its_table_holds(choices, known):
    assert list(get_args(choices) or choices) == list(known)


@pytest.mark.parametrize(
    ("option", "meaning"),
    [
        ("--seed", "Random seed ("),
        ("--jobs", "How many run in parallel: "),
        ("--device", "Where the network computes: "),
    ],
)
def test_an_option_means_the_same_in_every_command(option, meaning):
    tree = typer.main.get_command(main.app)
    commands = [*tree.commands.values(), *tree.commands["anchors"].commands.values()]
    found = [one.help for command in commands for one in command.params if option in one.opts]
    assert len(found) >= 2
    assert all(text.startswith(meaning) for text in found), found
