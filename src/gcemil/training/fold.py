"""One fold from folds on disk to its results on disk: train, choose, predict, write the evidence of the test slides."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcemil.bags import store
from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.folds import Fold, Part, read_fold
from gcemil.bags.tables import file_fingerprint, write_table
from gcemil.config import TrainSettings
from gcemil.errors import CohortError
from gcemil.explain import Explanation, slide_evidence
from gcemil.records import SlideEvidence
from gcemil.tasks.task import Task
from gcemil.training import checkpoint
from gcemil.training.environment import pick_device
from gcemil.training.evaluate import Mode, evaluate_bags, modes_of
from gcemil.training.loop import EpochRecord, FoldParts, OnBag, OnEpoch, stacked_targets, train
from gcemil.training.seeding import seed_torch, stream_seed
from gcemil.training.setup import Ingredients, create_network, create_task
from gcemil.training.tracking import Tracker


def train_fold(
    cohort: Cohort,
    index: int,
    settings: TrainSettings,
    folder: Path,
    *,
    on_epoch: OnEpoch | None = None,
    on_bag: OnBag | None = None,
) -> None:
    """Train fold `index` into `folder`; a fold that is complete is left alone."""
    if (folder / "metrics.json").is_file():
        return
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    task = create_task(cohort, settings)
    parts = fold_parts(cohort, read_fold(cohort, index))
    check_parts(parts, task, index)
    seed_torch(stream_seed(settings.seed, index, 99))
    ingredients = create_network(cohort, parts.train, settings, pick_device(settings.device))
    tracker = Tracker(folder / "tensorboard")

    def report(record: EpochRecord) -> None:
        tracker.add(record, step=record["epoch"])
        if on_epoch:
            on_epoch(record)

    progress = train(
        ingredients, cohort, parts, task, settings, folder, fold=index, on_epoch=report, on_bag=on_bag
    )
    tracker.close()
    save_network(folder / "checkpoint.safetensors", ingredients, cohort, settings)
    details = {
        "best_epoch": progress.best_epoch,
        "validation": progress.best,
        "warnings": sorted({text for record in progress.history for text in record["warnings"]}),
        "anchors": None if ingredients.model is None else ingredients.model.bank.provenance,
    }
    evaluate_fold(ingredients, cohort, parts, task, folder, details)
    write_json(folder / "timing.json", {"seconds": time.monotonic() - started})


def evaluate_fold(
    ingredients: Ingredients,
    cohort: Cohort,
    parts: FoldParts,
    task: Task,
    folder: Path,
    details: dict[str, Any],
) -> None:
    """Predictions, metrics and evidence of a trained fold; metrics.json comes last and marks it complete."""
    modes = modes_of(ingredients)
    model_hash = file_fingerprint(folder / "checkpoint.safetensors")

    def write_evidence(spec: BagSpec, bag: Bag, explanation: Explanation) -> None:
        if ingredients.model is None or spec not in tested:
            return
        for evidence in slide_evidence(ingredients.model, bag, explanation):
            hashes = {
                "model": model_hash,
                "features": file_fingerprint(cohort.feature_file(evidence.slide_id)),
            }
            write_slide_evidence(folder / "evidence" / f"{evidence.slide_id}.h5", evidence, hashes)

    tested = set(parts.test)
    evaluated = [*parts.val, *parts.test]
    logits = evaluate_bags(ingredients, cohort, evaluated, modes=modes, on_explained=write_evidence)
    for mode in modes:
        values = task.prediction(logits[mode])
        name = "predictions.csv" if mode == main_mode(modes) else f"predictions_{mode}.csv"
        write_predictions(folder / name, cohort, evaluated, len(parts.val), values, task)
    targets = stacked_targets(parts.test)
    metrics: dict[str, Any] = {
        mode: task.metrics(targets, task.prediction(logits[mode][len(parts.val) :])) for mode in modes
    }
    if cohort.card.task == "survival":
        risks = evaluate_bags(ingredients, cohort, parts.train, modes=("full",))["full"].flatten()
        details = {
            **details,
            "risk_mean": float(risks.mean()),
            "risk_deviation": float(risks.std().clamp_min(1e-12)),
        }
    metrics["details"] = {**details, "caveats": task.caveats(targets)}
    write_json(folder / "metrics.json", metrics)


def main_mode(modes: Sequence[Mode]) -> Mode:
    return "soft" if "soft" in modes else "full"


def fold_parts(cohort: Cohort, fold: Fold) -> FoldParts:
    """The bags of each part; the slides of a bag always stand together."""

    def bags(part: Part) -> list[BagSpec]:
        return [spec for spec in cohort.bags if fold.part_of[spec.slide_ids[0]] == part]

    return FoldParts(bags("train"), bags("val"), bags("test"))


def check_parts(parts: FoldParts, task: Task, index: int) -> None:
    """A fold that cannot be trained or judged fails before anything is trained."""
    for name, bags in (("train", parts.train), ("val", parts.val), ("test", parts.test)):
        where = f"fold {index}, part {name}"
        if not bags:
            raise CohortError(f"{where} has no bag. Run 'gcemil split' again.")
        task.check(stacked_targets(bags), where=where)


def save_network(path: Path, ingredients: Ingredients, cohort: Cohort, settings: TrainSettings) -> None:
    """Weights, and what is needed to build the network again without the cohort."""
    meta: dict[str, Any] = {
        "settings": settings.model_dump(mode="json"),
        "in_dim": cohort.card.feature_dim,
        "n_outputs": cohort.n_outputs,
        "task": cohort.card.task,
        "classes": list(cohort.card.classes),
        "patch_size_level0": cohort.card.patch_size_level0,
        "encoder": cohort.card.encoder,
    }
    if ingredients.model is not None:
        bank = ingredients.model.bank
        meta["bank"] = {"prompts": list(bank.prompts), "provenance": bank.provenance, "hash": bank.hash}
    checkpoint.save(path, ingredients.network.state_dict(), meta)


def write_slide_evidence(path: Path, evidence: SlideEvidence, hashes: dict[str, str]) -> None:
    datasets = {
        "selected": evidence.indices,
        "gates": evidence.gates,
        "scores": evidence.scores,
        "evidence_scores": evidence.evidence_scores,
        "responses": evidence.responses,
        "marginal_gain": evidence.marginal_gain,
        "coverage": evidence.coverage,
    }
    if evidence.coords is not None:
        datasets["coords"] = evidence.coords
    attributes: dict[str, Any] = {
        "slide_id": evidence.slide_id,
        "stop_reason": evidence.stop_reason,
        "fraction": evidence.fraction,
        "prompts": json.dumps(evidence.prompts),
        **{f"{name}_hash": value for name, value in hashes.items()},
    }
    store.write(path, datasets, attributes)


def write_predictions(
    path: Path, cohort: Cohort, bags: Sequence[BagSpec], n_val: int, values: Tensor, task: Task
) -> None:
    """One line per bag; the slides of a case are joined by '|'."""
    survival = cohort.card.task == "survival"
    columns = [
        "slide_id",
        "case_id",
        "split",
        "target",
        *(["event"] if survival else []),
        *task.prediction_names,
    ]
    rows = []
    for position, (spec, row) in enumerate(zip(bags, values.reshape(len(bags), -1).tolist(), strict=True)):
        rows.append(
            {
                "slide_id": "|".join(spec.slide_ids),
                "case_id": spec.case_id,
                "split": "val" if position < n_val else "test",
                **target_columns(spec, cohort),
                **dict(zip(task.prediction_names, row, strict=True)),
            }
        )
    write_table(path, columns, rows)


def target_columns(spec: BagSpec, cohort: Cohort) -> dict[str, Any]:
    if isinstance(spec.target, int):
        return {"target": cohort.card.classes[spec.target]}
    time_to_event, event = spec.target
    return {"target": time_to_event, "event": event}


def write_json(path: Path, value: object) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def load_network(path: Path, device: torch.device | str = "cpu") -> tuple[Ingredients, dict[str, Any]]:
    """A trained network from its checkpoint alone, in evaluation mode, and what was saved beside it."""
    from gcemil.evidence.anchors import AnchorBank
    from gcemil.hosts.table import create_host
    from gcemil.model import GceMil

    tensors, meta = checkpoint.load(path)
    settings = TrainSettings.model_validate(meta["settings"])
    host = create_host(
        settings.host.name,
        in_dim=meta["in_dim"],
        n_outputs=meta["n_outputs"],
        gate_mode=settings.host.gate_mode,
        options=settings.host.options,
    )
    model = None
    if settings.evidence is not None:
        bank = AnchorBank(tensors["anchors"], tuple(meta["bank"]["prompts"]), meta["bank"]["provenance"])
        model = GceMil(host, bank, in_dim=meta["in_dim"], settings=settings.evidence)
    ingredients = Ingredients(host, model, None)
    ingredients.network.load_state_dict(tensors)
    ingredients.network.to(device).eval()
    return ingredients, meta
