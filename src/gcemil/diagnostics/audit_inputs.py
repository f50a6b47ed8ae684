"""An audit of a cohort on disk: a model of unknown origin, and patch scores made elsewhere.

The model is the host of a run or any callable (features, coords) -> logits, or (logits, scores).
It is given float32 features (n, d) and integer coords (n, 2) or None, as torch tensors or numpy
arrays on the CPU, and may return either. One bag per call; the outputs in the order of the
cohort's classes, or one risk.

Scores are FOLDER/<slide_id>.h5, .csv or .npy: one number per patch, in the order of the features.

HDF5   the named dataset, else the first of NAMES, else the only 1-D one
CSV    the named column, else the first of NAMES, else the only column
npy    (n,), (n, 1) or (1, n)
Coordinates in a file are compared with those of the features, because rows in another order are
the usual mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gcemil.bags import store
from gcemil.bags.bag import Bag
from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import record_cohort
from gcemil.bags.folds import read_fold
from gcemil.bags.foreign.torchmil import read_array
from gcemil.bags.tables import read_table
from gcemil.bags.targets import refuse_targets
from gcemil.config import TrainSettings
from gcemil.device import describe_environment
from gcemil.diagnostics.audit import OWN_SCORES, OnBag, ScoreSource, audit_model, name_bag_in_errors
from gcemil.errors import StoreError, UsageError
from gcemil.explanation import bag_tensors
from gcemil.findings import Finding
from gcemil.hosts.adapters import CallableHost, match_batch_axis, read_logits, slope, unpack_answer
from gcemil.hosts.host import HostOutput
from gcemil.hosts.own import import_file, import_object
from gcemil.row_blocks import to_float32
from gcemil.runs.checkpoint import open_network
from gcemil.runs.folder import Run, fold_parts
from gcemil.tasks.task import create_task, stacked_targets

NAMES = ("scores", "score", "attention_scores", "attention_score", "attention", "gates", "gate")
SUFFIXES = (".h5", ".csv", ".npy")
BagScores = Float[np.ndarray, "n"]
Arrays = Literal["torch", "numpy"]
SAME_ANSWER = 1e-4
"""Two outputs within this share of their size are equal: sums of floats depend on their order."""


Part = Literal["train", "val", "test", "all"]


def audit_cohort(
    folder: Path,
    model: str,
    *,
    scores: Sequence[Path] = (),
    column: str | None = None,
    gates: bool = False,
    part: Part = "test",
    fold: int = 0,
    budget: float = 0.05,
    arrays: Arrays = "torch",
    repeats: int = 3,
    seed: int = 0,
    device: str = "cpu",
    on_bag: OnBag | None = None,
) -> Finding:
    """Audit the host of a run folder, or `package.module:callable`, which is imported."""
    cohort = Cohort.load(folder)
    refuse_targets(cohort)
    parts = None if part == "all" else fold_parts(cohort, read_fold(cohort, fold))
    label_scale, called = (0.0, 1.0), None
    if Path(model).is_dir():
        own, _ = open_network(Run(Path(model)).fold(fold).checkpoint, device)
        label_scale, called = (
            own.label_scale,
            lambda *bag: attrgetter("logits", "scores")(own.host(*bag)),
        )
    task = create_task(cohort, TrainSettings(), label_scale)
    specs = cohort.bags if parts is None else getattr(parts, part)
    targets = stacked_targets(specs)
    task.check(targets, where=f"{folder}, fold {fold}, part {part}")
    box = BlackBox(
        called or import_model(model),
        model,
        in_dim=cohort.card.feature_dim,
        n_outputs=cohort.n_outputs,
        arrays=arrays,
    )
    with name_bag_in_errors(specs[0].bag_id), torch.no_grad():
        given = bag_tensors(cohort.read_bag(specs[0]))
        box.match_batch_axis(*given)
        warnings = check_answers(specs[0].bag_id, lambda: box.answer(*given)[0])
        sources = collect_sources(box, given, scores, column, gates)
    finding = audit_model(
        box.host(),
        cohort,
        specs,
        targets,
        task,
        score_sources=sources,
        budget=budget,
        seed=seed,
        on_bag=on_bag,
        repeats=repeats,
    )
    notes = (*warnings, *finding.notes)
    if part != "test":
        notes = (*notes, f"Bags of part '{part}': the model may have been trained on them.")
    inputs = {"cohort": record_cohort(cohort).fingerprint}
    provenance = {
        **describe_environment(seed=seed, device=torch.device("cpu"), inputs=inputs),
        "cohort": cohort.card.name,
        "model": model,
        "scores": [path.resolve().name for path in scores],
        "part": part,
        "fold": None if part == "all" else fold,
    }
    return replace(finding, notes=notes, provenance=provenance)


def collect_sources(
    box: BlackBox,
    given: tuple[Tensor, Tensor | None],
    folders: Sequence[Path],
    column: str | None,
    gates: bool,
) -> dict[str, ScoreSource]:
    """The model's own scores and those of every folder, or its slope where there are neither."""
    sources: dict[str, ScoreSource] = {}
    if box.answer(*given)[1] is not None:
        sources["model"] = OWN_SCORES
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"--scores {folder} is not a folder. Give the folder of <slide_id>.h5, .csv or "
                ".npy files."
            )
        name = folder.resolve().name
        if name in sources:
            raise UsageError(
                f"Two sources of scores are called '{name}'. Rename the folder {folder}."
            )

        def read(bag: Bag, _full: HostOutput, folder: Path = folder) -> Tensor:
            return torch.from_numpy(read_bag_scores(folder, bag, column=column))

        sources[name] = ScoreSource(read, follows_bag=False, are_gates=gates)
    if gates and not folders:
        raise UsageError("--gates describes the score files. Give them with --scores DIR.")
    return sources or {"slope": ScoreSource(lambda bag, _full: box.slopes(*bag_tensors(bag)))}


