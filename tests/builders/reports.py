"""A run folder written by hand: predictions, findings and evidence files with figures a test can count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from builders import grid_coords
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.files import write_table
from gcemil.findings import Finding, Row, write_finding
from gcemil.records import SlideEvidence, write_evidence

PROMPTS = ("glands", "necrosis")
SNR_SETTINGS = {
    "sufficiency_tolerance": 0.05,
    "necessity_tolerance": 0.05,
    "recoverability_tolerance": 0.01,
}


def toy_evidence(
    slide_id: str = "s0",
    *,
    n_patches: int = 8,
    selected: Sequence[int] = (0, 1),
    with_coords: bool = True,
    width: int = 4,
) -> SlideEvidence:
    """Scores fall with the index, the gates of the selected patches are 0.9, anchor 0 responds to every other patch."""
    mask = np.zeros(n_patches, dtype=bool)
    mask[list(selected)] = True
    index = np.arange(n_patches)
    responses = np.stack([0.5 * (index % 2 == 0), np.full(n_patches, 0.1)], axis=1).astype(
        np.float32
    )
    return SlideEvidence(
        slide_id=slide_id,
        selected=mask,
        coords=grid_coords(n_patches, width=width) if with_coords else None,
        gates=np.where(mask, 0.9, 0.1).astype(np.float32),
        scores=(-index).astype(np.float32),
        evidence_scores=(-index / 10).astype(np.float32),
        responses=responses,
        marginal_gain=np.zeros(n_patches, dtype=np.float32),
        coverage=(1 - np.prod(1 - responses[mask], axis=0)).astype(np.float32),
        stop_reason="covered",
        prompts=PROMPTS,
        hashes={"model": "m" * 8, "features": "f" * 8},
    )


def judged_slide(
    bag_id: str,
    *,
    rule: str = "evidence",
    sufficient: bool = True,
    necessary: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """One line of the S/N/R diagnostic; the gaps follow from the verdicts."""
    recoverable = True if rule == "evidence" else None
    line = {
        "bag_id": bag_id, "case_id": bag_id, "slide_ids": [bag_id], "rule": rule, "network": "wrapped",
        "target": "a", "predicted": "a", "n_patches": 8, "n_selected": 2, "evidence_fraction": 0.25,
        "phi_full": 0.9, "phi_soft": 0.9 if recoverable else None, "phi_kept": 0.9 if sufficient else 0.6,
        "phi_removed": 0.4 if necessary else 0.9, "sufficient": sufficient, "necessary": necessary,
        "recoverable": recoverable, "full_kept_gap": 0.0 if sufficient else 0.3,
        "removal_gap": 0.5 if necessary else 0.0, "cd_gap": 0.0 if recoverable else None,
    }  # fmt: skip
    return {**line, **more}


def snr_rows(rules: Sequence[str]) -> tuple[Row, ...]:
    """One row per rule over all classes, and the gates of the evidence."""
    labels = {"network": "wrapped", "class": "all"}
    kept = {**labels, "comparison": "full-kept"}
    rows = [Row({"rule": rule, **kept}, {"full_kept_gap": 0.1}) for rule in rules]
    soft = {"rule": "evidence", **labels, "comparison": "soft-kept"}
    return (*rows, *([Row(soft, {"cd_gap": 0.01})] if "evidence" in rules else []))


@dataclass(frozen=True)
class RunFolder:
    """A run whose folds are added one by one."""

    folder: Path
    classes: tuple[str, ...] = ("a", "b")

    def fold(
        self,
        number: int,
        slide_ids: Sequence[str],
        *,
        wrapped: bool = True,
        target: str = "a",
        evidence: Sequence[SlideEvidence] = (),
        value: float = 0.8,
    ) -> Path:
        """metrics.json, tables of predictions and evidence files; every slide is predicted as the first class."""
        folder = self.folder / f"fold_{number}"
        folder.mkdir(parents=True)
        modes = ("full", "gce", "soft", "discrete") if wrapped else ("full",)
        metrics = {mode: {"accuracy": value, "macro_f1": value, "auc": value} for mode in modes}
        anchors = "file anchors.h5" if wrapped else None
        details = {"best_epoch": 3, "warnings": [], "caveats": [], "anchors": anchors}
        content = json.dumps({**metrics, "details": details})
        (folder / "metrics.json").write_text(content, encoding="utf-8")
        shares = {f"prob_{name}": 0.1 / (len(self.classes) - 1) for name in self.classes}
        shares[f"prob_{self.classes[0]}"] = 0.9
        rows = [
            {"slide_id": name, "case_id": name, "split": "test", "target": target, **shares}
            for name in slide_ids
        ]
        columns = ["slide_id", "case_id", "split", "target", *shares]
        main = "gce" if wrapped else "full"
        for mode in modes:
            name = "predictions.csv" if mode == main else f"predictions_{mode}.csv"
            write_table(folder / name, columns, rows)
        for one in evidence:
            write_evidence(folder / "evidence" / f"{one.slide_id}.h5", one, one.hashes)
        return folder

    def finding(self, number: int, finding: Finding) -> None:
        write_finding(self.folder / f"fold_{number}" / "diagnostics", finding)

    def snr(self, number: int, slides: Sequence[dict[str, Any]]) -> None:
        rows = snr_rows(list(dict.fromkeys(slide["rule"] for slide in slides)))
        self.finding(number, Finding("snr", rows, slides=tuple(slides), settings=SNR_SETTINGS))


def run_folder(
    folder: Path,
    *,
    wrapped: bool = True,
    fingerprint: str = "f" * 64,
    classes: tuple[str, ...] = ("a", "b"),
) -> RunFolder:
    """config.yaml and environment.json; the cohort it names does not exist."""
    folder.mkdir(parents=True)
    settings = TrainSettings(
        host=HostSettings(name="abmil"), evidence=EvidenceSettings() if wrapped else None
    )
    config = {
        "cohort": str(folder / "gone" / "cohort"),
        "cohort_fingerprint": fingerprint,
        "settings_hash": settings.hash,
        "settings": settings.model_dump(mode="json"),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    environment = {"gcemil": "0", "python": "3", "packages": {"numpy": "2"}, "seed": 0}
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    return RunFolder(folder, classes)
