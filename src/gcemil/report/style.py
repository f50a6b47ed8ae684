"""One colour and one name per thing, and one style for every figure.

Any two colours stay apart for normal, deuteranope, protanope and tritanope eyes (a test measures
it), and no difference is shown by colour alone: lines have markers, bars labels, maps outlines.
Figures are drawn under STYLE without pyplot; the same data gives the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from gcemil.exports.geojson import NO_EVIDENCE
from gcemil.records import MODE_WORDS
from gcemil.rules import RIVAL_COLOR, RULES, find_rule

EVIDENCE_COLOR, ATTENTION_COLOR = RULES["evidence"].color, RULES["attention"].color
RANDOM_COLOR, TRUTH_COLOR = RULES["random"].color, RULES["oracle"].color
NO_EVIDENCE_COLOR = "#{:02x}{:02x}{:02x}".format(*NO_EVIDENCE.color)
ORANGE, SKY, VIOLET, LEAF = RULES["gce_soft"].color, RIVAL_COLOR, "#4b2a7b", "#b2df8a"
GROUPS = (ATTENTION_COLOR, ORANGE, VIOLET, LEAF, EVIDENCE_COLOR, SKY, TRUTH_COLOR, RANDOM_COLOR)
"""For things without a colour of their own, such as classes; after eight, only markers differ."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")
INK, MUTED, LINE = "#23272b", "#667078", "#d9dee2"
DASHED: Any = {"color": MUTED, "linewidth": 1, "linestyle": (0, (4, 2))}
"""A line that marks a limit."""
MODE_NAMES = {**MODE_WORDS, "full": "all patches", "head": "evidence head"}
"""What a prediction of each mode is made from, in a narrow column."""
ARMS = {"plain": "plain host, all patches", **MODE_NAMES, "full": MODE_WORDS["full"]}
"""The modes, and the plain host of another run."""
ARM_COLORS = {
    "plain": INK,
    "full": ATTENTION_COLOR,
    "head": ORANGE,
    "gce": EVIDENCE_COLOR,
    "discrete": VIOLET,
}
"""Arms that figures show."""
NAMES = {
    **MODE_NAMES,
    "evidence scores": "GCE scores",
    "confirmed evidence": "GCE evidence, confirmed",
    "occlusion_closed_form": "occlusion, closed form",
    "wrapped": "host + GCE",
    "plain": "plain host",
}
"""Words for keys in findings that are not rules; anything else is its key with spaces."""
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "image.interpolation": "nearest",
    "savefig.facecolor": "white",
    "savefig.dpi": 200,
    # Ids in an SVG are made of this instead of chance, so that equal figures are equal files.
    "svg.hashsalt": "gcemil",
    "svg.fonttype": "path",
}
WIDTH, COLUMN = 7.2, 3.5
"""Inches: the text width of a printed page, and one of its two columns."""
NO_DATES: Any = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}
MOST_LETTERS = 44


def readable_name(key: str) -> str:
    return NAMES.get(key) or find_rule(key).label


