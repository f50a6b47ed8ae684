"""A part of the page for every tested bag: prediction, verdicts, failures, anchors, a small map.

A map is a palette PNG of a few kB, or a JPEG of about 15 kB if there is a thumbnail, so a hundred
slides stay below 5 MB. Parts are collapsed, and filters are radio buttons that CSS reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from gcemil.exports.certificate import CRITERIA, Verdict
from gcemil.exports.overlay import encode_image
from gcemil.metrics import FAILURE_TYPES, TASKS
from gcemil.report.context import Context
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.run_data import BagKey, Record, RunData, find_predicted_class
from gcemil.report.slide_view import SlideView, rank_anchors, read_slide_view

LARGEST_PANEL, LARGEST_TISSUE = 280, 240
MOST_PER_PATCH = 12
GAP = 10
NO_EVIDENCE_MEANING = (
    "No evidence: without the patches that were found the prediction stays as it is"
)
OUTPUTS = {
    "phi_full": ("all patches", "attention"),
    "phi_soft": ("gated", "random"),
    "phi_kept": ("evidence alone", "evidence"),
    "phi_removed": ("without it", "random"),
}
"""Versions of a bag: words, and the CSS class of the bar."""
FILTERS = {
    "bag": "all",
    "unheld": "evidence does not hold",
    "none": "no evidence",
    "wrong": "prediction wrong",
    "failing": "any failure",
}
"""CSS classes of the bags that a filter shows, and words for it."""


def link_bags(context: Context) -> dict[str, str]:
    """From a bag's id to its link; numbered, since an id of a slide may hold anything."""
    return {bag.bag_id: f"#bag-{number}" for number, bag in enumerate(context.run.bags)}


def render_slides(context: Context) -> Section:
    run = context.run
    context.find("snr")
    bags = describe_bags(run)
    kinds = [kind for bag in bags for kind in bag["kinds"]]
    filters = {kind: (words, kinds.count(kind)) for kind, words in FILTERS.items() if kind in kinds}
    return render_section(
        "slides",
        f"{run.bag_unit.capitalize()}s, one by one",
        filters=filters,
        is_wrapped=run.is_wrapped,
        has_truth=(run.cohort / "truth").is_dir(),
        bags=bags,
        phi=None if run.task == "classification" else run.phi.removeprefix("the "),
    )


def describe_bags(run: RunData) -> list[Record]:
    """Every tested bag, in the order of the page: a line to scan, and the sheet behind it."""
    judged = {(record["fold"], record["bag_id"]): record for record in run.own_slides("snr")}
    failed = {str(record["bag_id"]): record for record in run.own_slides("failures")}
    outcomes = {
        (fold.number, row["slide_id"]): row
        for fold in run.folds
        for row in fold.predictions("full") or []
    }
    bags = []
    for bag in run.bags:
        failures = failed.get(bag.bag_id, {})
        bags.append(
            _describe_bag(
                run,
                bag,
                judged.get((bag.fold, bag.bag_id), {}),
                outcomes.get((bag.fold, "|".join(bag.slide_ids)), {}),
                [words for kind, words in FAILURE_TYPES.items() if failures.get(kind)],
            )
        )
    return bags


def _describe_bag(
    run: RunData,
    bag: BagKey,
    judged: Record,
    outcome: Mapping[str, str],
    failures: Sequence[str],
) -> Record:
    """One bag from its line of the S/N/R diagnostic, its line of predictions and its failures."""
    read = (read_slide_view(run, bag, slide) for slide in bag.slide_ids)
    views = [view for view in read if view is not None]
    anchors = []
    if views:
        evidence = views[0].evidence
        for index, name, counts in rank_anchors(evidence, run.evidence.recovery.min_weight_share):
            anchors.append((name, float(evidence.coverage[index]), counts))
    predicted = judged["predicted"] if "predicted" in judged else find_predicted_class(outcome)
    is_wrong = predicted is not None and predicted != outcome.get("target")
    is_no_evidence = bool(judged.get("no_evidence"))
    verdicts = {}
    if judged:
        settings = run.fold(bag.fold).findings["snr"].settings
        for name, criterion in CRITERIA.items():
            tolerance = float(settings.get(criterion.tolerance, np.nan))
            verdicts[name] = Verdict(judged[name], judged.get(criterion.change), tolerance)
    kinds = {
        "bag": True,
        "unheld": any(verdict.held is False for verdict in verdicts.values()),
        "none": is_no_evidence,
        "wrong": is_wrong,
        "failing": bool(failures),
    }
    if run.task == "regression":
        value = float(judged.get("value", outcome.get("value", "nan")))
        result = f"{float(outcome.get('target', 'nan')):.3g}, predicted {value:.3g}"
    elif predicted is None:
        event = "event" if outcome.get("event") in ("1", "1.0") else "censored"
        result = f"{event} at {float(outcome.get('target', 'nan')):g}"
    else:
        result = f"{outcome.get('target', '?')}, predicted {predicted if is_wrong else 'so'}"
    facts = [NO_EVIDENCE_MEANING] if is_no_evidence else []
    facts.append(f"Fold {bag.fold}")
    if judged:
        share = 100 * judged["n_selected"] / judged["n_patches"]
        facts.append(f"{judged['n_selected']} of {judged['n_patches']} patches ({share:.1f} %)")
    if views:
        facts.append(f"recovery ended: {views[0].evidence.stop_reason.replace('_', ' ')}")
    if judged.get("precision") is not None:
        overlap = f"precision {judged['precision']:.2f}, recall {judged['recall']:.2f}"
        facts.append(f"{overlap} against the truth")
    if failures:
        facts.append("failures: " + ", ".join(name.lower() for name in failures))
    return {
        "kinds": [kind for kind, holds in kinds.items() if holds],
        "bag_id": bag.bag_id,
        "outcome": result,
        "verdicts": verdicts,
        "is_no_evidence": is_no_evidence,
        "is_wrong": is_wrong,
        "maps": [(view.slide_id, draw_map(view)) for view in views],
        "whose": f"the {TASKS[run.task].number}" if predicted is None else predicted,
        "counting": [(name, coverage) for name, coverage, counts in anchors if counts],
        "others": [(name, coverage) for name, coverage, counts in anchors if not counts],
        "predicted": predicted,
        "full": judged.get("phi_full"),
        "outputs": [
            (words, kind, float(judged[name]))
            for name, (words, kind) in OUTPUTS.items()
            if judged.get(name) is not None
        ],
        "facts": facts,
    }


def draw_map(view: SlideView) -> Picture:
    """Attention and evidence side by side."""
    largest = LARGEST_PANEL if view.thumbnail is None else LARGEST_TISSUE
    place = view.fit(largest=largest, most_per_patch=MOST_PER_PATCH)
    attention, evidence = view.draw_maps(place)
    gap = np.full((place.frame.height, GAP, 3), 255, dtype=np.uint8)
    sheet = Image.fromarray(np.concatenate([attention, gap, evidence], axis=1))
    count, total = int(view.evidence.selected.sum()), len(view.evidence.selected)
    what = "patches that are not evidence" if view.evidence.is_no_evidence else "evidence patches"
    alt = f"Slide {view.slide_id}: attention of the host, and {count} {what} of {total}"
    if view.thumbnail is None:
        # Few colours are enough for a map and keep a hundred of them small.
        few = sheet.quantize(32, dither=Image.Dither.NONE)
        return Picture(encode_image(few, "PNG", optimize=True), alt)
    return Picture(encode_image(sheet, "JPEG", quality=72, optimize=True), alt, "image/jpeg")
