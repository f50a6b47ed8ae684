"""What the page shows of an opened slide: layers, the verdict on the set under test, and files.

  heat   attention, gate, evidence score, marginal gain, one layer per anchor, from low to high
  set    evidence, truth                                                       1 = member
  group  disjoint sufficient subsets, numbered from 1; computed on request, since it takes seconds

Bytes of `patch_arrays`, little-endian: int32 corners x, y of every patch from the frame's corner,
then float32 values layer by layer.

  S  the set under test    X_S and X_notS of the whole bag, and with X and X_pi its three verdicts
  P  the patches present   what is left after any number of "keep only" and "remove"

The live prediction is that of P. S and P arrive as bits over the bag, least significant bit first.
The bag was embedded when it was opened, so judging a set only pools again. Files are written
without the network, so a large one does not hold up other requests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from gcemil.bags.cohort import read_slide_bounds
from gcemil.diagnostics.regions import find_regions
from gcemil.diagnostics.snr import BagOutcome, Tolerances
from gcemil.diagnostics.subsets import Sufficiency, find_disjoint_sets
from gcemil.errors import UsageError
from gcemil.evidence.coverage import anchor_coverage
from gcemil.exports.certificate import describe_direction
from gcemil.exports.evidence import SlideExport
from gcemil.exports.explain import (
    describe_prediction,
    judge_outputs,
    name_output,
    name_prediction,
)
from gcemil.exports.geojson import PatchClass, encode_features, encode_list
from gcemil.runs.folder import describe_vote
from gcemil.shapes import Logits, Selected
from gcemil.viewer.session import OpenedSlide

EVIDENCE_LABELS = {
    False: "evidence: what the model found",
    True: "found by the model, no evidence",
}
"""By whether the slide has no evidence."""


def slide_layers(slide: OpenedSlide) -> list[tuple[dict[str, Any], Shaped[np.ndarray, "n"]]]:
    """What the page needs to draw each layer, and one number per patch of the slide."""
    rows, evidence, layers = slide.rows, slide.evidence, []

    def add(
        key: str, label: str, values: np.ndarray, kind: str = "heat", *, is_share: bool
    ) -> None:
        low, high = (0.0, 1.0) if is_share else (float(values.min()), float(values.max()))
        # A score without a scale of its own is coloured by rank, as in the heat maps and overlays.
        about = {"key": key, "label": label, "kind": kind, "ranked": not is_share}
        layers.append(({**about, "low": low, "high": high}, values))

    add("attention", "attention of the host", slide.full.scores.numpy()[rows], is_share=False)
    names = slide.fold.task.prediction_names
    support = zip(names, slide.view.class_support, strict=False)
    for index, (name, scores) in enumerate(support):
        label = f"supports {name.removeprefix('prob_')}"
        add(f"class_{index}", label, scores.numpy()[rows], is_share=False)
    label = slide.rule
    if evidence is not None:
        label = EVIDENCE_LABELS[evidence.is_no_evidence]
        add("gate", "gate", evidence.gates, is_share=True)
        add("evidence_score", "evidence score", evidence.evidence_scores, is_share=False)
        add("marginal_gain", "marginal gain", evidence.marginal_gain, is_share=False)
        for index, prompt in enumerate(evidence.prompts):
            values = evidence.responses[:, index]
            add(f"anchor_{index}", f"concept: {prompt}", values, is_share=True)
    add("evidence", label, slide.chosen.numpy()[rows], "set", is_share=True)
    truth = slide.bench.truth
    if truth is not None and len(truth) == len(slide.bench):
        add("truth", "annotated truth", truth.numpy()[rows], "set", is_share=True)
    return layers


def patch_arrays(slide: OpenedSlide) -> bytes:
    """Corners and all layers of the slide in one response."""
    frame = slide.tiles.frame
    corners = (slide.coords - (frame.left, frame.top)).astype("<i4")
    return corners.tobytes() + b"".join(
        values.astype("<f4").tobytes() for _, values in slide_layers(slide)
    )


def region_numbers(slide: OpenedSlide) -> list[int]:
    """The connected region of each chosen patch of the bag; none without coordinates."""
    explanation = slide.bench.explanation
    scores = slide.full.scores if explanation is None else explanation.output.scores
    regions = find_regions(slide.bench.bag, slide.chosen, scores)
    return [] if regions is None else regions.number[slide.chosen].tolist()


@torch.no_grad()
def subset_groups(slide: OpenedSlide) -> Int[np.ndarray, "n"]:
    """The disjoint sufficient set of each patch: 1 = the chosen set, 2 and 3 = others, 0 = none."""
    explanation = slide.bench.explanation
    scores = slide.full.scores if explanation is None else explanation.output.scores
    judge = Sufficiency(slide.fold.output_scale("wrapped"))
    groups = np.zeros(len(slide.bench), dtype=np.uint8)
    for number, one in enumerate(
        find_disjoint_sets(slide.view, slide.chosen, scores, judge), start=1
    ):
        groups[one.numpy()] = number
    return groups[slide.rows]


def read_masks(body: bytes, *, n_patches: int, count: int) -> list[Tensor]:
    """As many bool masks over the bag as the body must hold."""
    length = (n_patches + 7) // 8
    if len(body) != count * length:
        raise UsageError(
            f"{count} sets of {n_patches} patches are {count * length} bytes of bits, "
            f"got {len(body)} bytes."
        )
    rows = np.frombuffer(body, np.uint8).reshape(count, length)
    bits = np.unpackbits(rows, axis=1, bitorder="little")
    return [torch.from_numpy(row[:n_patches].astype(bool)) for row in bits]


def compare_predictions(slide: OpenedSlide) -> list[str]:
    """What host, evidence head and both together predict, and their weights; empty without a head."""
    explanation, model, task = slide.bench.explanation, slide.fold.model, slide.fold.task
    if explanation is None or model is None:
        return []
    output, vote = explanation.output, describe_vote([float(model.head.weight)])
    if (head := output.head_logits) is None:
        return []
    compared = {
        "host alone": output.full.logits,
        "evidence head alone": head,
        "together": output.gce.logits,
    }
    lines = []
    for name, logits in compared.items():
        values = name_prediction(task, logits)
        # Of several classes the predicted one.
        best = max(values, key=lambda column: values[column])
        lines.append(f"{name}: {best.removeprefix('prob_')} {values[best]:.3f}")
    return [*lines, *([vote] if vote else [])]


@torch.no_grad()
def judge_set(
    slide: OpenedSlide, selected: Selected, present: Selected, tolerances: Tolerances
) -> dict[str, Any]:
    """The live prediction of P and the certificate of S."""
    start = time.perf_counter()
    kept = slide.kept(selected)
    # An empty S has no prediction, so there is nothing to compare the others with.
    removed = None if kept is None else slide.kept(~selected)
    versions = {"full": slide.full.logits, "gated": slide.gated, "kept": kept, "removed": removed}
    live = _prediction(slide, slide.kept(present))
    predictions = {name: _prediction(slide, logits) for name, logits in versions.items()}
    verdicts, direction = [], ""
    if kept is not None:
        fraction = float(selected.double().mean())
        outcome = BagOutcome(slide.full.logits, kept, removed, slide.gated, fraction)
        judged = judge_outputs(slide.fold.output_scale("wrapped").read(outcome), tolerances)
        verdicts = [
            {"name": name, "held": verdict.held, "sentence": verdict.sentence(name)}
            for name, verdict in judged.items()
        ]
        direction = describe_direction(predictions)
    coverage = None
    if (explanation := slide.bench.explanation) is not None:
        responses = explanation.output.responses
        coverage = anchor_coverage(selected.to(responses.dtype), responses).tolist()
    return {
        "n_selected": int(selected.sum()),
        "n_present": int(present.sum()),
        "output_name": name_output(slide.fold.task, slide.full.logits),
        "live": live,
        "predictions": predictions,
        "verdicts": verdicts,
        "direction": direction,
        "is_evidence": bool((selected == slide.chosen).all()),
        "coverage": coverage,
        "milliseconds": 1000 * (time.perf_counter() - start),
    }


def _prediction(slide: OpenedSlide, logits: Logits | None) -> dict[str, Any] | None:
    scale = slide.fold.output_scale("wrapped")
    return describe_prediction(slide.fold.task, scale, slide.full.logits, logits)


EDITED = PatchClass("Evidence edited by hand", (230, 160, 0))
"""Never the class of recovered evidence: the model did not choose these patches."""


def export_evidence(slide: OpenedSlide, selected: Bool[np.ndarray, "n"]) -> Iterator[str]:
    """The set in the layout of `gcemil explain`."""
    export = _edit_export(slide, selected)
    return encode_list(export.describe(), "patches", export.list_patches())


def export_geojson(slide: OpenedSlide, selected: Bool[np.ndarray, "n"]) -> Iterator[str]:
    """The set as QuPath tiles."""
    bounds = read_slide_bounds(slide.fold.cohort.folder, slide.slide_id)
    tiles = _edit_export(slide, selected).list_tiles(bounds=bounds, selected_class=EDITED)
    return encode_features(tiles)


def _edit_export(slide: OpenedSlide, selected: Bool[np.ndarray, "n"]) -> SlideExport:
    """What the files show of a set that may have been changed by hand."""
    untouched = bool((selected == slide.chosen.numpy()[slide.rows]).all())
    stop_reason = slide.evidence.stop_reason if slide.evidence is not None and untouched else None
    return SlideExport(
        slide_id=slide.slide_id,
        selected=selected,
        coords=slide.coords if slide.has_coords else None,
        patch_size=slide.patch_size if slide.has_coords else None,
        rule=slide.rule if untouched else f"{slide.rule}, edited by hand",
        stop_reason=stop_reason,
        scores=slide.full.scores.numpy()[slide.rows],
        evidence=slide.evidence,
        hashes=slide.hashes,
    )
