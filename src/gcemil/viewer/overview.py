"""The start of the page: what may be claimed of the run, and which slide to open first.

The first slide should teach: its prediction is right, its evidence is sufficient and necessary and
lies in several regions, and there is tissue to see. All of it is read from the files of the fold.
"""

from __future__ import annotations

from typing import Any

from gcemil.bags.bag import connected_regions, coordinate_step, patch_cells
from gcemil.errors import GcemilError
from gcemil.records import SlideEvidence, certify
from gcemil.report.run_data import FoldData, RunData, find_predicted_class
from gcemil.runs.folder import Run, RunFold, main_mode
from gcemil.viewer.session import ViewerSession

MOST_REGIONS = 4
"""More regions do not make a slide more instructive."""


def describe_run(session: ViewerSession) -> dict[str, Any]:
    """The run in a few words, its slides, and the one to open first."""
    fold = session.fold
    data = FoldData(RunFold(session.folder))
    outcomes = {
        slide_id: row
        for row in data.predictions(main_mode(data.modes)) or []
        for slide_id in row["slide_id"].split("|")
    }
    claim, warning = RunData(fold.run).claim, Run(fold.run).model_warning
    labels, ranks, rows = {}, {}, []
    for slide_id, spec in session.specs.items():
        outcome = outcomes.get(slide_id, {})
        target, predicted = outcome.get("target"), find_predicted_class(outcome)
        try:
            evidence = data.evidence(slide_id)
        except GcemilError:
            # A damaged evidence file is reported when its slide is opened.
            evidence = None
        words = []
        if predicted is None and "value" in outcome:
            target, predicted = (f"{float(outcome[name]):.3g}" for name in ("target", "value"))
            words.append(f"{target}, predicted {predicted}")
        elif predicted is not None:
            words.append(f"{target}{'' if predicted == target else f', predicted {predicted}'}")
        if evidence is not None and evidence.is_no_evidence:
            words.append("no evidence")
        verdict = "" if evidence is None else certify(evidence.verdict, warning).partition(":")[0]
        row = {"slide": slide_id, "patient": spec.case_id, "verdict": verdict}
        rows.append({**row, "label": target or "", "prediction": predicted or ""})
        labels[slide_id] = f"{slide_id}: {', '.join(words)}" if words else slide_id
        ranks[slide_id] = (
            predicted is not None and predicted == target,
            evidence is not None and bool(evidence.is_sufficient and evidence.is_necessary),
            session.slide_file(slide_id) is not None,
            fold.cohort.truth_file(slide_id).is_file(),
            min(MOST_REGIONS, count_regions(evidence)),
        )
    return {
        "run": fold.run.resolve().name,
        "fold": fold.fold,
        "host": fold.settings.host.name,
        "wrapped": fold.model is not None,
        "slides": list(session.specs),
        "first": max(ranks, key=lambda slide_id: ranks[slide_id], default=None),
        "labels": labels,
        "rows": rows,
        "claim": [*([warning] if warning else []), *(claim.describe() if claim else [])],
    }


def count_regions(evidence: SlideEvidence | None) -> int:
    """Groups of selected patches that touch, at the corners too."""
    if evidence is None or evidence.coords is None or not evidence.selected.any():
        return 0
    cells = patch_cells(evidence.coords, coordinate_step(evidence.coords))
    return int(connected_regions(cells, evidence.selected).max())
