"""How the evidence came about: gates over training, coverage of anchors, and one slide from response to evidence.

  anchor response     mean response of the evidence and of the other patches to every anchor
  continuous gate     the gate of every patch over its evidence score
  noisy-OR utility    v_m = 1 - prod (1 - r_im) as patches are added: each adds less than the one before
  threshold           gates sorted; those above the threshold open
  greedy repair       coverage of every anchor before and after patches were added

These are the mechanisms of the paper's appendix, drawn from an evidence file. The first one, the feature adapter, exists only
where the selector reads morphology; 'gcemil report --representations' measures it there:

  feature adaptation  cos(norm h, norm (I + U V^T) h) of evidence and other patches, and the singular values of U V^T
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from gcemil.bags.cohort import find_patch_size
from gcemil.config import EvidenceSettings
from gcemil.exports.overlay import RAMP
from gcemil.records import AdapterFigures, SlideEvidence, read_adapter
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.run_data import FoldData
from gcemil.report.sections.context import Context, quote_path
from gcemil.report.sections.examples import list_anchor_letters
from gcemil.report.slide_view import PROTOTYPE, SlideView, encode_jpeg, read_patch_pixels
from gcemil.report.style import (
    ATTENTION_COLOR,
    DASHED,
    EVIDENCE_COLOR,
    INK,
    MUTED,
    RANDOM_COLOR,
    apply_style,
    draw_grid,
    label_rows,
    new_figure,
    shorten_label,
    spread_positions,
)

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
    settings, fold = context.run.evidence, context.run.folds[0]
    found = [
        evidence
        for bag in context.run.bags
        if bag.fold == fold.number and (evidence := fold.evidence(bag.slide_ids[0])) is not None
    ]
    figures = [_draw_adapter(context), _draw_history(context), _draw_anchors(context, found)]
    if example is not None:
        mechanism = context.figures.save(
            "mechanism",
            draw_mechanism(example.evidence, threshold=settings.selection_threshold),
            alt="Responses, gates, coverage, threshold and repair of one slide",
            caption=f"Slide {example.slide_id}. The paper's first mechanism, the feature adapter, is part of the selector only where "
            "it reads morphology.",
        )
        figures.append(mechanism)
    return render_section(
        "mechanism",
        "How the evidence came about",
        parts=describe_method(settings, context.run.host),
        is_taught=settings.train_host,
        figures=[figure for figure in figures if figure is not None],
        anchors=sorted({str(one.metrics["details"].get("anchors")) for one in context.run.folds}),
        prototypes=_list_prototypes(context, fold, found[0].prompts if found else ()),
    )


def _draw_adapter(context: Context) -> Picture | None:
    """The paper's Mechanism 1, for a recipe that has it."""
    if not context.run.evidence.morphology_term:
        return None
    fold = context.run.folds[0].files
    if not fold.adapter.is_file():
        remedy = f"gcemil report {quote_path(context.run.folder)} --representations"
        context.list_missing("The feature adapter of this run was not measured.", remedy)
        return None
    return context.figures.save(
        "adapter",
        draw_adapter(read_adapter(fold.adapter)),
        alt="Cosine of patches before and after the feature adapter, and its singular values",
        caption=f"Fold {fold.number}, patches of some test slides. At a cosine of 1 the selector reads the encoder's own space; "
        "singular values well below 1 leave that space nearly as it was.",
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
    gate = "0" if evidence.centre == "zero" else f"per slide, {100 * evidence.budget:g} %"
    recovery = evidence.recovery
    ends = ["until sufficient"] if recovery.until_sufficient else []
    return [
        ("patches", "features h, positions"),
        ("host", f"{host}, f(X)"),
        ("bridge, anchors", f"{evidence.bridge}, {evidence.responses} responses"),
        ("selector", " + ".join(name for name, used in terms.items() if used) or "nothing"),
        ("gate", f"{evidence.gate}, centre {gate}"),
        ("coverage", "noisy-OR of gates and responses"),
        ("recovery", ", ".join(["threshold", *(["repair"] if recovery.repair else []), *ends])),
        ("answers", "f(X_pi), f(X_S), f(X_notS)"),
    ]


def _draw_history(context: Context) -> Picture | None:
    fold = context.run.folds[0]
    records = [record for record in fold.history if record.get("gate_histogram")]
    if not records:
        remedy = f"gcemil train COHORT --out {quote_path(context.run.folder)}"
        context.list_missing("The training history has no gates.", remedy)
        return None
    figure = draw_gate_histograms(
        [int(record["epoch"]) for record in records],
        np.array([record["gate_histogram"] for record in records], dtype=float),
        threshold=context.run.evidence.selection_threshold,
        open_share=float(records[-1]["evidence_fraction"]),
    )
    return context.figures.save(
        "gates",
        figure,
        alt="Histogram of the gates of the training bags, epoch by epoch",
        caption=f"Fold {fold.number}, training bags. Gates that end at 0 or 1 can be turned into a set of patches without loss; gates "
        "in between cannot. Dashed: threshold.",
    )


def _draw_anchors(context: Context, found: Sequence[SlideEvidence]) -> Picture | None:
    """Anchors of one fold: prototypes of another fold are other anchors."""
    if not found:
        remedy = f"gcemil evaluate {quote_path(context.run.folder)}"
        context.list_missing("The fold has no evidence files.", remedy)
        return None
    recovery = context.run.evidence.recovery
    target = None if recovery.reachable else recovery.coverage_target
    aim = "a share of what the whole bag covers" if target is None else "the dashed line"
    coverage = np.stack([evidence.coverage for evidence in found]).astype(float)
    return context.figures.save(
        "anchor_coverage",
        draw_anchor_coverage(found[0].prompts, coverage, target=target),
        alt="Coverage of every anchor by the evidence",
        caption=f"Fold {context.run.folds[0].number}, test slides. Recovery aims at {aim}, for the anchors that count for the predicted "
        "class.",
    )


def _list_prototypes(
    context: Context, fold: FoldData, prompts: Sequence[str]
) -> dict[str, list[tuple[str, Picture | None]]]:
    """Of anchors without words, the patches of the tested slides that are most like them; nothing for named concepts."""
    if not prompts or not prompts[0].startswith(PROTOTYPE):
        return {}
    slides = [slide for bag in context.run.bags if bag.fold == fold.number for slide in bag.slide_ids]
    placed = [one for slide in slides if (one := fold.evidence(slide)) is not None and one.coords is not None]
    found = {}
    for anchor, prompt in enumerate(prompts):
        strongest = sorted(placed, key=lambda one: float(one.responses[:, anchor].max()), reverse=True)
        found[prompt] = [_show_strongest_patch(context, one, anchor) for one in strongest[:EXAMPLES]]
    return found


def _show_strongest_patch(
    context: Context, evidence: SlideEvidence, anchor: int
) -> tuple[str, Picture | None]:
    """Where the patch most like an anchor lies, and its pixels where the slide can be opened."""
    run, slide_id = context.run, evidence.slide_id
    patch, coords = int(evidence.responses[:, anchor].argmax()), np.asarray(evidence.coords, dtype=np.int64)
    where = f"{slide_id} at {coords[patch, 0]}, {coords[patch, 1]}"
    size = find_patch_size(run.cohort, run.card, slide_id, coords)
    pixels = read_patch_pixels(run.cohort, slide_id, coords, [patch], patch_size=size) if size else None
    return where, None if pixels is None else Picture(encode_jpeg(pixels[0]), where, "image/jpeg", width=72)


@apply_style
def draw_gate_histograms(
    epochs: Sequence[int],
    histograms: Float[np.ndarray, "epochs bins"],
    *,
    threshold: float,
    open_share: float,
) -> Figure:
    """Left, every epoch as a column; right, the first and the last epoch that has gates."""
    figure = new_figure(2.9)
    over_time, ends = figure.subplots(1, 2, width_ratios=(1.6, 1))
    bins = histograms.shape[1]
    edges = np.append(np.array(epochs) - 0.5, epochs[-1] + 0.5)
    shown = np.where(histograms >= SMALLEST, histograms, np.nan)
    colors = LinearSegmentedColormap.from_list("gates", RAMP / 255)
    mesh = over_time.pcolormesh(
        edges, np.linspace(0, 1, bins + 1), shown.T, norm=LogNorm(SMALLEST, 1), cmap=colors, rasterized=True
    )
    bar = figure.colorbar(mesh, ax=over_time, pad=0.02)
    bar.set_label("share of patches", fontsize=8)
    bar.outline.set_visible(False)
    bar.minorticks_off()
    over_time.set(
        xlabel="epoch", ylabel="gate", title=f"Gates over training, {open_share:.1%} open at the end"
    )
    over_time.axhline(threshold, **DASHED)
    middles = (np.arange(bins) + 0.5) / bins
    draw_grid(ends)
    ends.step(
        middles, histograms[0], where="mid", color=MUTED, linestyle=(0, (3, 1.5)), label=f"epoch {epochs[0]}"
    )
    ends.bar(middles, histograms[-1], width=0.9 / bins, color=INK, alpha=0.8, label=f"epoch {epochs[-1]}")
    ends.set(yscale="log", ylim=(SMALLEST, 1.6), xlabel="gate", title="First and last")
    ends.minorticks_off()
    ends.legend(loc="upper center")
    return figure


@apply_style
def draw_adapter(found: AdapterFigures) -> Figure:
    """Left, how near patches stay to where the encoder put them; right, how strong the adapter is."""
    figure = new_figure(2.4)
    near, strength = figure.subplots(1, 2, width_ratios=(1.6, 1))
    edges = np.linspace(min(0.0, float(found.cosines.min())), 1.0, 41)
    for chosen, color, label in (
        (~found.selected, RANDOM_COLOR, "other patches"),
        (found.selected, EVIDENCE_COLOR, "evidence"),
    ):
        if chosen.any():
            weights = np.full(int(chosen.sum()), 1 / chosen.sum())
            near.hist(
                found.cosines[chosen], edges, weights=weights, histtype="step", color=color, label=label
            )
    title = f"Feature adaptation: median {np.median(found.cosines):.3f}"
    draw_grid(near).set(xlabel="cosine of a patch before and after", ylabel="share of patches", title=title)
    near.legend(loc="upper left")
    strength.bar(np.arange(1, len(found.strengths) + 1), found.strengths, color=INK, alpha=0.8)
    strength.axhline(1.0, **DASHED)
    draw_grid(strength).set(xlabel="direction", title="Singular values, identity dashed")
    return figure


@apply_style
def draw_anchor_coverage(
    prompts: Sequence[str], coverage: Float[np.ndarray, "slides m"], *, target: float | None = None
) -> Figure:
    """A bar per anchor, the mean over slides, and a dot per slide."""
    figure = new_figure(0.75 + 0.33 * len(prompts))
    axes = draw_grid(figure.subplots(), grid="x")
    places, means = label_rows(axes, prompts, width=46), coverage.mean(axis=0)
    axes.barh(places, means, height=0.62, color=EVIDENCE_COLOR, alpha=0.85)
    for place, mean, column in zip(places, means, coverage.T, strict=True):
        shift = spread_positions(column.tolist(), width=0.22)
        axes.plot(column, place + shift, linestyle="", marker="o", markersize=2.2, color=INK, alpha=0.45)
        axes.text(1.03, place, f"{mean:.2f}", va="center", fontsize=8)
    axes.set(xlim=(0, 1.12), xticks=np.linspace(0, 1, 6), xlabel="coverage (bar: mean, dot: one slide)")
    if target is not None:
        axes.axvline(target, **DASHED)
        look: Any = {"fontsize": 7.5, "color": MUTED, "ha": "right", "va": "bottom"}
        axes.annotate(f"target {target:g}", (target, places[0] + 0.5), **look)
    return figure


@apply_style
def draw_mechanism(evidence: SlideEvidence, *, threshold: float) -> Figure:
    """Five panels and the names of the anchors."""
    figure = new_figure(5.2, shorten_label(f"{evidence.slide_id}: from responses to evidence", 76))
    responses, gates, utility, opening, repair, names = np.asarray(figure.subplots(2, 3)).ravel()
    letters = list_anchor_letters(len(evidence.prompts))
    opened = evidence.gates > threshold
    _draw_responses(responses, evidence, letters)
    _draw_gates(gates, evidence, threshold)
    _draw_utility(utility, evidence)
    _draw_threshold(opening, evidence, threshold)
    _draw_repair(repair, evidence, opened, letters)
    names.set_axis_off()
    key = "\n".join(
        textwrap.fill(f"{letter}  {shorten_label(prompt, 70)}", 38, subsequent_indent="     ")
        for letter, prompt in zip(letters, evidence.prompts, strict=True)
    )
    names.text(0, 1, key, transform=names.transAxes, va="top", ha="left", fontsize=6.8, linespacing=1.35)
    return figure


def _draw_responses(axes: Axes, evidence: SlideEvidence, letters: list[str]) -> None:
    inside, outside = (
        evidence.responses[one].mean(axis=0) if one.any() else np.full(len(letters), np.nan)
        for one in (evidence.selected, ~evidence.selected)
    )
    _draw_beside_evidence(axes, letters, outside, inside, name="other patches", color=RANDOM_COLOR)
    axes.set_title("Anchor response")


def _draw_beside_evidence(
    axes: Axes,
    letters: list[str],
    other: Float[np.ndarray, "m"],
    evidence: Float[np.ndarray, "m"],
    *,
    name: str,
    color: str,
) -> None:
    """A figure of every anchor for the evidence, and beside it for something else."""
    places = np.arange(len(letters))
    axes.vlines(places, np.minimum(other, evidence), np.maximum(other, evidence), color=MUTED, linewidth=1)
    axes.plot(places, other, linestyle="", marker="o", color=color, label=name)
    axes.plot(
        places, evidence, linestyle="", marker="D", color=EVIDENCE_COLOR, label="evidence", markersize=4
    )
    axes.set_xticks(places, letters)
    draw_grid(axes).set(ylim=(0, 1.25), yticks=np.linspace(0, 1, 6))
    axes.legend(loc="upper left", ncols=2, handletextpad=0.2, columnspacing=0.8)


def _draw_gates(axes: Axes, evidence: SlideEvidence, threshold: float) -> None:
    look: Any = {"linestyle": "", "marker": "o", "markersize": 3, "markeredgewidth": 0, "alpha": 0.7}
    for chosen, color in ((~evidence.selected, RANDOM_COLOR), (evidence.selected, EVIDENCE_COLOR)):
        scores, gates = evidence.evidence_scores[chosen], evidence.gates[chosen]
        axes.plot(scores, gates, color=color, rasterized=len(chosen) > MOST_DOTS, **look)
    axes.axhline(threshold, **DASHED)
    draw_grid(axes).set(xlabel="evidence score", title="Continuous gate")


def _draw_utility(axes: Axes, evidence: SlideEvidence) -> None:
    best_first = np.argsort(-evidence.evidence_scores, kind="stable")
    any_order = np.random.default_rng(0).permutation(len(best_first))
    size = int(evidence.selected.sum())
    count = max(2, min(len(best_first), 4 * size))
    for order, color, label, style in (
        (best_first, EVIDENCE_COLOR, "by evidence score", "-"),
        (any_order, RANDOM_COLOR, "any order", (0, (4, 2))),
    ):
        curve = evidence.accumulate_coverage(order[:count]).mean(axis=1)
        axes.plot(np.arange(1, len(curve) + 1), curve, color=color, label=label, linestyle=style)
    axes.axvline(size, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    draw_grid(axes).set(ylim=(0, 1.04), xlabel="patches", title="Noisy-OR coverage, mean")
    axes.legend(loc="lower right")


def _draw_threshold(axes: Axes, evidence: SlideEvidence, threshold: float) -> None:
    ranked = np.sort(evidence.gates)[::-1]
    ranks = np.arange(1, len(ranked) + 1)
    axes.step(ranks, ranked, where="mid", color=INK, linewidth=1.2)
    axes.fill_between(ranks, ranked, where=ranked > threshold, step="mid", color=ATTENTION_COLOR, alpha=0.55)
    axes.axhline(threshold, **DASHED)
    title = f"Threshold: {int((ranked > threshold).sum())} open"
    draw_grid(axes).set(xscale="log", xlabel="rank of the patch", title=title)
    axes.minorticks_off()


def _draw_repair(
    axes: Axes, evidence: SlideEvidence, opened: Bool[np.ndarray, "n"], letters: list[str]
) -> None:
    before, after = (
        evidence.accumulate_coverage(np.flatnonzero(one))[-1] if one.any() else np.zeros(len(letters))
        for one in (opened, evidence.selected)
    )
    _draw_beside_evidence(axes, letters, before, after, name="threshold", color=ATTENTION_COLOR)
    axes.set_title(f"Repair: {int((evidence.selected & ~opened).sum())} added")
