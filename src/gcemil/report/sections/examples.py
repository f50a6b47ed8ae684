"""Two slides chosen by rule: the typical one and the worst one.

Bags are ordered by |Phi(all) - Phi(kept)| of their evidence; the middle one and the last one are
drawn. Without that diagnostic the first tested slide is drawn. The figures: attention beside
evidence, the strongest evidence patches with their responses, and the disjoint subsets that would
also keep the prediction.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gcemil.exports.overlay import Canvas, SlideFrame
from gcemil.records import SlideEvidence
from gcemil.report import style
from gcemil.report.context import Context
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.run_data import RunData
from gcemil.report.slide_view import (
    FIRST_SUBSETS,
    SlideView,
    draw_subsets,
    outline_truth,
    read_patch_pixels,
    read_slide_view,
)

SUBSET_RULES = {
    "evidence": ("evidence_scores", "evidence score"),
    "attention": ("scores", "attention"),
}
"""Rules whose candidates are the next k of a ranking that an evidence file holds."""
LARGEST = 1400
"""Pixels of a panel's longer side: at least one per patch for slides of 50,000."""
LETTERS = 90
"""Characters of a title in bold across the whole figure."""
MOST_PATCHES = 12
COLUMNS = 6
Numbers = Int[np.ndarray, "n"]


def render_examples(context: Context, chosen: Mapping[str, SlideView]) -> Section | None:
    """None for a plain host, which has no evidence to draw."""
    if not context.run.is_wrapped:
        return None
    slides = [
        (key.capitalize(), view.slide_id, *_describe_slide(context, key, view))
        for key, view in chosen.items()
    ]
    return render_section("examples", "Two slides", slides=slides)


