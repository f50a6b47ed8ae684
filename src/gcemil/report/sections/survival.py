"""Survival: do the risk groups live differently, from all patches, from the evidence alone, and without it?"""

from __future__ import annotations

import numpy as np

from gcemil.report.figures.survival import RiskGroups, higher_half, risk_group_curves
from gcemil.report.html import Section, joined, paragraph
from gcemil.report.run_data import RunData
from gcemil.report.sections.context import Context

WORDS = {"full": "All patches", "soft": "Gated", "discrete": "Evidence alone"}


def section(context: Context) -> Section | None:
    """None for a classification run."""
    if context.run.task != "survival":
        return None
    panels = {
        WORDS[mode]: found
        for mode in ("full", "discrete")
        if (found := predicted_groups(context.run, mode)) is not None
    }
    without = removed_groups(context.run)
    if without is not None:
        panels["Evidence removed" if context.run.is_wrapped else "Attention removed"] = without
    parts = [
        context.album.figure(
            "kaplan_meier",
            risk_group_curves(panels),
            alt="Kaplan-Meier curves of the higher and the lower risk half",
            caption="Test cases of every fold split at the median risk of that fold, then joined. Ticks: censored cases. Evidence that "
            "holds separates the groups as all patches do; without it the separation should fade.",
        )
    ]
    if without is None:
        parts.append(context.missing("snr"))
    parts.append(
        paragraph(
            "The test assumes that the groups were formed without the outcome; they were, since these cases were not trained on. "
            "Networks of different folds share training cases, so p is too small rather than too large.",
            kind="note",
        )
    )
    return Section("survival", "Survival of the risk groups", joined(parts))


def predicted_groups(run: RunData, mode: str) -> RiskGroups | None:
    """From the tables of predictions."""
    found = [
        (float(row["target"]), float(row["event"]) == 1, float(row["risk"]), fold.number)
        for fold in run.folds
        for row in fold.predictions(mode) or []
    ]
    return groups_of(found) if found else None


def removed_groups(run: RunData) -> RiskGroups | None:
    """From the bags without their evidence, where S/N/R was measured."""
    found = [
        (float(record["time"]), record["event"] == 1, float(record["phi_removed"]), int(record["fold"]))
        for record in run.slides("snr")
        if (record["rule"], record["network"]) == (run.rule, "wrapped") and record["phi_removed"] is not None
    ]
    return groups_of(found) if found else None


def groups_of(cases: list[tuple[float, bool, float, int]]) -> RiskGroups:
    times, events, risks, folds = (np.array(column) for column in zip(*cases, strict=True))
    return RiskGroups(times, events.astype(bool), higher_half(risks, folds))
