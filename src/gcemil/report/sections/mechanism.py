"""How the evidence came about: gates over training, coverage of anchors, and one slide's mechanism.

  anchor response     mean response of the evidence and of the other patches to every anchor
  continuous gate     the gate of every patch over its evidence score
  noisy-OR utility    v_m = 1 - prod (1 - r_im) as patches are added: each adds less than the last
  threshold           gates sorted; those above the threshold open
  greedy repair       coverage of every anchor before and after patches were added

These are the mechanisms of the paper's appendix, drawn from an evidence file. The first one, the
feature adapter, exists only where the selector reads morphology (gcemil report --representations):

  feature adaptation  cos(norm h, norm (I + U V^T) h), and the singular values of U V^T
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from PIL import Image

from gcemil.config import EvidenceSettings
from gcemil.exports.overlay import RAMP, encode_image
from gcemil.records import AdapterFigures, SlideEvidence, read_adapter
from gcemil.report import style
from gcemil.report.context import Context
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.run_data import BagKey, Record
from gcemil.report.sections.examples import list_anchor_letters
from gcemil.report.slide_view import PROTOTYPE, SlideView, read_patch_pixels, read_slide_view

SMALLEST = 1e-4
"""Share of patches below which a cell is white."""
EXAMPLES = 4
"""Patches that stand for an anchor without words."""
MOST_DOTS = 2000
"""Above so many, dots are pixels of an image inside the figure."""


def render_mechanism(context: Context, example: SlideView | None) -> Section | None:
    """None for a plain host, which has neither gates nor anchors."""
    if not context.run.is_wrapped:
        return None
    run, fold = context.run, context.run.folds[0]
    recovered = [
        (bag, evidence)
        for bag in run.bags
        if bag.fold == fold.number
        for slide in bag.slide_ids
        if (evidence := fold.evidence(slide)) is not None
    ]
    # The slides of a bag were recovered together, so one of them has the coverage of all.
    covered = [slide for bag, slide in recovered if slide.slide_id == bag.slide_ids[0]]
    return render_section(
        "mechanism",
        "How the evidence came about",
        parts=describe_method(run.evidence, run.settings.host.name),
        is_taught=run.evidence.train_host,
        figures=list(_draw_figures(context, covered, example)),
        anchors=sorted({str(fold.details.get("anchors")) for fold in run.folds}),
        prototypes=_list_prototypes(context, recovered),
    )


def describe_method(evidence: EvidenceSettings, host: str) -> list[tuple[str, str]]:
    """Every part of the model by its name, and what it is in these settings."""
    terms = {
        "attention": evidence.attention_term,
        "contribution": evidence.contribution_term,
        "concepts": evidence.presence_term,
        "likeness": evidence.likeness_term,
        "adapted features (MLP)": evidence.morphology_term,
    }
    steps = {
        "threshold": True,
        "repair": evidence.recovery.repair,
        "until sufficient": evidence.recovery.until_sufficient,
    }
    gate = "0" if evidence.centre == "zero" else f"per slide, {100 * evidence.budget:g} %"
    return [
        ("patches", "features h, positions"),
        ("host", f"{host}, f(X)"),
        ("bridge, anchors", f"{evidence.bridge}, {evidence.responses} responses"),
        ("selector", " + ".join(name for name, used in terms.items() if used) or "nothing"),
        ("gate", f"{evidence.gate}, centre {gate}"),
        ("coverage", "noisy-OR of gates and responses"),
        ("recovery", ", ".join(name for name, used in steps.items() if used)),
        ("answers", "f(X_pi), f(X_S), f(X_notS)"),
    ]


def _draw_figures(
    context: Context, covered: Sequence[SlideEvidence], example: SlideView | None
) -> Iterator[Picture]:
    """Adapter, gates over training, anchors, and the steps of one slide, if there are any."""
    settings, fold = context.run.evidence, context.run.folds[0]
    if settings.morphology_term and not fold.files.adapter.is_file():
        remedy = f"gcemil report {context.path} --representations"
        context.missing["The feature adapter of this run was not measured."] = remedy
    elif settings.morphology_term:
        yield context.draw(
            "adapter",
            draw_adapter(read_adapter(fold.files.adapter)),
            "Cosine of patches before and after the feature adapter, and its singular values",
            f"Fold {fold.number}, patches of some test slides. At a cosine of 1 the selector reads "
            "the encoder's own space; singular values well below 1 leave that space nearly as it "
            "was.",
        )
    if records := [record for record in fold.history if record.get("gate_histogram")]:
        yield context.draw(
            "gates",
            draw_gate_histograms(records, threshold=settings.selection_threshold),
            "Histogram of the gates of the training bags, epoch by epoch",
            f"Fold {fold.number}, training bags. Gates that end at 0 or 1 can be turned into a set "
            "of patches without loss; gates in between cannot. Dashed: threshold.",
        )
    else:
        remedy = f"gcemil train COHORT --out {context.path}"
        context.missing["The training history has no gates."] = remedy
    if covered:
        recovery = settings.recovery
        target = None if recovery.reachable else recovery.coverage_target
        aim = "a share of what the whole bag covers" if target is None else "the dashed line"
        yield context.draw(
            "anchor_coverage",
            # One fold only: prototypes of another fold are other anchors.
            draw_anchor_coverage(covered, target=target),
            "Coverage of every anchor by the evidence",
            f"Fold {fold.number}, test slides. Recovery aims at {aim}, for the anchors that count "
            "for the predicted class.",
        )
    else:
        context.missing["The fold has no evidence files."] = f"gcemil train {context.path} --again"
    if example is not None:
        yield context.draw(
            "mechanism",
            draw_mechanism(example.evidence, threshold=settings.selection_threshold),
            "Responses, gates, coverage, threshold and repair of one slide",
            f"Slide {example.slide_id}. The paper's first mechanism, the feature adapter, is part "
            "of the selector only where it reads morphology.",
        )


def _list_prototypes(
    context: Context, recovered: Sequence[tuple[BagKey, SlideEvidence]]
) -> dict[str, list[tuple[str, Picture | None]]]:
    """For anchors without words, the patches of the tested slides that are most like them.

    A patch is named by its place, and shown if the slide can be opened.
    """
    if not recovered or not recovered[0][1].prompts[0].startswith(PROTOTYPE):
        return {}
    examples: dict[str, list[tuple[str, Picture | None]]] = {}
    placed = [one for one in recovered if one[1].coords is not None]
    for anchor, prompt in enumerate(recovered[0][1].prompts):
        examples[prompt] = []
        strongest = sorted(placed, key=lambda one: -float(one[1].responses[:, anchor].max()))
        for bag, slide in strongest[:EXAMPLES]:
            patch = int(slide.responses[:, anchor].argmax())
            x, y = np.asarray(slide.coords)[patch].astype(int).tolist()
            where, picture = f"{slide.slide_id} at {x}, {y}", None
            view = read_slide_view(context.run, bag, slide.slide_id)
            pixels = view and read_patch_pixels(context.run.cohort, view, [patch])
            if pixels:
                data = encode_image(Image.fromarray(pixels[0]), "JPEG", quality=72, optimize=True)
                picture = Picture(data, where, "image/jpeg", width=72)
            examples[prompt].append((where, picture))
    return examples


def draw_gate_histograms(history: Sequence[Record], *, threshold: float) -> Figure:
    """Left, every epoch as a column; right, the first and the last epoch that has gates."""
    epochs = [int(record["epoch"]) for record in history]
    histograms = np.array([record["gate_histogram"] for record in history], dtype=float)
    open_share = float(history[-1]["evidence_fraction"])
    figure = style.new_figure(2.9)
    over_time, ends = figure.subplots(1, 2, width_ratios=(1.6, 1))
    bins = histograms.shape[1]
    edges = np.append(np.array(epochs) - 0.5, epochs[-1] + 0.5)
    shown = np.where(histograms >= SMALLEST, histograms, np.nan)
    colors = LinearSegmentedColormap.from_list("gates", RAMP / 255)
    look: Any = {"norm": LogNorm(SMALLEST, 1), "cmap": colors, "rasterized": True}
    mesh = over_time.pcolormesh(edges, np.linspace(0, 1, bins + 1), shown.T, **look)
    bar = figure.colorbar(mesh, ax=over_time, pad=0.02)
    bar.set_label("share of patches", fontsize=8)
    bar.outline.set_visible(False)
    bar.minorticks_off()
    title = f"Gates over training, {open_share:.1%} open at the end"
    over_time.set(xlabel="epoch", ylabel="gate", title=title)
    over_time.axhline(threshold, **style.DASHED)
    middles = (np.arange(bins) + 0.5) / bins
    style.draw_grid(ends)
    look = {"where": "mid", "color": style.MUTED, "linestyle": (0, (3, 1.5))}
    ends.step(middles, histograms[0], label=f"epoch {epochs[0]}", **look)
    look = {"width": 0.9 / bins, "color": style.INK, "alpha": 0.8}
    ends.bar(middles, histograms[-1], label=f"epoch {epochs[-1]}", **look)
    ends.set(yscale="log", ylim=(SMALLEST, 1.6), xlabel="gate", title="First and last")
    ends.minorticks_off()
    ends.legend(loc="upper center")
    return figure


def draw_adapter(adapter: AdapterFigures) -> Figure:
    """Left, how near patches stay to where the encoder put them; right, the adapter's strength."""
    figure = style.new_figure(2.4)
    near, strength = figure.subplots(1, 2, width_ratios=(1.6, 1))
    edges = np.linspace(min(0.0, float(adapter.cosines.min())), 1.0, 41)
    for chosen, color, label in (
        (~adapter.selected, style.RANDOM_COLOR, "other patches"),
        (adapter.selected, style.EVIDENCE_COLOR, "evidence"),
    ):
        if chosen.any():
            look: Any = {"histtype": "step", "color": color, "label": label}
            weights = np.full(int(chosen.sum()), 1 / chosen.sum())
            near.hist(adapter.cosines[chosen], edges, weights=weights, **look)
    title = f"Feature adaptation: median {np.median(adapter.cosines):.3f}"
    style.draw_grid(near).set(xlabel="cosine of a patch before and after", title=title)
    near.set_ylabel("share of patches")
    near.legend(loc="upper left")
    directions = np.arange(1, len(adapter.strengths) + 1)
    strength.bar(directions, adapter.strengths, color=style.INK, alpha=0.8)
    strength.axhline(1.0, **style.DASHED)
    style.draw_grid(strength).set(xlabel="direction", title="Singular values, identity dashed")
    return figure


