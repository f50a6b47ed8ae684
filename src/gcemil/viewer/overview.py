"""The start of the page: what may be claimed about the run, and which slide to open first.

The first slide should teach: its prediction is right, its evidence is sufficient and necessary, it lies in several
regions, and there is tissue to see. Predictions and verdicts are read from the files of the fold; nothing is computed.
"""

from __future__ import annotations

from typing import Any

from gcemil.bags.bag import connected_regions, coordinate_step, patch_cells
from gcemil.errors import GcemilError
from gcemil.records import SlideEvidence
from gcemil.report.run_data import FoldData, find_predicted_class, read_run_data
from gcemil.runs.folder import FoldFolder, read_model_warning
from gcemil.viewer.session import ViewerSession

MOST_REGIONS = 4
"""More regions do not make a slide more instructive."""
Key = tuple[bool, bool, bool, bool, int]


def describe_run(session: ViewerSession) -> dict[str, Any]:
    """The run in a few words, its slides, and the one to open first."""
    fold = session.fold
    data = FoldData(FoldFolder(session.folder))
    outcomes = _read_outcomes(data)
    claim, warning = read_run_data(fold.run).claim, read_model_warning(fold.run)
    facts = {
        slide_id: _read_facts(session, data, slide_id, outcomes.get(slide_id, {}))
        for slide_id in session.specs
    }
    return {
        "run": fold.run.resolve().name,
        "fold": fold.fold,
        "host": fold.settings.host.name,
        "wrapped": fold.model is not None,
        "slides": list(session.specs),
        "first": max(facts, key=lambda slide_id: facts[slide_id]["rank"], default=None),
        "labels": {slide_id: one["label"] for slide_id, one in facts.items()},
        "claim": [*([warning] if warning else []), *(claim.describe() if claim else [])],
    }


def _read_facts(
    session: ViewerSession, data: FoldData, slide_id: str, outcome: dict[str, str]
) -> dict[str, Any]:
    """A label for the list of slides, and how instructive the slide is."""
    try:
        evidence = data.evidence(slide_id)
    except GcemilError:
        # A damaged evidence file is reported when its slide is opened; the page itself must open.
        evidence = None
    target, predicted = outcome.get("target"), outcome.get("predicted")
    words = (
        [] if predicted is None else [target if predicted == target else f"{target}, predicted {predicted}"]
    )
    if evidence is not None and evidence.is_no_evidence:
        words.append("no evidence")
    return {
        "label": ": ".join([slide_id, ", ".join(map(str, words))] if words else [slide_id]),
        "rank": _rank_slide(session, slide_id, outcome, evidence),
    }


def _rank_slide(
    session: ViewerSession, slide_id: str, outcome: dict[str, str], evidence: SlideEvidence | None
) -> Key:
    """Larger is more instructive."""
    is_right = "predicted" in outcome and outcome["predicted"] == outcome.get("target")
    is_faithful = bool(evidence is not None and evidence.is_sufficient and evidence.is_necessary)
    has_tissue = session.slide_file(slide_id) is not None
    has_truth = session.fold.cohort.truth_file(slide_id).is_file()
    return is_right, is_faithful, has_tissue, has_truth, min(MOST_REGIONS, count_regions(evidence))


def count_regions(evidence: SlideEvidence | None) -> int:
    """Groups of selected patches that touch, at the corners too."""
    if evidence is None or evidence.coords is None or not evidence.selected.any():
        return 0
    cells = patch_cells(evidence.coords, coordinate_step(evidence.coords))
    return int(connected_regions(cells, evidence.selected).max())


def _read_outcomes(data: FoldData) -> dict[str, dict[str, str]]:
    """Target and predicted class of every test slide; a risk has no class."""
    found = {}
    for row in data.predictions("full") or []:
        found_class = find_predicted_class(row)
        predicted = {} if found_class is None else {"predicted": found_class}
        for slide_id in row["slide_id"].split("|"):
            found[slide_id] = {"target": row.get("target", ""), **predicted}
    return found
