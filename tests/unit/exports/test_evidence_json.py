import json
from dataclasses import replace

import numpy as np
import pytest

from builders.reports import toy_evidence
from gcemil.exports.evidence import SlideExport
from gcemil.exports.geojson import BLOCK, EVIDENCE, NO_EVIDENCE, encode_list


def export(coords, selected=(False, True)):
    chosen = np.array(selected)
    return SlideExport(
        slide_id="s",
        selected=chosen,
        coords=coords,
        patch_size=256,
        rule="recovered evidence",
        stop_reason="covered",
        scores=np.linspace(0.1, 0.9, len(chosen), dtype=np.float32),
        evidence=None,
        hashes={"model": "abc"},
    )


def test_selected_patches_are_listed_with_place_and_numbers(tmp_path):
    export(np.array([[0, 0], [256, 512]])).write_json(tmp_path / "e.json")
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["patches"] == [{"index": 1, "x": 256, "y": 512, "attention_score": 0.9}]
    assert (found["fraction"], found["n_patches"]) == pytest.approx((0.5, 2))


@pytest.mark.parametrize("n_patches", [0, 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_a_list_in_parts_is_the_value(n_patches):
    found = export(None, [True] * n_patches or [False])
    text = "".join(encode_list(found.describe(), "patches", found.list_patches()))
    assert json.loads(text) == {**found.describe(), "patches": list(found.list_patches())}
    assert len(json.loads(text)["patches"]) == n_patches


@pytest.mark.parametrize("is_evidence", [True, False])
def test_patches_that_are_not_evidence_are_not_painted_as_evidence(is_evidence):
    record = toy_evidence("s")
    made = replace(
        export(record.coords, record.selected),
        coords=record.coords,
        evidence=record,
        scores=record.scores,
    )
    pixels = np.asarray(made.draw_overlay("verdict", is_evidence=is_evidence)).reshape(-1, 3)
    colors = {
        one.name: bool((pixels == one.color).all(axis=1).any()) for one in (EVIDENCE, NO_EVIDENCE)
    }
    assert colors == {"GCE evidence": is_evidence, "No evidence": not is_evidence}
