"""A part of the page for every tested bag: prediction, verdicts, failures, anchors, and a small map.

A map is one small picture of two panels, attention and evidence: a palette PNG of a few kB, or a JPEG of about 15 kB where
there is a thumbnail. A hundred slides stay below 5 MB. Parts are collapsed, and filters are radio buttons that CSS reads:
there is no script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from gcemil.exports.certificate import CRITERIA, Verdict, VerdictName
from gcemil.exports.overlay import draw_attention, draw_evidence
from gcemil.records import SlideEvidence
from gcemil.report.html import EMPTY, Section, bar, collapse, element, join_markup, paragraph, picture
from gcemil.report.run_data import BagKey, Record, find_predicted_class
from gcemil.report.sections.context import Context
from gcemil.report.sections.failures import list_failures
from gcemil.report.slide_view import (
    NO_EVIDENCE,
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
    "phi_full": "all patches",
    "phi_soft": "gated",
    "phi_kept": "evidence alone",
    "phi_removed": "without it",
}
FILTERS = {
    "show-all": "all",
    "show-unheld": "evidence does not hold",
    "show-none": "no evidence",
    "show-wrong": "prediction wrong",
    "show-failing": "any failure",
}


def _name_anchor(number: int) -> str:
    """Where a bag stands on the page; numbered, since an id of a slide may hold anything."""
    return f"bag-{number}"


def link_bags(context: Context) -> dict[str, str]:
    """From a bag's id to the link that leads to it."""
    return {bag.bag_id: f"#{_name_anchor(number)}" for number, bag in enumerate(context.run.bags)}


def render_section(context: Context) -> Section:
    """Every tested bag."""
    facts = list(collect_bag_facts(context))
    context.find("snr")
    parts = [
        _render_filters(facts),
        _render_legend(context),
        *(_render_bag(context, _name_anchor(number), one) for number, one in enumerate(facts)),
    ]
    title = "Cases" if context.unit == "case" else "Slides"
    return Section("slides", f"{title}, one by one", join_markup(parts))


def _render_filters(facts: Sequence[_BagFacts]) -> Markup:
    """Buttons that hide what does not match, with how many match."""
    classes = [list_filter_classes(one) for one in facts]
    counts = {key: sum(key.removeprefix("show-") in own for own in classes) for key in FILTERS}
    counts["show-all"] = len(facts)
    buttons = [
        element(
            "label",
            element(
                "input", type="radio", name="show", id=key, checked="checked" if key == "show-all" else None
            ),
            f" {words} ({counts[key]})",
        )
        for key, words in FILTERS.items()
        if counts[key]
    ]
    return element("div", *buttons, class_="filter", role="radiogroup", aria_label="Which to show")


def list_filter_classes(facts: _BagFacts) -> list[str]:
    """What the filters look for."""
    found = ["bag"]
    if any(verdict.held is False for verdict in facts.verdicts.values()):
        found.append("unheld")
    if facts.is_no_evidence:
        found.append("none")
    if facts.is_wrong:
        found.append("wrong")
    if facts.failures:
        found.append("failing")
    return found


def _render_legend(context: Context) -> Markup:
    if not context.run.is_wrapped:
        return paragraph("A plain host writes no evidence files, so there are no maps.", kind="note")
    entries = {
        "attention, darker is higher": f"background:linear-gradient(90deg,#f0f4fa,{ATTENTION_COLOR},#081d42);width:2.4rem;border:0",
        "GCE evidence": f"background:{EVIDENCE_COLOR}",
        "patches that were found and are no evidence": f"background:{format_color(NO_EVIDENCE)}",
        "other patches": "background:#dedede",
    }
    if (context.run.cohort / "truth").is_dir():
        entries["outline: annotated truth"] = "border-color:#000;background:#fff"
    return element(
        "div",
        *(element("span", element("i", style=style), words) for words, style in entries.items()),
        class_="legend",
    )


def _render_bag(context: Context, key: str, facts: _BagFacts) -> Markup:
    """One bag, folded: a line to scan, and a sheet behind it."""
    views = [
        view
        for slide in facts.bag.slide_ids
        if (view := read_slide_view(context.run, facts.bag, slide)) is not None
    ]
    summary = element(
        "summary", element("span", facts.bag.bag_id, class_="name"), element("span", _describe_outcome(facts)),
        element("span", *_render_chips(facts), class_="chips"),
    )  # fmt: skip
    maps = [_render_anchors(context, facts, views)]
    for view in reversed(views):
        # A bag of one slide carries its name already.
        name = [paragraph(view.slide_id, kind="note")] if len(views) > 1 else []
        maps = [_render_map(view), *name, *maps]
    numbers = [_render_outputs(context, facts), _render_verdicts(facts), _render_facts(facts, views)]
    sheet = element("div", element("div", *maps), element("div", *numbers), class_="sheet")
    return element("details", summary, sheet, class_=" ".join(list_filter_classes(facts)), id=key)


def _describe_outcome(facts: _BagFacts) -> str:
    """The truth and what was predicted; or time and event."""
    target = facts.outcome.get("target", "?")
    if facts.predicted is not None:
        return f"{target}, predicted {'so' if not facts.is_wrong else facts.predicted}"
    event = "event" if facts.outcome.get("event") in ("1", "1.0") else "censored"
    return f"{event} at {_format_number(target)}"


