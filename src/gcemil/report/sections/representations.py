"""Slide representations in two dimensions, from RUN/fold_<k>/representations.h5.

full, soft, discrete (bags, d)    what the head sees of every validation and test bag
attributes: bag_ids, parts, groups as JSON lists in the same order

epochs/epoch_<n>.h5 holds the same after each epoch of a run that was trained with --keep-epochs: how groups part over training.

t-SNE keeps neighbours together; distances between groups and sizes of groups mean nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from gcemil.records import MODES, Representations, read_representations
from gcemil.report import style
from gcemil.report.html import Picture, Section, render_section
from gcemil.report.sections.context import Context, quote_path, save_figure
from gcemil.runs.folder import Run, RunFold

FEWEST = 8
"""Slides below which neighbourhoods are not worth drawing."""
PERPLEXITY = 15.0
Points = Float[np.ndarray, "n 2"]


def render_representations(context: Context) -> Section | None:
    """The t-SNE of the first fold; None where the run stores no representations."""
    fold = context.run.folds[0]
    path = fold.files.representations
    if not path.is_file():
        rival = (
            "" if context.against is None else f" --against {quote_path(context.against.folder)}"
        )
        remedy = f"gcemil report {quote_path(context.run.folder)}{rival} --representations"
        context.list_missing("The run stores no representations of its slides.", remedy)
        return None
    stored = read_representations(path)
    figures = [] if len(stored.bag_ids) < FEWEST else _draw_figures(context, stored, fold.files)
    few = f"Fold {fold.number} has {len(stored.bag_ids)} validation and test bags; a t-SNE needs {FEWEST}."
    return render_section("representations", "Slide representations", figures=figures, few=few)


def _draw_figures(context: Context, stored: Representations, fold: RunFold) -> list[Picture]:
    """The bags as every network and mode sees them, and after some epochs where the run kept them."""
    panels = {}
    if context.against is not None:
        path = Run(context.against.folder).fold(fold.number).representations
        before = read_representations(path) if path.is_file() else None
        if before is not None and before.bag_ids == stored.bag_ids:
            panels["Plain host"] = embed_slides(before.by_mode["full"], seed=context.seed)
    name = "Host + GCE" if context.run.is_wrapped else "Host"
    modes = [
        mode
        for mode in MODES
        if mode in stored.by_mode and (mode != "full" or len(stored.by_mode) == 1)
    ]
    for mode in modes:
        panels[f"{name}, {style.MODE_NAMES[mode]}"] = embed_slides(
            stored.by_mode[mode], seed=context.seed
        )
    figures = [
        save_figure(
            context.figures,
            "representations",
            draw_representations(panels, stored),
            alt="t-SNE of slide representations, coloured by class",
            caption=f"Fold {fold.number}. Filled: test; hollow: validation; no slide was trained on. t-SNE shows who lies beside whom; "
            f"distances between groups mean nothing. Seed {context.seed}.",
        )
    ]
    epochs = fold.kept_epochs()
    if not epochs:
        context.list_missing(
            "The run kept no epochs, so there is no view of its slides over training.",
            f"gcemil train COHORT --out {quote_path(context.run.folder)} --keep-epochs",
        )
        return figures
    mode = "soft" if context.run.is_wrapped else "full"
    kept = {
        epoch: read_representations(fold.epoch_representations(epoch))
        for epoch in choose_epochs(epochs)
    }
    panels = {
        f"Epoch {epoch}": embed_slides(one.by_mode[mode], seed=context.seed)
        for epoch, one in kept.items()
    }
    figures.append(
        save_figure(
            context.figures,
            "representations_epochs",
            draw_representations(panels, kept[epochs[-1]]),
            alt="t-SNE of slide representations after some epochs of training",
            caption=f"Fold {fold.number}, {style.MODE_NAMES[mode]}, after each of these epochs. Every panel is a t-SNE of its own: its axes are "
            "not those of the others.",
        )
    )
    return figures


def choose_epochs(epochs: Sequence[int], most: int = 4) -> list[int]:
    """The first, the last, and some between them, evenly."""
    places = np.linspace(0, len(epochs) - 1, min(most, len(epochs))).round().astype(int)
    return [epochs[place] for place in dict.fromkeys(places.tolist())]


def draw_representations(panels: Mapping[str, Points], slides: Representations) -> Figure:
    """A dot per slide in the colour of its class; test slides are filled."""
    figure = style.new_figure(0.7 + style.WIDTH / max(2, len(panels)))
    names = sorted(set(slides.groups))
    labels, is_test = np.array(slides.groups), np.array([part == "test" for part in slides.parts])
    handles: dict[str, PathCollection] = {}
    for axes, (title, points) in zip(
        style.add_axes_row(figure, len(panels)), panels.items(), strict=True
    ):
        for number, name in enumerate(names):
            color, marker = (
                style.GROUPS[number % len(style.GROUPS)],
                style.MARKERS[number % len(style.MARKERS)],
            )
            for test in (False, True):
                chosen = (labels == name) & (is_test == test)
                drawn = axes.scatter(
                    points[chosen, 0], points[chosen, 1], s=22, marker=marker, linewidths=0.9, edgecolors=color,
                    facecolors=color if test else "none", alpha=0.9,
                )  # fmt: skip
                if test:
                    handles[name] = drawn
        axes.set_title(title)
        axes.set(xticks=[], yticks=[])
        axes.spines[["top", "right"]].set_visible(True)
        axes.set_box_aspect(1)
    figure.legend(
        list(handles.values()),
        [style.shorten_label(name, 30) for name in handles],
        loc="outside lower left",
        ncols=5,
    )
    return figure


def embed_slides(representations: Float[np.ndarray, "n d"], *, seed: int = 0) -> Points:
    """Two coordinates per slide; columns are standardised, since their units mean nothing."""
    from openTSNE import TSNE  # type: ignore[import-untyped]

    values = representations.astype(np.float64)
    deviation = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    perplexity = min(PERPLEXITY, (len(values) - 1) / 3)
    tsne = TSNE(
        perplexity=perplexity,
        initialization="pca",
        random_state=seed,
        n_jobs=1,
        negative_gradient_method="bh",
    )
    return np.asarray(tsne.fit(values), dtype=np.float64)
