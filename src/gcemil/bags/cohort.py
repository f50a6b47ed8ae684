"""A cohort folder: its card (cohort.yaml), its slides (slides.csv), its features, and its bags.

Classification and regression make one bag per slide, because slides of one case may carry different
labels; survival makes one bag per case, because time and event belong to the case. `bag_unit` in
the card overrides this where labels allow it.

`load_bags` reads bags ahead in a thread and holds a bounded number of bags and bytes. Batches are
lists: bags are never stacked or padded. What is sampled depends on seed, epoch and bag alone, so a
resumed run and an uninterrupted one see the same patches.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from gcemil.bags import store
from gcemil.bags.bag import (
    Bag,
    CoordRows,
    FeatureRows,
    RowIndex,
    case_bag,
    coordinate_step,
    grid_stride,
    sample_blocks,
    sample_patches,
    slide_bag,
)
from gcemil.bags.tables import is_plain_id, read_table
from gcemil.config import LARGEST_SIZE
from gcemil.errors import CohortError
from gcemil.files import is_file, read_yaml, validate_as, write_table, write_text
from gcemil.slides.reader import ANY_EXTENSIONS
from gcemil.units import LevelZeroPx
from gcemil.wording import is_there, near_path

T = TypeVar("T")
Task = Literal["classification", "survival", "regression", "multilabel"]

HELD_BYTES = 256 * 2**20
"""About so much is read ahead, judged by the size of the bag before."""
NEGATIVE_NAMES = ("normal", "negative", "healthy")
"""Classes that are taken for slides without a lesion where cohort.yaml names none."""
SLIDE_COLUMNS: dict[Task, tuple[str, ...]] = {
    "classification": ("slide_id", "case_id", "label"),
    "survival": ("slide_id", "case_id", "time", "event"),
    "regression": ("slide_id", "case_id", "value"),
    "multilabel": ("slide_id", "case_id"),
}
"""The columns that slides.csv must have beside those of several targets; it may have `site` too."""


class CohortCard(BaseModel):
    """The content of cohort.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    task: Task
    classes: tuple[str, ...] = ()
    """The classes; of a multilabel cohort its targets, each of them a column of slides.csv."""
    negative_class: str | None = None
    """The class of slides without a lesion, on which no evidence should be confirmed."""
    feature_dim: int = Field(ge=1, le=LARGEST_SIZE)
    encoder: str = "unknown"
    patch_size_level0: int | None = Field(default=None, ge=1, le=1_000_000)
    anchors: str | None = None
    """A file in the cohort folder (anchors.h5) or the name of a disease family."""
    bag_unit: Literal["slide", "case"] | None = None
    provenance: dict[str, Any] = Field(default_factory=dict)
    """How the cohort came to be: simulator dials, or the assumptions an importer made."""

    @property
    def negative_index(self) -> int | None:
        """Index of the class without a lesion: the named one, else one with a usual name."""
        names = [name.lower() for name in self.classes]
        wanted = (self.negative_class.lower(),) if self.negative_class else NEGATIVE_NAMES
        return next((names.index(name) for name in wanted if name in names), None)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that slides.csv must have."""
        return SLIDE_COLUMNS[self.task] + (self.classes if self.task == "multilabel" else ())


@dataclass(frozen=True)
class SlideRow:
    """One line of slides.csv."""

    slide_id: str
    case_id: str
    label: str | None = None
    time: float | None = None
    event: int | None = None
    value: float | None = None
    site: str | None = None
    labels: tuple[int | None, ...] = ()
    """0 or 1 for each target of a multilabel cohort, None where it is not known."""

    @property
    def target(self) -> Any:
        """The label, the value, the labels, or else time and event."""
        for target in (self.label, self.value, self.labels or None):
            if target is not None:
                return target
        return self.time, self.event


@dataclass(frozen=True)
class BagSpec:
    """One bag before anything is read: its slides and its target.

    The target is a class index, a value, time and event, or a label per target.
    """

    bag_id: str
    case_id: str
    slide_ids: tuple[str, ...]
    target: int | float | tuple[float, int] | tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Cohort:
    """A cohort folder: its card, its slides, and the bags they form.

    Args:
        folder: The folder.
        card: The content of cohort.yaml.
        slides: The rows of slides.csv.

    Example:
        >>> import gcemil, pathlib, tempfile
        >>> from gcemil.simulation.simulate import simulate
        >>> folder = simulate("nsclc", pathlib.Path(tempfile.mkdtemp()), size="tiny").folder
        >>> cohort = gcemil.Cohort.load(folder)
        >>> spec = cohort.bags[0]
        >>> bag = cohort.read_bag(spec)
        >>> bag.features.shape == (len(cohort.layout(spec)), cohort.card.feature_dim)
        True
        >>> name = spec.slide_ids[0]
        >>> cohort.feature_file(name).exists(), cohort.truth_file(name).exists()
        (True, True)
        >>> cohort.slide_file(name) is None, cohort.slide_patch_size(name, bag.coords)
        (True, 512)
        >>> cohort.save()
        >>> cohort.save_card()
    """

    folder: Path
    card: CohortCard
    slides: tuple[SlideRow, ...]

    @staticmethod
    def load(folder: Path | str) -> Cohort:
        """Open a cohort.

        Args:
            folder: A folder with cohort.yaml and slides.csv.

        Returns:
            The cohort; features are read bag by bag.

        Raises:
            CohortError: The folder is not a cohort, or its tables contradict each other.
        """
        folder = Path(folder)
        card, table = read_card(folder), folder / "slides.csv"
        slides, problems = read_slides(read_table(table, card.columns), card)
        raise_first(problems, table)
        return Cohort(folder, card, tuple(slides))

    def save(self) -> None:
        """Write slides.csv and cohort.yaml, which comes last: a folder that has it is a cohort."""
        write_slide_table(self.folder, self.card.task, self.slides, self.card.classes)
        self.save_card()

    def save_card(self) -> None:
        """Write cohort.yaml alone."""
        # Without defaults: the file holds only what was chosen.
        written = self.card.model_dump(mode="json", exclude_defaults=True)
        write_text(self.folder / "cohort.yaml", yaml.safe_dump(written, sort_keys=False))

    @property
    def n_outputs(self) -> int:
        """Outputs of a model for this cohort: one per class or target, or one number."""
        return len(self.card.classes) or 1

    @property
    def bag_unit(self) -> Literal["slide", "case"]:
        """Whether a bag is a slide or a case."""
        return self.card.bag_unit or ("case" if self.card.task == "survival" else "slide")

    @cached_property
    def bags(self) -> tuple[BagSpec, ...]:
        """Every bag, in the order of slides.csv."""
        groups: dict[str, list[SlideRow]] = {}
        for row in self.slides:
            name = row.slide_id if self.bag_unit == "slide" else row.case_id
            groups.setdefault(name, []).append(row)
        specs = []
        for bag_id, rows in groups.items():
            target = rows[0].target
            if self.card.task == "classification":
                target = self.card.classes.index(target)
            slide_ids = tuple(sorted(row.slide_id for row in rows))
            specs.append(BagSpec(bag_id, rows[0].case_id, slide_ids, target))
        return tuple(specs)

    def feature_file(self, slide_id: str) -> Path:
        """Name the feature file of a slide.

        Args:
            slide_id: A slide of the cohort.

        Returns:
            features/<slide>.h5 in the folder, whether it exists or not.
        """
        return feature_file(self.folder, slide_id)

    def truth_file(self, slide_id: str) -> Path:
        """Name the file of the annotated patches of a slide.

        Args:
            slide_id: A slide of the cohort.

        Returns:
            truth/<slide>.h5 in the folder, whether it exists or not.
        """
        return self.folder / "truth" / f"{slide_id}.h5"

    def slide_file(self, slide_id: str) -> Path | None:
        """Find the slide itself.

        Args:
            slide_id: A slide of the cohort.

        Returns:
            slides/<slide>.* in the folder; None if there is no such file.
        """
        return find_slide_file(self.folder, slide_id)

    def slide_patch_size(self, slide_id: str, coords: CoordRows) -> int | None:
        """Find the side of a patch of one slide.

        Args:
            slide_id: A slide of the cohort.
            coords: Top-left corners in level-0 pixels, (patches, 2).

        Returns:
            The side in level-0 pixels, from cohort.yaml, from the feature file, or from the grid;
            None if it is unknown.
        """
        return find_patch_size(self.folder, self.card, slide_id, coords)

    def layout(self, spec: BagSpec) -> Bag:
        """Read a bag without its features.

        Args:
            spec: One of `bags`.

        Returns:
            The bag with coordinates and spans, and features of width 0.

        Raises:
            StoreError: A feature file cannot be read.
        """
        slides = []
        for slide_id in spec.slide_ids:
            n_patches, coords = store.read_patch_layout(self.feature_file(slide_id))
            slides.append(
                slide_bag(slide_id, np.empty((n_patches, 0), np.float32), coords, self.patch_size)
            )
        return slides[0] if self.bag_unit == "slide" else case_bag(spec.bag_id, slides)

    def read_bag(
        self, spec: BagSpec, layout: Bag | None = None, rows: RowIndex | None = None
    ) -> Bag:
        """Read a bag.

        Args:
            spec: One of `bags`.
            layout: What `layout(spec)` returned; None reads it.
            rows: Sorted rows to read, (rows,); None reads all.

        Returns:
            The bag with its features.

        Raises:
            StoreError: A feature file cannot be read.
            CohortError: The features do not have the width that cohort.yaml states.
        """
        layout = layout or self.layout(spec)
        parts = []
        for span in layout.spans:
            own = rows
            if rows is not None:
                # The rows that fall into one slide, counted from its first row.
                own = rows[(rows >= span.start) & (rows < span.stop)] - span.start
            parts.append(self._read_features(span.slide_id, own))
        chosen = layout if rows is None else layout.take_rows(rows)
        return replace(chosen, features=parts[0] if len(parts) == 1 else np.concatenate(parts))

    @property
    def patch_size(self) -> LevelZeroPx | None:
        """Side of a patch in level-0 pixels; None if cohort.yaml does not state it."""
        size = self.card.patch_size_level0
        return None if size is None else LevelZeroPx(size)

    def _read_features(self, slide_id: str, rows: RowIndex | None) -> FeatureRows:
        path = self.feature_file(slide_id)
        features: FeatureRows = store.read(path, "features", rows)
        if problem := store.features_problem(features.shape, features.dtype):
            raise CohortError(f"{path}: {problem}. Extract the slide again.")
        if features.shape[1] != self.card.feature_dim:
            raise CohortError(
                f"{path}: features have shape {features.shape}, but cohort.yaml states "
                f"feature_dim {self.card.feature_dim}. All slides of a cohort come from one "
                "encoder; extract this one again or correct cohort.yaml."
            )
        return features


def feature_file(folder: Path, slide_id: str) -> Path:
    """Where the features of a slide lie in a cohort folder."""
    return folder / "features" / f"{slide_id}.h5"


def find_slide_file(folder: Path, slide_id: str) -> Path | None:
    """slides/<slide>.* of a cohort folder; None where there is none."""
    paths = (folder / "slides" / f"{slide_id}{extension}" for extension in ANY_EXTENSIONS)
    return next((path for path in paths if is_file(path)), None)


def read_slide_attributes(folder: Path, slide_id: str) -> dict[str, Any]:
    """Attributes of the feature file and of its coordinates; empty if the file is missing."""
    path = feature_file(folder, slide_id)
    if not is_file(path):
        return {}
    return {**store.attributes(path), **store.attributes(path, "coords")}


def read_slide_bounds(folder: Path, slide_id: str) -> store.Bounds:
    """Where the image that QuPath shows begins, as the feature file states; else (0, 0)."""
    attributes = read_slide_attributes(folder, slide_id)
    return store.stated_bounds(attributes, str(feature_file(folder, slide_id))) or (0, 0)


def find_patch_size(
    folder: Path, card: CohortCard | None, slide_id: str, coords: CoordRows
) -> int | None:
    """In level-0 pixels: the card's, the feature file's own, or the step of the grid."""
    if card is not None and card.patch_size_level0 is not None:
        return card.patch_size_level0
    stated = store.stated_number(read_slide_attributes(folder, slide_id), "patch_size_level0")
    size = stated or grid_stride(coords)
    return None if size is None else max(1, round(size))


def read_card(folder: Path) -> CohortCard:
    """The checked cohort.yaml of a folder."""
    path = folder / "cohort.yaml"
    if not is_file(path):
        raise CohortError(_describe_no_cohort(folder))
    card = validate_as(
        read_yaml(path), CohortCard, path, error=CohortError, remedy="Correct the card."
    )
    listed = ", ".join(card.classes)
    if card.task in ("classification", "multilabel") and len(card.classes) < 2:
        what = "classes" if card.task == "classification" else "targets"
        raise CohortError(
            f"{path}: a {card.task} cohort needs at least two {what}, got {list(card.classes)}."
        )
    if card.negative_class is not None and card.negative_class not in card.classes:
        raise CohortError(
            f"{path}: negative_class is '{card.negative_class}', but the classes are {listed}. "
            "Name one of them."
        )
    if len(set(card.classes)) < len(card.classes):
        raise CohortError(f"{path}: a class occurs twice among {listed}. Remove one.")
    return card


def _describe_no_cohort(folder: Path) -> str:
    if not is_there(folder):
        return (
            f"{folder} does not exist.{near_path(folder)} "
            "Give a cohort folder, as 'gcemil import' or 'gcemil encode' writes it."
        )
    if is_file(folder / "config.yaml") and any(folder.glob("fold_*")):
        return f"{folder} is a run, not a cohort. Give the folder of the cohort it was trained on."
    if is_file(folder):
        return f"{folder} is a file, not a cohort. Give the folder that holds cohort.yaml."
    return (
        f"{folder} is not a cohort: it has no cohort.yaml. Make one with 'gcemil import' or "
        f"'gcemil simulate'; 'gcemil inspect {folder}' says what it is."
    )


def write_slide_table(
    folder: Path, task: Task, slides: Sequence[SlideRow], classes: Sequence[str] = ()
) -> None:
    """Write slides.csv; with sites where they are known, and a column per target of several."""
    columns = list(SLIDE_COLUMNS[task])
    if any(row.site is not None for row in slides):
        columns.append("site")
    targets = classes if task == "multilabel" else ()
    rows = [
        {name: getattr(row, name) for name in columns}
        | dict(zip(targets, row.labels, strict=bool(targets)))
        for row in slides
    ]
    write_table(folder / "slides.csv", [*columns, *targets], rows)


# Problems of slides.csv: `Cohort.load` raises the first, `gcemil validate` lists all


@dataclass(frozen=True)
class Problem:
    """What is wrong with a cohort, and what to do about it.

    An error stops training, a warning is recorded in the run.
    """

    where: str
    """The slide, case, class or file it is about."""
    what: str
    remedy: str
    level: Literal["error", "warning"] = "error"


def raise_first(problems: Iterable[Problem], path: Path) -> None:
    """Raise the first error in this file."""
    for problem in problems:
        if problem.level == "error":
            raise CohortError(f"{path}: {problem.where}: {problem.what}. {problem.remedy}")


def read_slides(
    rows: Sequence[Mapping[str, str]], card: CohortCard
) -> tuple[list[SlideRow], list[Problem]]:
    """The lines of slides.csv, and every problem of them, each alone and together."""
    counts = Counter(row["slide_id"] for row in rows)
    problems = [
        Problem(slide_id, f"the slide id occurs {count} times in slides.csv", "Keep one line.")
        for slide_id, count in counts.items()
        if count > 1
    ]
    slides = [_read_slide(row, card, problems) for row in rows]
    if card.task == "survival" or card.bag_unit == "case":
        first_of: dict[str, SlideRow] = {}
        for slide in slides:
            first = first_of.setdefault(slide.case_id, slide)
            if first.target != slide.target:
                what = f"slides '{first.slide_id}' and '{slide.slide_id}' of the case disagree"
                remedy = "A case has one target; correct slides.csv."
                problems.append(Problem(slide.case_id, f"{what} on the target", remedy))
    return slides, problems


def _read_slide(row: Mapping[str, str], card: CohortCard, problems: list[Problem]) -> SlideRow:
    """One line of slides.csv without what cannot be used of it, which is added to the problems."""
    slide_id = row["slide_id"]

    def refuse(what: str, remedy: str) -> None:
        problems.append(Problem(slide_id, what, remedy))

    if not is_plain_id(slide_id):
        refuse("the name cannot be a slide id: it is not a plain file name", "Rename the slide.")
    slide = SlideRow(slide_id, row["case_id"] or slide_id, site=row.get("site") or None)
    if card.task == "classification":
        if row["label"] not in card.classes:
            what = f"label '{row['label']}' is not among {', '.join(card.classes)}"
            refuse(what, "Correct the label, or add the class to cohort.yaml.")
        return replace(slide, label=row["label"])
    if card.task == "regression":
        if not math.isfinite(value := _parse_number(row["value"])):
            what = f"value '{row['value']}' is not a finite number"
            refuse(what, "Correct the value, or take the slide out of slides.csv.")
        return replace(slide, value=value)
    if card.task == "multilabel":
        for name in card.classes:
            if row[name] not in ("0", "1", ""):
                what = f"'{name}' is '{row[name]}', and a target is 0, 1 or empty"
                refuse(what, "Correct the label, or leave it empty where it is not known.")
        bits = {"0": 0, "1": 1}
        return replace(slide, labels=tuple(bits.get(row[name]) for name in card.classes))
    # Tables that went through pandas have 1.0 for an event.
    time, event = _parse_number(row["time"]), _parse_number(row["event"])
    if not 0 < time < math.inf:
        what = f"survival time '{row['time']}' is not a finite number above 0"
        refuse(what, "Correct the time, or exclude the case.")
    if event not in (0, 1):
        what = f"event '{row['event']}' is neither 0 nor 1"
        refuse(what, "Code 1 for happened and 0 for censored.")
    return replace(slide, time=time, event=int(event) if event in (0, 1) else None)


def _parse_number(text: str) -> float:
    """The number in a cell; NaN where there is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


