"""One slide put to the test: its evidence, or the host's attention, kept and removed under the run's own network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Real

from gcemil.bags.cohort import BagSpec
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.folds import read_fold
from gcemil.diagnostics.bench import BagBench, FoldBench
from gcemil.diagnostics.snr import BagOutcome, bag_outcome, bag_outputs
from gcemil.diagnostics.verdicts import DEFAULT_BUDGET, Tolerances, verdict
from gcemil.errors import RunError, UsageError
from gcemil.explain import Explanation, slide_evidence
from gcemil.records import SlideEvidence
from gcemil.recovery.rules import subset_size, top_k
from gcemil.report.certificate import AnchorCoverage, Certificate, Prediction, Predictions, Subject, Verdict
from gcemil.report.geojson import evidence_measurements
from gcemil.runs.environment import describe_environment
from gcemil.runs.folder import open_cohort, trained_folds
from gcemil.shapes import Logits
from gcemil.tasks.task import Task

EVIDENCE_RULE = "recovered evidence"


@dataclass(frozen=True, eq=False)
class ExplainedSlide:
    """The patches of one slide with everything the files of an explanation show."""

    slide_id: str
    selected: Bool[np.ndarray, "n"]
    coords: Int[np.ndarray, "n 2"] | None
    scores: Real[np.ndarray, "n"]
    """The host's raw scores."""
    ranked_by: Real[np.ndarray, "n"]
    measurements: dict[str, Real[np.ndarray, "n"]]
    evidence: SlideEvidence | None
    """None for a run without the wrapper, which has attention only."""
    hashes: dict[str, str]
    certificate: Certificate


def fold_of(run: Path, slide_id: str, fold: int | None) -> int:
    """The fold asked for, or the first that tests the slide; without one, the first that is trained."""
    _, cohort = open_cohort(run)
    if slide_id not in {row.slide_id for row in cohort.slides}:
        raise UsageError(
            f"{cohort.folder / 'slides.csv'} has no slide '{slide_id}'. For a slide outside the cohort use "
            f"'gcemil predict {run} FEATURES.h5 --out DIR'."
        )
    trained = [int(folder.name.removeprefix("fold_")) for folder in trained_folds(run)]
    if fold is None:
        tests = (index for index in trained if read_fold(cohort, index).part_of[slide_id] == "test")
        return next(tests, trained[0])
    if fold not in trained:
        raise RunError(f"{run} has no trained fold {fold}, only: {', '.join(map(str, trained))}.")
    return fold


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order, so that the same command gives the same file."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def explained_slide(
    run: Path, slide_id: str, fold_index: int, *, budget: float | None, tolerances: Tolerances
) -> ExplainedSlide:
    """The slide's bag through the network of one fold."""
    with one_thread():
        fold = FoldBench.open(run, fold_index)
        if fold.model is not None and budget is not None:
            raise UsageError(
                f"{run} recovers its own evidence, whose size is not free. Leave --budget out; it is for plain hosts."
            )
        spec = next(spec for spec in fold.cohort.bags if slide_id in spec.slide_ids)
        bench = BagBench(spec, fold.cohort.read_bag(spec), fold)
        found = bench.explanation
        if found is None:
            return _attended(bench, fold, slide_id, budget or DEFAULT_BUDGET, tolerances)
        return _recovered(bench, fold, slide_id, found, tolerances)


def _recovered(
    bench: BagBench, fold: FoldBench, slide_id: str, found: Explanation, tolerances: Tolerances
) -> ExplainedSlide:
    """The recovered evidence of a wrapped host."""
    model, recovery = fold.model, found.recovery
    if model is None:
        raise RunError(f"{fold.run} has no wrapper.")
    hashes = hashes_of(fold, slide_id)
    evidence = next(
        record for record in slide_evidence(model, bench.bag, found, hashes) if record.slide_id == slide_id
    )
    outcome = bag_outcome(
        bench.wrapped, recovery.selected, found.output.log_gates, full=found.output.full_logits
    )
    weights = model.anchor_weights(found.output.full_logits).detach()
    columns = (recovery.coverage.tolist(), recovery.targets.tolist(), weights.tolist())
    anchors = tuple(AnchorCoverage(*row) for row in zip(model.bank.prompts, *columns, strict=True))
    certificate = _certificate(
        bench,
        fold,
        slide_id,
        outcome,
        recovery.selected.numpy(),
        tolerances,
        rule=EVIDENCE_RULE,
        stop_reason=recovery.stop_reason.value,
        anchors=anchors,
        settings=model.settings.model_dump(mode="json"),
    )
    return ExplainedSlide(
        slide_id=slide_id,
        selected=evidence.selected,
        coords=evidence.coords,
        scores=evidence.scores,
        ranked_by=evidence.gates,
        measurements=evidence_measurements(evidence),
        evidence=evidence,
        hashes=hashes,
        certificate=certificate,
    )