def _render_chips(facts: _BagFacts) -> list[Markup]:
    """Verdicts by sign and colour, and whether the prediction is wrong."""
    found = [element("span", "no evidence", class_="chip none")] if facts.is_no_evidence else []
    for name, verdict in facts.verdicts.items():
        if verdict.held is not None:
            words, kind = (f"✓ {name}", "held") if verdict.held else (f"✗ not {name}", "failed")
            found.append(element("span", words, class_=f"chip {kind}"))
    if facts.is_wrong:
        found.append(element("span", "✗ wrong", class_="chip failed"))
    return found


def _render_outputs(context: Context, facts: _BagFacts) -> Markup:
    """Phi of the four versions of the bag; a probability has a bar, a risk a number."""
    if facts.judged is None:
        return EMPTY
    parts = []
    for name, words in OUTPUTS.items():
        value = facts.judged.get(name)
        if value is None:
            continue
        kind = "evidence" if name == "phi_kept" else "attention" if name == "phi_full" else "random"
        drawn = (
            EMPTY
            if context.run.task == "survival"
            else bar(float(value), kind=kind, mark=float(facts.judged["phi_full"]))
        )
        parts += [element("span", words), drawn or element("span"), element("span", f"{float(value):.3f}")]
    what = (
        "risk, in units of the training risks"
        if context.run.task == "survival"
        else f"probability of {facts.predicted}"
    )
    return join_markup([element("h4", f"Output: {what}"), element("div", *parts, class_="outputs")])


def _render_verdicts(facts: _BagFacts) -> Markup:
    lines = [
        element("li", verdict.sentence(name).capitalize())
        for name, verdict in facts.verdicts.items()
        if verdict.held is not None or verdict.change is not None
    ]
    return element("ul", *lines, class_="verdicts") if lines else EMPTY


def _render_facts(facts: _BagFacts, views: Sequence[SlideView]) -> Markup:
    words = [f"Fold {facts.bag.fold}"]
    if facts.is_no_evidence:
        words.insert(0, NO_EVIDENCE_MEANING)
    if facts.judged is not None:
        share = 100 * facts.judged["n_selected"] / facts.judged["n_patches"]
        words.append(f"{facts.judged['n_selected']} of {facts.judged['n_patches']} patches ({share:.1f} %)")
    if views:
        words.append(f"recovery ended: {views[0].evidence.stop_reason.replace('_', ' ')}")
    if facts.judged is not None and facts.judged.get("precision") is not None:
        words.append(
            f"precision {facts.judged['precision']:.2f}, recall {facts.judged['recall']:.2f} against the truth"
        )
    if facts.failures:
        words.append("failures: " + ", ".join(name.lower() for name in facts.failures))
    return paragraph("; ".join(words) + ".", kind="note")


def _render_anchors(context: Context, facts: _BagFacts, views: Sequence[SlideView]) -> Markup:
    """Coverage of the anchors by the evidence of the whole bag: those that count for the prediction, then the others."""
    if not views:
        return EMPTY
    evidence = views[0].evidence
    counting, others = sort_anchors(evidence, context.run.evidence.recovery.min_weight_share)
    whose = "the risk" if facts.predicted is None else facts.predicted
    title = "Concepts that the evidence shows" if not others else f"Concepts that count for {whose}"
    parts = [element("h4", title), _render_coverage(evidence, counting)]
    if others:
        text = (
            f"These weigh less than half of the first one for {whose}. A patch may look like several concepts, so the evidence "
            "can show one of another class: that is what the patches resemble, not why the class was predicted."
        )
        body = join_markup([paragraph(text, kind="note"), _render_coverage(evidence, others)])
        parts.append(collapse(f"{len(others)} other concepts", body))
    return join_markup(parts)


def _render_coverage(evidence: SlideEvidence, anchors: Sequence[int]) -> Markup:
    parts = []
    for anchor in anchors:
        covered = float(evidence.coverage[anchor])
        parts += [
            element("span", name_anchor(evidence, anchor)),
            bar(covered),
            element("span", f"{covered:.2f}"),
        ]
    return element("div", *parts, class_="anchors")


def _render_map(view: SlideView) -> Markup:
    """Attention and evidence side by side."""
    data, mime = draw_map(view)
    count, total = int(view.evidence.selected.sum()), len(view.evidence.selected)
    what = "patches that are no evidence" if view.evidence.is_no_evidence else "evidence patches"
    alt = f"Slide {view.slide_id}: attention of the host, and {count} {what} of {total}"
    return picture(data, alt, mime=mime)


def draw_map(view: SlideView) -> tuple[bytes, str]:
    """A palette PNG of the patch grid, or a JPEG where tissue lies under it; and which of them."""
    place = fit_slide(
        view.coords,
        view.patch_size,
        largest=LARGEST_PANEL if view.thumbnail is None else LARGEST_TISSUE,
        thumbnail=view.thumbnail,
        most_per_patch=MOST_PER_PATCH,
    )
    panels = [
        draw_attention(place, view.evidence.scores),
        draw_evidence(place, view.evidence.selected, choose_color(view.evidence)),
    ]
    gap = np.full((place.frame.height, GAP, 3), 255, dtype=np.uint8)
    first, second = (outline_truth(panel, place, view.truth) for panel in panels)
    sheet = np.concatenate([first, gap, second], axis=1)
    return (
        (encode_palette_png(sheet), "image/png")
        if view.thumbnail is None
        else (encode_jpeg(sheet), "image/jpeg")
    )


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
