"""The summary of a run: mean and standard deviation over its finished folds, of task metrics and of diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gcemil.files import write_json
from gcemil.findings import over_folds, read_finding
from gcemil.runs.records import finished_folds, read_metrics


def write_summary(run: Path) -> dict[str, Any]:
    """summary.json from everything the folds hold."""
    summary = summarise(run)
    write_json(run / "summary.json", summary)
    return summary


def summarise(run: Path) -> dict[str, Any]:
    """Mean and standard deviation over the folds that are complete."""
    folds = finished_folds(run)
    loaded = [read_metrics(folder) for folder in folds]
    summary: dict[str, Any] = {"folds": [folder.name for folder in folds]}
    for mode, figures in loaded[0].modes.items() if loaded else ():
        summary[mode] = {
            name: spread([fold.modes.get(mode, {}).get(name) for fold in loaded]) for name in figures
        }
    summary["warnings"] = sorted({text for fold in loaded for text in fold.details.warnings})
    summary["anchors"] = sorted({str(fold.details.anchors) for fold in loaded})
    if found := summarised_findings(run):
        summary["diagnostics"] = found
    return summary


def summarised_findings(run: Path) -> dict[str, Any]:
    """Every diagnostic that was made, its rows joined over the folds that have it."""
    names = sorted({path.stem for path in run.glob("fold_*/diagnostics/*.json")})
    found = {}
    for name in names:
        findings = [read_finding(path) for path in sorted(run.glob(f"fold_*/diagnostics/{name}.json"))]
        found[name] = [
            {"labels": row.labels, "mean": row.values, "std": row.deviations}
            for row in over_folds(findings).rows
        ]
    return found


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Over the folds that have the figure; None where none has it."""
    found = [value for value in values if value is not None]
    return {
        "mean": fmean(found) if found else None,
        "std": stdev(found) if len(found) > 1 else 0.0 if found else None,
        "folds": list(values),
    }
