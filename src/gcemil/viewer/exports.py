"""The set under test as files: evidence as JSON, and GeoJSON for QuPath.

Nothing here asks the network, so a large file is written without keeping anybody from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool

from gcemil.errors import UsageError
from gcemil.report.evidence_json import EvidenceList, evidence_list
from gcemil.report.geojson import (
    PatchClass,
    PatchCollection,
    bounds_of,
    evidence_measurements,
    feature_collection,
)
from gcemil.viewer.session import OpenedSlide, feature_attributes

EDITED = PatchClass("Evidence edited by hand", (230, 160, 0))
"""Never the class of recovered evidence: the model did not choose these patches."""


def edited_evidence(slide: OpenedSlide, selected: Bool[np.ndarray, "n"]) -> EvidenceList:
    """The set in the layout of `gcemil explain`; a set nobody touched keeps the name of its rule."""
    untouched = bool((selected == slide.chosen.numpy()[slide.rows]).all())
    stop_reason = slide.evidence.stop_reason if slide.evidence is not None and untouched else None
    return evidence_list(
        slide.slide_id,
        selected,
        slide.coords if slide.has_coords else None,
        rule=slide.rule if untouched else f"{slide.rule}, edited by hand",
        patch_size=slide.patch_size if slide.has_coords else None,
        measurements=measurements(slide),
        stop_reason=stop_reason,
        hashes=slide.hashes,
    )


def edited_geojson(slide: OpenedSlide, selected: Bool[np.ndarray, "n"]) -> PatchCollection:
    """The set as QuPath tiles."""
    if not slide.has_coords:
        raise UsageError(
            f"Slide '{slide.slide_id}' has no coordinates, so its patches cannot be drawn in QuPath."
        )
    where = str(slide.fold.cohort.feature_file(slide.slide_id))
    return feature_collection(
        slide.slide_id,
        slide.coords,
        selected,
        patch_size=slide.patch_size,
        ranked_by=slide.full.scores.numpy()[slide.rows] if slide.evidence is None else slide.evidence.gates,
        measurements=measurements(slide),
        model=slide.hashes["model"],
        selected_class=EDITED,
        bounds=bounds_of(feature_attributes(slide.fold, slide.slide_id), where) or (0, 0),
    )


def measurements(slide: OpenedSlide) -> dict[str, Any]:
    if slide.evidence is not None:
        return evidence_measurements(slide.evidence)
    return {"attention_score": slide.full.scores.numpy()[slide.rows]}
