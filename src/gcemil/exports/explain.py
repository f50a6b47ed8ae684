"""One slide of a run explained: its evidence, or the host's attention, kept and removed under the run's own network, as files.

The command `gcemil explain` writes all of them; the viewer writes the set of patches that somebody edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Real

from gcemil.bags import store
from gcemil.bags.arrays import Bounds
from gcemil.bags.cohort import BagSpec, Cohort, read_slide_bounds
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.folds import read_fold
from gcemil.bags.foreign.source import plain_id
from gcemil.diagnostics.snr import BagOutcome, BagOutputs, Tolerances, bag_outcome, bag_outputs, judge_subset
from gcemil.diagnostics.trained_fold import DEFAULT_BUDGET, FoldBag, TrainedFold
from gcemil.errors import CohortError, RunError, UsageError
from gcemil.explain import Explanation, slide_evidence
from gcemil.exports.certificate import (
    AnchorCoverage,
    Certificate,
    Prediction,
    Predictions,
    Subject,
    Verdict,
    VerdictName,
    write_certificate,
)
from gcemil.exports.geojson import (
    ATTENTION,
    EVIDENCE,
    UNSELECTED,
    EvidenceList,
    PatchClass,
    PatchCollection,
    collect_patches,
    list_evidence,
    name_measurements,
    write_geojson,
)
from gcemil.exports.overlay import choose_thumbnail, draw_overlay, write_overlay
from gcemil.files import remove_leftovers, write_json
from gcemil.records import SlideEvidence
from gcemil.recovery.rules import subset_size, top_k
from gcemil.runs.environment import describe_environment, one_thread
from gcemil.runs.evidence_files import write_evidence
from gcemil.runs.folder import RunFolder, open_cohort
from gcemil.shapes import Logits
from gcemil.tasks.task import Task
from gcemil.wording import did_you_mean

EVIDENCE_RULE = "recovered evidence"


@dataclass(frozen=True, eq=False)
class SlideExport:
    """A set of patches of one slide, with everything its files show."""

    slide_id: str
    selected: Bool[np.ndarray, "n"]
    coords: Int[np.ndarray, "n 2"] | None
    patch_size: int | None
    """In level-0 pixels; None only where there are no coordinates."""
    rule: str
    """How the patches were chosen."""
    stop_reason: str | None
    scores: Real[np.ndarray, "n"]
    """The host's raw scores."""
    evidence: SlideEvidence | None
    """None for a run without the wrapper, which has attention only."""
    hashes: dict[str, str]

    @property
    def ranked_by(self) -> Real[np.ndarray, "n"]:
        """What orders the patches: gates, or attention where there are none."""
        return self.scores if self.evidence is None else self.evidence.gates

    @property
    def measurements(self) -> dict[str, Real[np.ndarray, "n"]]:
        """What is known of each patch, by the name a reader sees."""
        return {"attention_score": self.scores} if self.evidence is None else name_measurements(self.evidence)

    @property
    def patch_class(self) -> PatchClass:
        """How QuPath names and colours the selected patches."""
        return ATTENTION if self.evidence is None else EVIDENCE

    def to_list(self) -> EvidenceList:
        """The selected patches for scripts that do not read HDF5."""
        return list_evidence(
            self.slide_id,
            self.selected,
            self.coords,
            rule=self.rule,
            patch_size=self.patch_size,
            measurements=self.measurements,
            stop_reason=self.stop_reason,
            hashes=self.hashes,
        )

    def to_collection(
        self,
        *,
        bounds: Bounds,
        selected_class: PatchClass | None = None,
        unselected_class: PatchClass | None = None,
    ) -> PatchCollection:
        """The patches as QuPath tiles; `bounds` is where the image that QuPath shows begins."""
        if self.coords is None or self.patch_size is None:
            raise UsageError(
                f"Slide '{self.slide_id}' has no coordinates, so its patches cannot be drawn in QuPath."
            )
        return collect_patches(
            self.slide_id,
            self.coords,
            self.selected,
            patch_size=self.patch_size,
            ranked_by=self.ranked_by,
            measurements=self.measurements,
            model=self.hashes["model"],
            selected_class=selected_class or self.patch_class,
            unselected_class=unselected_class,
            bounds=bounds,
        )

    def write_hdf5(self, path: Path) -> Path:
        """The layout of fold_<k>/evidence; without the wrapper only what a plain host has."""
        if self.evidence is not None:
            write_evidence(path, self.evidence, self.hashes)
            return path
        datasets = {"selected": self.selected.nonzero()[0], "scores": self.scores}
        if self.coords is not None:
            datasets["coords"] = self.coords
        attributes: dict[str, str | int | float | bool] = {
            "slide_id": self.slide_id,
            "rule": self.rule,
            "fraction": float(self.selected.mean()),
            **{f"{name}_hash": value for name, value in self.hashes.items()},
        }
        store.write(path, datasets, attributes)
        return path


@dataclass(frozen=True, eq=False)
class ExplainedSlide:
    """One slide of a run's cohort, put to the test under the network of one fold."""

    fold: TrainedFold
    patches: SlideExport
    certificate: Certificate


