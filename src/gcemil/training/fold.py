"""One fold, from its slides on disk to its results: network, training, predictions, evidence.

A text bank needs pairs, unless its bridge is free; its prompts are then represented by training
patches, unless the settings name a bridge. Examples must lie on training slides or outside the
cohort. Without either, anchors are prototypes of the fold's training patches. Every record states
which.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcemil.bags import store
from gcemil.bags.bag import Bag, sample_patches
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.examples import EXAMPLES, EXAMPLES_FILE, choose_for_fold, read_examples
from gcemil.bags.fingerprint import content_hash, record_cohort
from gcemil.bags.folds import read_fold, split_file
from gcemil.config import EvidenceSettings, TrainSettings
from gcemil.device import pick_device
from gcemil.errors import CohortError, ConfigError, RunError
from gcemil.evidence.anchors import AnchorBank
from gcemil.evidence.bridge import CentredBridge, FrozenBridge
from gcemil.explanation import Explanation, slide_evidence
from gcemil.files import lock_folder, write_json, write_table
from gcemil.model import GceMil, bridge_kind
from gcemil.processes import SHUTDOWN_TIMEOUT_S
from gcemil.records import write_evidence
from gcemil.runs.checkpoint import LoadedNetwork, build_host, load_network, save_network
from gcemil.runs.folder import FoldParts, Run, RunFold, fold_parts, main_mode
from gcemil.runs.learning import Learning, bootstrap_error
from gcemil.runs.predict import Mode, available_modes, evaluate_bags
from gcemil.runs.weights import PretrainedHost, pretrained_host_of_fold, target_host
from gcemil.tasks.task import Task, create_task, measure_label_scale, stacked_targets, training_task
from gcemil.training.directions import FALSE_EVIDENCE_RATE, anchor_prompts_in_patches
from gcemil.training.epochs import EpochRecord, OnBag, merge_warnings
from gcemil.training.loop import OnEpoch, Progress, fit_evidence, train, write_history
from gcemil.training.optimizer import stream_seed
from gcemil.training.trackers import open_tracker

REFERENCE_PATCHES_PER_BAG = 20
MOST_FITTED = 200
"""Training bags that are predicted to see how far the model fits them."""
PAIRS_FILE = "anchor_pairs.h5"
FITTED_BRIDGES = {"proximal", "frozen"}


def train_fold(
    cohort: Cohort,
    index: int,
    settings: TrainSettings,
    folder: Path,
    *,
    hosts_from: Iterable[Path] = (),
    on_epoch: OnEpoch | None = None,
    on_bag: OnBag | None = None,
) -> None:
    """Train fold `index` into its folder of a run that was begun; a finished fold is left alone.

    Of the runs in `hosts_from`, the first whose host was trained with the same settings gives its
    host. The result is the same, bit for bit.
    """
    fold = RunFold(folder)
    if fold.is_finished:
        return
    # A worker of a run that was just killed may still be on its way out.
    with lock_folder(folder, wait=SHUTDOWN_TIMEOUT_S):
        started = time.monotonic()
        parts = read_parts(cohort, settings, index)
        torch.manual_seed(stream_seed(settings.seed, index, 99))
        given = pretrained_host_of_fold(settings, cohort, index)
        loaded = create_network(cohort, parts.train, settings, pick_device(settings.device), given)
        task = training_task(cohort, settings, parts.train, loaded.label_scale)
        with closing(open_tracker(fold.path, settings)) as tracker:

            def report(record: EpochRecord) -> None:
                tracker.add(record, step=record["epoch"])
                if on_epoch:
                    on_epoch(record)

            progress = reuse_host(loaded, cohort, settings, fold, hosts_from)
            if progress is None:
                progress = train(
                    loaded, cohort, parts, task, settings, fold,
                    fold=index, on_epoch=report, on_bag=on_bag,
                )  # fmt: skip
            else:
                for record in progress.history:
                    report(record)
        fit_evidence(loaded, cohort, parts, settings, fold=index)
        save_network(fold.checkpoint, loaded, cohort, settings)
        model = loaded.model
        details = {
            "best_epoch": progress.best_epoch,
            "validation": progress.best,
            "warnings": merge_warnings(progress.history),
            "anchors": None if model is None else model.bank.provenance,
        }
        if model is not None and model.head.is_fitted:
            details["vote"] = {
                "weight": float(model.head.weight),
                "reads": "anchors" if model.is_grounded else "class directions",
                "opinion": model.explains_host,
            }
        if given is not None:
            details["weights"] = given.record
        try:
            evaluate_fold(loaded, cohort, parts, task, fold, details)
        except RunError:
            # An epoch may have read files that changed, so the next training starts anew.
            for path in (fold.resume, fold.checkpoint):
                path.unlink(missing_ok=True)
            raise
        write_json(fold.timing, {"seconds": time.monotonic() - started})


def read_parts(cohort: Cohort, settings: TrainSettings, index: int) -> FoldParts:
    """The bags of a fold, each part of which has bags and a metric."""
    parts, task = fold_parts(cohort, read_fold(cohort, index)), create_task(cohort, settings)
    for name in ("train", "val", "test"):
        where = f"fold {index}, part {name}"
        if not (bags := getattr(parts, name)):
            raise CohortError(f"{where} has no bag. Run 'gcemil split' again.")
        task.check(stacked_targets(bags), where=where)
    return parts


def reuse_host(
    loaded: LoadedNetwork,
    cohort: Cohort,
    settings: TrainSettings,
    fold: RunFold,
    runs: Iterable[Path],
) -> Progress | None:
    """Take the host of the first run that trained it in the same way; None if there is none."""
    for run in map(Run, runs):
        trained, is_shared = run.fold(fold.number), bool(run.card.targets)
        if not is_shared and not (
            settings.host_is_unchanged
            and trained.is_finished
            and trains_same_host(run, cohort, settings, fold.number)
        ):
            continue
        network, record = load_network(trained.checkpoint)
        host = network.host
        if is_shared:
            target = record["classes"].index(cohort.card.classes[1])
            host = target_host(settings.host, host, target)
        elif (record["task"], tuple(record["classes"])) != (cohort.card.task, cohort.card.classes):
            continue
        loaded.host.load_state_dict(host.state_dict())
        history, details = trained.read_history(), trained.read_metrics().details
        write_history(fold.history, history)
        best, best_epoch = details.validation or 0.0, details.best_epoch or 0
        return Progress(best=best, best_epoch=best_epoch, history=history)
    return None


def trains_same_host(run: Run, cohort: Cohort, settings: TrainSettings, index: int) -> bool:
    """Whether a fold of a run has the host of these settings; the evidence may differ."""
    before = run.card.settings
    if before.evidence is not None and not before.host_is_unchanged:
        return False
    if before.model_copy(update={"evidence": settings.evidence}) != settings:
        return False
    then, now = run.training_cohort.parts, record_cohort(cohort).parts
    split = split_file(cohort.folder, index).name
    same_split = then["splits"].get(split) == now["splits"].get(split)
    return same_split and all(then[part] == now[part] for part in ("labels", "features"))


# Its network


def create_network(
    cohort: Cohort,
    train_bags: Sequence[BagSpec],
    settings: TrainSettings,
    device: torch.device,
    given: PretrainedHost | None = None,
    bank: AnchorBank | None = None,
) -> LoadedNetwork:
    """Host and evidence of a fold, from torch's current seed or with given weights."""
    host = build_host(settings.host, in_dim=cohort.card.feature_dim, n_outputs=cohort.n_outputs)
    scale = measure_label_scale(cohort, train_bags)
    if given is not None:
        host.load_state_dict(given.tensors)
        # A host that stays as it is counts in the labels it was trained on.
        scale = (given.label_scale if settings.host.is_frozen else None) or scale
    if settings.evidence is None:
        return LoadedNetwork(host.to(device), label_scale=scale)
    reference = reference_patches(cohort, train_bags, seed=settings.seed)
    bank = create_anchors(
        cohort, train_bags, settings.evidence, reference, seed=settings.seed, bank=bank
    )
    model = GceMil(
        host,
        bank,
        in_dim=cohort.card.feature_dim,
        settings=settings.evidence,
        explains_host=settings.host.is_frozen,
        task=cohort.card.task,
    )
    if isinstance(model.bridge, CentredBridge):
        model.bridge.set_centre(reference.mean(dim=0))
    elif bank.kind == "examples":
        raise ConfigError(
            f"evidence.bridge is '{settings.evidence.bridge}', but anchors from examples take auto "
            "or centred."
        )
    elif bridge_kind(settings.evidence, bank, cohort.card.feature_dim) in FITTED_BRIDGES:
        model.bridge.fit(*read_pairs(cohort))
    model.calibrate(reference)
    return LoadedNetwork(host.to(device), model.to(device), reference.to(device), scale)


