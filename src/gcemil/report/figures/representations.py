"""t-SNE of slide representations: what the head of the network sees of each slide, in two dimensions.

Distances between far groups and sizes of groups mean nothing in t-SNE; only who lies beside whom does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from gcemil.errors import MissingExtraError
from gcemil.report.figures.style import WIDTH, new_figure, row_of_axes, shortened, styled
from gcemil.report.palette import GROUPS, MARKERS

FEWEST = 8
"""Slides below which neighbourhoods are not worth drawing."""
PERPLEXITY = 15.0

Points = Float[np.ndarray, "n 2"]


@styled
def slide_representations(
    panels: Mapping[str, Points], groups: Sequence[str], *, is_test: Bool[np.ndarray, "n"] | None = None
) -> Figure:
    """A dot per slide in the colour of its class; test slides are filled."""
    figure = new_figure(WIDTH, 0.7 + WIDTH / max(2, len(panels)))
    names = list(dict.fromkeys(sorted(groups)))
    labels = np.array(groups)
    filled = np.ones(len(labels), dtype=bool) if is_test is None else is_test
    handles: dict[str, PathCollection] = {}
    for axes, (title, points) in zip(row_of_axes(figure, len(panels)), panels.items(), strict=True):
        for number, name in enumerate(names):
            color, marker = GROUPS[number % len(GROUPS)], MARKERS[number % len(MARKERS)]
            for test in (False, True):
                chosen = (labels == name) & (filled == test)
                drawn = axes.scatter(
                    points[chosen, 0], points[chosen, 1], s=22, marker=marker, linewidths=0.9, edgecolors=color,
                    facecolors=color if test else "none", alpha=0.9,
                )  # fmt: skip
                if test:
                    handles[name] = drawn
        axes.set_title(title)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[["top", "right"]].set_visible(True)
        axes.set_box_aspect(1)
    figure.legend(
        list(handles.values()), [shortened(name, 30) for name in handles], loc="outside lower left", ncols=5
    )
    return figure


def embedded(representations: Float[np.ndarray, "n d"], *, seed: int = 0) -> Points:
    """Two coordinates per slide; columns are standardised, since their units mean nothing."""
    try:
        from openTSNE import TSNE  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError("openTSNE", "report") from error
    values = representations.astype(np.float64)
    deviation = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    perplexity = min(PERPLEXITY, (len(values) - 1) / 3)
    found = TSNE(
        perplexity=perplexity,
        initialization="pca",
        random_state=seed,
        n_jobs=1,
        negative_gradient_method="bh",
    ).fit(values)
    return np.asarray(found, dtype=np.float64)
