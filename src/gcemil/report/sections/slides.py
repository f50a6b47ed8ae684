"""A part of the page for every tested bag: prediction, verdicts, failures, anchors, and a small map.

A map is one small picture of two panels, attention and evidence: a palette PNG of a few kB, or a JPEG of about 15 kB where
there is a thumbnail. A hundred slides stay below 5 MB. Parts are collapsed, and filters are radio buttons that CSS reads:
there is no script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcemil.exports.certificate import CRITERIA, Verdict, VerdictName
from gcemil.exports.geojson import NO_EVIDENCE
from gcemil.exports.overlay import draw_attention, draw_evidence
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.run_data import BagKey, Record, find_predicted_class
from gcemil.report.sections.context import Context
from gcemil.report.sections.failures import list_failures
from gcemil.report.slide_view import (
    SlideView,
    choose_color,
    encode_jpeg,
    encode_palette_png,
    fit_slide,
    name_anchor,
    outline_truth,
    read_slide_view,
    sort_anchors,
)
from gcemil.report.style import ATTENTION_COLOR, EVIDENCE_COLOR, format_color

LARGEST_PANEL, LARGEST_TISSUE = 280, 240
MOST_PER_PATCH = 12
GAP = 10
NO_EVIDENCE_MEANING = "No evidence: without the patches that were found the prediction stays as it is"
OUTPUTS = {
    "phi_full": ("all patches", "attention"),
    "phi_soft": ("gated", "random"),
    "phi_kept": ("evidence alone", "evidence"),
    "phi_removed": ("without it", "random"),
}
"""Versions of a bag: words, and the CSS class of the bar."""
Coverage = tuple[str, float]
FILTERS = {
    "bag": "all",
    "unheld": "evidence does not hold",
    "none": "no evidence",
    "wrong": "prediction wrong",
    "failing": "any failure",
}
"""CSS classes of the bags that a filter shows, and words for it."""


def link_bags(context: Context) -> dict[str, str]:
    """From a bag's id to the link that leads to it; numbered, since an id of a slide may hold anything."""
    return {bag.bag_id: f"#bag-{number}" for number, bag in enumerate(context.run.bags)}


def render_slides(context: Context) -> Section:
    """Every tested bag."""
    facts = collect_bag_facts(context)
    context.find("snr")
    kinds = [kind for one in facts for kind in list_filter_classes(one)]
    return render_section(
        "slides",
        f"{context.unit.capitalize()}s, one by one",
        filters={kind: (words, kinds.count(kind)) for kind, words in FILTERS.items() if kind in kinds},
        legend=_list_legend(context) if context.run.is_wrapped else {},
        bags=[_describe_bag(context, one) for one in facts],
        is_survival=context.run.task == "survival",
    )


def list_filter_classes(facts: _BagFacts) -> list[str]:
    """CSS classes that the filters look for."""
    kinds = {
        "bag": True,
        "unheld": any(verdict.held is False for verdict in facts.verdicts.values()),
        "none": facts.is_no_evidence,
        "wrong": facts.is_wrong,
        "failing": bool(facts.failures),
    }
    return [kind for kind, holds in kinds.items() if holds]


def _list_legend(context: Context) -> dict[str, str]:
    """What the colours of a map mean, each with the style that shows it."""
    ramp = f"background:linear-gradient(90deg,#f0f4fa,{ATTENTION_COLOR},#081d42);width:2.4rem;border:0"
    entries = {
        "attention, darker is higher": ramp,
        "GCE evidence": f"background:{EVIDENCE_COLOR}",
        "patches that were found and are no evidence": f"background:{format_color(NO_EVIDENCE.color)}",
        "other patches": "background:#dedede",
    }
    if (context.run.cohort / "truth").is_dir():
        entries["outline: annotated truth"] = "border-color:#000;background:#fff"
    return entries


def _describe_bag(context: Context, facts: _BagFacts) -> Record:
    """One bag: a line to scan, and the sheet behind it."""
    views = [
        view
        for slide in facts.bag.slide_ids
        if (view := read_slide_view(context.run, facts.bag, slide)) is not None
    ]
    counting, others = _list_coverage(context, views)
    return {
        "kinds": list_filter_classes(facts),
        "bag_id": facts.bag.bag_id,
        "outcome": _describe_outcome(facts),
        "chips": list(_list_chips(facts)),
        "maps": [(view.slide_id, draw_map(view)) for view in views],
        "whose": "the risk" if facts.predicted is None else facts.predicted,
        "counting": counting,
        "others": others,
        "predicted": facts.predicted,
        "full": None if facts.judged is None else float(facts.judged["phi_full"]),
        "outputs": list(_list_outputs(facts)),
        "verdicts": [
            verdict.sentence(name).capitalize()
            for name, verdict in facts.verdicts.items()
            if verdict.held is not None or verdict.change is not None
        ],
        "facts": _list_facts(facts, views),
    }


def _describe_outcome(facts: _BagFacts) -> str:
    """The truth and what was predicted; or time and event."""
    target = facts.outcome.get("target", "?")
    if facts.predicted is not None:
        return f"{target}, predicted {'so' if not facts.is_wrong else facts.predicted}"
    event = "event" if facts.outcome.get("event") in ("1", "1.0") else "censored"
    return f"{event} at {_format_number(target)}"


