"""The intervention bench: two sets of patches in, predictions and the certificate out.

  S  the set under test    X_S and X_notS of the whole bag, and with X and X_pi its three verdicts
  P  the patches present   what is left after any number of "keep only" and "remove"; the live prediction is of P

The bag was embedded when it was opened; a question only pools again, and one asked before is remembered. S and P arrive as bits over the bag, least
significant bit first.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcemil.diagnostics.snr import BagOutcome, Tolerances, bag_outputs, output
from gcemil.errors import UsageError
from gcemil.evidence.coverage import anchor_coverage
from gcemil.exports.certificate import VERDICTS
from gcemil.exports.explain import judge_outputs, name_output, name_prediction
from gcemil.shapes import Logits, Selected
from gcemil.viewer.session import OpenedSlide


def read_masks(body: bytes, *, n_patches: int, count: int) -> list[Tensor]:
    """As many bool masks over the bag as the body must hold."""
    length = (n_patches + 7) // 8
    if len(body) != count * length:
        raise UsageError(
            f"{count} sets of {n_patches} patches are {count * length} bytes of bits, got {len(body)} bytes."
        )
    bits = np.unpackbits(np.frombuffer(body, np.uint8).reshape(count, length), axis=1, bitorder="little")
    return [torch.from_numpy(row[:n_patches].astype(bool)) for row in bits]


def judge_set(
    slide: OpenedSlide, selected: Selected, present: Selected, tolerances: Tolerances
) -> dict[str, Any]:
    """The live prediction of P and the certificate of S."""
    start = time.perf_counter()
    outcome = _outcome(slide, selected)
    return {
        "n_selected": int(selected.sum()),
        "n_present": int(present.sum()),
        "output_name": name_output(slide.fold.task, slide.full.logits),
        "live": _prediction(slide, slide.kept(present)),
        "predictions": _predictions(slide, outcome),
        "verdicts": [] if outcome is None else _verdicts(slide, outcome, tolerances),
        "is_evidence": bool((selected == slide.chosen).all()),
        "coverage": _measure_coverage(slide, selected),
        "milliseconds": 1000 * (time.perf_counter() - start),
    }


def _measure_coverage(slide: OpenedSlide, selected: Selected) -> list[float] | None:
    """How surely S shows each anchor; None without anchors."""
    found = slide.bench.explanation
    if found is None:
        return None
    responses = found.output.responses
    with torch.no_grad():
        covered: list[float] = anchor_coverage(selected.to(responses.dtype), responses).tolist()
    return covered


def _outcome(slide: OpenedSlide, selected: Selected) -> BagOutcome | None:
    """The four predictions; None for an empty S, which has none."""
    kept = slide.kept(selected)
    if kept is None:
        return None
    fraction = float(selected.double().mean())
    return BagOutcome(slide.full.logits, kept, slide.kept(~selected), slide.gated, fraction)


def _prediction(slide: OpenedSlide, logits: Logits | None) -> dict[str, Any] | None:
    if logits is None:
        return None
    fold = slide.fold
    return {
        "values": name_prediction(fold.task, logits),
        "output": output(slide.full.logits, logits, fold.task, fold.scale),
    }


def _predictions(slide: OpenedSlide, outcome: BagOutcome | None) -> dict[str, Any]:
    """X, X_pi, X_S and X_notS by name; None where one does not exist."""
    return {
        "full": _prediction(slide, slide.full.logits),
        "gated": _prediction(slide, slide.gated),
        "kept": _prediction(slide, None if outcome is None else outcome.kept),
        "removed": _prediction(slide, None if outcome is None else outcome.removed),
    }


def _verdicts(slide: OpenedSlide, outcome: BagOutcome, tolerances: Tolerances) -> list[dict[str, Any]]:
    outputs = bag_outputs(outcome, slide.fold.task, slide.fold.scale)
    verdicts = judge_outputs(outputs, tolerances)
    return [
        {"name": name, "held": verdicts[name].held, "sentence": verdicts[name].sentence(name)}
        for name in VERDICTS
    ]
