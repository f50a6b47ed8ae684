"""What each figure means: which way is better, and which question it answers. Tables take arrows and bold from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower", "neither"]
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
        return {"higher": "↑", "lower": "↓", "neither": ""}[self.direction]


def _interval(name: str, of: str, criterion: Criterion, meaning: str) -> dict[str, Metric]:
    """The two ends of a bootstrap interval around a figure."""
    return {
        f"{name}_{end}": Metric(f"95 % {end}{of}", "higher", criterion, meaning) for end in ("low", "high")
    }


_REVIEW_BOOTSTRAP = "Bootstrap over the reviewed slides, of one slide over its judged patches."

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
    "subsets_per_slide": Metric(
        "Subsets/slide",
        "higher",
        "sufficiency",
        "Disjoint sufficient subsets of a slide, counted up to three.",
    ),
    "two_subsets_share": Metric(
        "Slides >= 2",
        "higher",
        "sufficiency",
        "Share of slides with at least two disjoint sufficient subsets.",
    ),
    "three_subsets_share": Metric(
        "Slides >= 3", "higher", "sufficiency", "Share of slides with three disjoint sufficient subsets."
    ),
    "kept_output_drop": Metric(
        "Keep-only drop of Phi", "lower", "sufficiency", "mean Phi(X) - Phi(X_S) over the candidates tried."
    ),
    "remove_union_1": Metric(
        "Remove-union-1", "higher", "necessity", "Phi lost without the first subset, where there is one."
    ),
    "remove_union_2": Metric(
        "Remove-union-2",
        "higher",
        "necessity",
        "Phi lost without the first two subsets, where there are two.",
    ),
    "remove_union_3": Metric(
        "Remove-union-3", "higher", "necessity", "Phi lost without three subsets, where there are three."
    ),
    "remove_random": Metric(
        "Remove random",
        "neither",
        "necessity",
        "Phi lost without as many random patches as all subsets have.",
    ),
    "subset_patches": Metric(
        "Patches/subset", "lower", "size", "Mean number of patches of a sufficient subset."
    ),
    "regions_per_slide": Metric(
        "Regions/slide", "neither", "size", "Connected regions: patches that touch at a side or at a corner."
    ),
    "region_patches": Metric("Patches/region", "neither", "size", "Mean number of patches of a region."),
    "region_sufficient_share": Metric(
        "One region suffices",
        "higher",
        "sufficiency",
        "Share of slides of which one region alone keeps the prediction.",
    ),
    "region_necessary_share": Metric(
        "A region is necessary",
        "higher",
        "necessity",
        "Share of slides whose prediction moves without one of the regions.",
    ),
    "regions_reached_share": Metric(
        "Regions suffice",
        "higher",
        "sufficiency",
        "Share of slides whose regions together keep the prediction.",
    ),
    "regions_needed": Metric(
        "Regions needed",
        "lower",
        "size",
        "Fewest regions, largest score mass first, that keep the prediction together, where they do.",
    ),
    "jaccard": Metric(
        "Jaccard", "higher", "stability", "Overlap of the evidence of two runs or of two bags."
    ),
    "prediction_flip": Metric(
        "Prediction flips", "lower", "stability", "Share of pairs whose predictions from the evidence differ."
    ),
    "output_gap": Metric(
        "Output gap", "lower", "stability", "mean |Phi - Phi| of two predictions from the evidence."
    ),
    "promised_rate": Metric(
        "Promised", "neither", "guarantee", "Least rate at which evidence and whole bag shall agree."
    ),
    "realised_rate": Metric(
        "Realised", "higher", "guarantee", "Share of test slides on which the evidence alone agrees."
    ),
    "realised_floor": Metric(
        "Realised floor",
        "neither",
        "guarantee",
        "A kept promise realises less in at most one of twenty tests.",
    ),
    "certified_fraction": Metric(
        "Certified fraction",
        "lower",
        "guarantee",
        "Share of patches the promise needs; 1 when none is certified.",
    ),
    "certified_share": Metric(
        "Certified", "higher", "guarantee", "Share of folds in which a part of the bag could be certified."
    ),
    "fallback_share": Metric(
        "Fall back", "lower", "guarantee", "Share of test slides that have to show the whole bag."
    ),
    "guarded_fraction": Metric(
        "Guarded fraction",
        "lower",
        "guarantee",
        "Share of patches shown when such slides show the whole bag.",
    ),
    "calibration_bags": Metric("Calibration bags", "neither", "guarantee", "Bags the promise was made from."),
    "repaired_patches": Metric(
        "Repaired patches", "neither", "size", "Mean number of patches added by repair."
    ),
    "keep_only_effect": Metric(
        "Keep-only effect",
        "lower",
        "sufficiency",
        "mean Phi(X) - Phi(X_S): output lost with the evidence alone.",
    ),
    "kept_output": Metric(
        "Output of the evidence", "higher", "sufficiency", "mean Phi(X_S): output from the evidence alone."
    ),
    "sufficient_share": Metric(
        "Sufficient", "higher", "sufficiency", "Share of bags with |Phi(X) - Phi(X_S)| <= delta_s."
    ),
    "coverage_residual": Metric(
        "Coverage residual",
        "lower",
        "sufficiency",
        "sum_m alpha_m (1 - v_m(S)): anchor weight left uncovered.",
    ),
    "curvature": Metric(
        "Curvature",
        "lower",
        "recoverability",
        "kappa of the coverage utility over the bag: 1 where a patch adds nothing.",
    ),
    "greedy_factor": Metric(
        "Greedy bound",
        "higher",
        "recoverability",
        "(1 - e^-kappa) / kappa: promised share of the best utility at equal size.",
    ),
    "utility_share": Metric(
        "Utility share",
        "higher",
        "recoverability",
        "U(S) / U(whole bag) for the anchors of the predicted class.",
    ),
    "greedy_share": Metric(
        "Greedy utility share", "neither", "recoverability", "The same of the greedy subset of that size."
    ),
    "coverage_bound": Metric(
        "Coverage bound",
        "lower",
        "sufficiency",
        "L_q eta times the coverage residual: bounds |Phi(X) - Phi(X_S)|.",
    ),
    "coverage_slack": Metric(
        "Coverage slack",
        "neither",
        "sufficiency",
        "Coverage bound minus |Phi(X) - Phi(X_S)|; negative: broken.",
    ),
    "anchor_completeness": Metric(
        "eta",
        "lower",
        "sufficiency",
        "Largest change of the bag feature per coverage residual, on validation bags.",
    ),
    "output_slope": Metric(
        "L_q",
        "neither",
        "sufficiency",
        "Largest change of Phi per change of the bag feature, on validation bags.",
    ),
    "removal_gap": Metric(
        "Removal gap", "higher", "necessity", "mean |Phi(X) - Phi(X_notS)| over the bags with a complement."
    ),
    "necessary_share": Metric(
        "Necessary", "higher", "necessity", "Share of bags with |Phi(X) - Phi(X_notS)| >= delta_n."
    ),
    "both_share": Metric(
        "Both", "higher", "necessity", "Share of bags whose patches are sufficient and necessary."
    ),
    "no_evidence_share": Metric(
        "No evidence",
        "neither",
        "necessity",
        "Share of bags whose prediction stays without the recovered patches: they are no evidence.",
    ),
    "soft_metric": Metric(
        "Soft task metric", "higher", "recoverability", "M(X_pi): task metric of the gated bag."
    ),
    "cd_metric_gap": Metric(
        "C-D gap of the metric",
        "lower",
        "recoverability",
        "|M(X_pi) - M(X_S)|: the C-D gap on the task metric.",
    ),
    "recoverable_share": Metric(
        "Recoverable", "higher", "recoverability", "Share of bags with |Phi(X_pi) - Phi(X_S)| <= delta_r."
    ),
    "gate_margin": Metric(
        "Gate margin", "higher", "recoverability", "Distance of the nearest gate from the threshold."
    ),
    "gate_distance": Metric(
        "Gate distance", "lower", "recoverability", "||pi - 1_S||: distance of the gates from the subset."
    ),
    "margin_bound": Metric(
        "Recoverability bound", "lower", "recoverability", "L_X ||pi - 1_S||: bounds |Phi(X_pi) - Phi(X_S)|."
    ),
    "margin_slack": Metric(
        "Recoverability slack",
        "neither",
        "recoverability",
        "Recoverability bound minus the C-D gap; negative: broken.",
    ),
    "coverage_broken_share": Metric(
        "Coverage bound broken", "lower", "sufficiency", "Share of bags with a negative coverage slack."
    ),
    "margin_broken_share": Metric(
        "Recoverability bound broken", "lower", "recoverability", "Share of bags with a negative slack of it."
    ),
    "audited_slides": Metric("Slides", "neither", "failure", "Bags that were audited."),
    "case_failure_share": Metric(
        "Case failure", "lower", "failure", "Share of bags whose full-bag prediction is wrong or undecided."
    ),
    "artifact_evidence_share": Metric(
        "Artifact evidence", "lower", "failure", "Share of bags whose evidence is to a large part artifact."
    ),
    "low_sufficiency_share": Metric(
        "Low sufficiency", "lower", "failure", "Share of bags whose evidence is not delta_s-sufficient."
    ),
    "low_necessity_share": Metric(
        "Low necessity", "lower", "failure", "Share of bags whose evidence is not delta_n-necessary."
    ),
    "semantic_mismatch_share": Metric(
        "Semantic mismatch",
        "lower",
        "failure",
        "Share of bags whose evidence shows an anchor its class does not use.",
    ),
    "severe_failure_share": Metric(
        "Severe failure",
        "lower",
        "failure",
        "Share of bags in which several of these failures occur together.",
    ),
    "dice": Metric(
        "Dice", "higher", "truth", "Overlap of marked and positive patches, mean over slides with a lesion."
    ),
    "normal_specificity": Metric(
        "Specificity (normal slides)", "higher", "truth", "Share of patches of normal slides not marked."
    ),
    "patch_specificity": Metric(
        "Specificity (patches)", "higher", "truth", "Share of all negative patches not marked."
    ),
    "froc": Metric(
        "FROC",
        "higher",
        "truth",
        "Mean lesion sensitivity at 1/8 ... 8 false positives per slide, by overlap.",
    ),
    "froc_official": Metric(
        "FROC (CAMELYON16)",
        "higher",
        "truth",
        "Mean lesion sensitivity at 1/4 ... 8 false positives per slide, by point.",
    ),
    "lesion_sensitivity": Metric(
        "Lesion sensitivity", "higher", "truth", "Share of lesions found at one rate of false positives."
    ),
    "marked_share": Metric("Marked share", "neither", "size", "Share of patches at or above the threshold."),
    "map_threshold": Metric("Threshold", "neither", "size", "Score of best Dice on the validation slides."),
    "difference": Metric("Difference", "higher", "task", "Mean over folds of ours minus theirs."),
    **_interval("difference", "", "task", "Bootstrap over folds of the mean difference."),
    **_interval("bag_difference", " (bags)", "task", "Bootstrap over the test bags of each fold."),
    # A p-value is not a score: the smallest is not the best method.
    "p_paired_t": Metric("p (t)", "neither", "task", "Paired t-test over folds, two-sided."),
    "p_paired_t_holm": Metric("p (t, Holm)", "neither", "task", "The same, corrected for all rows."),
    "p_wilcoxon": Metric("p (Wilcoxon)", "neither", "task", "Signed-rank test over folds, two-sided, exact."),
    "p_wilcoxon_holm": Metric("p (Wilcoxon, Holm)", "neither", "task", "The same, corrected for all rows."),
    "cohens_dz": Metric("Cohen's d_z", "higher", "task", "Mean difference in its standard deviations."),
    "rank_biserial": Metric(
        "Rank-biserial", "higher", "task", "Share of ranks in favour minus share against, over folds."
    ),
    "aggregation_time": Metric(
        "Aggregation time", "lower", "cost", "Time of a prediction whose subset is known, whole bag = 1."
    ),
    "explained_time": Metric(
        "Explained time", "lower", "cost", "The same with the time to find the subset, whole bag = 1."
    ),
    "peak_memory": Metric(
        "Peak memory",
        "lower",
        "cost",
        "Rows handed to the host and what its pass holds at once, whole bag = 1.",
    ),
    "extraction_time": Metric(
        "Feature extraction", "lower", "cost", "Time to encode the patches, whole bag = 1."
    ),
    "end_to_end_time": Metric(
        "End-to-end time", "lower", "cost", "Time from the slide to the prediction, whole bag = 1."
    ),
    "patch_ratio": Metric("Patch ratio", "neither", "cost", "Share of the patches that the host pools."),
    "relative_utility": Metric(
        "Relative utility", "higher", "task", "Task metric over the task metric of the whole bags."
    ),
    "srg": Metric(
        "SRG",
        "higher",
        "sufficiency",
        "Area between the flipping curves, least and most relevant patches first: sufficiency and necessity in one.",
    ),
    "least_first_area": Metric(
        "Least-first area",
        "higher",
        "sufficiency",
        "Mean Phi while the patches leave, least relevant first.",
    ),
    "most_first_area": Metric(
        "Most-first area", "lower", "necessity", "Mean Phi while the patches leave, most relevant first."
    ),
    "runtime_ratio": Metric(
        "Runtime", "lower", "cost", "Median time of the scores in passes of the host over the same bag."
    ),
    "reached_share": Metric(
        "Reached",
        "higher",
        "size",
        "Share of bags with an adaptive evidence that is sufficient and necessary.",
    ),
    "review_precision": Metric(
        "Reviewer's precision",
        "higher",
        "truth",
        "Share of the judged patches of a rule that the reviewer accepts.",
    ),
    **_interval("review_precision", " (precision)", "truth", _REVIEW_BOOTSTRAP),
    "review_recall": Metric(
        "Reviewer's recall",
        "higher",
        "truth",
        "Share of the patches the reviewer accepts or misses that a rule chose.",
    ),
    **_interval("review_recall", " (recall)", "truth", _REVIEW_BOOTSTRAP),
    "review_kappa": Metric(
        "Reviewer's kappa", "higher", "truth", "Cohen's kappa of reviewer and rule on the judged patches."
    ),
    **_interval("review_kappa", " (kappa)", "truth", _REVIEW_BOOTSTRAP),
    "judged_patches": Metric(
        "Judged patches", "neither", "size", "Patches at least half of which lie under a reviewer's marks."
    ),
    "judged_share": Metric(
        "Own patches judged", "neither", "size", "Share of the patches of a rule that the reviewer judged."
    ),
    "capped_share": Metric(
        "Capped",
        "lower",
        "size",
        "Share of bags in which no set up to the largest size is both.",
    ),
}
"""Every figure a diagnostic may report. A new one is one line here."""
FAILURE_TYPES = {
    name.removesuffix("_share"): metric.label
    for name, metric in METRICS.items()
    if metric.criterion == "failure" and name.endswith("_share")
}
"""How a slide can fail, each with the words for it."""