def draw_anchor_coverage(slides: Sequence[SlideEvidence], *, target: float | None = None) -> Figure:
    """A bar per anchor, the mean over slides, and a dot per slide."""
    prompts = slides[0].prompts
    coverage = np.stack([slide.coverage for slide in slides]).astype(float)
    figure = style.new_figure(0.75 + 0.33 * len(prompts))
    axes = style.draw_grid(figure.subplots(), grid="x")
    places, means = style.label_rows(axes, prompts, width=46), coverage.mean(axis=0)
    axes.barh(places, means, height=0.62, color=style.EVIDENCE_COLOR, alpha=0.85)
    for place, mean, column in zip(places, means, coverage.T, strict=True):
        shift = style.spread_positions(column.tolist(), width=0.22)
        style.draw_dots(axes, column, place + shift, style.INK, 2.2, alpha=0.45)
        axes.text(1.03, place, f"{mean:.2f}", va="center", fontsize=8)
    axes.set(xlim=(0, 1.12), xticks=np.linspace(0, 1, 6))
    axes.set_xlabel("coverage (bar: mean, dot: one slide)")
    if target is not None:
        axes.axvline(target, **style.DASHED)
        look: Any = {"fontsize": 7.5, "color": style.MUTED, "ha": "right", "va": "bottom"}
        axes.annotate(f"target {target:g}", (target, places[0] + 0.5), **look)
    return figure


