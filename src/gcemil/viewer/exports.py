"""The set under test as files: evidence as JSON, and GeoJSON for QuPath.

Nothing here asks the network, so writing a large file does not hold up other questions.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from gcemil.bags.cohort import read_slide_bounds
from gcemil.exports.geojson import PatchClass, PatchCollection
from gcemil.exports.slide_export import EvidenceList, SlideExport
from gcemil.viewer.session import OpenedSlide

EDITED = PatchClass("Evidence edited by hand", (230, 160, 0))
"""Never the class of recovered evidence: the model did not choose these patches."""


def export_evidence(slide: OpenedSlide, selected: Bool[np.ndarray, "n"]) -> EvidenceList:
    """The set in the layout of `gcemil explain`; an unchanged set keeps the name of its rule."""
    return _edit_export(slide, selected).to_list()


def export_geojson(slide: OpenedSlide, selected: Bool[np.ndarray, "n"]) -> PatchCollection:
    """The set as QuPath tiles."""
    bounds = read_slide_bounds(slide.fold.cohort.folder, slide.slide_id)
    return _edit_export(slide, selected).to_collection(bounds=bounds, selected_class=EDITED)


def _edit_export(slide: OpenedSlide, selected: Bool[np.ndarray, "n"]) -> SlideExport:
    """What the files show of a set that may have been changed by hand."""
    untouched = bool((selected == slide.chosen.numpy()[slide.rows]).all())
    stop_reason = slide.evidence.stop_reason if slide.evidence is not None and untouched else None
    return SlideExport(
        slide_id=slide.slide_id,
        selected=selected,
        coords=slide.coords if slide.has_coords else None,
        patch_size=slide.patch_size if slide.has_coords else None,
        rule=slide.rule if untouched else f"{slide.rule}, edited by hand",
        stop_reason=stop_reason,
        scores=slide.full.scores.numpy()[slide.rows],
        evidence=slide.evidence,
        hashes=slide.hashes,
    )
