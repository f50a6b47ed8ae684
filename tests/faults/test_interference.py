"""Files that vanish or change while a command reads them, two processes in one folder, and Ctrl-C."""

import contextlib
import os
import shutil
import signal

import pytest

from fault_builders import SCENES, draws, report
from fault_process import Fault, held_locks, leftovers, run_command, started_command

TIMES = 6
ROBBED = [name for name, scene in SCENES.items() if scene.victim]


def test_training_after_linked_features_moved_names_the_file(stage):
    folder = stage.set_up(SCENES["import"])
    assert run_command(SCENES["import"].arguments, folder).code == 0
    assert run_command(("split", "cohort", "--folds", 3), folder).code == 0
    shutil.move(folder / "job", folder / "elsewhere")
    ended = run_command(("train", "cohort", "--out", "run", "--epochs", 1), folder)
    assert ended.code == 1
    assert not ended.outcries
    assert "cohort/features/s0.h5" in ended.output
    assert "elsewhere" not in ended.output
    assert not (folder / "run" / "fold_0").exists()


@pytest.mark.parametrize("name", ["import", "import --copy"])
def test_a_file_that_vanishes_is_a_sentence(stage, name, record_property):
    rob(stage, name, "vanished", 2, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vanished", "replaced"])
@pytest.mark.parametrize("name", ROBBED)
def test_files_that_vanish_or_change_are_sentences(stage, name, kind, record_property):
    rob(stage, name, kind, TIMES, record_property)


@pytest.mark.parametrize("name", ["simulate", "annotate"])
def test_two_processes_do_not_disturb_each_other(stage, name, record_property):
    run_twice(stage, name, 1, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_two_processes_never_disturb_each_other(stage, name, record_property):
    run_twice(stage, name, 3, record_property)


def test_ctrl_c_says_how_to_go_on(stage, record_property):
    interrupt(stage, "simulate", 1, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_ctrl_c_at_any_moment_says_how_to_go_on(stage, name, record_property):
    interrupt(stage, name, TIMES, record_property)


def rob(stage, name, kind, wanted, record_property):
    """The command ends with a sentence, or did not need the file any more; with the file back it goes on."""
    scene, troubles = SCENES[name], {}
    operations = stage.undisturbed(scene).operations
    for place in sorted(draws(name, 30).permutation(len(operations))[:wanted].tolist()):
        folder = stage.set_up(scene)
        victim = sorted(folder.glob(scene.victim))[-1]
        content, times = victim.read_bytes(), victim.stat()
        ended = run_command(scene.arguments, folder, fault=Fault(kind, place + 1, victim))
        victim.write_bytes(content)
        with contextlib.suppress(OSError):
            os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
        troubles[f"at {place + 1}: {operations[place]}"] = [
            *ended.outcries,
            *stage.troubles_when_repeated(scene),
        ]
    report(record_property, name, f"input {kind}", troubles)


def run_twice(stage, name, wanted, record_property):
    """The second waits, is refused with a sentence, or does the same; afterwards all is as if there had been one."""
    scene, troubles = SCENES[name], {}
    for share in draws(name, 40).random(wanted) * 0.5:
        folder = stage.set_up(scene)
        with started_command(scene.arguments, folder) as first:
            first.process.join(share * stage.undisturbed(scene).seconds)
            with started_command(scene.arguments, folder) as second:
                ended = [first.ended(), second.ended()]
        found = [line for one in ended for line in one.outcries]
        if ended[0].code != 0:
            found.append(f"the first was disturbed: {ended[0].output[-300:]}")
        if ended[1].code != 0 and "is being written by another process" not in ended[1].output:
            found.append(f"the second ended with {ended[1].code}: {ended[1].output[-300:]}")
        troubles[f"second at {share:.3f}"] = found + stage.troubles_when_repeated(scene)
    report(record_property, name, "two processes", troubles)


def interrupt(stage, name, wanted, record_property):
    """Ctrl-C as a terminal sends it, to the command and its workers at once."""
    scene, troubles = SCENES[name], {}
    for share in draws(name, 50).random(wanted):
        folder = stage.set_up(scene)
        ended = run_command(scene.arguments, folder, interrupt_after=share * stage.undisturbed(scene).seconds)
        found = [f"orphan {pid}" for pid in ended.orphans]
        if ended.code == 130:
            if not ended.output.endswith("gcemil: stopped; run the same command again to go on.\n"):
                found.append(f"no word: {ended.output[-300:]}")
            found += [f"left: {path}" for path in leftovers(folder)]
            found += [f"held: {path}" for path in held_locks(folder)]
        elif ended.code not in (0, -signal.SIGINT):
            found.append(f"exit code {ended.code}: {ended.output[-600:]}")
        found += ["a traceback: " + ended.output[-1500:]] if "Traceback" in ended.output else []
        troubles[f"at {share:.3f} of the time"] = found + stage.troubles_when_repeated(scene)
    report(record_property, name, "Ctrl-C", troubles)
