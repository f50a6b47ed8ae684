"""A killed command, a full disk, two commands on one folder: nothing half-written stays, and the same command goes on.

A command runs in a forked process. A fault strikes just before a file operation, which an audit hook hears, so no test depends on time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import PATCH, make_cohort
from builders.foreign import grid, trident_features, write_table
from gcemil.bags.folds import make_folds, write_folds
from gcemil.cli.main import main
from gcemil.config import EvidenceSettings, TrainSettings
from gcemil.training.run import train_run

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

UNTIMED = re.compile(
    r".*\.partial|timing\.json|log\.jsonl|.*\.lock|\.gcemil_hashes\.json|train\.log|tensorboard|events\.out.*"
)
"""Files that hold times, machines or processes, and what a killed process had not finished; everything else is the same every time."""
NEED_ROOM = {"open", "os.mkdir", "os.symlink", "os.link"}
HEARD = NEED_ROOM | {"os.rename", "os.remove", "os.rmdir", "os.truncate"}
REFUSALS = ("another process", "not an empty folder", "stands in its place")


# Scenes: what is in the folder before, and what is typed there


def nothing(folder: Path) -> None:
    folder.mkdir()


def foreign_features(folder: Path) -> None:
    for number in range(6):
        trident_features(folder / "job", f"s{number}", grid(6 + number, 512))
    lines = (f"s{number},c{number},{('normal', 'tumor')[number % 2]}" for number in range(6))
    write_table(folder / "labels.csv", "slide_id,case_id,label", *lines)


def cohort_with_folds(folder: Path) -> None:
    cohort = make_cohort(folder / "cohort", n_cases=20, n_patches=8, dim=8)
    write_folds(cohort, make_folds(cohort))


def trained_run(folder: Path) -> None:
    cohort_with_folds(folder)
    settings = TrainSettings(evidence=EvidenceSettings(), epochs=1, min_steps=1)
    train_run(folder / "cohort", folder / "run", settings, folds=[0], jobs=1)


def annotated_slides(folder: Path) -> None:
    make_cohort(folder / "cohort", n_cases=6, n_patches=16, classes=("normal", "tumor"))
    corners = enumerate([(0, 0), (PATCH, 0), (PATCH, PATCH), (0, PATCH)])
    vertices = "".join(
        f'<Coordinate Order="{order}" X="{x}" Y="{y}"/>' for order, (x, y) in corners
    )
    for number in (1, 3, 5):
        write_table(
            folder / "annotations" / f"s{number:03d}_0.xml",
            '<ASAP_Annotations><Annotations><Annotation Name="one" Type="Polygon" PartOfGroup="Tumor">',
            f"<Coordinates>{vertices}</Coordinates></Annotation></Annotations></ASAP_Annotations>",
        )


SCENES: dict[str, tuple[Callable[[Path], None], str]] = {
    "simulate": (nothing, "simulate nsclc --size tiny --slides 10 --dial pairs=64 --out cohort"),
    "annotate": (annotated_slides, "annotate cohort annotations --negative-class normal"),
    "import": (foreign_features, "import job --labels labels.csv --out cohort"),
    "train": (
        cohort_with_folds,
        "train cohort --out run --epochs 3 --folds 0 --jobs 1 --set min_steps=1",
    ),
    "diagnose": (trained_run, "diagnose run --only snr --jobs 1"),
}
QUICK = ("simulate", "annotate")
ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCENES]


# Commands in processes of their own


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    operations: tuple[str, ...]


class Stage:
    """One folder in which a scene is laid out afresh, always at the same place, since runs remember where their cohort is."""

    def __init__(self, root: Path, name: str) -> None:
        self.folder, self._valid, self._name = root / "scene", root / "valid", name
        SCENES[name][0](self.folder)
        shutil.copytree(self.folder, self._valid, symlinks=True)
        self.usual = self.run()
        assert self.usual.code == 0, self.usual.output
        self.files = snapshot(self.folder)

    def lay_out(self) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self._valid, self.folder, symlinks=True)

    def start(self, fault: str | None = None, at: int = 0) -> int:
        """Fork the command; returns its process id."""
        pid = os.fork()
        if pid:
            return pid
        code = 99
        try:
            os.chdir(self.folder)
            written = os.open(self._beside("output", os.getpid()), os.O_WRONLY | os.O_CREAT)
            os.dup2(written, 1)
            os.dup2(written, 2)
            sys.stdout, sys.stderr = (
                os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2)
            )
            sys.addaudithook(self._hook(fault, at))
            sys.argv = ["gcemil", *SCENES[self._name][1].split()]
            main()
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 0
        finally:
            os._exit(code)

    def wait(self, pid: int) -> Ended:
        _, status = os.waitpid(pid, 0)
        texts = []
        for kind in ("output", "operations"):
            path = self._beside(kind, pid)
            texts.append(path.read_text() if path.exists() else "")
            path.unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), texts[0], tuple(texts[1].splitlines()))

    def run(self, fault: str | None = None, at: int = 0) -> Ended:
        return self.wait(self.start(fault, at))

    def check_repeated(self, what: str) -> None:
        """The same command once more gives what an undisturbed one gives."""
        if snapshot(self.folder) != self.files:
            again = self.run()
            assert again.code == 0, f"{what}: {again.output}"
        assert snapshot(self.folder) == self.files, what

    def moments(self, number: int) -> list[int]:
        """Some of the file operations of the undisturbed command, the same every time."""
        draws = np.random.default_rng([2026, *self._name.encode()])
        return sorted(draws.permutation(len(self.usual.operations))[:number].tolist())

    def _hook(self, fault: str | None, at: int) -> Callable[[str, Any], None]:
        inside, owner, heard = f"{self.folder}/", os.getpid(), 0
        notes = os.open(self._beside("operations", owner), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def hear(event: str, arguments: Any) -> None:
            nonlocal heard
            if event not in HEARD or os.getpid() != owner or isinstance(arguments[0], int):
                return
            if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
            path = os.path.join(inside, os.fsdecode(arguments[0]))  # noqa: PTH118
            if not path.startswith(inside):
                return
            os.write(notes, f"{event} {path.removeprefix(inside)}\n".encode())
            heard += 1
            if fault == "kill" and heard > at:
                os.kill(owner, signal.SIGKILL)
            if fault == "full disk" and heard > at and event in NEED_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        return hear

    def _beside(self, kind: str, pid: int) -> Path:
        return self.folder.with_name(f"{kind}.{pid}")


def snapshot(folder: Path) -> dict[str, str]:
    """Every folder, link and file below, with a hash of its content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(UNTIMED.fullmatch(part) for part in name.split("/")):
            continue
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        else:
            content = re.sub(rb'"seconds": [-+.e\d]+', b'"seconds": 0', path.read_bytes())
            found[name] = hashlib.sha256(content).hexdigest()
    return found


