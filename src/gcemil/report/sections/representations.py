"""Slide representations in two dimensions, from RUN/fold_<k>/representations.h5.

full, soft, discrete (bags, d)    what the head sees of every validation and test bag
attributes: bag_ids, parts, groups as JSON lists in the same order

epochs/epoch_<n>.h5 holds the same after each epoch of a run trained with --keep-epochs. t-SNE keeps
neighbours together; distances between groups and sizes of groups mean nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from gcemil.records import MODES, Representations, read_representations
from gcemil.report import style
from gcemil.report.context import Context, quote_path
from gcemil.report.html import Picture, Section, render_section
from gcemil.runs.folder import Run, RunFold

FEWEST = 8
"""Slides below which neighbourhoods are not worth drawing."""
PERPLEXITY = 15.0
Points = Float[np.ndarray, "n 2"]


def render_representations(context: Context) -> Section | None:
    """The t-SNE of the first fold; None where the run stores no representations."""
    fold = context.run.folds[0].files
    if not fold.representations.is_file():
        against = context.against
        rival = "" if against is None else f" --against {quote_path(against.folder)}"
        remedy = f"gcemil report {context.path}{rival} --representations"
        context.missing["The run stores no representations of its slides."] = remedy
        return None
    stored = read_representations(fold.representations)
    count = len(stored.bag_ids)
    figures = [] if count < FEWEST else _draw_figures(context, stored, fold)
    few = f"Fold {fold.number} has {count} validation and test bags; a t-SNE needs {FEWEST}."
    return render_section("representations", "Slide representations", figures=figures, few=few)


def _draw_figures(context: Context, stored: Representations, fold: RunFold) -> list[Picture]:
    """The bags as every network and mode sees them, and after some epochs if the run kept them."""
    run, seed, where = context.run, context.seed, f"Fold {fold.number}"
    panels = {}
    if context.against is not None:
        path = Run(context.against.folder).fold(fold.number).representations
        before = read_representations(path) if path.is_file() else None
        if before is not None and before.bag_ids == stored.bag_ids:
            panels["Plain host"] = embed_slides(before.by_mode["full"], seed=seed)
    name = "Host + GCE" if run.is_wrapped else "Host"
    for mode in MODES:
        if mode in stored.by_mode and (mode != "full" or len(stored.by_mode) == 1):
            points = embed_slides(stored.by_mode[mode], seed=seed)
            panels[f"{name}, {style.MODE_NAMES[mode]}"] = points
    drawn = context.draw(
        "representations",
        draw_representations(panels, stored),
        "t-SNE of slide representations, coloured by class",
        f"{where}. Filled: test; hollow: validation; no slide was trained on. t-SNE shows who lies "
        f"beside whom; distances between groups mean nothing. Seed {seed}.",
    )
    epochs = fold.kept_epochs()
    if not epochs:
        what = "The run kept no epochs, so there is no view of its slides over training."
        context.missing[what] = f"gcemil train COHORT --out {context.path} --keep-epochs"
        return [drawn]
    mode = "soft" if run.is_wrapped else "full"
    panels = {}
    for epoch in choose_epochs(epochs):
        kept = read_representations(fold.epoch_representations(epoch))
        panels[f"Epoch {epoch}"] = embed_slides(kept.by_mode[mode], seed=seed)
    over_training = context.draw(
        "representations_epochs",
        draw_representations(panels, kept),
        "t-SNE of slide representations after some epochs of training",
        f"{where}, {style.MODE_NAMES[mode]}, after each of these epochs. Every panel is a t-SNE of "
        "its own: its axes are not those of the others.",
    )
    return [drawn, over_training]


def choose_epochs(epochs: Sequence[int], most: int = 4) -> list[int]:
    """The first, the last, and some between them, evenly."""
    places = np.linspace(0, len(epochs) - 1, min(most, len(epochs))).round().astype(int)
    return [epochs[place] for place in dict.fromkeys(places.tolist())]


def draw_representations(panels: Mapping[str, Points], slides: Representations) -> Figure:
    """A dot per slide in the colour of its class; test slides are filled."""
    figure = style.new_figure(0.7 + style.WIDTH / max(2, len(panels)))
    labels, is_test = np.array(slides.groups), np.array([part == "test" for part in slides.parts])
    handles: dict[str, PathCollection] = {}
    grid = style.add_panels(figure, len(panels))
    for axes, (title, points) in zip(grid, panels.items(), strict=True):
        for number, name in enumerate(sorted(set(slides.groups))):
            color, marker = style.number_look(number).values()
            look: Any = {"s": 22, "marker": marker, "linewidths": 0.9, "alpha": 0.9}
            for test in (False, True):
                x, y = points[(labels == name) & (is_test == test)].T
                fill = color if test else "none"
                handles[name] = axes.scatter(x, y, edgecolors=color, facecolors=fill, **look)
        axes.set_title(title)
        axes.set(xticks=[], yticks=[])
        axes.spines[["top", "right"]].set_visible(True)
        axes.set_box_aspect(1)
    words = [style.shorten_label(name, 30) for name in handles]
    figure.legend(list(handles.values()), words, loc="outside lower left", ncols=5)
    return figure


def embed_slides(representations: Float[np.ndarray, "n d"], *, seed: int = 0) -> Points:
    """Two coordinates per slide; columns are standardised, since their units mean nothing."""
    from openTSNE import TSNE  # type: ignore[import-untyped]

    values = representations.astype(np.float64)
    deviation = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    tsne = TSNE(
        perplexity=min(PERPLEXITY, (len(values) - 1) / 3),
        initialization="pca",
        random_state=seed,
        n_jobs=1,
        negative_gradient_method="bh",
    )
    return np.asarray(tsne.fit(values), dtype=np.float64)