def create_anchors(
    cohort: Cohort,
    train_bags: Sequence[BagSpec],
    settings: EvidenceSettings,
    reference: Tensor,
    *,
    seed: int,
    bank: AnchorBank | None = None,
) -> AnchorBank:
    """The given bank or the one of the settings, its prompts represented by training patches."""
    source, card = settings.anchors, cohort.card
    if bank is None and EXAMPLES in (source, card.anchors if source == "auto" else None):
        return create_example_bank(cohort, train_bags, reference)
    bank = bank or create_bank(cohort, settings, reference, seed=seed)
    is_text = bridge_kind(settings, bank, card.feature_dim) == "proximal"
    if settings.bridge != "auto" or not is_text or settings.prompt_examples == 0:
        return bank
    bridge = FrozenBridge(card.feature_dim, bank.anchor_dim, rank=settings.bridge_rank)
    bridge.fit(*read_pairs(cohort))
    return anchor_prompts_in_patches(
        bank, bridge, reference, cohort, train_bags, count=settings.prompt_examples, seed=seed
    )


def create_example_bank(
    cohort: Cohort, train_bags: Sequence[BagSpec], reference: Tensor
) -> AnchorBank:
    """Anchors of examples on these training slides and on slides outside the cohort."""
    examples = read_examples(cohort.folder / EXAMPLES_FILE, cohort.card.feature_dim)
    train = {slide_id for spec in train_bags for slide_id in spec.slide_ids}
    held_out = {row.slide_id for row in cohort.slides} - train
    chosen, n_held_out = choose_for_fold(examples, held_out)
    left_out = f", {n_held_out} on held-out slides left out" if n_held_out else ""
    features = {name: torch.from_numpy(examples.features[rows]) for name, rows in chosen.items()}
    return AnchorBank.from_examples(features, reference, source=examples.source + left_out)