def import_model(name: str) -> Any:
    """The object that --model names; a torch module is set to evaluation."""
    if ":" not in name:
        raise UsageError(
            f"--model '{name}' is neither a run folder nor a callable of yours, which is written "
            "package.module:callable or folder/file.py:callable."
        )
    file, _, callable_name = name.rpartition(":")
    if file.endswith(".py"):
        name = f"{import_file(Path(file), '--model')}:{callable_name}"
    model = import_object(name, "--model")
    return model.eval() if isinstance(model, nn.Module) else model


class BlackBox:
    """A callable whose output is checked before it is used."""

    def __init__(
        self, model: Any, name: str, *, in_dim: int, n_outputs: int, arrays: Arrays = "torch"
    ) -> None:
        if not callable(model):
            raise UsageError(
                f"'{name}' is a {type(model).__name__} and cannot be called with a bag."
            )
        if inspect.isclass(model):
            raise UsageError(f"'{name}' is a class. Name a function, or an object of the class.")
        self.name, self.in_dim, self.n_outputs = name, in_dim, n_outputs
        self.arrays: Arrays = arrays
        self._model = model
        self._takes_coords = _accepts_coords(model)

    def host(self) -> CallableHost:
        """The model as a host, with its own scores if it returns any and zeros otherwise."""

        def predict(features: Tensor, coords: Tensor | None) -> tuple[Tensor, Tensor]:
            logits, scores = self.answer(features, coords)
            return logits, features.new_zeros(len(features)) if scores is None else scores

        return CallableHost(predict, self.in_dim, self.n_outputs, takes_coords=True, scores="model")

    def slopes(self, features: Tensor, coords: Tensor | None) -> Tensor:
        """Slope of the predicted output by each patch's gate, for a model without scores."""
        features = to_float32(features)
        with torch.enable_grad():
            gates = torch.ones_like(features[:, :1]).requires_grad_()
            logits = read_logits(self.answer(features * gates, coords)[0], features, self.n_outputs)
            if not logits.requires_grad:
                raise UsageError(
                    f"Model '{self.name}' returns no patch scores and its logits carry no "
                    "gradient, so there is nothing to audit. Let it return (logits, scores), "
                    "or give --scores DIR."
                )
            return slope(logits, gates, keeps_graph=False)

    def answer(self, features: Tensor, coords: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits and, if the model returns them, patch scores; finite and of the right length."""
        features = to_float32(features)
        try:
            logits, scores = unpack_answer(self._model(*self._arguments(features, coords)))
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"Model '{self.name}' failed on {len(features)} patches "
                f"({type(error).__name__}: {error}). It is called with features "
                f"{tuple(features.shape)} and coords as {self.arrays} arrays."
            ) from error
        logits = self._finite_tensor(logits, "logits")
        accepted = {self.n_outputs, 1} if self.n_outputs == 2 else {self.n_outputs}
        if logits.numel() not in accepted:
            raise UsageError(
                f"Model '{self.name}' gave logits of shape {tuple(logits.shape)} for one bag; this "
                f"cohort has {self.n_outputs} "
                f"{'outputs' if self.n_outputs > 1 else 'output, a number'}. Return one logit per "
                "class, in the order of cohort.yaml, or one risk or value."
            )
        scores = None if scores is None else self._finite_tensor(scores, "scores")
        if scores is not None and scores.numel() != len(features):
            raise UsageError(
                f"Model '{self.name}' gave scores of shape {tuple(scores.shape)} for "
                f"{len(features)} patches. Return one score per patch, in the order of the "
                "features."
            )
        return logits, scores

    def match_batch_axis(self, features: Tensor, coords: Tensor | None) -> None:
        """Put an axis before the patches if the model needs it."""
        given = self._arguments(to_float32(features), coords)
        self._model = match_batch_axis(
            self._model,
            given[0],
            given[1] if self._takes_coords else None,
            takes_coords=self._takes_coords,
            is_logits=lambda value: value.numel() in (self.n_outputs, 1),
        )

    def _arguments(self, features: Tensor, coords: Tensor | None) -> list[Any]:
        given: list[Any] = [features, coords] if self._takes_coords else [features]
        if self.arrays == "numpy":
            given = [None if one is None else one.detach().cpu().numpy() for one in given]
        return given

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
                f"Model '{self.name}' gave NaN or infinite {what}. It is also called with subsets "
                "of a bag, down to one patch: they need finite values too."
            )
        return values


def check_answers(bag_id: str, answer: Callable[[], Tensor]) -> list[str]:
    """Predict one bag twice: a note if the outputs differ, and one if they are probabilities."""
    first, second = answer().detach().double().flatten(), answer().detach().double().flatten()
    notes = []
    change, size = float((first - second).abs().max()), float(first.abs().max())
    if change > SAME_ANSWER * (1 + size):
        notes.append(
            f"The model gave two outputs for bag '{bag_id}', {change:.2g} apart: it is in training "
            "mode (dropout), or random. Call model.eval() before the audit; until then no figure "
            "can be trusted."
        )
    is_share = bool(((first >= 0) & (first <= 1)).all())
    if len(first) > 1 and is_share and abs(float(first.sum()) - 1) < SAME_ANSWER:
        notes.append(
            f"The outputs for bag '{bag_id}' lie in [0, 1] and sum to 1: they look like "
            "probabilities, and logits are expected, of which a softmax is taken. Return the "
            "logits, or the logarithm of the probabilities."
        )
    return notes


def _accepts_coords(model: Callable[..., Any]) -> bool:
    """Whether the callable accepts coordinates; assumed if its signature cannot be read."""
    try:
        inspect.signature(model).bind(None, None)
    except (TypeError, ValueError) as error:
        # A signature that cannot be read is a ValueError.
        return isinstance(error, ValueError)
    return True


def read_bag_scores(folder: Path, bag: Bag, *, column: str | None = None) -> BagScores:
    """The scores of every slide of a bag, one after another."""
    parts = []
    for span in bag.spans:
        path = _find_score_file(folder, span.slide_id)
        values, coords = _read_scores(path, column)
        n_patches, expected = span.stop - span.start, bag.slide_coords(span.slide_id)
        if len(values) != n_patches:
            raise StoreError(
                f"{path} has {len(values)} scores for {n_patches} patches. "
                "Score the patches of the cohort's own feature file."
            )
        if not np.isfinite(values).all():
            wrong = int(np.flatnonzero(~np.isfinite(values))[0])
            raise StoreError(
                f"{path}: the score of patch {wrong} is {values[wrong]}. "
                "Every patch needs a finite score."
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
            f"{folder} has {existing[0].name} and {existing[1].name}, two files for one slide. "
            "Remove one."
        )
    if not existing:
        raise StoreError(
            f"{folder} has no scores of slide '{slide_id}': none of "
            f"{', '.join(path.name for path in paths)} exists. "
            "Write one, or audit a part whose slides have scores."
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
                f"{path}: column '{column}' holds something that is not a number ({error})."
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
    matches = [name for name in NAMES if name in names] or (single if len(single) == 1 else ())
    if not matches:
        raise StoreError(f"{path} {content}; which of them are the scores? Name it with --column.")
    return matches[0]
