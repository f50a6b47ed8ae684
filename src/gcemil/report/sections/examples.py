"""Slides to look at, chosen by rule and not by eye: the typical one and the worst one.

Bags are ordered by |Phi(all) - Phi(kept)| of their evidence; the middle one and the last one are drawn. Without that
diagnostic the first tested slide is drawn.
"""

from __future__ import annotations

import numpy as np

from gcemil.report.figures.evidence_patches import contact_sheet, top_patches
from gcemil.report.figures.slide_maps import attention_and_evidence, disjoint_subsets, numbered_subsets
from gcemil.report.html import EMPTY, Markup, Section, element, joined, paragraph
from gcemil.report.run_data import BagKey, RunData
from gcemil.report.sections.context import Context, absent
from gcemil.report.slide_view import SlideView, cut_patches, read_slide_view

SUBSET_RULES = {"evidence": "evidence_scores", "attention": "scores"}
"""Rules whose candidates are the next k of a ranking that an evidence file holds."""
SUBSET_WORDS = {"evidence": "evidence score", "attention": "attention"}


def section(context: Context, chosen: dict[str, SlideView]) -> Section | None:
    if not context.run.is_wrapped:
        return None
    if not chosen:
        text = "No tested slide has evidence with coordinates, so there is no map to draw."
        return Section("examples", "Two slides", paragraph(text, kind="missing"))
    parts = [
        paragraph(
            "Chosen by rule: the slide in the middle when all are ordered by how much the prediction moves when only their "
            "evidence is kept, and the slide at the end, where it moves most."
        )
    ]
    for key, view in chosen.items():
        parts += [element("h3", f"{key.capitalize()}: {view.slide_id}"), *slide_figures(context, key, view)]
    return Section("examples", "Two slides", joined(parts))


def example_views(run: RunData) -> dict[str, SlideView]:
    """The typical and the worst slide, where they can be drawn."""
    gaps = {
        record["bag_id"]: float(record["full_kept_gap"])
        for record in run.slides("snr")
        if (record["rule"], record["network"]) == (run.rule, "wrapped")
    }
    bags = sorted((bag for bag in run.bags if bag.bag_id in gaps), key=lambda bag: gaps[bag.bag_id])
    wanted = {"typical": bags[len(bags) // 2], "worst": bags[-1]} if bags else first_bag(run)
    found: dict[str, SlideView] = {}
    for name, bag in wanted.items():
        view = next(
            (view for slide in bag.slide_ids if (view := read_slide_view(run, bag, slide)) is not None), None
        )
        if view is not None and all(view.slide_id != other.slide_id for other in found.values()):
            found[name] = view
    return found


def first_bag(run: RunData) -> dict[str, BagKey]:
    return {"first": run.bags[0]} if run.bags else {}


def slide_figures(context: Context, key: str, view: SlideView) -> list[Markup]:
    truth = "; the outline is the annotated truth" if view.truth is not None and view.truth.any() else ""
    maps = context.album.figure(
        f"slide_{key}",
        attention_and_evidence(
            view.evidence, view.coords, patch_size=view.patch_size, truth=view.truth, thumbnail=view.thumbnail
        ),
        alt=f"Attention and evidence of slide {view.slide_id}",
        caption=f"Left to right on the same slide: attention, darker is higher, and the recovered evidence{truth}.",
    )
    patches = top_patches(view.evidence)
    pixels = cut_patches(
        context.run.cohort, view.slide_id, view.coords, patches.tolist(), patch_size=view.patch_size
    )
    shown = (
        "Pixels of each patch above its"
        if pixels is not None
        else "No slide file lies beside the features, so there are only"
    )
    sheet = context.album.figure(
        f"patches_{key}", contact_sheet(view.evidence, pixels),
        alt=f"Strongest evidence patches of slide {view.slide_id}",
        caption=f"{shown} responses to the anchors, the strongest patch first.",
    )  # fmt: skip
    return [maps, sheet, subset_map(context, key, view)]


def subset_map(context: Context, key: str, view: SlideView) -> Markup:
    """Disjoint sufficient subsets, drawn again from the rankings: the finding keeps their number, not their patches."""
    records = context.run.slides("subsets")
    if not records:
        return context.missing("subsets")
    bag = next(bag for bag in context.run.bags if view.slide_id in bag.slide_ids)
    if len(bag.slide_ids) > 1:
        return absent(
            f"Disjoint subsets of a case with {len(bag.slide_ids)} slides are not drawn: they lie on several slides.",
            context.diagnose("subsets"),
        )
    sizes = sorted({int(record["k"]) for record in records})
    size = sizes[len(sizes) // 2]
    panels = {}
    for rule, scores in SUBSET_RULES.items():
        own = [
            record
            for record in records
            if (record["bag_id"], record["rule"], record["network"], int(record["k"]))
            == (bag.bag_id, rule, "wrapped", size)
        ]
        if own:
            order = np.argsort(-getattr(view.evidence, scores), kind="stable")
            count = int(own[0]["subsets_per_slide"])
            panels[f"by {SUBSET_WORDS[rule]}, {size} at a time"] = numbered_subsets(
                order, size=size, count=count
            )
    if not panels:
        return EMPTY
    if not any(numbers.any() for numbers in panels.values()):
        text = f"No {size} consecutive patches of either ranking carry the prediction of this slide, so there is no subset to draw."
        return paragraph(text, kind="note")
    return context.album.figure(
        f"subsets_{key}",
        disjoint_subsets(
            view.slide_id,
            view.coords,
            panels,
            patch_size=view.patch_size,
            truth=view.truth,
            thumbnail=view.thumbnail,
        ),
        alt=f"Disjoint sufficient subsets of slide {view.slide_id}",
        caption=f"Each colour is a set of {size} patches that carries the prediction by itself; the sets share no patch. A slide with "
        "several has more evidence than any one map shows.",
    )