def new_figure(height: float, title: str = "", width: float = WIDTH) -> Figure:
    """A figure with its own canvas, unknown to pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    return figure


def encode_figure(figure: Figure, form: str) -> bytes:
    """The figure as svg, pdf or png; the same figure gives the same bytes."""
    # Each format would compute the layout again, from where the last one left it.
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, metadata=NO_DATES[form])
    return buffer.getvalue()


def add_panels(figure: Figure, count: int, columns: int = 0, **options: Any) -> list[Axes]:
    """Panels in rows of so many columns, by default in one row."""
    columns = columns or count
    panels = figure.subplots(-(-count // columns), columns, squeeze=False, **options).ravel()
    for axes in panels[count:]:
        axes.set_axis_off()
    return list(panels[:count])


def shorten_label(text: str, most: int = MOST_LETTERS) -> str:
    """A label that fits; matplotlib would read a dollar sign as mathematics."""
    plain = text if len(text) <= most else text[: most - 1].rstrip() + "…"
    return plain.replace("$", r"\$")


def draw_grid(axes: Axes, *, grid: str = "y") -> Axes:
    """Light lines behind the data, in one direction."""
    axes.grid(True, axis=grid)  # type: ignore[arg-type]
    axes.tick_params(length=2.5)
    return axes


def draw_dots(axes: Axes, x: Any, y: Any, color: str, size: float = 5, **look: Any) -> None:
    """Points without a line between them; `look` is that of `Axes.plot`."""
    axes.plot(x, y, **{"linestyle": "", "marker": "o", "color": color, "markersize": size, **look})


def draw_band(axes: Axes, x: Any, y: Any, ends: Any, **look: Any) -> None:
    """A line, and the interval around it."""
    axes.fill_between(x, *ends, color=look["color"], alpha=0.13, linewidth=0)
    axes.plot(x, y, **look)


def number_look(number: int) -> dict[str, Any]:
    """Colour and marker of the n-th thing that has none of its own."""
    marker = MARKERS[number % len(MARKERS)]
    return {"color": GROUPS[number % len(GROUPS)], "marker": marker}


def write_legend(axes: Axes) -> None:
    """The legend below the axes, where it hides no line."""
    axes.legend(loc="upper left", bbox_to_anchor=(-0.14, -0.2), fontsize=7.5)


def label_rows(axes: Axes, names: Sequence[str], *, width: int = MOST_LETTERS) -> np.ndarray:
    """Name the rows of a chart from top to bottom, and return their places."""
    places = np.arange(len(names), 0, -1)
    labels = [textwrap.fill(shorten_label(name, 2 * width), width) for name in names]
    axes.set_yticks(places, labels)
    axes.set_ylim(0.4, len(names) + 0.75)
    axes.tick_params(axis="y", length=0)
    return places


def mark_shares(axes: Axes, percent: Sequence[float], title: str) -> None:
    """The axes of a curve over the share of patches."""
    label = "patches kept or removed, % of the bag"
    draw_grid(axes).set(xscale="log", xlabel=label, title=title)
    axes.set_xticks(percent, [f"{tick:g}" for tick in percent])
    axes.minorticks_off()


def draw_scale_bar(axes: Axes, pixels: int, microns_per_pixel: float) -> None:
    """A bar of a round length, about a fifth of the picture's width, in its lower right corner."""
    wanted = pixels * microns_per_pixel / 5
    step = 10 ** math.floor(math.log10(wanted))
    microns = max(factor * step for factor in (1, 2, 5) if factor * step <= wanted)
    text = f"{microns / 1000:g} mm" if microns >= 1000 else f"{microns:g} µm"
    right, bottom = 0.97 * pixels, axes.get_ylim()[0] * 0.965
    left = right - microns / microns_per_pixel
    halo = [patheffects.withStroke(linewidth=3.5, foreground="white")]
    look: Any = {"linewidth": 2, "solid_capstyle": "butt", "path_effects": halo}
    axes.plot([left, right], [bottom, bottom], color=INK, **look)
    look = {"textcoords": "offset points", "ha": "center", "fontsize": 7.5, "path_effects": halo}
    axes.annotate(text, ((left + right) / 2, bottom), xytext=(0, 4), **look)


def spread_positions(values: Sequence[float], *, width: float = 0.32) -> np.ndarray:
    """Sideways places for points that would cover each other: dense values spread wider."""
    points = np.asarray(values, dtype=float)
    places = np.zeros(len(points))
    if len(points) < 2:
        return places
    bins = np.digitize(points, np.linspace(points.min(), points.max() + 1e-12, 25))
    for number in np.unique(bins):
        members = np.flatnonzero(bins == number)
        steps = np.arange(len(members)) - (len(members) - 1) / 2
        places[members] = steps * min(0.06, 2 * width / max(1, len(members)))
    return places
