"""Slide representations in two dimensions, from RUN/fold_<k>/representations.h5 where it was asked for.

full, soft, discrete (bags, d)    what the head sees of every validation and test bag
attributes: bag_ids, parts, groups as JSON lists in the same order
"""

from __future__ import annotations

import numpy as np

from gcemil.report.figures.representations import FEWEST, embedded, slide_representations
from gcemil.report.html import Markup, Section, paragraph
from gcemil.report.run_data import RunData
from gcemil.report.sections.context import Context, absent, quoted
from gcemil.runs.evidence_files import (
    Representations,
    read_representations,
)
from gcemil.runs.folder import MODES, FoldFolder, RunFolder

WORDS = {"full": "all patches", "soft": "gated", "discrete": "evidence alone"}


def section(context: Context) -> Section | None:
    title = "Slide representations"
    fold = context.run.folds[0]
    path = FoldFolder(fold.folder).representations
    if not path.is_file():
        rival = "" if context.against is None else f" --against {quoted(context.against.folder)}"
        remedy = f"gcemil report {quoted(context.run.folder)}{rival} --representations"
        return Section(
            "representations", title, absent("The run stores no representations of its slides.", remedy)
        )
    found = read_representations(path)
    if len(found.bag_ids) < FEWEST:
        text = (
            f"Fold {fold.number} has {len(found.bag_ids)} validation and test bags; a t-SNE needs {FEWEST}."
        )
        return Section("representations", title, paragraph(text, kind="missing"))
    return Section("representations", title, figure(context, found, fold.number))


def figure(context: Context, found: Representations, fold: int) -> Markup:
    panels = {}
    before = None if context.against is None else rival_representations(context.against, fold)
    if before is not None and before.bag_ids == found.bag_ids:
        panels["Plain host"] = embedded(before.by_mode["full"], seed=context.seed)
    name = "Host + GCE" if context.run.is_wrapped else "Host"
    modes = [mode for mode in MODES if mode in found.by_mode and (mode != "full" or len(found.by_mode) == 1)]
    for mode in modes:
        panels[f"{name}, {WORDS[mode]}"] = embedded(found.by_mode[mode], seed=context.seed)
    is_test = np.array([part == "test" for part in found.parts])
    return context.album.figure(
        "representations",
        slide_representations(panels, found.groups, is_test=is_test),
        alt="t-SNE of slide representations, coloured by class",
        caption=f"Fold {fold}. Filled: test; hollow: validation; no slide was trained on. t-SNE shows who lies beside whom; distances "
        f"between groups mean nothing. Seed {context.seed}. A run keeps its best epoch only, so there is no view over epochs.",
    )


def rival_representations(run: RunData, fold: int) -> Representations | None:
    path = RunFolder(run.folder).fold(fold).representations
    return read_representations(path) if path.is_file() else None
