"""Runs against each other: fold by fold for a pair, host by host for a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from gcemil.report.figures.style import WIDTH, new_figure, quiet, row_of_axes, shortened, styled
from gcemil.report.palette import EVIDENCE_COLOR, GROUPS, INK, MARKERS, MUTED


@dataclass(frozen=True)
class HostGain:
    """What the wrapper changed for one host on one cohort."""

    host: str
    cohort: str
    host_value: float
    gce_value: float

    @property
    def relative(self) -> float | None:
        """Wrapped over plain; None where plain is 0."""
        return self.gce_value / self.host_value if self.host_value else None


@styled
def relative_performance(gains: Sequence[HostGain], *, label: str) -> Figure:
    """A dot per cohort and a line at the mean for every host; 1 is the plain host."""
    hosts = list(dict.fromkeys(gain.host for gain in gains))
    cohorts = list(dict.fromkeys(gain.cohort for gain in gains))
    figure = new_figure(WIDTH, 1.1 + 0.36 * len(hosts))
    axes = quiet(figure.subplots(), grid="x")
    axes.axvline(1.0, color=INK, linewidth=0.9)
    for row, host in enumerate(hosts):
        place = len(hosts) - row
        own = [
            (gain.cohort, gain.relative) for gain in gains if gain.host == host and gain.relative is not None
        ]
        for cohort, value in own:
            number = cohorts.index(cohort)
            axes.plot(
                value, place, linestyle="", marker=MARKERS[number % len(MARKERS)],
                color=GROUPS[number % len(GROUPS)], markersize=6,
            )  # fmt: skip
        if own:
            mean = float(np.mean([value for _, value in own]))
            axes.plot([mean, mean], [place - 0.32, place + 0.32], color=EVIDENCE_COLOR, linewidth=2.2)
    axes.set_yticks([len(hosts) - row for row in range(len(hosts))], hosts)
    axes.set_ylim(0.4, len(hosts) + 0.6)
    axes.set_xlabel(label)
    for number, cohort in enumerate(cohorts):
        axes.plot(
            [], [], linestyle="", marker=MARKERS[number % len(MARKERS)], color=GROUPS[number % len(GROUPS)],
            label=shortened(cohort, 24),
        )  # fmt: skip
    axes.plot([], [], color=EVIDENCE_COLOR, linewidth=2.2, label="mean over cohorts")
    figure.legend(loc="outside lower left", ncols=5)
    return figure


@styled
def fold_pairs(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Per metric, the value of every fold under every arm; a line joins the folds that two arms share."""
    names = list(dict.fromkeys(name for arms in panels.values() for name in arms))
    figure = new_figure(WIDTH, 0.85 + 0.42 * len(names))
    axes_row = row_of_axes(figure, len(panels), sharey=True)
    places = {name: len(names) - number for number, name in enumerate(names)}
    for axes, (title, arms) in zip(axes_row, panels.items(), strict=True):
        quiet(axes, grid="x")
        for fold in dict.fromkeys(fold for values in arms.values() for fold in values):
            points = [(arms[name][fold], places[name]) for name in arms if fold in arms[name]]
            axes.plot(
                *zip(*points, strict=True), color=MUTED, linewidth=0.8, alpha=0.6, marker="o", markersize=3.6
            )
        for name, by_fold in arms.items():
            if by_fold:
                mean, place = float(np.mean(list(by_fold.values()))), places[name]
                color = INK if name == names[0] and len(names) > 1 else EVIDENCE_COLOR
                axes.plot([mean, mean], [place - 0.26, place + 0.26], color=color, linewidth=2.6)
                axes.annotate(
                    f"{mean:.3f}",
                    (mean, place + 0.26),
                    xytext=(0, 1.5),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7.5,
                )
        axes.set_ylim(0.5, len(names) + 0.75)
        axes.margins(x=0.12)
        axes.set_title(title)
    axes_row[0].set_yticks(list(places.values()), names)
    axes_row[0].tick_params(axis="y", length=0)
    return figure
