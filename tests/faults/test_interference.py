"""Two processes on one folder, and files that vanish or change under a command: one sentence, and nothing mixed up."""

import contextlib
import shutil

import pytest

from fault_builders import SCENES, draws, report
from fault_process import Fault, leftovers, run_command, snapshot, started_command

TIMES = 3
TOGETHER = (
    "simulate",
    "import",
    "import --copy",
    "annotate",
    "encode",
    "train",
    "diagnose",
    "benchmark",
    "report",
)
ROBBED = tuple(name for name, scene in SCENES.items() if scene.victim)
QUICK = "annotate"
"""The command of the suite that every change runs."""
REFUSALS = ("another process", "not an empty folder", "stands in its place")


def test_two_processes_give_what_one_gives(stage, record_property):
    run_two(stage, QUICK, 1, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_two_processes_give_what_one_gives_every_time(stage, name, record_property):
    run_two(stage, name, TIMES, record_property)


@pytest.mark.parametrize("kind", ["vanished", "replaced"])
def test_a_file_lost_on_the_way_is_named(stage, kind, record_property):
    rob(stage, QUICK, kind, 1, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vanished", "replaced"])
@pytest.mark.parametrize("name", ROBBED)
def test_files_lost_at_many_moments_are_named(stage, name, kind, record_property):
    rob(stage, name, kind, TIMES, record_property)


def run_two(stage, name, times, record_property):
    """The second one starts while the first is at work; it waits, or says who works there."""
    scene, troubles = SCENES[name], {}
    usual = stage.undisturbed(scene)
    for share in draws(name, 30).random(times) * 0.6:
        folder = stage.set_up(scene)
        with contextlib.ExitStack() as both:
            first = both.enter_context(started_command(scene.arguments, folder))
            first.process.join(share * usual.seconds)
            second = both.enter_context(started_command(scene.arguments, folder))
            ends = [first.ended(), second.ended()]
        found = [outcry for end in ends for outcry in end.outcries]
        found += [
            f"exit code {end.code}: {end.output[-300:]}"
            for end in ends
            if end.code and not any(words in end.output for words in REFUSALS)
        ]
        found += [] if 0 in (end.code for end in ends) else ["neither succeeded"]
        found += [f"left: {path}" for path in leftovers(folder)]
        troubles[f"{share:.3f} of the time apart"] = found + stage.troubles_when_repeated(scene)
    report(record_property, name, "two at once", troubles)


def rob(stage, name, kind, times, record_property):
    """The last of the input files is gone, or holds other bytes, before some file operation."""
    scene, troubles = SCENES[name], {}
    operations = stage.undisturbed(scene).operations
    for place in sorted(draws(name, 40).permutation(len(operations))[:times].tolist()):
        folder = stage.set_up(scene)
        victim = sorted(folder.glob(scene.victim))[-1]
        kept = shutil.copy2(victim, folder.with_name("kept"))
        ended = run_command(scene.arguments, folder, fault=Fault(kind, place + 1, victim))
        found = list(ended.outcries)
        if ended.code and (ended.code != 1 or victim.stem not in ended.output):
            found.append(f"exit code {ended.code}: {ended.output[-300:]}")
        found += [f"left: {path}" for path in leftovers(folder)]
        victim.unlink(missing_ok=True)
        shutil.move(kept, victim)
        if not (scene.once and ended.code == 0):
            found += stage.troubles_when_repeated(scene)
        troubles[f"before {place + 1}: {operations[place]}"] = found
    report(record_property, name, f"an input file {kind}", troubles)


def test_ctrl_c_is_told_and_the_command_goes_on(stage):
    scene = SCENES["simulate"]
    seconds = stage.undisturbed(scene).seconds
    ended = run_command(scene.arguments, stage.set_up(scene), interrupt_after=0.4 * seconds)
    if ended.code:  # a faster machine may be done by then
        assert ended.code == 130
        assert "gcemil: stopped; run the same command again to go on." in ended.output
    assert "Traceback" not in ended.output
    assert leftovers(stage.folder) == []
    assert stage.troubles_when_repeated(scene) == []


def test_a_run_whose_linked_features_moved_names_the_file_that_is_gone(stage):
    scene = SCENES["import"]
    folder = stage.set_up(scene)
    assert run_command(scene.arguments, folder).code == 0
    assert run_command(("split", "cohort", "--folds", 3), folder).code == 0
    (folder / "job").rename(folder / "moved")
    before = snapshot(folder / "cohort")
    ended = run_command(("train", "cohort", "--out", "run", "--epochs", 1), folder)
    assert ended.outcries == []
    assert ended.code == 1
    assert "s0.h5" in ended.output
    assert "which is not there" in ended.output
    assert not (folder / "run").exists()
    assert snapshot(folder / "cohort") == before
