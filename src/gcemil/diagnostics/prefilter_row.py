"""What a prefilter adds to the cost table: the time from slide files, where it was measured.

extraction_time    tissue, view, student and encoder, whole bag = 1
end_to_end_time    the same with the prediction
"""

from __future__ import annotations

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.bench import FoldBench
from gcemil.findings import Row
from gcemil.runs.prefilter_cost import PrefilterCost, read_cost

PREFILTER = "prefilter"


def prefilter_cost(fold: FoldBench) -> PrefilterCost | None:
    """What was measured from slide files, if it was with this very model and on these very bags."""
    found = read_cost(fold.run / f"fold_{fold.fold}")
    if found is None or fold.model is None:
        return None
    same_model = found.model_hash == content_hash(fold.run / f"fold_{fold.fold}" / "checkpoint.safetensors")
    same_bags = [slide.bag_id for slide in found.slides] == [spec.bag_id for spec in fold.specs()]
    return found if same_model and same_bags else None


def with_encoding(row: Row, filtered: PrefilterCost | None) -> Row:
    """The row with what encoding takes, where that was measured; every way but one encodes all patches."""
    if filtered is None:
        return row
    mode = row.labels["mode"]
    figures: dict[str, float | None] = {
        "extraction_time": filtered.extraction_time if mode == PREFILTER else 1.0
    }
    if mode in ("full", PREFILTER):
        figures["end_to_end_time"] = filtered.end_to_end_time if mode == PREFILTER else 1.0
    return Row(row.labels, {**row.values, **figures}, row.deviations)


def encoding_note(filtered: PrefilterCost | None) -> str:
    """What a reader of the table must know about encoding."""
    if filtered is None:
        return (
            "No prefilter measured in this run, so encoding is not made cheaper: the row 'discrete + prefilter' is absent. "
            "'gcemil prefilter RUN SLIDES --measure' adds it."
        )
    return (
        f"Prefilter: keep rate {filtered.keep_rate:g}, {filtered.fall_back:.3f} of the slides fell back to all patches, "
        f"{filtered.encoded:.3f} of all patches were encoded, {filtered.threads} thread; mean change of the prediction "
        f"{filtered.mean_change:.4f}."
    )
