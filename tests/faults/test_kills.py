"""SIGKILL at any moment of a command, then the same command again: the same bytes as undisturbed, and nothing else.

Moments are drawn from a seed: file operations, before which the process ends, and shares of what is computed undisturbed.
"""

from typing import Any

import pytest

from fault_builders import SCENES, Scene, Stage, draws, report
from fault_process import Fault, run_command

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
    scene = SCENES[name]
    computed = stage.undisturbed(scene).computed
    trials = Trials(stage, scene)
    for share in draws(name, 1).random(scene.kills or KILLS):
        trials.kill(f"at {share:.3f} of what it computes", kill_after=share * computed)
    trials.report(record_property, name, "killed at a random moment")


def kill_at_operations(stage, name, wanted, record_property):
    scene = SCENES[name]
    operations = stage.undisturbed(scene).operations
    trials = Trials(stage, scene)
    for place in sorted(draws(name, 0).permutation(len(operations))[:wanted].tolist()):
        trials.kill(f"before {place + 1}: {operations[place]}", fault=Fault("kill", place + 1))
    trials.report(record_property, name, "killed at a file operation")


class Trials:
    """Kills of one command, and what each left that the next run did not mend."""

    def __init__(self, stage: Stage, scene: Scene) -> None:
        self._stage, self._scene = stage, scene
        self._troubles: dict[str, list[str]] = {}
        self._in_time = 0

    def kill(self, moment: str, **how: Any) -> None:
        """It may have ended before its moment came: it was faster, or had less to write than the first time."""
        ended = run_command(self._scene.arguments, self._stage.set_up(self._scene), **how)
        self._in_time += ended.was_killed
        found = [f"orphan {pid}" for pid in ended.orphans]
        if not ended.was_killed and ended.code != 0:
            found.append(f"exit code {ended.code}: {ended.output[-300:]}")
        self._troubles[moment] = found + self._stage.troubles_when_repeated(self._scene)

    def report(self, record_property: Any, name: str, kind: str) -> None:
        report(record_property, name, kind, self._troubles, in_time=self._in_time)
        assert 2 * self._in_time >= len(self._troubles), "most kills came after the end"
