"""A disk that is full, read-only or forbidden: one sentence, nothing half-written, and going on once it is mended."""

import pytest

from fault_builders import SCENES, draws, report
from fault_mounts import run_on_full_disk, run_read_only, why_no_mounts
from fault_process import Fault, leftovers, run_command, snapshot

TIMES = 6
KINDS = ("full disk", "read-only", "no permission")
QUICK = ("simulate", "import")
"""Commands of the suite that every change runs."""


@pytest.fixture
def mounts():
    if reason := why_no_mounts():
        pytest.skip(reason)


def test_a_disk_that_fails_on_the_way_is_a_sentence(stage, record_property):
    fail_at_operations(stage, "simulate", 1, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_disks_that_fail_at_many_operations_are_sentences(stage, name, record_property):
    fail_at_operations(stage, name, SCENES[name].kills or TIMES, record_property)


@pytest.mark.parametrize("name", QUICK)
def test_a_small_disk_that_fills_up_leaves_nothing_half_written(stage, mounts, name, record_property):
    fill_disk(stage, name, 1, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_small_disks_that_fill_up_leave_nothing_half_written(stage, mounts, name, record_property):
    fill_disk(stage, name, SCENES[name].kills or TIMES, record_property)


def test_a_read_only_folder_is_a_sentence(stage, mounts, record_property):
    write_protect(stage, "simulate", record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_every_command_says_that_a_folder_is_read_only(stage, mounts, name, record_property):
    write_protect(stage, name, record_property)


def fail_at_operations(stage, name, wanted, record_property):
    """Every write from some operation on fails, as the audit hook says it does: on any system, for any user."""
    scene = SCENES[name]
    operations = stage.undisturbed(scene).operations
    for number, kind in enumerate(KINDS):
        troubles = {}
        for place in sorted(draws(name, 10 + number).permutation(len(operations))[:wanted].tolist()):
            ended = run_command(scene.arguments, stage.set_up(scene), fault=Fault(kind, place + 1))
            found = list(ended.outcries)
            if kind == "full disk":
                found += [f"left: {path}" for path in leftovers(stage.folder)]
            troubles[f"at {place + 1}: {operations[place]}"] = found + stage.troubles_when_repeated(scene)
        report(record_property, name, f"{kind} (simulated)", troubles)


def fill_disk(stage, name, wanted, record_property):
    """A file system in memory with room for a share of what the command writes."""
    scene, troubles = SCENES[name], {}
    stage.set_up(scene)
    before = used_bytes(stage.folder)
    run_command(scene.arguments, stage.folder)
    growth = used_bytes(stage.folder) - before
    for share in draws(name, 20).random(wanted):
        folder = stage.set_up(scene)
        full, again = run_on_full_disk(scene.arguments, folder, room=int(share * growth))
        found = [*full.outcries, *(f"left: {path}" for path in full.left)]
        if full.code and (full.code != 1 or "No space left on device" not in full.output):
            found.append(f"exit code {full.code}: {full.output[-300:]}")
        is_done = again.code == 0 or (scene.once and full.code == 0)
        found += [] if is_done else [f"exit code {again.code}: {again.output[-300:]}"]
        troubles[f"room for {share:.3f}"] = found + stage.troubles_when_repeated(scene)
    report(record_property, name, "full disk (tmpfs)", troubles)


def write_protect(stage, name, record_property):
    scene = SCENES[name]
    folder = stage.set_up(scene)
    before = snapshot(folder)
    ended = run_read_only(scene.arguments, folder)
    found = list(ended.outcries)
    if ended.code != 1 or "Read-only file system" not in ended.output:
        found.append(f"exit code {ended.code}: {ended.output[-300:]}")
    if snapshot(folder) != before:
        found.append("the folder has changed")
    report(record_property, name, "read-only folder (mount)", {"read-only": found})


def used_bytes(folder):
    """As a file system in memory counts them: whole pages."""
    return sum(-(-path.lstat().st_size // 4096) * 4096 for path in folder.rglob("*"))
