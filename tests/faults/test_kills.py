"""SIGKILL at any moment of a command, then the same command again: the same bytes as undisturbed, and nothing else.

Moments are drawn from a seed: file operations, before which the process ends, and shares of the undisturbed time.
"""

import pytest

from fault_builders import SCENES, Scene, Stage, draws, report
from fault_process import Ended, Fault, run_command

KILLS = 10
"""Of each kind, so 20 for every command."""
QUICK = {"simulate": 2, "annotate": 2}
"""Kills per command in the suite that every change runs; the others take longer."""


@pytest.mark.parametrize("name", QUICK)
def test_a_kill_before_a_file_operation_is_mended(stage, name, record_property):
    kill_at_operations(stage, name, QUICK[name], record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_kills_before_many_file_operations_are_mended(stage, name, record_property):
    kill_at_operations(stage, name, SCENES[name].kills or KILLS, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_kills_at_random_moments_are_mended(stage, name, record_property):
    scene, troubles = SCENES[name], {}
    for share in draws(name, 1).random(scene.kills or KILLS):
        killed = killed_at_share(stage, scene, share)
        troubles[f"at {share:.3f} of the time"] = troubles_after(stage, scene, killed)
    report(record_property, name, "killed at a random moment", troubles)


def kill_at_operations(stage, name, wanted, record_property):
    scene, troubles = SCENES[name], {}
    operations = stage.undisturbed(scene).operations
    for place in sorted(draws(name, 0).permutation(len(operations))[:wanted].tolist()):
        killed = run_command(scene.arguments, stage.set_up(scene), fault=Fault("kill", place + 1))
        troubles[f"before {place + 1}: {operations[place]}"] = troubles_after(stage, scene, killed)
    report(record_property, name, "killed at a file operation", troubles)


def killed_at_share(stage: Stage, scene: Scene, share: float) -> Ended:
    """Earlier when the command was faster than before, so that it is always at work."""
    while True:
        seconds = share * stage.undisturbed(scene).seconds
        ended = run_command(scene.arguments, stage.set_up(scene), kill_after=seconds)
        if ended.was_killed:
            return ended
        share *= 0.8


def troubles_after(stage: Stage, scene: Scene, killed: Ended) -> list[str]:
    found = [f"orphan {pid}" for pid in killed.orphans]
    found += [] if killed.was_killed else [f"was not killed: {killed.code} {killed.output[-300:]}"]
    return found + stage.troubles_when_repeated(scene)
