"""What each figure means: which way is better, and which question it answers. Tables take arrows and bold from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower", "neither"]
ARROWS: dict[Direction, str] = {"higher": "↑", "lower": "↓", "neither": ""}
Criterion = Literal[
    "task",
    "sufficiency",
    "necessity",
    "recoverability",
    "truth",
    "stability",
    "size",
    "cost",
    "guarantee",
    "failure",
]


@dataclass(frozen=True)
class Metric:
    """A figure: its label, its better side, what it is about and what it means."""

    label: str
    direction: Direction
    criterion: Criterion
    meaning: str

    @property
    def arrow(self) -> str:
        """Its better side as a sign."""
        return ARROWS[self.direction]


def _interval(name: str, of: str, meaning: str) -> dict[str, tuple[str, str]]:
    """The two ends of a bootstrap interval around a figure."""
    return {f"{name}_{end}": (f"95 % {end}{of}", meaning) for end in ("low", "high")}


_REVIEW_BOOTSTRAP = "Bootstrap over the reviewed slides, of one slide over its judged patches."

_FIGURES: dict[tuple[Criterion, Direction], dict[str, tuple[str, str]]] = {
    ("task", "higher"): {
        "task_metric": ("Task metric", "Macro-F1, R2 or C-index of the prediction on whole bags."),
        "accuracy": ("Accuracy", "Share of bags predicted right."),
        "macro_f1": ("Macro-F1", "Mean F1 over classes."),
        "auc": ("AUC", "Macro one-vs-rest area under the ROC curve."),
        "c_index": ("C-index", "Harrell's concordance of risk and time."),
        "r2": (
            "R²",
            "1 - squared error over that of the labels' mean: 0 is no better than the mean.",
        ),
        "pearson": ("Pearson", "Correlation of prediction and label."),
        "spearman": ("Spearman", "Correlation of their ranks."),
        "difference": ("Difference", "Mean over folds of ours minus theirs."),
        **_interval("difference", "", "Bootstrap over folds of the mean difference."),
        **_interval("bag_difference", " (bags)", "Bootstrap over the test bags of each fold."),
        "cohens_dz": ("Cohen's d_z", "Mean difference in its standard deviations."),
        "rank_biserial": (
            "Rank-biserial",
            "Share of ranks in favour minus share against, over folds.",
        ),
        "relative_utility": (
            "Relative utility",
            "Task metric over the task metric of the whole bags.",
        ),
    },
    ("task", "lower"): {
        "mae": ("MAE", "Mean absolute error, in the unit of the label."),
    },
    ("task", "neither"): {
        # A p-value is not a score: the smallest is not the best method.
        "p_paired_t": ("p (t)", "Paired t-test over folds, two-sided."),
        "p_paired_t_holm": ("p (t, Holm)", "The same, corrected for all rows."),
        "p_wilcoxon": ("p (Wilcoxon)", "Signed-rank test over folds, two-sided, exact."),
        "p_wilcoxon_holm": ("p (Wilcoxon, Holm)", "The same, corrected for all rows."),
    },
    ("sufficiency", "higher"): {
        "evidence_sufficiency": (
            "Evidence sufficiency",
            "M(X_S): task metric from the evidence alone.",
        ),
        "subsets_per_slide": (
            "Subsets/slide",
            "Disjoint sufficient subsets of a slide, counted up to three.",
        ),
        "two_subsets_share": (
            "Slides >= 2",
            "Share of slides with at least two disjoint sufficient subsets.",
        ),
        "three_subsets_share": (
            "Slides >= 3",
            "Share of slides with three disjoint sufficient subsets.",
        ),
        "region_sufficient_share": (
            "One region suffices",
            "Share of slides of which one region alone keeps the prediction.",
        ),
        "regions_reached_share": (
            "Regions suffice",
            "Share of slides whose regions together keep the prediction.",
        ),
        "kept_output": ("Output of the evidence", "mean Phi(X_S): output from the evidence alone."),
        "sufficient_share": ("Sufficient", "Share of bags with |Phi(X) - Phi(X_S)| <= delta_s."),
        "srg": (
            "SRG",
            "Area between the flipping curves, least and most relevant patches first: sufficiency and necessity in one.",
        ),
        "least_first_area": (
            "Least-first area",
            "Mean Phi while the patches leave, least relevant first.",
        ),
        "aukc": (
            "AUKC",
            "Area under the keep curve: mean share of Phi(X) from the first 1 to 20 % alone.",
        ),
    },
    ("sufficiency", "lower"): {
        "keep_only_drop": (
            "Keep-only drop",
            "M(X) - M(X_S): task metric lost when only the evidence is kept.",
        ),
        "full_kept_gap": (
            "Full-kept gap",
            "mean |Phi(X) - Phi(X_S)|, defined for every subset rule.",
        ),
        "kept_output_drop": (
            "Keep-only drop of Phi",
            "mean Phi(X) - Phi(X_S) over the candidates tried.",
        ),
        "keep_only_effect": (
            "Keep-only effect",
            "mean Phi(X) - Phi(X_S): output lost with the evidence alone.",
        ),
        "coverage_residual": (
            "Coverage residual",
            "sum_m alpha_m (1 - v_m(S)): anchor weight left uncovered.",
        ),
        "coverage_bound": (
            "Coverage bound",
            "L_q eta times the coverage residual: bounds |Phi(X) - Phi(X_S)|.",
        ),
        "anchor_completeness": (
            "eta",
            "Largest change of the bag feature per coverage residual, on validation bags.",
        ),
        "msk": (
            "MSK",
            "Smallest share of the patches from which Phi is reached; 1 where 20 % are not enough.",
        ),
        "coverage_broken_share": (
            "Coverage bound broken",
            "Share of bags with a negative coverage slack.",
        ),
    },
    ("sufficiency", "neither"): {
        "coverage_slack": (
            "Coverage slack",
            "Coverage bound minus |Phi(X) - Phi(X_S)|; negative: broken.",
        ),
        "output_slope": (
            "L_q",
            "Largest change of Phi per change of the bag feature, on validation bags.",
        ),
    },
    ("necessity", "higher"): {
        "complement_degradation": (
            "Complement degradation",
            "M(X) - M(X_notS): task metric lost without the evidence.",
        ),
        "removal_effect": (
            "Removal effect",
            "mean Phi(X) - Phi(X_notS) over the bags with a complement.",
        ),
        "remove_union_1": (
            "Remove-union-1",
            "Phi lost without the first subset, where there is one.",
        ),
        "remove_union_2": (
            "Remove-union-2",
            "Phi lost without the first two subsets, where there are two.",
        ),
        "remove_union_3": (
            "Remove-union-3",
            "Phi lost without three subsets, where there are three.",
        ),
        "region_necessary_share": (
            "A region is necessary",
            "Share of slides whose prediction moves without one of the regions.",
        ),
        "removal_gap": (
            "Removal gap",
            "mean |Phi(X) - Phi(X_notS)| over the bags with a complement.",
        ),
        "necessary_share": ("Necessary", "Share of bags with |Phi(X) - Phi(X_notS)| >= delta_n."),
        "removal_area": (
            "Removal area",
            "Mean loss of Phi without the first 1 to 20 % of the patches.",
        ),
        "both_share": ("Both", "Share of bags whose patches are sufficient and necessary."),
    },
    ("necessity", "lower"): {
        "most_first_area": (
            "Most-first area",
            "Mean Phi while the patches leave, most relevant first.",
        ),
    },
    ("necessity", "neither"): {
        "remove_random": (
            "Remove random",
            "Phi lost without as many random patches as all subsets have.",
        ),
        "no_evidence_share": (
            "No evidence",
            "Share of bags whose prediction stays without the recovered patches: they are no evidence.",
        ),
    },
    ("recoverability", "higher"): {
        "greedy_factor": (
            "Greedy bound",
            "(1 - e^-kappa) / kappa: promised share of the best utility at equal size.",
        ),
        "utility_share": (
            "Utility share",
            "U(S) / U(whole bag) for the anchors of the predicted class.",
        ),
        "soft_metric": ("Soft task metric", "M(X_pi): task metric of the gated bag."),
        "recoverable_share": (
            "Recoverable",
            "Share of bags with |Phi(X_pi) - Phi(X_S)| <= delta_r.",
        ),
        "gate_margin": ("Gate margin", "Distance of the nearest gate from the threshold."),
    },
    ("recoverability", "lower"): {
        "cd_gap": ("C-D gap", "mean |Phi(X_pi) - Phi(X_S)|: gates against the recovered set."),
        "curvature": (
            "Curvature",
            "kappa of the coverage utility over the bag: 1 where a patch adds nothing.",
        ),
        "cd_metric_gap": (
            "C-D gap of the metric",
            "|M(X_pi) - M(X_S)|: the C-D gap on the task metric.",
        ),
        "gate_distance": ("Gate distance", "||pi - 1_S||: distance of the gates from the subset."),
        "margin_bound": (
            "Recoverability bound",
            "L_X ||pi - 1_S||: bounds |Phi(X_pi) - Phi(X_S)|.",
        ),
        "margin_broken_share": (
            "Recoverability bound broken",
            "Share of bags with a negative slack of it.",
        ),
    },
    ("recoverability", "neither"): {
        "greedy_share": ("Greedy utility share", "The same of the greedy subset of that size."),
        "margin_slack": (
            "Recoverability slack",
            "Recoverability bound minus the C-D gap; negative: broken.",
        ),
    },
    ("truth", "higher"): {
        "precision": ("Precision", "Share of the evidence that is true evidence."),
        "recall": ("Recall", "Share of the true evidence that was found."),
        "average_precision": ("Average precision", "Of the ranking of all patches."),
        "region_coverage": (
            "Region coverage",
            "Share of disjoint true regions touched by the evidence.",
        ),
        "dice": ("Dice", "Overlap of marked and positive patches, mean over slides with a lesion."),
        "normal_specificity": (
            "Specificity (normal slides)",
            "Share of patches of normal slides not marked.",
        ),
        "patch_specificity": ("Specificity (patches)", "Share of all negative patches not marked."),
        "froc": (
            "FROC",
            "Mean lesion sensitivity at 1/8 ... 8 false positives per slide, by overlap.",
        ),
        "froc_official": (
            "FROC (CAMELYON16)",
            "Mean lesion sensitivity at 1/4 ... 8 false positives per slide, by point.",
        ),
        "lesion_sensitivity": (
            "Lesion sensitivity",
            "Share of lesions found at one rate of false positives.",
        ),
        "review_precision": (
            "Reviewer's precision",
            "Share of the judged patches of a rule that the reviewer accepts.",
        ),
        **_interval("review_precision", " (precision)", _REVIEW_BOOTSTRAP),
        "review_recall": (
            "Reviewer's recall",
            "Share of the patches the reviewer accepts or misses that a rule chose.",
        ),
        **_interval("review_recall", " (recall)", _REVIEW_BOOTSTRAP),
        "review_kappa": (
            "Reviewer's kappa",
            "Cohen's kappa of reviewer and rule on the judged patches.",
        ),
        **_interval("review_kappa", " (kappa)", _REVIEW_BOOTSTRAP),
    },
    ("stability", "higher"): {
        "jaccard": ("Jaccard", "Overlap of the evidence of two runs or of two bags."),
    },
    ("stability", "lower"): {
        "prediction_flip": (
            "Prediction flips",
            "Share of pairs whose predictions from the evidence differ.",
        ),
        "output_gap": ("Output gap", "mean |Phi - Phi| of two predictions from the evidence."),
    },
    ("stability", "neither"): {
        "control_value": (
            "Shows",
            "What a control of `sanity` shows; its note says what it should show.",
        ),
        "control_beside": ("Beside it", "The same figure where the control is not applied."),
        "control_passed": (
            "Passed",
            "1 if the control shows what it should; none if it says nothing.",
        ),
    },
    ("size", "higher"): {
        "reached_share": (
            "Reached",
            "Share of bags with an adaptive evidence that is sufficient and necessary.",
        ),
    },
    ("size", "lower"): {
        "empty_share": ("Empty subsets", "Share of bags whose gates open no patch."),
        "runaway_share": (
            "Runaway subsets",
            "Share of bags whose evidence exceeds twice the budget.",
        ),
        "subset_patches": ("Patches/subset", "Mean number of patches of a sufficient subset."),
        "regions_needed": (
            "Regions needed",
            "Fewest regions, largest score mass first, that keep the prediction together, where they do.",
        ),
        "capped_share": ("Capped", "Share of bags in which no set up to the largest size is both."),
    },
    ("size", "neither"): {
        "evidence_fraction": ("Evidence fraction", "Share of patches in the evidence."),
        "regions_per_slide": (
            "Regions/slide",
            "Connected regions: patches that touch at a side or at a corner.",
        ),
        "region_patches": ("Patches/region", "Mean number of patches of a region."),
        "repaired_patches": ("Repaired patches", "Mean number of patches added by repair."),
        "marked_share": ("Marked share", "Share of patches at or above the threshold."),
        "map_threshold": ("Threshold", "Score of best Dice on the validation slides."),
        "judged_patches": (
            "Judged patches",
            "Patches at least half of which lie under a reviewer's marks.",
        ),
        "judged_share": (
            "Own patches judged",
            "Share of the patches of a rule that the reviewer judged.",
        ),
    },
    ("cost", "lower"): {
        "aggregation_time": (
            "Aggregation time",
            "Time of a prediction whose subset is known, whole bag = 1.",
        ),
        "explained_time": (
            "Explained time",
            "The same with the time to find the subset, whole bag = 1.",
        ),
        "peak_memory": (
            "Peak memory",
            "Rows handed to the host and what its pass holds at once, whole bag = 1.",
        ),
        "extraction_time": ("Feature extraction", "Time to encode the patches, whole bag = 1."),
        "end_to_end_time": (
            "End-to-end time",
            "Time from the slide to the prediction, whole bag = 1.",
        ),
        "runtime_ratio": (
            "Runtime",
            "Median time of the scores in passes of the host over the same bag.",
        ),
    },
    ("cost", "neither"): {
        "patch_ratio": ("Patch ratio", "Share of the patches that the host pools."),
    },
    ("guarantee", "higher"): {
        "realised_rate": ("Realised", "Share of test slides on which the evidence alone agrees."),
        "certified_share": (
            "Certified",
            "Share of folds in which a part of the bag could be certified.",
        ),
    },
    ("guarantee", "lower"): {
        "certified_fraction": (
            "Certified fraction",
            "Share of patches the promise needs; 1 when none is certified.",
        ),
        "fallback_share": ("Fall back", "Share of test slides that have to show the whole bag."),
        "guarded_fraction": (
            "Guarded fraction",
            "Share of patches shown when such slides show the whole bag.",
        ),
    },
    ("guarantee", "neither"): {
        "promised_rate": ("Promised", "Least rate at which evidence and whole bag shall agree."),
        "realised_floor": (
            "Realised floor",
            "A kept promise realises less in at most one of twenty tests.",
        ),
        "calibration_bags": ("Calibration bags", "Bags the promise was made from."),
    },
    ("failure", "lower"): {
        "case_failure_share": (
            "Case failure",
            "Share of bags whose full-bag prediction is wrong or undecided.",
        ),
        "artifact_evidence_share": (
            "Artifact evidence",
            "Share of bags whose evidence is to a large part artifact.",
        ),
        "low_sufficiency_share": (
            "Low sufficiency",
            "Share of bags whose evidence is not delta_s-sufficient.",
        ),
        "low_necessity_share": (
            "Low necessity",
            "Share of bags whose evidence is not delta_n-necessary.",
        ),
        "semantic_mismatch_share": (
            "Semantic mismatch",
            "Share of bags whose evidence shows an anchor its class does not use.",
        ),
        "severe_failure_share": (
            "Severe failure",
            "Share of bags in which several of these failures occur together.",
        ),
    },
    ("failure", "neither"): {
        "audited_slides": ("Slides", "Bags that were audited."),
    },
}
"""Label and meaning of every figure a diagnostic may report, by what it is about and which way is better. A new one is one line."""

CHANCE = {"auc": 0.5, "c_index": 0.5, "r2": 0.0}
"""What a prediction reaches that knows nothing of the bag."""


@dataclass(frozen=True)
class TaskFigures:
    """What is said of the predictions of a task; keys are names of METRICS."""

    metrics: tuple[str, ...]
    lead: str
    """The metric by which epochs and subsets are judged, and which tables and figures lead with."""
    columns: tuple[str, ...]
    """Columns of the truth in a table of predictions."""
    number: str | None
    """The column of a prediction that is one number; None for classes, which have prob_<class>."""
    phi: str
    """What Phi is, in words."""


TASKS = {
    "classification": TaskFigures(
        ("accuracy", "macro_f1", "auc"),
        "macro_f1",
        ("target",),
        None,
        "the probability of the predicted class",
    ),
    "survival": TaskFigures(
        ("c_index",),
        "c_index",
        ("target", "event"),
        "risk",
        "the risk in units of the training risks",
    ),
    "regression": TaskFigures(
        ("r2", "pearson", "spearman", "mae"),
        "r2",
        ("target",),
        "value",
        "the value in standard deviations of the training labels",
    ),
}
"""Every task of a cohort."""

METRICS: dict[str, Metric] = {
    name: Metric(label, direction, criterion, meaning)
    for (criterion, direction), figures in _FIGURES.items()
    for name, (label, meaning) in figures.items()
}
FAILURE_TYPES = {
    name.removesuffix("_share"): metric.label
    for name, metric in METRICS.items()
    if metric.criterion == "failure" and name.endswith("_share")
}
"""How a slide can fail, each with the words for it."""