# Bags read ahead


@dataclass(frozen=True)
class SampleRule:
    """At most `limit` patches per bag, in blocks of the grid or one by one; None means all."""

    limit: int | None = None
    sampling: Literal["blocks", "patches"] = "blocks"
    seed: int = 0


def load_bags(
    cohort: Cohort, specs: Sequence[BagSpec], *, rule: SampleRule, epoch: int = 0, ahead: int = 4
) -> Iterator[tuple[BagSpec, Bag]]:
    """Each bag once, in order; at most `ahead` wait in memory, and none beside a large bag."""
    # Not a loop with variables, which would hold a bag in memory while the thread waits.
    pairs = ((spec, read_sampled_bag(cohort, spec, rule=rule, epoch=epoch)) for spec in specs)
    with closing(run_ahead(pairs, ahead, size=lambda pair: pair[1].features.nbytes)) as ready:
        yield from ready


def run_ahead(
    items: Generator[T, None, None], ahead: int, *, size: Callable[[T], int]
) -> Generator[T, None, None]:
    """The items, made by a thread: at most `ahead` wait, fewer where items are large.

    Close it to stop early.
    """
    end = object()
    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="gcemil-read-ahead") as reader:
        try:
            while True:
                if not waiting:
                    waiting.append(reader.submit(next, items, end))
                item = waiting.popleft().result()
                if item is end:
                    return
                room = min(ahead, HELD_BYTES // max(1, size(item)))
                while len(waiting) < room:
                    waiting.append(reader.submit(next, items, end))
                yield item
                del item
        finally:
            reader.shutdown(cancel_futures=True)
            items.close()


def read_sampled_bag(cohort: Cohort, spec: BagSpec, *, rule: SampleRule, epoch: int) -> Bag:
    """The bag, restricted to the patches that this seed and epoch draw for it."""
    layout = cohort.layout(spec)
    if rule.limit is None or len(layout) <= rule.limit:
        return cohort.read_bag(spec, layout)
    generator = np.random.default_rng([rule.seed, epoch, *spec.bag_id.encode()])
    if rule.sampling == "blocks" and layout.coords is not None:
        step = layout.patch_size or coordinate_step(layout.coords)
        rows = sample_blocks(layout.coords, step, rule.limit, generator)
    else:
        rows = sample_patches(len(layout), rule.limit, generator)
    return cohort.read_bag(spec, layout, rows)
