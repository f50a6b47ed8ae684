"""Predict whole bags, of the cohort or new ones, with trained networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from gcemil.bags.bag import Bag, slide_bag
from gcemil.bags.cohort import BagSpec, Cohort, SampleRule, load_bags
from gcemil.bags.folds import read_fold
from gcemil.bags.foreign.layouts import read_feature_file
from gcemil.bags.foreign.source import UNKNOWN_ENCODER, ReadOptions
from gcemil.config import Precision
from gcemil.errors import UsageError
from gcemil.explanation import Explanation, bag_tensors, explain_bag
from gcemil.hosts.host import HostOutput
from gcemil.model import EvidenceOutput, GceMil
from gcemil.records import (
    AdapterFigures,
    Representations,
    SlideEvidence,
    write_adapter,
    write_representations,
)
from gcemil.runs.checkpoint import LoadedNetwork, load_network, open_network
from gcemil.runs.consensus import find_consensus
from gcemil.runs.folder import FoldParts, Run, RunFold, fold_number, fold_parts
from gcemil.shapes import Logits
from gcemil.tasks.task import Task, make_task
from gcemil.units import LevelZeroPx

Mode = Literal["full", "head", "gce", "soft", "discrete", "opinion"]
"""full: the host on all patches; head: the evidence head alone; gce: F, both together; soft and
discrete: F under gates and on the evidence alone. For a given host, soft and discrete are those of
the host, and opinion is F."""
OnBag = Callable[[int, int], None]
ADAPTED_BAGS = 12
"""Bags on which the feature adapter is measured."""


@dataclass(frozen=True, eq=False)
class FoldModel:
    """One trained fold, built from its checkpoint alone."""

    folder: Path
    loaded: LoadedNetwork
    meta: dict[str, Any]

    @property
    def checkpoint(self) -> Path:
        """The file the network came from."""
        return RunFold(self.folder).checkpoint

    @property
    def number(self) -> int | None:
        """The k of fold_<k>; None for an exported fold."""
        return fold_number(self.folder)

    @property
    def task(self) -> Task:
        """How its outputs are read."""
        scale = self.loaded.label_scale
        return make_task(self.meta["task"], self.meta["classes"], label_scale=scale)

    def values(self, logits: Logits) -> list[float]:
        """prob_<class>, the value, or the risk."""
        return self.task.prediction(logits).cpu().double().reshape(-1).tolist()


def load_fold_models(
    run: Path,
    *,
    folds: Sequence[int] | None,
    needs_evidence: bool,
    device: str = "cpu",
    precision: Precision = "32",
) -> tuple[FoldModel, ...]:
    """All trained folds of a run, or some."""
    chosen = Run(run).trained_folds() if folds is None else [Run(run).fold(fold) for fold in folds]
    models = tuple(
        FoldModel(one.path, *open_network(one.checkpoint, device, precision)) for one in chosen
    )
    if needs_evidence and any(one.loaded.model is None for one in models):
        raise UsageError(
            f"{run} is a plain host, which has no evidence: only --mode full is possible."
        )
    return models


def average_folds(
    models: Sequence[FoldModel], per_fold: Sequence[Sequence[float]], prefix: str = ""
) -> dict[str, float]:
    """The prediction of a run: the mean over its folds, by name."""
    means = torch.tensor(per_fold, dtype=torch.float64).mean(dim=0).tolist()
    names = (f"{prefix}{name}" for name in models[0].task.prediction_names)
    return dict(zip(names, means, strict=True))


def _list_columns(models: Sequence[FoldModel], mode: str) -> dict[str, str]:
    """The modes of the predictions by the prefix of their columns; `mode` itself comes first."""
    modes = {"": mode}
    if mode == "gce":
        modes["host_"] = "full"
    if mode in ("full", "gce") and models[0].loaded.model is not None:
        modes["evidence_"] = "discrete"
    return modes


def value_names(models: Sequence[FoldModel], mode: str) -> tuple[str, ...]:
    """The columns that a prediction has."""
    names = models[0].task.prediction_names
    return tuple(f"{prefix}{name}" for prefix in _list_columns(models, mode) for name in names)


@dataclass(frozen=True, eq=False)
class SlidePrediction:
    """Mean over the folds of a run for one slide, and the evidence that most of them chose."""

    slide_id: str
    values: dict[str, float]
    """prob_<class>, value or risk; then the same of the host and of the evidence alone."""
    per_fold: list[list[float]]
    evidence: SlideEvidence | None

    @property
    def spread(self) -> float | None:
        """Deviation over the folds of the predicted probability or number; None for one fold."""
        folds = np.array(self.per_fold)
        return float(folds[:, folds.mean(0).argmax()].std(ddof=1)) if len(folds) > 1 else None


def predict_new_bag(models: Sequence[FoldModel], bag: Bag, mode: Mode) -> SlidePrediction:
    """A bag of one slide through every fold; the evidence is the consensus of the folds."""
    predicted = [_predict_bag(fold.loaded.network, bag) for fold in models]

    pairs = list(zip(models, (outputs for outputs, _ in predicted), strict=True))
    values: dict[str, float] = {}
    per_fold: dict[str, list[list[float]]] = {}
    for prefix, one in _list_columns(models, mode).items():
        per_fold[prefix] = [fold.values(outputs[cast(Mode, one)].logits) for fold, outputs in pairs]
        values |= average_folds(models, per_fold[prefix], prefix)
    networks = [fold.loaded.model for fold in models if fold.loaded.model is not None]
    explanations = [explanation for _, explanation in predicted if explanation is not None]
    evidence = find_consensus(networks, bag, explanations)[0] if networks else None
    return SlidePrediction(bag.bag_id, values, per_fold[""], evidence)


def read_new_slide(
    path: Path, meta: dict[str, Any], *, mpp: float | None = None
) -> tuple[Bag, str]:
    """A feature file of any known layout as a bag, and a warning where encoders differ by name.

    `meta` is the header of the network; `mpp` is needed where coordinates are micrometres.
    """
    file = read_feature_file(path, ReadOptions(mpp=mpp))
    if file.n_patches == 0 or file.feature_dim != meta["in_dim"]:
        raise UsageError(
            f"{path}: features of shape {(file.n_patches, file.feature_dim)} cannot be used; this "
            f"run was trained on width {meta['in_dim']} from encoder '{meta['encoder']}'."
        )
    features, coords = file.load()
    if not np.isfinite(features).all():
        raise UsageError(
            f"{path}: features with NaN or infinite numbers cannot be used. Extract the slide "
            "again."
        )
    stated = None if file.size_is_inferred else file.patch_size
    size = stated or meta["patch_size_level0"]
    bag = slide_bag(file.slide_id, features, coords, None if size is None else LevelZeroPx(size))
    names = file.encoder, meta["encoder"]
    # Tools name one encoder differently, so another name is not an error.
    if UNKNOWN_ENCODER in names or names[0].lower() == names[1].lower():
        return bag, ""
    warning = (
        f"its features are of encoder '{names[0]}' by its own account, the run was trained on "
        f"'{names[1]}'"
    )
    return bag, warning


def available_modes(network: nn.Module) -> tuple[Mode, ...]:
    """How this network can see a bag."""
    if not isinstance(network, GceMil):
        return ("full",)
    head: tuple[Mode, ...] = ("head",) if network.head.is_fitted else ()
    if not network.explains_host:
        return ("full", *head, "gce", "soft", "discrete")
    opinion: tuple[Mode, ...] = ("opinion",) if network.head.has_vote else ()
    return ("full", *head, "soft", "discrete", *opinion)


def evaluate_bags(
    network: nn.Module,
    cohort: Cohort,
    bags: Sequence[BagSpec],
    *,
    modes: Sequence[Mode],
    on_explained: Callable[[BagSpec, Bag, Explanation], None] | None = None,
) -> dict[Mode, Tensor]:
    """Logits (bags, outputs) per mode, all patches, in the order given."""
    rows: dict[Mode, list[Tensor]] = {mode: [] for mode in modes}
    network.eval()
    for spec, bag in load_bags(cohort, bags, rule=SampleRule(), ahead=2):
        outputs, explanation = _predict_bag(network, bag, recovers="discrete" in modes)
        for mode in modes:
            rows[mode].append(outputs[mode].logits.float().cpu())
        if on_explained and explanation is not None:
            on_explained(spec, bag, explanation)
        # A large bag and its embedding must be gone before the next one is read.
        del bag, outputs, explanation
    return {mode: torch.stack(logits) for mode, logits in rows.items()}


@torch.no_grad()
def _predict_bag(
    network: nn.Module, bag: Bag, *, recovers: bool = True
) -> tuple[dict[Mode, HostOutput], Explanation | None]:
    """The outputs by mode; the evidence is recovered only for the discrete mode."""
    device = next(network.parameters()).device
    if not isinstance(network, GceMil):
        return {"full": network(*bag_tensors(bag, device))}, None
    if not recovers:
        output = network(*bag_tensors(bag, device), patch_size=bag.patch_size)
        return _list_outputs(output), None
    explanation = explain_bag(network, bag)
    return {**_list_outputs(explanation.output), "discrete": explanation.kept}, explanation


def _list_outputs(output: EvidenceOutput) -> dict[Mode, HostOutput]:
    outputs: dict[Mode, HostOutput] = {
        "full": output.full,
        "gce": output.gce,
        "opinion": output.gce,
        "soft": output.soft,
    }
    if output.head_logits is not None:
        outputs["head"] = replace(output.full, logits=output.head_logits)
    return outputs


def represent_runs(runs: Sequence[Path], *, on_bag: OnBag | None = None) -> None:
    """Write the representations of the first trained fold of every run; folds share no axes."""
    for run in runs:
        fold, (_, cohort) = Run(run).trained_folds()[0], Run(run).open_cohort()
        parts = fold_parts(cohort, read_fold(cohort, fold.number))
        network = load_network(fold.checkpoint)[0].network
        write_representations(
            fold.representations, represent_bags(network, cohort, parts, on_bag=on_bag)
        )
        if (figures := measure_adapter(network, cohort, parts)) is not None:
            write_adapter(fold.adapter, figures)


@torch.no_grad()
def represent_bags(
    network: nn.Module,
    cohort: Cohort,
    parts: FoldParts,
    *,
    recovers: bool = True,
    on_bag: OnBag | None = None,
) -> Representations:
    """Representations of validation and test bags; `recovers` adds those of the evidence."""
    specs = [*parts.val, *parts.test]
    network.eval()
    rows: dict[str, list[np.ndarray]] = {}
    for done, (_, bag) in enumerate(load_bags(cohort, specs, rule=SampleRule(), ahead=2), start=1):
        outputs, _ = _predict_bag(network, bag, recovers=recovers)
        # Host and F pool the same feature, so it is kept once.
        for mode in ("full", "soft", "discrete"):
            if mode in outputs:
                feature = outputs[mode].bag_feature.flatten().float().cpu().numpy()
                rows.setdefault(mode, []).append(feature)
        if on_bag:
            on_bag(done, len(specs))
    return Representations(
        {mode: np.stack(features) for mode, features in rows.items()},
        tuple(spec.bag_id for spec in specs),
        ("val",) * len(parts.val) + ("test",) * len(parts.test),
        tuple(_name_group(spec, cohort) for spec in specs),
    )


@torch.no_grad()
def measure_adapter(network: nn.Module, cohort: Cohort, parts: FoldParts) -> AdapterFigures | None:
    """Patches of some test bags before and after the feature adapter; None without one."""
    if not isinstance(network, GceMil) or network.selector.morphology is None:
        return None
    adapter = network.selector.morphology.adapter
    cosines, selected = [], []
    for _, bag in load_bags(cohort, parts.test[:ADAPTED_BAGS], rule=SampleRule()):
        features = bag_tensors(bag, adapter.up.device)[0].float()
        cosines.append(
            torch.cosine_similarity(adapter.norm(features), adapter(features), dim=1).cpu()
        )
        selected.append(explain_bag(network, bag).recovery.selected.cpu())
    strengths = torch.linalg.svdvals(adapter.up @ adapter.down.T)[: adapter.up.shape[1]]
    return AdapterFigures(
        torch.cat(cosines).numpy(), torch.cat(selected).numpy(), strengths.float().cpu().numpy()
    )


def _name_group(spec: BagSpec, cohort: Cohort) -> str:
    """The class, the half of the values, or whether the event happened."""
    if isinstance(spec.target, int):
        return cohort.card.classes[spec.target]
    if isinstance(spec.target, float):
        middle = np.median([row.value for row in cohort.slides if row.value is not None])
        return "above the median" if spec.target > middle else "below the median"
    return "event" if spec.target[1] == 1 else "censored"