def _attended(
    bench: BagBench, fold: FoldBench, slide_id: str, budget: float, tolerances: Tolerances
) -> ExplainedSlide:
    """The highest scores of a plain host, named as what they are."""
    full = bench.wrapped.full()
    selected = top_k(full.scores, subset_size(len(bench), budget))
    rule = f"attention top-k at budget {budget:g}"
    certificate = _certificate(
        bench,
        fold,
        slide_id,
        bag_outcome(bench.wrapped, selected, full=full.logits),
        selected.numpy(),
        tolerances,
        rule=rule,
        settings={"budget": budget},
        notes=(
            "The run has no wrapper: these patches are where the host looked most, not recovered evidence.",
        ),
    )
    rows = bench.bag.rows_of(slide_id)
    scores = full.scores.numpy()[rows]
    return ExplainedSlide(
        slide_id=slide_id,
        selected=selected.numpy()[rows],
        coords=bench.bag.slide_coords(slide_id),
        scores=scores,
        ranked_by=scores,
        measurements={"attention_score": scores},
        evidence=None,
        hashes=hashes_of(fold, slide_id),
        certificate=certificate,
    )


def _certificate(
    bench: BagBench,
    fold: FoldBench,
    slide_id: str,
    outcome: BagOutcome,
    selected: Bool[np.ndarray, "n"],
    tolerances: Tolerances,
    *,
    rule: str,
    settings: dict[str, Any],
    stop_reason: str | None = None,
    anchors: tuple[AnchorCoverage, ...] = (),
    notes: tuple[str, ...] = (),
) -> Certificate:
    rows = bench.bag.rows_of(slide_id)
    outputs = bag_outputs(outcome, fold.task, fold.scale)
    found = verdict(outputs, tolerances)

    def prediction(logits: Logits | None, output: float | None) -> Prediction | None:
        return None if logits is None or output is None else Prediction(named(fold.task, logits), output)

    return Certificate(
        subject=Subject(
            slide_id=slide_id,
            bag_id=bench.spec.bag_id,
            bag_slides=bench.bag.slide_ids,
            part=part_of(fold, bench.spec),
            n_patches=len(bench),
            n_selected=int(selected.sum()),
            slide_n_patches=rows.stop - rows.start,
            slide_n_selected=int(selected[rows].sum()),
        ),
        rule=rule,
        output_name=output_name(fold.task, outcome.full),
        predictions=Predictions(
            full=Prediction(named(fold.task, outcome.full), outputs.full),
            gated=prediction(outcome.gated, outputs.gated),
            kept=Prediction(named(fold.task, outcome.kept), outputs.kept),
            removed=prediction(outcome.removed, outputs.removed),
        ),
        verdicts={
            "sufficient": Verdict(found.sufficient, outputs.full_kept_gap, tolerances.sufficiency),
            "necessary": Verdict(found.necessary, outputs.removal_gap, tolerances.necessity),
            "recoverable": Verdict(found.recoverable, outputs.cd_gap, tolerances.recoverability),
        },
        stop_reason=stop_reason,
        anchors=anchors,
        settings={"host": fold.settings.host.model_dump(mode="json"), "rule": settings},
        provenance=origin(fold, bench),
        notes=notes,
    )


def named(task: Task, logits: Logits) -> dict[str, float]:
    """The prediction by its column names."""
    return dict(zip(task.prediction_names, task.prediction(logits).reshape(-1).tolist(), strict=True))


def output_name(task: Task, full: Logits) -> str:
    if task.n_outputs == 1:
        return "risk in units of the training risks"
    return f"probability of {task.prediction_names[int(full.argmax())].removeprefix('prob_')}, the class predicted on X"


def part_of(fold: FoldBench, spec: BagSpec) -> str:
    parts = {"train": fold.parts.train, "val": fold.parts.val, "test": fold.parts.test}
    return next(name for name, specs in parts.items() if spec in specs)


def hashes_of(fold: FoldBench, slide_id: str) -> dict[str, str]:
    return {
        "model": content_hash(fold.run / f"fold_{fold.fold}" / "checkpoint.safetensors"),
        "features": content_hash(fold.cohort.feature_file(slide_id)),
    }


def origin(fold: FoldBench, bench: BagBench) -> dict[str, Any]:
    """Versions, settings and the fingerprints of the network and of every slide of the bag; nothing of the machine."""
    features = {
        f"features/{slide_id}": content_hash(fold.cohort.feature_file(slide_id))
        for slide_id in bench.bag.slide_ids
    }
    inputs = {"model": hashes_of(fold, bench.bag.slide_ids[0])["model"], **features}
    everything = describe_environment(seed=fold.settings.seed, device=torch.device("cpu"), inputs=inputs)
    return {
        **{key: everything[key] for key in ("gcemil", "commit", "python", "packages", "seed", "inputs")},
        "run": fold.run.resolve().name,
        "fold": fold.fold,
        "settings_hash": fold.settings.hash,
        "anchors": None
        if fold.model is None
        else {
            "provenance": fold.model.bank.provenance,
            "hash": fold.model.bank.hash,
        },
    }