def explain_cohort_slide(
    run: Path,
    slide_id: str,
    *,
    fold: int | None = None,
    budget: float | None = None,
    tolerances: Tolerances | None = None,
) -> ExplainedSlide:
    """The slide's bag through the network of the fold asked for, or of the first that tests it."""
    opened = open_cohort(run)
    index = _choose_fold(run, opened[1], slide_id, fold)
    with one_thread():
        found = TrainedFold.open(run, index, opened=opened)
        if found.model is not None and budget is not None:
            raise UsageError(
                f"{run} recovers its own evidence, whose size is not free. Leave --budget out; it is for plain hosts."
            )
        spec = next(spec for spec in found.cohort.bags if slide_id in spec.slide_ids)
        bench = FoldBag(spec, found.cohort.read_bag(spec), found)
        if bench.explanation is None:
            return _explain_plain(
                bench, found, slide_id, budget or DEFAULT_BUDGET, tolerances or Tolerances()
            )
        return _explain_wrapped(bench, found, slide_id, bench.explanation, tolerances or Tolerances())


def write_explanation(
    found: ExplainedSlide,
    folder: Path | None = None,
    *,
    bounds: Bounds | None = None,
    thumbnail: Path | None = None,
    downsample: float | None = None,
    all_patches: bool = False,
) -> dict[str, Path]:
    """Every file of the explanation by its kind; what needs coordinates is left out where there are none.

    `bounds` are by default those in the feature file, the thumbnail is the cohort's own.
    """
    fold, patches, certificate = found.fold, found.patches, found.certificate
    cohort, slide_id = fold.cohort, patches.slide_id
    folder = folder or RunFolder(fold.run).fold(fold.fold).explained(slide_id)
    bounds = bounds or read_bounds(cohort, slide_id)
    under = choose_thumbnail(cohort.folder, slide_id, thumbnail, downsample)
    remove_leftovers(folder)
    collection, picture = None, None
    # What may fail is made before the first file is written.
    if patches.coords is not None and patches.patch_size is not None:
        others = UNSELECTED if all_patches else None
        collection = patches.to_collection(bounds=bounds, unselected_class=others)
        picture = draw_overlay(
            slide_id,
            patches.coords,
            patches.scores,
            patches.selected,
            patch_size=patches.patch_size,
            patch_class=patches.patch_class,
            thumbnail=under,
        )
    files = {
        "hdf5": patches.write_hdf5(folder / "evidence.h5"),
        "json": write_json(folder / "evidence.json", patches.to_list().to_json()),
    }
    if collection is not None and picture is not None:
        files["geojson"] = write_geojson(folder / "evidence.geojson", collection)
        files["overlay"] = write_overlay(folder / "overlay.png", picture)
    files["certificate"] = write_certificate(folder / "certificate.json", certificate)
    return files


def read_bounds(cohort: Cohort, slide_id: str) -> Bounds:
    """Where the image that QuPath shows begins, as the feature file says; else nothing to subtract."""
    return read_slide_bounds(cohort.folder, slide_id)


def _choose_fold(run: Path, cohort: Cohort, slide_id: str, fold: int | None) -> int:
    """The fold asked for, or the first that tests the slide; without one, the first that is trained."""
    known = [row.slide_id for row in cohort.slides]
    if slide_id not in known:
        meant = did_you_mean(plain_id(slide_id), known)
        raise UsageError(
            f"{cohort.folder / 'slides.csv'} has no slide '{slide_id}'.{meant} For a slide outside the cohort use "
            f"'gcemil predict {run} FEATURES.h5 --out DIR'."
        )
    trained = [one.number for one in RunFolder(run).trained_folds()]
    if fold is None:
        tests = (index for index in trained if read_fold(cohort, index).part_of[slide_id] == "test")
        return next(tests, trained[0])
    if fold not in trained:
        raise RunError(f"{run} has no trained fold {fold}, only: {', '.join(map(str, trained))}.")
    return fold