def create_bank(
    cohort: Cohort, settings: EvidenceSettings, reference: Tensor, *, seed: int
) -> AnchorBank:
    """The bank of the settings; auto takes the cohort's own where its bridge can be made."""
    source, named = settings.anchors, cohort.card.anchors
    file = named if named is not None and named.endswith(".h5") else "anchors.h5"
    if source == "auto":
        # A free bridge is learned without pairs.
        is_reached = (cohort.folder / PAIRS_FILE).is_file() or settings.bridge == "free"
        has_bank = (cohort.folder / file).is_file()
        source = "cohort" if has_bank and is_reached else "prototypes"
    if source == "prototypes":
        return AnchorBank.prototypes(
            reference, settings.n_prototypes, seed=stream_seed(seed, 1) % 2**31
        )
    if source in ("generic", "unrelated"):
        return AnchorBank.from_file(_existing_file(cohort, f"anchors_{source}.h5"))
    bank = AnchorBank.from_file(_existing_file(cohort, file))
    generator = torch.Generator().manual_seed(stream_seed(seed, 2))
    if source == "shuffled":
        return AnchorBank.shuffled(bank, generator)
    return AnchorBank.random_like(bank, generator) if source == "random" else bank


def _existing_file(cohort: Cohort, name: str) -> Path:
    """A file directly inside the cohort folder."""
    path = cohort.folder / name
    if path.parent != cohort.folder or not path.is_file():
        raise CohortError(
            f"{cohort.folder} has no '{name}', which these settings need. Use anchors: prototypes."
        )
    return path


def read_pairs(cohort: Cohort) -> tuple[Tensor, Tensor]:
    """The same patches in feature space and in anchor space."""
    path = _existing_file(cohort, PAIRS_FILE)
    features, anchor_space = store.read_pairs(path)
    if features.shape[1] != cohort.card.feature_dim:
        raise CohortError(
            f"{path}: features of width {features.shape[1]}, but the cohort has width "
            f"{cohort.card.feature_dim}. Pairs come from the cohort's own encoder: write them "
            "again with 'gcemil anchors pairs'."
        )
    return torch.from_numpy(features), torch.from_numpy(anchor_space)


def reference_patches(cohort: Cohort, bags: Sequence[BagSpec], *, seed: int) -> Tensor:
    """A few random patches of every training bag."""
    parts = []
    for spec in bags:
        layout = cohort.layout(spec)
        generator = np.random.default_rng([stream_seed(seed, 3), *spec.bag_id.encode()])
        rows = sample_patches(len(layout), REFERENCE_PATCHES_PER_BAG, generator)
        parts.append(cohort.read_bag(spec, layout, rows).features.astype(np.float32))
    return torch.from_numpy(np.concatenate(parts))


# Its results


