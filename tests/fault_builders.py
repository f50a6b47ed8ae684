"""A tiny scene for every command that writes: its inputs in a folder, and what is typed there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from builders import PATCH, make_cohort
from fault_process import differences, held_locks, leftovers, run_command, snapshot
from foreign_builders import grid, trident_features, write_table
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, write_folds
from gcemil.bags.tables import read_table
from gcemil.config import EvidenceSettings, TrainSettings
from gcemil.features.encode_cohort import write_drawn_tables
from gcemil.features.encoders import load_encoder
from gcemil.features.extract import encode_slides
from gcemil.features.patching import find_slides, patch_slides
from gcemil.simulation.pixels import simulate_pixels
from gcemil.simulation.simulate import simulate
from gcemil.slides.grid import PatchSettings
from gcemil.training.run import train_run
from slide_builders import tissue_image, write_slide

PARTS = ("train", "train", "val", "val", "test", "test")


@dataclass(frozen=True)
class Scene:
    """What lies in the folder before, and the arguments of the command, relative to it."""

    make: Callable[[Path], None]
    arguments: tuple[object, ...]
    victim: str | None = None
    """A pattern of the input files that the command reads; the last one vanishes."""
    kills: int | None = None
    """Fewer than usual, for commands that take long and share their code with another."""
    once: bool = False
    """Whether it refuses a folder that is already whole."""


def nothing(folder: Path) -> None:
    folder.mkdir(parents=True)


def foreign_features(folder: Path) -> None:
    """Six slides as TRIDENT leaves them, and a table of labels."""
    for number in range(6):
        trident_features(folder / "job", f"s{number}", grid(6 + number, 512))
    lines = (f"s{number},c{number},{('normal', 'tumor')[number % 2]}" for number in range(6))
    write_table(folder / "labels.csv", "slide_id,case_id,label", *lines)


def slides_to_encode(folder: Path) -> None:
    for number in range(3):
        write_slide(folder / "slides" / f"s{number}.tif", tissue_image(seed=number))
    lines = (f"s{number},c{number},{('normal', 'tumor')[number % 2]}" for number in range(3))
    write_table(folder / "labels.csv", "slide_id,case_id,label", *lines)


def cohort_with_folds(folder: Path) -> None:
    cohort = simulate("nsclc", folder / "cohort", size="tiny", slides=24, seed=0, dials={"pairs": 64})
    write_folds(cohort, make_folds(cohort, seed=0))


def trained_run(folder: Path) -> None:
    cohort_with_folds(folder)
    settings = TrainSettings(evidence=EvidenceSettings(), epochs=2)
    train_run(folder / "cohort", folder / "run", settings, folds=[0], jobs=1)


def a_grid(folder: Path) -> None:
    write_table(
        folder / "grid.yaml",
        "name: two",
        "cohorts: {lung: {profile: nsclc, size: tiny, slides: 24, dials: {pairs: 64}}}",
        "hosts: [abmil]",
        "folds: [0]",
        "settings: {epochs: 2}",
        "diagnostics: [snr]",
    )


def drawn_run(folder: Path) -> None:
    """Six drawn slides of a dozen patches, encoded, and one fold trained on them."""
    cohort = folder / "cohort"
    simulate_pixels("camelyon16", cohort, size="tiny", slides=6, patches=(9, 12))
    slides, encoder = find_slides([cohort / "slides"]), load_encoder("efficientnet_lite0")
    patch_slides(slides.values(), cohort)
    encode_slides(slides, cohort, encoder)
    # Every part of the fold needs both classes, which so few drawn slides do not give.
    rows = read_table(cohort / "slides.csv")
    lines = (",".join({**row, "label": ("normal", "tumor")[k % 2]}.values()) for k, row in enumerate(rows))
    write_table(cohort / "slides.csv", ",".join(rows[0]), *lines)
    write_drawn_tables(cohort, encoder, PatchSettings())
    names = [row.slide_id for row in Cohort.load(cohort).slides]
    lines = (f"{name},{part}" for name, part in zip(names, PARTS, strict=True))
    write_table(cohort / "splits" / "fold_0.csv", "slide_id,split", *lines)
    train_run(cohort, folder / "run", TrainSettings(evidence=EvidenceSettings(), epochs=2), folds=[0], jobs=1)


def annotated_slides(folder: Path) -> None:
    make_cohort(folder / "cohort", n_cases=6, n_patches=16, classes=("normal", "tumor"))
    corners = enumerate([(0, 0), (PATCH, 0), (PATCH, PATCH), (0, PATCH)])
    vertices = "".join(f'<Coordinate Order="{order}" X="{x}" Y="{y}"/>' for order, (x, y) in corners)
    for number in (1, 3, 5):
        write_table(
            folder / "annotations" / f"s{number:03d}_0.xml",
            '<ASAP_Annotations><Annotations><Annotation Name="one" Type="Polygon" PartOfGroup="Tumor">',
            f"<Coordinates>{vertices}</Coordinates></Annotation></Annotations></ASAP_Annotations>",
        )


TRAIN = ("train", "cohort", "--out", "run", "--epochs", 3, "--folds", "0,1")
SCENES: dict[str, Scene] = {
    "simulate": Scene(
        nothing,
        ("simulate", "nsclc", "--size", "tiny", "--slides", 10, "--dial", "pairs=64", "--out", "cohort"),
    ),
    "simulate --pixels": Scene(
        nothing,
        ("simulate", "camelyon16", "--pixels", "--size", "tiny", "--slides", 5, "--out", "cohort"),
        kills=3,
    ),
    "import": Scene(
        foreign_features,
        ("import", "job", "--labels", "labels.csv", "--out", "cohort"),
        "job/*/features_uni_v1/*.h5",
        once=True,
    ),
    "import --copy": Scene(
        foreign_features,
        ("import", "job", "--labels", "labels.csv", "--out", "cohort", "--copy"),
        "job/*/features_uni_v1/*.h5",
        once=True,
    ),
    "encode": Scene(
        slides_to_encode,
        ("encode", "slides", "--out", "cohort", "--labels", "labels.csv", "--workers", 1),
        "slides/*.tif",
    ),
    "train": Scene(cohort_with_folds, (*TRAIN, "--jobs", 1), "cohort/features/*.h5"),
    "train --jobs 2": Scene(cohort_with_folds, (*TRAIN, "--jobs", 2), kills=3),
    "diagnose": Scene(
        trained_run, ("diagnose", "run", "--only", "snr,budget", "--jobs", 1), "cohort/features/*.h5"
    ),
    "diagnose --jobs 2": Scene(
        trained_run, ("diagnose", "run", "--only", "snr,budget", "--jobs", 2), kills=3
    ),
    "benchmark": Scene(a_grid, ("benchmark", "grid.yaml", "--out", "results", "--workers", 1)),
    "explain": Scene(trained_run, ("explain", "run", "--slide", "nsclc-0001-s1", "--out", "explained")),
    "report": Scene(trained_run, ("report", "run")),
    "prefilter": Scene(drawn_run, ("prefilter", "run", "cohort/slides", "--risk", 0.9, "--epochs", 1)),
    "annotate": Scene(
        annotated_slides,
        ("annotate", "cohort", "annotations", "--negative-class", "normal"),
        "annotations/*.xml",
    ),
}
"""Every command that the harness kills, by what is typed."""


def draws(name: str, kind: int) -> np.random.Generator:
    """The random moments of a command, the same every time."""
    return np.random.default_rng([2026, kind, *name.encode()])


def report(
    record_property: Callable[[str, object], None],
    name: str,
    kind: str,
    troubles: dict[str, list[str]],
    *,
    in_time: int | None = None,
) -> None:
    """Put on record how often a command was disturbed, how often before its end, and fail with all that was not mended."""
    bad = {moment: found for moment, found in troubles.items() if found}
    in_time = len(troubles) if in_time is None else in_time
    record_property("faults", (name, kind, len(troubles), in_time, len(bad)))
    assert not bad, "\n".join(f"{moment}: {'; '.join(found)}" for moment, found in bad.items())


@dataclass(frozen=True)
class Undisturbed:
    """What a command does when it is left alone."""

    code: int
    seconds: float
    computed: float
    operations: tuple[str, ...]
    files: dict[str, str]


class Stage:
    """The scenes of one session: inputs are made once, and laid out afresh at the same place for every trial."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[Callable[[Path], None], Path] = {}
        self._undisturbed: dict[Scene, Undisturbed] = {}

    def undisturbed(self, scene: Scene) -> Undisturbed:
        """Once is enough: that it gives the same bytes every time is what the trials show."""
        if scene not in self._undisturbed:
            folder = self.set_up(scene)
            ended = run_command(scene.arguments, folder)
            assert ended.code == 0, ended.output
            self._undisturbed[scene] = Undisturbed(
                ended.code, ended.seconds, ended.computed, ended.operations, snapshot(folder)
            )
        return self._undisturbed[scene]

    def set_up(self, scene: Scene) -> Path:
        """The folder with its inputs and nothing else."""
        if scene.make not in self._made:
            template = self._root / "templates" / scene.make.__name__ / "scene"
            # Made where it will be used, as run folders remember where their cohort lies.
            folder = self.folder
            shutil.rmtree(folder, ignore_errors=True)
            scene.make(folder)
            shutil.copytree(folder, template, symlinks=True)
            self._made[scene.make] = template
        folder = self.folder
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._made[scene.make], folder, symlinks=True)
        return folder

    def troubles_when_repeated(self, scene: Scene) -> list[str]:
        """Run the command once more where a disturbed one stopped, and say what is not as if nothing had happened."""
        usual, found = self.undisturbed(scene), []
        if not (scene.once and snapshot(self.folder) == usual.files):
            again = run_command(scene.arguments, self.folder)
            found = [] if again.code == usual.code else [f"exit code {again.code}: {again.output[-300:]}"]
        found += differences(usual.files, snapshot(self.folder))
        found += [f"left: {name}" for name in leftovers(self.folder)]
        return found + [f"held: {name}" for name in held_locks(self.folder)]

    @property
    def folder(self) -> Path:
        return self._root / "scene"