def draw_mechanism(evidence: SlideEvidence, *, threshold: float) -> Figure:
    """Five panels and the names of the anchors."""
    title = style.shorten_label(f"{evidence.slide_id}: from responses to evidence", 76)
    figure = style.new_figure(5.2, title)
    responses, gates, utility, opening, repair, names = style.add_panels(figure, 6, 3)
    letters = list_anchor_letters(len(evidence.prompts))
    selected, opened = evidence.selected, evidence.gates > threshold
    inside, outside = (
        evidence.responses[patches].mean(axis=0) if patches.any() else np.full(len(letters), np.nan)
        for patches in (selected, ~selected)
    )
    _draw_pairs(responses, letters, inside, outside, ("other patches", style.RANDOM_COLOR))
    responses.set_title("Anchor response")
    _draw_gates(gates, evidence, threshold)
    _draw_utility(utility, evidence)
    _draw_threshold(opening, evidence, threshold)
    before, after = (
        evidence.accumulate_coverage(np.flatnonzero(patches))[-1]
        if patches.any()
        else np.zeros(len(letters))
        for patches in (opened, selected)
    )
    _draw_pairs(repair, letters, after, before, ("threshold", style.ATTENTION_COLOR))
    repair.set_title(f"Repair: {int((selected & ~opened).sum())} added")
    names.set_axis_off()
    key = "\n".join(
        textwrap.fill(f"{letter}  {style.shorten_label(prompt, 70)}", 38, subsequent_indent="     ")
        for letter, prompt in zip(letters, evidence.prompts, strict=True)
    )
    look: Any = {"va": "top", "ha": "left", "fontsize": 6.8, "linespacing": 1.35}
    names.text(0, 1, key, transform=names.transAxes, **look)
    return figure