def leftovers(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*.partial")]


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Stage:
    return Stage(tmp_path, request.param)


# Faults


@pytest.mark.parametrize("stage", ALL, indirect=True)
def test_a_killed_command_ends_like_an_undisturbed_one(stage: Stage) -> None:
    for moment in stage.moments(2):
        stage.lay_out()
        assert stage.run("kill", moment).code == -signal.SIGKILL
        stage.check_repeated(stage.usual.operations[moment])


@pytest.mark.parametrize("stage", ALL, indirect=True)
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(stage: Stage) -> None:
    for moment in stage.moments(2):
        stage.lay_out()
        ended = stage.run("full disk", moment)
        assert ended.code in (0, 1), ended.output
        assert "Traceback" not in ended.output
        assert "No space left on device" in ended.output or ended.code == 0
        assert leftovers(stage.folder) == []
        stage.check_repeated(stage.usual.operations[moment])


@pytest.mark.parametrize("stage", ALL, indirect=True)
def test_two_processes_on_one_folder_give_what_one_gives(stage: Stage) -> None:
    stage.lay_out()
    ends = [stage.wait(pid) for pid in (stage.start(), stage.start())]
    assert 0 in {end.code for end in ends}
    for end in ends:
        assert end.code == 0 or any(words in end.output for words in REFUSALS), end.output
    assert leftovers(stage.folder) == []
    stage.check_repeated("two at once")