def choose_examples(run: RunData) -> dict[str, SlideView]:
    """The typical and the worst slide, if they can be drawn."""
    gaps = {record["bag_id"]: float(record["full_kept_gap"]) for record in run.own_slides("snr")}
    bags = sorted((bag for bag in run.bags if bag.bag_id in gaps), key=lambda bag: gaps[bag.bag_id])
    candidates = {"first": run.bags[0]} if run.bags else {}
    if bags:
        candidates = {"typical": bags[len(bags) // 2], "worst": bags[-1]}
    chosen: dict[str, SlideView] = {}
    for name, bag in candidates.items():
        views = (read_slide_view(run, bag, slide) for slide in bag.slide_ids)
        view = next((view for view in views if view is not None), None)
        if view is not None and all(view.slide_id != other.slide_id for other in chosen.values()):
            chosen[name] = view
    return chosen


def _describe_slide(context: Context, key: str, view: SlideView) -> tuple[list[Picture], str]:
    """The figures of a slide, and why its disjoint subsets are not among them."""
    truth = "; the outline is the annotated truth" if view.has_truth else ""
    maps = context.draw(
        f"slide_{key}",
        draw_attention_and_evidence(view),
        f"Attention and evidence of slide {view.slide_id}",
        "Left to right on the same slide: attention, darker is higher, and the recovered evidence"
        f"{truth}.",
    )
    patches = rank_evidence_patches(view.evidence).tolist()
    pixels = read_patch_pixels(context.run.cohort, view, patches)
    shown = "Pixels of each patch above its"
    if pixels is None:
        shown = "No slide file lies beside the features, so there are only"
    sheet = context.draw(
        f"patches_{key}",
        draw_contact_sheet(view.evidence, pixels),
        f"Strongest evidence patches of slide {view.slide_id}",
        f"{shown} responses to the anchors, the strongest patch first.",
    )
    subsets, note = _number_subsets(context, view)
    if not subsets:
        return [maps, sheet], note
    drawn = context.draw(
        f"subsets_{key}",
        draw_disjoint_subsets(view, subsets),
        f"Disjoint sufficient subsets of slide {view.slide_id}",
        "Each colour is a set of patches that keeps the prediction by itself; the sets share no "
        "patch. A slide with several has more evidence than any one map shows.",
    )
    return [maps, sheet, drawn], ""


def _number_subsets(context: Context, view: SlideView) -> tuple[dict[str, Numbers], str]:
    """By ranking, the number of the disjoint subset of every patch (0 for none), or why not.

    Subsets are formed again from the rankings: the finding keeps their number, not their patches.
    """
    records = context.run.slides("subsets")
    if not records:
        context.find("subsets")
        return {}, ""
    bag = next(bag for bag in context.run.bags if view.slide_id in bag.slide_ids)
    if (count := len(bag.slide_ids)) > 1:
        note = f"Disjoint subsets of a case with {count} slides are not drawn"
        return {}, f"{note}: they lie on several slides."
    sizes = sorted({int(record["k"]) for record in records})
    size = sizes[len(sizes) // 2]
    panels = {}
    for rule, (scores, words) in SUBSET_RULES.items():
        labels = {"bag_id": bag.bag_id, "rule": rule, "network": "wrapped", "k": size}
        record = next((record for record in records if labels.items() <= record.items()), None)
        if record is not None:
            order = np.argsort(-getattr(view.evidence, scores), kind="stable")
            numbers = np.zeros(len(order), dtype=np.int64)
            places = np.arange(len(order)) // size + 1
            numbers[order] = np.where(places <= int(record["subsets_per_slide"]), places, 0)
            panels[f"by {words}, {size} at a time"] = numbers
    if panels and not any(numbers.any() for numbers in panels.values()):
        return {}, (
            f"No {size} consecutive patches of either ranking keep the prediction of this slide, "
            "so there is no subset to draw."
        )
    return panels, ""


def draw_attention_and_evidence(view: SlideView, *, largest: int = LARGEST) -> Figure:
    """The host's attention and the recovered evidence on the same slide."""
    evidence, place = view.evidence, view.fit(largest=largest)
    attention, selected = view.draw_maps(place)
    size = f"{int(evidence.selected.sum())} of {len(evidence.selected)} patches"
    name, word = "GCE evidence", "evidence"
    if evidence.is_no_evidence:
        name, word = "No evidence: found", "found, no evidence"
    panels = {"Attention of the host, by rank": attention, f"{name}, {size}": selected}
    if view.thumbnail is not None:
        panels = {"Slide": outline_truth(place.draw_background(), place, view.truth), **panels}
    truth = "outline of the annotated truth"
    return _draw_panels(view, place, panels, {word: view.color}, truth_label=truth, ncols=2)


def draw_disjoint_subsets(view: SlideView, subsets: Mapping[str, Numbers]) -> Figure:
    """Patches by the number of the sufficient subset they belong to, one panel per rule."""
    place = view.fit(largest=LARGEST)
    panels = {}
    for name, numbers in subsets.items():
        canvas = outline_truth(draw_subsets(place, numbers), place, view.truth)
        panels[f"{name}: {int(numbers.max(initial=0))} sufficient"] = canvas
    colors = dict(zip(("first subset", "second", "third"), FIRST_SUBSETS, strict=True))
    return _draw_panels(view, place, panels, colors, truth_label="annotated truth", ncols=4)


def _draw_panels(
    view: SlideView,
    place: SlideFrame,
    panels: Mapping[str, Canvas],
    colors: Mapping[str, tuple[int, int, int]],
    *,
    truth_label: str,
    ncols: int,
) -> Figure:
    """Pictures side by side under their titles, and what their colours mean."""
    height, width, _ = next(iter(panels.values())).shape
    inches = min(7.0, style.WIDTH / len(panels) * height / width + 0.75)
    figure = style.new_figure(inches, style.shorten_label(view.slide_id, 70))
    grid = style.add_panels(figure, len(panels))
    for axes, (title, canvas) in zip(grid, panels.items(), strict=True):
        _show_pixels(axes, canvas)
        axes.set_title(textwrap.fill(title, LETTERS // len(panels)), fontsize=8.5)
        if view.mpp is not None:
            style.draw_scale_bar(axes, width, view.mpp / place.frame.scale)
    handles: list[Patch | Line2D] = [
        Patch(color="#{:02x}{:02x}{:02x}".format(*color), label=word)
        for word, color in colors.items()
    ]
    if view.has_truth:
        handles.append(Line2D([], [], color="black", linewidth=1.2, label=truth_label))
    figure.legend(handles=handles, loc="outside lower left", ncols=ncols)
    return figure


def _show_pixels(axes: Axes, canvas: Canvas) -> None:
    axes.imshow(canvas, interpolation="nearest", aspect="equal")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def draw_contact_sheet(evidence: SlideEvidence, pixels: Sequence[Canvas] | None = None) -> Figure:
    """The first patches by evidence score; `pixels` are theirs, in the same order."""
    chosen = rank_evidence_patches(evidence)
    rows = -(-max(1, len(chosen)) // COLUMNS)
    letters = list_anchor_letters(len(evidence.prompts))
    parts = 2 if pixels is not None else 1
    height = rows * (1.0 * parts + 0.25) + 0.5 + 0.15 * len(evidence.prompts)
    title = style.shorten_label(f"{evidence.slide_id}: strongest evidence patches", 76)
    figure = style.new_figure(height, title)
    grid = np.asarray(figure.subplots(rows * parts, COLUMNS, squeeze=False))
    for axes in grid.flat:
        axes.set_axis_off()
    places = np.arange(len(letters))
    for place, patch in enumerate(chosen.tolist()):
        row, column = divmod(place, COLUMNS)
        top, below = grid[row * parts, column], grid[row * parts + parts - 1, column]
        if pixels is not None:
            _show_pixels(top, pixels[place])
            top.set_axis_on()
        below.set_axis_on()
        below.bar(places, evidence.responses[patch], width=0.78, color=style.EVIDENCE_COLOR)
        below.set(ylim=(0, 1), yticks=[0, 1])
        below.set_xticks(places, letters)
        below.tick_params(labelsize=6.5, length=0)
        below.grid(True, axis="y", color=style.LINE)
        top.set_title(f"patch {patch}", fontsize=7.5, fontweight="normal")
    key = "\n".join(
        f"{letter}  {style.shorten_label(prompt, 90)}"
        for letter, prompt in zip(letters, evidence.prompts, strict=True)
    )
    figure.supxlabel(key, x=0.01, ha="left", fontsize=7.5)
    return figure


def rank_evidence_patches(evidence: SlideEvidence) -> Int[np.ndarray, "k"]:
    """The selected patches of highest evidence score; of equal ones the lower index first."""
    order = np.argsort(-evidence.evidence_scores[evidence.indices], kind="stable")
    return evidence.indices[order][:MOST_PATCHES]


def list_anchor_letters(count: int) -> list[str]:
    """A, B, ... Z, then numbers."""
    return [chr(ord("A") + number) if number < 26 else str(number) for number in range(count)]
