"""What each figure means: which way is better, and which question it answers. Tables take arrows and bold from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower", "neither"]
Criterion = Literal[
    "task", "sufficiency", "necessity", "recoverability", "truth", "stability", "size", "cost", "guarantee"
]


@dataclass(frozen=True)
class Metric:
    label: str
    direction: Direction
    criterion: Criterion
    meaning: str

    @property
    def arrow(self) -> str:
        return {"higher": "↑", "lower": "↓", "neither": ""}[self.direction]


METRICS: dict[str, Metric] = {
    "task_metric": Metric(
        "Task metric", "higher", "task", "Macro-F1 or C-index of the prediction on whole bags."
    ),
    "accuracy": Metric("Accuracy", "higher", "task", "Share of bags predicted right."),
    "macro_f1": Metric("Macro-F1", "higher", "task", "Mean F1 over classes."),
    "auc": Metric("AUC", "higher", "task", "Macro one-vs-rest area under the ROC curve."),
    "c_index": Metric("C-index", "higher", "task", "Harrell's concordance of risk and time."),
    "keep_only_drop": Metric(
        "Keep-only drop",
        "lower",
        "sufficiency",
        "M(X) - M(X_S): task metric lost when only the evidence is kept.",
    ),
    "evidence_sufficiency": Metric(
        "Evidence sufficiency", "higher", "sufficiency", "M(X_S): task metric from the evidence alone."
    ),
    "full_kept_gap": Metric(
        "Full-kept gap", "lower", "sufficiency", "mean |Phi(X) - Phi(X_S)|, defined for every subset rule."
    ),
    "complement_degradation": Metric(
        "Complement degradation",
        "higher",
        "necessity",
        "M(X) - M(X_notS): task metric lost without the evidence.",
    ),
    "removal_effect": Metric(
        "Removal effect", "higher", "necessity", "mean Phi(X) - Phi(X_notS) over the bags with a complement."
    ),
    "cd_gap": Metric(
        "C-D gap", "lower", "recoverability", "mean |Phi(X_pi) - Phi(X_S)|: gates against the recovered set."
    ),
    "evidence_fraction": Metric("Evidence fraction", "neither", "size", "Share of patches in the evidence."),
    "empty_share": Metric("Empty subsets", "lower", "size", "Share of bags whose gates open no patch."),
    "runaway_share": Metric(
        "Runaway subsets", "lower", "size", "Share of bags whose evidence exceeds twice the budget."
    ),
    "precision": Metric("Precision", "higher", "truth", "Share of the evidence that is true evidence."),
    "recall": Metric("Recall", "higher", "truth", "Share of the true evidence that was found."),
    "average_precision": Metric("Average precision", "higher", "truth", "Of the ranking of all patches."),
    "region_coverage": Metric(
        "Region coverage", "higher", "truth", "Share of disjoint true regions touched by the evidence."
    ),
}
"""Every figure a diagnostic may report. A new one is one line here."""