def evaluate_fold(
    loaded: LoadedNetwork,
    cohort: Cohort,
    parts: FoldParts,
    task: Task,
    folder: RunFold,
    details: dict[str, Any],
) -> None:
    """Write predictions, evidence and metrics of a trained fold; metrics.json comes last.

    A cohort that changed since the run began is refused before that.
    """
    network, model, modes = loaded.network, loaded.model, available_modes(loaded.network)
    model_hash, negative = content_hash(folder.checkpoint), cohort.card.negative_index
    tested, evaluated, n_val = set(parts.test), [*parts.val, *parts.test], len(parts.val)
    false_evidence: list[bool] = []

    def keep_evidence(spec: BagSpec, bag: Bag, explanation: Explanation) -> None:
        if model is None or spec not in tested:
            return
        if explanation.is_confirmed is not None and spec.target == negative:
            false_evidence.append(explanation.is_confirmed)
        for evidence in slide_evidence(model, bag, explanation):
            features = content_hash(cohort.feature_file(evidence.slide_id))
            hashes = {"model": model_hash, "features": features}
            write_evidence(folder.evidence(evidence.slide_id), evidence, hashes)

    logits = evaluate_bags(network, cohort, evaluated, modes=modes, on_explained=keep_evidence)
    targets, metrics = stacked_targets(parts.test), {}
    predicted = {mode: task.prediction(logits[mode]) for mode in modes}
    for mode, values in predicted.items():
        _write_predictions(folder.predictions(mode, modes), cohort, evaluated, n_val, values, task)
        metrics[mode] = task.metrics(targets, values[n_val:])

    main = next(mode for mode in modes if mode == main_mode(modes))
    survival = cohort.card.task == "survival"
    fitted = parts.train if survival else parts.train[:: -(-len(parts.train) // MOST_FITTED)]
    prefixes: dict[Mode, str] = {"full": "host_risk", main: "risk"}
    trained_on = evaluate_bags(network, cohort, fitted, modes=list(prefixes))
    details = dict(details)
    for mode, prefix in prefixes.items() if survival else ():
        risks = trained_on[mode]
        details[f"{prefix}_mean"] = float(risks.mean())
        details[f"{prefix}_deviation"] = float(risks.std().clamp_min(1e-12))
    learning = measure_learning(
        task, targets, predicted[main][n_val:], stacked_targets(fitted), trained_on[main]
    )
    details |= {"learning": learning.model_dump(), "caveats": task.caveats(targets)}
    if false_evidence and model is not None:
        details["no_evidence"] = {
            "class": cohort.card.classes[negative or 0],
            "promised_rate": FALSE_EVIDENCE_RATE,
            "n_validation": sum(spec.target == negative for spec in parts.val),
            "threshold": float(model.confirmation_threshold),
            "n_test": len(false_evidence),
            "reached_rate": sum(false_evidence) / len(false_evidence),
        }
    folder.run.check_cohort(cohort)
    write_json(folder.metrics, {**metrics, "details": details})


def measure_learning(
    task: Task, targets: Tensor, predictions: Tensor, train_targets: Tensor, train_logits: Tensor
) -> Learning:
    """The figure on test bags with its error, and on training bags."""

    def measure(rows: Any) -> float:
        return task.metrics(targets[rows], predictions[rows])[task.figure]

    return Learning(
        figure=task.figure,
        value=measure(slice(None)),
        error=bootstrap_error(measure, len(targets)),
        n_test=len(targets),
        train_value=task.metrics(train_targets, task.prediction(train_logits))[task.figure],
        explained=task.explained(train_targets, train_logits),
    )


def _write_predictions(
    path: Path, cohort: Cohort, bags: Sequence[BagSpec], n_val: int, values: Tensor, task: Task
) -> None:
    """One line per bag; the slides of a case are joined by '|'."""
    rows = [
        {
            "slide_id": "|".join(spec.slide_ids),
            "case_id": spec.case_id,
            "split": "val" if position < n_val else "test",
            **_describe_target(spec, cohort),
            **dict(zip(task.prediction_names, row, strict=True)),
        }
        for position, (spec, row) in enumerate(
            zip(bags, values.reshape(len(bags), -1).tolist(), strict=True)
        )
    ]
    write_table(path, rows[0], rows)


def _describe_target(spec: BagSpec, cohort: Cohort) -> dict[str, Any]:
    """The columns of the target."""
    if isinstance(spec.target, int):
        return {"target": cohort.card.classes[spec.target]}
    if isinstance(spec.target, float):
        return {"target": spec.target}
    if cohort.card.task == "multilabel":
        names = (f"target_{name}" for name in cohort.card.classes)
        return dict(zip(names, spec.target, strict=True))
    return dict(zip(("target", "event"), spec.target, strict=True))
