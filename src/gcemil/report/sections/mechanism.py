"""How the evidence came about: gates over training, coverage of anchors, and one slide from response to evidence.

  anchor response     mean response of the evidence and of the other patches to every anchor
  continuous gate     the gate of every patch over its evidence score
  noisy-OR utility    v_m = 1 - prod (1 - r_im) as patches are added: each adds less than the one before
  threshold           gates sorted; those above the threshold open
  greedy repair       coverage of every anchor before and after patches were added

These are the mechanisms of the paper's appendix, drawn from an evidence file. The first one, the feature adapter, is not
drawn: it exists only where the selector reads features, and an evidence file does not hold features.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from gcemil.config import EvidenceSettings
from gcemil.exports.overlay import RAMP
from gcemil.records import SlideEvidence
from gcemil.report.html import EMPTY, Markup, Section, joined, paragraph
from gcemil.report.run_data import FoldData, RunData
from gcemil.report.sections.context import Context, absent, quoted
from gcemil.report.sections.examples import anchor_letters
from gcemil.report.slide_view import SlideView
from gcemil.report.style import (
    ATTENTION_COLOR,
    EVIDENCE_COLOR,
    INK,
    MUTED,
    RANDOM_COLOR,
    WIDTH,
    new_figure,
    quiet,
    shortened,
    spread_positions,
    styled,
)

SMALLEST = 1e-4
"""Share of patches below which a cell is white."""
Responses = Float[np.ndarray, "n m"]
MOST_DOTS = 2000
"""Above so many, dots are pixels of an image inside the figure."""


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


@styled
def gate_histograms(
    epochs: Sequence[int],
    histograms: Float[np.ndarray, "epochs bins"],
    *,
    threshold: float | None = None,
    open_share: float | None = None,
) -> Figure:
    """Left, every epoch as a column; right, the first and the last epoch that has gates."""
    figure = new_figure(WIDTH, 2.9)
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
    over_time.set_xlabel("epoch")
    over_time.set_ylabel("gate")
    opened = "" if open_share is None else f", {open_share:.1%} open at the end"
    over_time.set_title(f"Gates over training{opened}")
    if threshold is not None:
        over_time.axhline(threshold, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    middles = (np.arange(bins) + 0.5) / bins
    quiet(ends)
    ends.step(
        middles, histograms[0], where="mid", color=MUTED, linestyle=(0, (3, 1.5)), label=f"epoch {epochs[0]}"
    )
    ends.bar(middles, histograms[-1], width=0.9 / bins, color=INK, alpha=0.8, label=f"epoch {epochs[-1]}")
    ends.set_yscale("log")
    ends.minorticks_off()
    ends.set_ylim(SMALLEST, 1.6)
    ends.set_xlabel("gate")
    ends.set_title("First and last")
    ends.legend(loc="upper center")
    return figure


@styled
def anchor_coverage(
    prompts: Sequence[str], coverage: Float[np.ndarray, "slides m"], *, target: float | None = None
) -> Figure:
    """A bar per anchor, the mean over slides, and a dot per slide."""
    figure = new_figure(WIDTH, 0.75 + 0.33 * len(prompts))
    axes = quiet(figure.subplots(), grid="x")
    places = np.arange(len(prompts))[::-1]
    means = coverage.mean(axis=0)
    axes.barh(places, means, height=0.62, color=EVIDENCE_COLOR, alpha=0.85)
    for place, column in zip(places, coverage.T, strict=True):
        shift = spread_positions(column.tolist(), width=0.22)
        axes.plot(column, place + shift, linestyle="", marker="o", markersize=2.2, color=INK, alpha=0.45)
    axes.set_yticks(places, [textwrap.fill(shortened(prompt, 90), 46) for prompt in prompts])
    axes.set_xlim(0, 1.12)
    axes.set_xticks(np.linspace(0, 1, 6))
    for place, mean in zip(places, means, strict=True):
        axes.text(1.03, place, f"{mean:.2f}", va="center", fontsize=8)
    if target is not None:
        axes.axvline(target, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        axes.annotate(
            f"target {target:g}",
            (target, places[0] + 0.5),
            fontsize=7.5,
            color=MUTED,
            ha="right",
            va="bottom",
        )
    axes.set_xlabel("coverage (bar: mean, dot: one slide)")
    axes.tick_params(axis="y", length=0)
    return figure


@styled
def mechanism_panels(evidence: SlideEvidence, *, threshold: float) -> Figure:
    """Five panels and the names of the anchors."""
    figure = new_figure(WIDTH, 5.2)
    panels = np.asarray(figure.subplots(2, 3)).ravel()
    figure.suptitle(
        shortened(f"{evidence.slide_id}: from responses to evidence", 76), x=0.01, ha="left", fontsize=9
    )
    letters = anchor_letters(len(evidence.prompts))
    opened = evidence.gates > threshold
    draw_responses(panels[0], evidence, letters)
    draw_gates(panels[1], evidence, threshold)
    draw_utility(panels[2], evidence)
    draw_threshold(panels[3], evidence, threshold)
    draw_repair(panels[4], evidence, opened, letters)
    panels[5].set_axis_off()
    key = "\n".join(
        textwrap.fill(f"{letter}  {shortened(prompt, 70)}", 38, subsequent_indent="     ")
        for letter, prompt in zip(letters, evidence.prompts, strict=True)
    )
    look = {"va": "top", "ha": "left", "fontsize": 6.8, "linespacing": 1.35}
    panels[5].text(0, 1, key, transform=panels[5].transAxes, **look)
    return figure


def draw_responses(axes: Axes, evidence: SlideEvidence, letters: list[str]) -> None:
    places = np.arange(len(letters))
    quiet(axes)
    others = ~evidence.selected
    inside = evidence.responses[evidence.selected].mean(axis=0)
    outside = evidence.responses[others].mean(axis=0) if others.any() else np.full(len(letters), np.nan)
    axes.vlines(places, np.minimum(inside, outside), np.maximum(inside, outside), color=MUTED, linewidth=1)
    axes.plot(places, outside, linestyle="", marker="o", color=RANDOM_COLOR, label="other patches")
    axes.plot(places, inside, linestyle="", marker="D", color=EVIDENCE_COLOR, label="evidence")
    axes.set_xticks(places, letters)
    axes.set_ylim(0, 1.25)
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_title("Anchor response")
    axes.legend(loc="upper left", ncols=2, handletextpad=0.2, columnspacing=0.8)


def draw_gates(axes: Axes, evidence: SlideEvidence, threshold: float) -> None:
    quiet(axes)
    for chosen, color in ((~evidence.selected, RANDOM_COLOR), (evidence.selected, EVIDENCE_COLOR)):
        axes.plot(
            evidence.evidence_scores[chosen], evidence.gates[chosen], linestyle="", marker="o", markersize=3,
            markeredgewidth=0, alpha=0.7, color=color, rasterized=len(chosen) > MOST_DOTS,
        )  # fmt: skip
    axes.axhline(threshold, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    axes.set_xlabel("evidence score")
    axes.set_title("Continuous gate")


def draw_utility(axes: Axes, evidence: SlideEvidence) -> None:
    quiet(axes)
    best_first = np.argsort(-evidence.evidence_scores, kind="stable")
    any_order = np.random.default_rng(0).permutation(len(best_first))
    count = max(2, min(len(best_first), 4 * int(evidence.selected.sum())))
    steps = np.arange(1, count + 1)
    for order, color, label, style in (
        (best_first, EVIDENCE_COLOR, "by evidence score", "-"),
        (any_order, RANDOM_COLOR, "any order", (0, (4, 2))),
    ):
        curve = coverage_path(evidence.responses, order[:count])
        axes.plot(steps[: len(curve)], curve.mean(axis=1), color=color, label=label, linestyle=style)
    axes.axvline(int(evidence.selected.sum()), color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
    axes.set_ylim(0, 1.04)
    axes.set_xlabel("patches")
    axes.set_title("Noisy-OR coverage, mean")
    axes.legend(loc="lower right")


def draw_threshold(axes: Axes, evidence: SlideEvidence, threshold: float) -> None:
    quiet(axes)
    ranked = np.sort(evidence.gates)[::-1]
    ranks = np.arange(1, len(ranked) + 1)
    axes.step(ranks, ranked, where="mid", color=INK, linewidth=1.2)
    axes.fill_between(ranks, ranked, where=ranked > threshold, step="mid", color=ATTENTION_COLOR, alpha=0.55)
    axes.axhline(threshold, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xlabel("rank of the patch")
    axes.set_title(f"Threshold: {int((evidence.gates > threshold).sum())} open")


def draw_repair(
    axes: Axes, evidence: SlideEvidence, opened: Bool[np.ndarray, "n"], letters: list[str]
) -> None:
    quiet(axes)
    places = np.arange(len(letters))
    before, after = (
        subset_coverage(evidence.responses, opened),
        subset_coverage(evidence.responses, evidence.selected),
    )
    axes.vlines(places, before, after, color=MUTED, linewidth=1)
    axes.plot(places, before, linestyle="", marker="o", color=ATTENTION_COLOR, label="threshold")
    axes.plot(places, after, linestyle="", marker="D", color=EVIDENCE_COLOR, label="evidence", markersize=4)
    axes.set_xticks(places, letters)
    axes.set_ylim(0, 1.25)
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_title(f"Repair: {int((evidence.selected & ~opened).sum())} added")
    axes.legend(loc="upper left", ncols=2, handletextpad=0.2, columnspacing=0.8)


def subset_coverage(responses: Responses, members: Bool[np.ndarray, "n"]) -> Float[np.ndarray, "m"]:
    """v_m of a subset."""
    # Sums of log1p keep what products of many factors near 1 lose.
    return -np.expm1(log_missed(responses[members]).sum(axis=0))


def coverage_path(responses: Responses, order: Int[np.ndarray, "k"]) -> Float[np.ndarray, "k m"]:
    """v_m of the first 1, 2, ... patches of an order."""
    return -np.expm1(np.cumsum(log_missed(responses[order]), axis=0))


def log_missed(responses: Responses) -> Responses:
    """log(1 - r); a response of 1 misses nothing, and its logarithm is far below any other instead of infinite."""
    return np.log1p(-np.clip(responses.astype(np.float64), 0, 1 - 1e-12))
