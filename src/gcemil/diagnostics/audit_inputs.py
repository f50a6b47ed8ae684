"""What an audit is given: a model of unknown origin, and patch scores made elsewhere. Both are checked here.

The model is any callable (features, coords) -> logits, or (logits, scores). It is handed float32 features (n, d) and integer coords (n, 2) or None, as torch tensors or numpy arrays on the CPU, and
may answer in either. One bag per call; the outputs in the order of the cohort's classes, or one risk.

Scores are FOLDER/<slide_id>.h5, .csv or .npy with one number per patch, in the order of the features.

HDF5   the dataset asked for, else the first of: scores, attention_scores (CLAM), attention, gates, else the only 1-D one
CSV    the column asked for, else the first of the same names or score, else the only column
npy    (n,), (n, 1) or (1, n)
A file that brings coordinates is held against those of the features, because rows in another order are the usual mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.bags import store
from gcemil.bags.bag import Bag
from gcemil.bags.foreign.torchmil import read_array
from gcemil.bags.tables import read_table
from gcemil.errors import InputError, StoreError, UsageError
from gcemil.hosts.adapters import CallableHost, match_batch_axis, read_logits, slope, unpack_answer
from gcemil.row_blocks import to_float32

NAMES = ("scores", "score", "attention_scores", "attention_score", "attention", "gates", "gate")
SUFFIXES = (".h5", ".csv", ".npy")
BagScores = Float[np.ndarray, "n"]

Arrays = Literal["torch", "numpy"]
SAME_ANSWER = 1e-4
"""Two answers within this share of their size are the same: sums of floats depend on their order."""


class BlackBox:
    """The callable; every answer is checked before anyone computes with it."""

    def __init__(
        self, model: Any, name: str, *, in_dim: int, n_outputs: int, arrays: Arrays = "torch"
    ) -> None:
        if not callable(model):
            raise UsageError(
                f"'{name}' is a {type(model).__name__} and cannot be called with a bag."
            )
        if inspect.isclass(model):
            raise UsageError(f"'{name}' is a class. Name a function, or an object of the class.")
        self.name = name
        self.in_dim = in_dim
        self.n_outputs = n_outputs
        self.arrays: Arrays = arrays
        self._model = model
        self._takes_coords = _accepts_coords(model)

    def host(self) -> CallableHost:
        """The model as a host, its own scores where it gives any and zeros otherwise."""
        return CallableHost(
            self._with_scores, self.in_dim, self.n_outputs, takes_coords=True, scores="model"
        )

    def slopes(self, features: Tensor, coords: Tensor | None) -> Tensor:
        """How the predicted output responds to each patch's gate, for a model that gives no scores."""
        features = to_float32(features)
        with torch.enable_grad():
            gates = torch.ones_like(features[:, :1]).requires_grad_()
            logits = read_logits(self.answer(features * gates, coords)[0], features, self.n_outputs)
            if not logits.requires_grad:
                raise UsageError(
                    f"Model '{self.name}' returns no patch scores and its logits carry no gradient, so there is nothing "
                    "to audit. Let it return (logits, scores), or give --scores DIR."
                )
            return slope(logits, gates, keeps_graph=False)

    def answer(self, features: Tensor, coords: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits and, where the model gives them, patch scores; both finite and of the right length."""
        features = to_float32(features)
        given = self._give(features, coords)
        try:
            found = self._model(*given)
        except Exception as error:
            raise UsageError(
                f"Model '{self.name}' failed on {len(features)} patches ({type(error).__name__}: {error}). "
                f"It is called with features {tuple(features.shape)} and coords as {self.arrays} arrays."
            ) from error
        logits, scores = unpack_answer(found)
        return self._checked_logits(logits), self._checked_scores(scores, len(features))

    def match_batch_axis(self, features: Tensor, coords: Tensor | None) -> None:
        """Put an axis before the patches, where the model answers only so."""
        given = self._give(to_float32(features), coords)
        self._model = match_batch_axis(
            self._model,
            given[0],
            given[1] if self._takes_coords else None,
            takes_coords=self._takes_coords,
            is_logits=lambda value: value.numel() in (self.n_outputs, 1),
        )

    def _give(self, features: Tensor, coords: Tensor | None) -> list[Any]:
        """What the callable is handed, as the arrays it wants."""
        given: list[Any] = [features, coords] if self._takes_coords else [features]
        if self.arrays == "numpy":
            given = [None if one is None else one.detach().cpu().numpy() for one in given]
        return given

    def _with_scores(self, features: Tensor, coords: Tensor | None) -> tuple[Tensor, Tensor]:
        logits, scores = self.answer(features, coords)
        return logits, features.new_zeros(len(features)) if scores is None else scores

    def _checked_logits(self, value: Any) -> Tensor:
        logits = self._finite_tensor(value, "logits")
        accepted = {self.n_outputs, 1} if self.n_outputs == 2 else {self.n_outputs}
        if logits.numel() not in accepted:
            raise UsageError(
                f"Model '{self.name}' gave logits of shape {tuple(logits.shape)} for one bag; this cohort has "
                f"{self.n_outputs} {'outputs' if self.n_outputs > 1 else 'output, a number'}. "
                "Return one logit per class, in the order of cohort.yaml, or one risk or value."
            )
        return logits

    def _checked_scores(self, value: Any, n_patches: int) -> Tensor | None:
        scores = None if value is None else self._finite_tensor(value, "scores")
        if scores is not None and scores.numel() != n_patches:
            raise UsageError(
                f"Model '{self.name}' gave scores of shape {tuple(scores.shape)} for {n_patches} patches. "
                "Return one score per patch, in the order of the features."
            )
        return scores

    def _finite_tensor(self, value: Any, what: str) -> Tensor:
        try:
            values = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"Model '{self.name}' gave {what} of type {type(value).__name__}. "
                "Return logits, or the tuple (logits, scores), as arrays."
            ) from error
        if not bool(torch.isfinite(values).all()):
            raise UsageError(
                f"Model '{self.name}' gave NaN or infinite {what}. Subsets of a bag are asked about too, down to one patch: "
                "the model must have an answer for them."
            )
        return values


def check_answers(bag_id: str, answer: Callable[[], Tensor]) -> list[str]:
    """Ask one bag twice: a note for answers that differ, and one for outputs that are probabilities."""
    first, second = answer().detach().double().flatten(), answer().detach().double().flatten()
    notes = []
    if (change := float((first - second).abs().max())) > SAME_ANSWER * (
        1 + float(first.abs().max())
    ):
        notes.append(
            f"The model gave two answers for bag '{bag_id}', {change:.2g} apart: it is in training mode (dropout), or random. "
            "Call model.eval() before the audit; until then no figure can be trusted."
        )
    is_share = (
        bool(((first >= 0) & (first <= 1)).all()) and abs(float(first.sum()) - 1) < SAME_ANSWER
    )
    if len(first) > 1 and is_share:
        notes.append(
            f"The outputs for bag '{bag_id}' lie in [0, 1] and sum to 1: they look like probabilities, and logits are "
            "expected, of which a softmax is taken. Return the logits, or the logarithm of the probabilities."
        )
    return notes


def _accepts_coords(model: Callable[..., Any]) -> bool:
    """Whether the callable accepts coordinates beside the features; assumed where it does not say."""
    try:
        inspect.signature(model).bind(None, None)
    except (TypeError, ValueError) as error:
        # A signature that cannot be read is a ValueError.
        return isinstance(error, ValueError)
    return True


@contextmanager
def name_bag_in_errors(bag_id: str) -> Iterator[None]:
    """Puts the bag in front of what is wrong with it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"Bag '{bag_id}': {error}") from error
    except InputError as error:
        raise type(error)(f"Bag '{bag_id}': {error}") from error