def _list_chips(facts: _BagFacts) -> Iterator[tuple[str, str]]:
    """Verdicts by sign and CSS class, and whether the prediction is wrong."""
    if facts.is_no_evidence:
        yield "no evidence", "none"
    for name, verdict in facts.verdicts.items():
        if verdict.held is not None:
            yield (f"✓ {name}", "held") if verdict.held else (f"✗ not {name}", "failed")
    if facts.is_wrong:
        yield "✗ wrong", "failed"


def _list_outputs(facts: _BagFacts) -> Iterator[tuple[str, str, float]]:
    """Phi of the four versions of the bag: words, CSS class of the bar, value."""
    for name, (words, kind) in OUTPUTS.items():
        if facts.judged is not None and (value := facts.judged.get(name)) is not None:
            yield words, kind, float(value)


def _list_facts(facts: _BagFacts, views: Sequence[SlideView]) -> list[str]:
    """Fold, size, end of the recovery, overlap with the truth, failures."""
    words = [NO_EVIDENCE_MEANING] if facts.is_no_evidence else []
    words.append(f"Fold {facts.bag.fold}")
    judged = facts.judged or {}
    if judged:
        share = 100 * judged["n_selected"] / judged["n_patches"]
        words.append(f"{judged['n_selected']} of {judged['n_patches']} patches ({share:.1f} %)")
    if views:
        words.append(f"recovery ended: {views[0].evidence.stop_reason.replace('_', ' ')}")
    if judged.get("precision") is not None:
        words.append(f"precision {judged['precision']:.2f}, recall {judged['recall']:.2f} against the truth")
    if facts.failures:
        words.append("failures: " + ", ".join(name.lower() for name in facts.failures))
    return words


def _list_coverage(context: Context, views: Sequence[SlideView]) -> tuple[list[Coverage], list[Coverage]]:
    """Anchors that count for the prediction and the others, each with how far the evidence covers it."""
    if not views:
        return [], []
    evidence = views[0].evidence
    counting, others = (
        [(name_anchor(evidence, anchor), float(evidence.coverage[anchor])) for anchor in anchors]
        for anchors in sort_anchors(evidence, context.run.evidence.recovery.min_weight_share)
    )
    return counting, others


def draw_map(view: SlideView) -> Picture:
    """Attention and evidence side by side: a palette PNG of the patch grid, or a JPEG where tissue lies under it."""
    place = fit_slide(
        view.coords,
        view.patch_size,
        largest=LARGEST_PANEL if view.thumbnail is None else LARGEST_TISSUE,
        thumbnail=view.thumbnail,
        most_per_patch=MOST_PER_PATCH,
    )
    panels = (
        draw_attention(place, view.evidence.scores),
        draw_evidence(place, view.evidence.selected, choose_color(view.evidence)),
    )
    gap = np.full((place.frame.height, GAP, 3), 255, dtype=np.uint8)
    first, second = (outline_truth(panel, place, view.truth) for panel in panels)
    sheet = np.concatenate([first, gap, second], axis=1)
    count, total = int(view.evidence.selected.sum()), len(view.evidence.selected)
    what = "patches that are no evidence" if view.evidence.is_no_evidence else "evidence patches"
    alt = f"Slide {view.slide_id}: attention of the host, and {count} {what} of {total}"
    if view.thumbnail is None:
        return Picture(encode_palette_png(sheet), alt)
    return Picture(encode_jpeg(sheet), alt, "image/jpeg")


def _format_number(text: str) -> str:
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


@dataclass(frozen=True)
class _BagFacts:
    """What is known of one bag besides its patches."""

    bag: BagKey
    judged: Record | None
    """Its line of the S/N/R diagnostic."""
    settings: Mapping[str, Any]
    outcome: Mapping[str, str]
    """Its line of predictions."""
    failures: Sequence[str] | None

    @property
    def predicted(self) -> str | None:
        """The class on all patches; None for a risk."""
        if self.judged is not None and "predicted" in self.judged:
            return str(self.judged["predicted"])
        return find_predicted_class(self.outcome)

    @property
    def is_no_evidence(self) -> bool:
        """Whether the prediction stays without the patches that were found."""
        return bool(self.judged and self.judged.get("no_evidence"))

    @property
    def is_wrong(self) -> bool:
        """Whether the class on all patches is not the true one; never for a risk."""
        return self.predicted is not None and self.predicted != self.outcome.get("target")

    @property
    def verdicts(self) -> dict[VerdictName, Verdict]:
        """Sufficient, necessary and recoverable; empty where S/N/R was not measured."""
        if self.judged is None:
            return {}
        return {
            name: Verdict(
                self.judged[name],
                self.judged.get(one.change),
                float(self.settings.get(one.tolerance, np.nan)),
            )
            for name, one in CRITERIA.items()
        }


def collect_bag_facts(context: Context) -> list[_BagFacts]:
    """Every tested bag, in the order of the page."""
    run = context.run
    judged = {(record["fold"], record["bag_id"]): record for record in run.own_slides("snr")}
    outcomes = {
        (fold.number, row["slide_id"]): row for fold in run.folds for row in fold.predictions("full") or []
    }
    failures = list_failures(context)
    found = []
    for bag in run.bags:
        fold = run.fold(bag.fold)
        settings = fold.findings["snr"].settings if "snr" in fold.findings else {}
        outcome = outcomes.get((bag.fold, "|".join(bag.slide_ids)), {})
        record = judged.get((bag.fold, bag.bag_id))
        found.append(_BagFacts(bag, record, settings, outcome, failures.get(bag.bag_id)))
    return found
