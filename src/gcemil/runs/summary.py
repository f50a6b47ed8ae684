"""The summary of a run: mean and standard deviation over its finished folds, of task metrics and of diagnostics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gcemil.files import write_json
from gcemil.findings import over_folds, read_finding


def write_summary(run: Path) -> dict[str, Any]:
    """summary.json from everything the folds hold."""
    summary = summarise(run)
    write_json(run / "summary.json", summary)
    return summary


def summarise(run: Path) -> dict[str, Any]:
    """Mean and standard deviation over the folds that are complete."""
    folds = sorted(
        run.glob("fold_*/metrics.json"), key=lambda path: int(path.parent.name.removeprefix("fold_"))
    )
    loaded = [json.loads(path.read_text(encoding="utf-8")) for path in folds]
    modes = [mode for mode in ("full", "soft", "discrete") if loaded and mode in loaded[0]]
    summary: dict[str, Any] = {"folds": [path.parent.name for path in folds]}
    for mode in modes:
        summary[mode] = {name: spread([fold[mode][name] for fold in loaded]) for name in loaded[0][mode]}
    summary["warnings"] = sorted({text for fold in loaded for text in fold["details"]["warnings"]})
    summary["anchors"] = sorted({str(fold["details"]["anchors"]) for fold in loaded})
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


def spread(values: Sequence[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "std": stdev(values) if len(values) > 1 else 0.0, "folds": list(values)}
