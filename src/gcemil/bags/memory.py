"""A cohort whose bags are held in memory: arrays, tensors or `Bag`s with labels, for `fit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcemil.bags import store
from gcemil.bags.bag import Bag, RowIndex, slide_bag
from gcemil.bags.cohort import BagSpec, Cohort, CohortCard, Task, read_slides
from gcemil.bags.folds import target_problems
from gcemil.bags.foreign.label_tables import MOST_CLASSES
from gcemil.errors import BagError, CohortError, UsageError

_FEATURES, _LABELS = ("X", "features"), ("Y", "label")
"""Names under which an item of a dataset holds features and label; the first are torchmil's."""


@dataclass(frozen=True, eq=False)
class MemoryCohort(Cohort):
    """A cohort without feature files; `folder` may hold anchors, pairs or nothing."""

    held: Mapping[str, Bag]

    def layout(self, spec: BagSpec) -> Bag:
        """The bag itself, since nothing has to be read."""
        return self.held[spec.bag_id]

    def read_bag(
        self, spec: BagSpec, layout: Bag | None = None, rows: RowIndex | None = None
    ) -> Bag:
        """The bag, or only these sorted rows of it."""
        bag = self.held[spec.bag_id]
        return bag if rows is None else bag.take_rows(rows)


def make_cohort(
    items: Any,
    labels: Sequence[Any] | None,
    folder: Path,
    *,
    task: Task | None = None,
    classes: Sequence[str] | None = None,
    cases: Sequence[str] | None = None,
) -> MemoryCohort:
    """Check bags and labels, and hold them as a cohort; bags of one case stay together."""
    items = list(iterate_items(items))
    bags = [read_bag_item(item, f"bag_{number}") for number, item in enumerate(items)]
    given = [_take(item, _LABELS) for item in items] if labels is None else list(labels)
    targets = [_as_plain(value) for value in given]
    if len(targets) != len(bags) or (cases is not None and len(cases) != len(bags)):
        raise UsageError(
            f"{len(bags)} bags need as many labels and cases, got {len(targets)} labels"
            f"{'' if cases is None else f' and {len(cases)} cases'}."
        )
    if not bags or any(target is None for target in targets):
        raise UsageError("Every bag needs a label. Give labels=, or items that hold Y or 'label'.")
    held = {bag.bag_id: bag for bag in bags}
    if len(held) < len(bags):
        raise CohortError("Two bags have the same bag_id. Give every bag a bag_id of its own.")
    widths = {bag.features.shape[1] for bag in bags}
    if len(widths) > 1:
        raise CohortError(f"All bags need features of one width, got {sorted(widths)}.")
    sizes = {bag.patch_size for bag in bags}
    task = task or ("survival" if isinstance(targets[0], list) else "classification")
    names = _name_classes(targets, classes) if task == "classification" else ()
    card = CohortCard(
        name="in memory",
        task=task,
        classes=names,
        feature_dim=widths.pop(),
        patch_size_level0=sizes.pop() if len(sizes) == 1 else None,
        bag_unit="slide",
    )
    lines = [
        {"slide_id": bag_id, "case_id": str(case), **_write_target(bag_id, target, task, names)}
        for bag_id, case, target in zip(held, cases or held, targets, strict=True)
    ]
    rows, problems = read_slides(lines, card)
    for problem in [*problems, *target_problems(rows)]:
        if problem.level == "error":
            where = f"Bag '{problem.where}': " if problem.where in held else ""
            raise UsageError(f"{where}{problem.what}. Give other labels.")
    return MemoryCohort(folder, card, tuple(rows), held)


def iterate_items(items: Any) -> Iterator[Any]:
    """The items of an iterable, or of a dataset that has a length and is indexed by numbers."""
    if hasattr(items, "__iter__"):
        return iter(items)
    return (items[number] for number in range(len(items)))


def read_bag_item(item: Any, name: str) -> Bag:
    """A `Bag`, features, (features, coords), or an item with X or features, and coords."""
    if isinstance(item, Bag):
        return item
    if isinstance(item, tuple) and len(item) == 2:
        features, coords = item
    elif (features := _take(item, _FEATURES)) is not None:
        coords = _take(item, ("coords",))
        name = str(_take(item, ("bag_id", "name")) or name)
    else:
        features, coords = item, None
    matrix = as_array(features)
    if matrix.ndim != 2 or not matrix.size or matrix.dtype.kind not in "fiu":
        raise BagError(
            f"Bag '{name}': features have shape {matrix.shape} and type {matrix.dtype}. "
            "Give numbers of shape (patches, width)."
        )
    if matrix.dtype not in (np.float16, np.float32):
        matrix = matrix.astype(np.float32)
    if problem := store.nan_problem(matrix):
        raise BagError(f"Bag '{name}': {problem}. Extract it again or leave it out.")
    places = None if coords is None else np.rint(as_array(coords)).astype(np.int64)
    if places is not None and places.shape != (len(matrix), 2):
        raise BagError(
            f"Bag '{name}': {len(matrix)} patches need coords of shape ({len(matrix)}, 2), "
            f"got {places.shape}."
        )
    return slide_bag(name, matrix, places)


def as_array(values: Any) -> NDArray[Any]:
    """A numpy array of a tensor or of anything numpy reads; bfloat16 becomes float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    return np.asarray(values)


def _take(item: Any, names: Sequence[str]) -> Any:
    """The first of these entries or attributes that the item has; None without one."""
    if hasattr(item, "keys"):
        return next((item[name] for name in names if name in item.keys()), None)  # noqa: SIM118
    if isinstance(item, np.ndarray | list | tuple | Bag) or hasattr(item, "detach"):
        return None
    return next((getattr(item, name) for name in names if hasattr(item, name)), None)


def _as_plain(value: Any) -> Any:
    """A label as text, a number or a list of numbers; whole floats become integers."""
    if value is None or isinstance(value, str):
        return value
    plain = as_array(value).reshape(-1).tolist()
    if len(plain) > 1:
        return plain
    (only,) = plain
    return int(only) if isinstance(only, bool | float) and float(only).is_integer() else only


def _name_classes(targets: Sequence[Any], classes: Sequence[str] | None) -> tuple[str, ...]:
    """The given names, or the sorted labels; integers are sorted as numbers."""
    measured = {target for target in targets if isinstance(target, float)}
    if len(measured) > MOST_CLASSES:
        raise UsageError(
            f"The labels are measurements such as {measured.pop()}, which are not classes. "
            'Give task="regression", or labels of classes.'
        )
    if classes is not None:
        return tuple(map(str, classes))
    try:
        names = sorted(set(targets))
    except TypeError as error:
        raise UsageError(
            f"Labels are class names or integers of one kind, got {targets[:3]}."
        ) from error
    if len(names) < 2:
        raise UsageError(f"Classification needs two classes, but every label is '{names[0]}'.")
    return tuple(map(str, names))


def _write_target(bag_id: str, target: Any, task: Task, classes: Sequence[str]) -> dict[str, str]:
    """The label, the value, or time and event, as slides.csv has them."""
    if task == "regression":
        return {"value": str(target)}
    if task == "survival":
        if not isinstance(target, list) or len(target) != 2:
            raise UsageError(f"Bag '{bag_id}': a survival label is (time, event), got {target}.")
        return {"time": str(target[0]), "event": str(target[1])}
    # An integer is the number of a class where the classes have names.
    is_index = isinstance(target, int) and str(target) not in classes and 0 <= target < len(classes)
    return {"label": classes[target] if is_index else str(target)}