def read_bag_scores(folder: Path, bag: Bag, *, column: str | None = None) -> BagScores:
    """The scores of every slide of a bag, one after another."""
    parts = []
    for span in bag.spans:
        path = _find_score_file(folder, span.slide_id)
        values, coords = _read_scores(path, column)
        n_patches, expected = span.stop - span.start, bag.slide_coords(span.slide_id)
        if len(values) != n_patches:
            raise StoreError(
                f"{path} has {len(values)} scores for {n_patches} patches. Score the patches of the cohort's own feature file."
            )
        if not np.isfinite(values).all():
            wrong = int(np.flatnonzero(~np.isfinite(values))[0])
            raise StoreError(
                f"{path}: the score of patch {wrong} is {values[wrong]}. Every patch needs a finite score."
            )
        if coords is not None and expected is not None and not np.array_equal(coords, expected):
            raise StoreError(
                f"{path}: its coordinates are not those of the features, row by row. "
                "Write the scores in the order of the feature file."
            )
        parts.append(values)
    return np.concatenate(parts)


def _find_score_file(folder: Path, slide_id: str) -> Path:
    """The one score file of a slide."""
    # Not with_suffix: a slide id may hold dots.
    paths = [folder / f"{slide_id}{suffix}" for suffix in SUFFIXES]
    existing = [path for path in paths if path.is_file()]
    if len(existing) > 1:
        raise StoreError(
            f"{folder} has {existing[0].name} and {existing[1].name}, two files for one slide. Remove one."
        )
    if not existing:
        raise StoreError(
            f"{folder} has no scores of slide '{slide_id}': {', '.join(path.name for path in paths)} "
            "are looked for. Write one, or audit a part whose slides have scores."
        )
    return existing[0]


def _read_scores(path: Path, column: str | None) -> tuple[BagScores, Int[np.ndarray, "p 2"] | None]:
    """The scores of one file, and the coordinates it brings along."""
    coords = None
    if path.suffix == ".csv":
        rows = read_table(path, () if column is None else (column,))
        names = list(rows[0]) if rows else []
        column = column or _choose_name(
            path, names, names, f"has columns: {', '.join(names) or 'none'}"
        )
        try:
            return np.array([float(row[column]) for row in rows]), None
        except ValueError as error:
            raise StoreError(
                f"{path}: column '{column}' holds something that is no number ({error})."
            ) from error
    if path.suffix == ".h5":
        layouts = store.describe(path)
        single = [name for name, layout in layouts.items() if len(layout.shape) == 1]
        content = f"holds: {', '.join(layouts) or 'nothing'}"
        values = store.read(path, column or _choose_name(path, layouts, single, content))
        coords = store.read(path, "coords") if "coords" in layouts else None
    else:
        values = read_array(path, "scores")
    if values.dtype.kind not in "fiub" or values.size != max(values.shape, default=0):
        raise StoreError(
            f"{path}: scores are one number per patch, got {values.dtype} of shape {values.shape}. "
            "Choose the column of one class before writing them."
        )
    return values.reshape(-1).astype(np.float64), coords


def _choose_name(path: Path, names: Collection[str], single: Sequence[str], content: str) -> str:
    """The first known name in a file, else the only one that can be meant."""
    found = [name for name in NAMES if name in names] or (single if len(single) == 1 else ())
    if not found:
        raise StoreError(f"{path} {content}; which of them are the scores? Name it with --column.")
    return found[0]
