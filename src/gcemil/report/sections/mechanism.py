"""How the evidence came about: gates over training, coverage of anchors, one slide from response to evidence."""

from __future__ import annotations

import numpy as np

from gcemil.config import EvidenceSettings
from gcemil.report.figures.anchors import anchor_coverage
from gcemil.report.figures.gates import gate_histograms
from gcemil.report.figures.mechanism import mechanism_panels
from gcemil.report.html import EMPTY, Markup, Section, joined, paragraph
from gcemil.report.run_data import FoldData, RunData
from gcemil.report.sections.context import Context, absent, quoted
from gcemil.report.slide_view import SlideView


def section(context: Context, example: SlideView | None) -> Section | None:
    """None for a plain host, which has neither gates nor anchors."""
    if not context.run.is_wrapped:
        return None
    parts = [gates_figure(context), anchors_figure(context)]
    if example is not None:
        parts.append(
            context.album.figure(
                "mechanism",
                mechanism_panels(example.evidence, threshold=threshold_of(context.run)),
                alt="Responses, gates, coverage, threshold and repair of one slide",
                caption=f"Slide {example.slide_id}. The paper's first mechanism, the feature adapter, is part of the selector only "
                "where it reads morphology, and is not drawn.",
            )
        )
    return Section("mechanism", "How the evidence came about", joined(parts))


def threshold_of(run: RunData) -> float:
    """Above it a gate is open."""
    return EvidenceSettings.model_validate(run.settings["evidence"]).selection_threshold


def gates_figure(context: Context) -> Markup:
    fold = context.run.folds[0]
    records = [record for record in fold.history if record.get("gate_histogram")]
    if not records:
        return absent(
            "The training history has no gates.", f"gcemil train COHORT --out {quoted(context.run.folder)}"
        )
    epochs = [int(record["epoch"]) for record in records]
    figure = gate_histograms(
        epochs, np.array([record["gate_histogram"] for record in records], dtype=float),
        threshold=threshold_of(context.run),
        open_share=float(records[-1]["evidence_fraction"]),
    )  # fmt: skip
    return context.album.figure(
        "gates",
        figure,
        alt="Histogram of the gates of the training bags, epoch by epoch",
        caption=f"Fold {fold.number}, training bags. Gates that end at 0 or 1 can be turned into a set of patches without loss; gates "
        "in between cannot. Dashed: threshold.",
    )


def anchors_figure(context: Context) -> Markup:
    """Anchors of one fold: prototypes of another fold are other anchors."""
    found = coverage_of(context.run, context.run.folds[0])
    if found is None:
        remedy = f"gcemil evaluate {quoted(context.run.folder)}"
        return absent("The fold has no evidence files.", remedy)
    prompts, coverage = found
    recovery = context.run.settings["evidence"]["recovery"]
    target = None if recovery.get("reachable") else float(recovery["coverage_target"])
    kind = "a share of what the whole bag covers" if target is None else "the dashed line"
    return joined(
        [
            context.album.figure(
                "anchor_coverage",
                anchor_coverage(prompts, coverage, target=target),
                alt="Coverage of every anchor by the evidence",
                caption=f"Fold {context.run.folds[0].number}, test slides. Recovery aims at {kind}, for the anchors that count for the "
                "predicted class.",
            ),
            paragraph(f"Anchors: {anchor_origin(context.run)}.", kind="note"),
        ]
    )


def coverage_of(run: RunData, fold: FoldData) -> tuple[tuple[str, ...], np.ndarray] | None:
    """Prompts, and coverage (slides, anchors), of the tested slides that have evidence."""
    found = [
        evidence
        for bag in run.bags
        if bag.fold == fold.number
        for slide_id in bag.slide_ids[:1]
        if (evidence := fold.evidence(slide_id)) is not None
    ]
    if not found:
        return None
    return found[0].prompts, np.stack([evidence.coverage for evidence in found]).astype(float)


def anchor_origin(run: RunData) -> str:
    names = sorted({str(fold.metrics["details"].get("anchors")) for fold in run.folds})
    return "; ".join(names) or str(EMPTY)