def _explain_wrapped(
    bench: FoldBag, fold: TrainedFold, slide_id: str, found: Explanation, tolerances: Tolerances
) -> ExplainedSlide:
    """The recovered evidence of a wrapped host."""
    model, recovery = fold.model, found.recovery
    if model is None:
        raise RunError(f"{fold.run} has no wrapper.")
    hashes = hash_inputs(fold, slide_id)
    evidence = next(
        record for record in slide_evidence(model, bench.bag, found, hashes) if record.slide_id == slide_id
    )
    outcome = bag_outcome(
        bench.wrapped, recovery.selected, found.output.log_gates, full=found.output.full_logits
    )
    weights = model.anchor_weights(found.output.full_logits).detach()
    columns = (recovery.coverage.tolist(), recovery.targets.tolist(), weights.tolist())
    anchors = tuple(AnchorCoverage(*row) for row in zip(model.bank.prompts, *columns, strict=True))
    certificate = _certify(
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
    patches = SlideExport(
        slide_id=slide_id,
        selected=evidence.selected,
        coords=evidence.coords,
        patch_size=_require_patch_size(fold.cohort, slide_id, evidence.coords),
        rule=certificate.rule,
        stop_reason=certificate.stop_reason,
        scores=evidence.scores,
        evidence=evidence,
        hashes=hashes,
    )
    return ExplainedSlide(fold, patches, certificate)


def _explain_plain(
    bench: FoldBag, fold: TrainedFold, slide_id: str, budget: float, tolerances: Tolerances
) -> ExplainedSlide:
    """The highest scores of a plain host, named as what they are."""
    full = bench.wrapped.full()
    selected = top_k(full.scores, subset_size(len(bench), budget))
    rule = f"attention top-k at budget {budget:g}"
    certificate = _certify(
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
    coords = bench.bag.slide_coords(slide_id)
    patches = SlideExport(
        slide_id=slide_id,
        selected=selected.numpy()[rows],
        coords=coords,
        patch_size=_require_patch_size(fold.cohort, slide_id, coords),
        rule=certificate.rule,
        stop_reason=None,
        scores=full.scores.numpy()[rows],
        evidence=None,
        hashes=hash_inputs(fold, slide_id),
    )
    return ExplainedSlide(fold, patches, certificate)


def _require_patch_size(cohort: Cohort, slide_id: str, coords: Int[np.ndarray, "n 2"] | None) -> int | None:
    """The size of the slide's patches; it is needed only where there is something to draw."""
    if coords is None:
        return cohort.card.patch_size_level0
    size = cohort.slide_patch_size(slide_id, coords)
    if size is None:
        raise CohortError(
            f"Slide '{slide_id}': the size of its patches is not known, and they are no grid to read it from. "
            f"Write patch_size_level0 into {cohort.folder / 'cohort.yaml'}."
        )
    return size


def _certify(
    bench: FoldBag,
    fold: TrainedFold,
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

    def prediction(logits: Logits | None, output: float | None) -> Prediction | None:
        return (
            None
            if logits is None or output is None
            else Prediction(name_prediction(fold.task, logits), output)
        )

    return Certificate(
        subject=Subject(
            slide_id=slide_id,
            bag_id=bench.spec.bag_id,
            bag_slides=bench.bag.slide_ids,
            part=_find_part(fold, bench.spec),
            n_patches=len(bench),
            n_selected=int(selected.sum()),
            slide_n_patches=rows.stop - rows.start,
            slide_n_selected=int(selected[rows].sum()),
        ),
        rule=rule,
        output_name=name_output(fold.task, outcome.full)
        + ("" if fold.task.n_outputs == 1 else ", the class predicted on X"),
        predictions=Predictions(
            full=Prediction(name_prediction(fold.task, outcome.full), outputs.full),
            gated=prediction(outcome.gated, outputs.gated),
            kept=Prediction(name_prediction(fold.task, outcome.kept), outputs.kept),
            removed=prediction(outcome.removed, outputs.removed),
        ),
        verdicts=judge_outputs(outputs, tolerances),
        stop_reason=stop_reason,
        anchors=anchors,
        settings={"host": fold.settings.host.model_dump(mode="json"), "rule": settings},
        provenance=_describe_origin(fold, bench),
        notes=notes,
    )


def name_prediction(task: Task, logits: Logits) -> dict[str, float]:
    """The prediction by its column names."""
    return dict(zip(task.prediction_names, task.prediction(logits).reshape(-1).tolist(), strict=True))


def judge_outputs(outputs: BagOutputs, tolerances: Tolerances) -> dict[VerdictName, Verdict]:
    """What the three definitions say of a set of patches, with the numbers behind each verdict."""
    found = judge_subset(outputs, tolerances)
    return {
        "sufficient": Verdict(found.sufficient, outputs.full_kept_gap, tolerances.sufficiency),
        "necessary": Verdict(found.necessary, outputs.removal_gap, tolerances.necessity),
        "recoverable": Verdict(found.recoverable, outputs.cd_gap, tolerances.recoverability),
    }


def name_output(task: Task, full: Logits) -> str:
    """What Phi is."""
    if task.n_outputs == 1:
        return "risk in units of the training risks"
    return f"probability of {task.prediction_names[int(full.argmax())].removeprefix('prob_')}"


def _find_part(fold: TrainedFold, spec: BagSpec) -> str:
    parts = {"train": fold.parts.train, "val": fold.parts.val, "test": fold.parts.test}
    return next(name for name, specs in parts.items() if spec in specs)


def hash_inputs(fold: TrainedFold, slide_id: str) -> dict[str, str]:
    """Fingerprints of the network and of the slide's features."""
    return {
        "model": content_hash(RunFolder(fold.run).fold(fold.fold).checkpoint),
        "features": content_hash(fold.cohort.feature_file(slide_id)),
    }


def _describe_origin(fold: TrainedFold, bench: FoldBag) -> dict[str, Any]:
    """Versions, settings and the fingerprints of the network and of every slide of the bag; nothing of the machine."""
    features = {
        f"features/{slide_id}": content_hash(fold.cohort.feature_file(slide_id))
        for slide_id in bench.bag.slide_ids
    }
    inputs = {"model": hash_inputs(fold, bench.bag.slide_ids[0])["model"], **features}
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
