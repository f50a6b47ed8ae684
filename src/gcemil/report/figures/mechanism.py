"""How the evidence of one slide came about, drawn from its evidence file: the mechanisms of the paper's appendix.

  anchor response     mean response of the evidence and of the other patches to every anchor
  continuous gate     the gate of every patch over its evidence score
  noisy-OR utility    v = 1 - prod (1 - r_i) as patches are added: each adds less than the one before
  threshold           gates sorted; those above the threshold open
  greedy repair       coverage of every anchor before and after patches were added

The first mechanism of the paper, the feature adapter, exists only where the selector reads features; the default recipe
has none, and an evidence file does not hold features.
"""

from __future__ import annotations

import textwrap

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcemil.records import SlideEvidence
from gcemil.report.figures.evidence_patches import anchor_letters
from gcemil.report.figures.style import WIDTH, new_figure, quiet, shortened, styled
from gcemil.report.palette import ATTENTION_COLOR, EVIDENCE_COLOR, INK, MUTED, RANDOM_COLOR

Responses = Float[np.ndarray, "n m"]
MOST_DOTS = 2000
"""Above so many, dots are pixels of an image inside the figure."""


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