def _draw_pairs(
    axes: Axes, letters: list[str], evidence: Any, other: Any, look: tuple[str, str]
) -> None:
    """A figure of every anchor for the evidence, and beside it for something else."""
    places, (name, color) = np.arange(len(letters)), look
    low, high = np.minimum(other, evidence), np.maximum(other, evidence)
    axes.vlines(places, low, high, color=style.MUTED, linewidth=1)
    style.draw_dots(axes, places, other, color, label=name)
    style.draw_dots(axes, places, evidence, style.EVIDENCE_COLOR, 4, marker="D", label="evidence")
    axes.set_xticks(places, letters)
    style.draw_grid(axes).set(ylim=(0, 1.25), yticks=np.linspace(0, 1, 6))
    axes.legend(loc="upper left", ncols=2, handletextpad=0.2, columnspacing=0.8)


def _draw_gates(axes: Axes, evidence: SlideEvidence, threshold: float) -> None:
    """The gate of every patch over its evidence score."""
    is_large = len(evidence.selected) > MOST_DOTS
    look: Any = {"markeredgewidth": 0, "alpha": 0.7, "rasterized": is_large}
    colors = {style.RANDOM_COLOR: ~evidence.selected, style.EVIDENCE_COLOR: evidence.selected}
    for color, patches in colors.items():
        scores, gates = evidence.evidence_scores[patches], evidence.gates[patches]
        style.draw_dots(axes, scores, gates, color, 3, **look)
    axes.axhline(threshold, **style.DASHED)
    style.draw_grid(axes).set(xlabel="evidence score", title="Continuous gate")


def _draw_utility(axes: Axes, evidence: SlideEvidence) -> None:
    """Mean coverage as patches are added, the best first or in any order."""
    best_first = np.argsort(-evidence.evidence_scores, kind="stable")
    any_order = np.random.default_rng(0).permutation(len(best_first))
    size = int(evidence.selected.sum())
    count = max(2, min(len(best_first), 4 * size))
    for order, look in (
        (best_first, {"color": style.EVIDENCE_COLOR, "label": "by evidence score"}),
        (any_order, {"color": style.RANDOM_COLOR, "label": "any order", "linestyle": (0, (4, 2))}),
    ):
        curve = evidence.accumulate_coverage(order[:count]).mean(axis=1)
        axes.plot(np.arange(1, len(curve) + 1), curve, **look)
    axes.axvline(size, color=style.MUTED, linewidth=1, linestyle=(0, (1, 2)))
    style.draw_grid(axes).set(ylim=(0, 1.04), xlabel="patches", title="Noisy-OR coverage, mean")
    axes.legend(loc="lower right")


def _draw_threshold(axes: Axes, evidence: SlideEvidence, threshold: float) -> None:
    """Gates by rank; those above the threshold are filled."""
    ranked = np.sort(evidence.gates)[::-1]
    ranks, is_open = np.arange(1, len(ranked) + 1), ranked > threshold
    axes.step(ranks, ranked, where="mid", color=style.INK, linewidth=1.2)
    look: Any = {"step": "mid", "color": style.ATTENTION_COLOR, "alpha": 0.55}
    axes.fill_between(ranks, ranked, where=is_open, **look)
    axes.axhline(threshold, **style.DASHED)
    title = f"Threshold: {int(is_open.sum())} open"
    style.draw_grid(axes).set(xscale="log", xlabel="rank of the patch", title=title)
    axes.minorticks_off()
