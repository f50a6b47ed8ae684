"""Every diagnostic by name: the function that measures a fold, and its question."""

from __future__ import annotations

DIAGNOSTICS: dict[str, tuple[str, str]] = {
    "snr": ("snr_report:measure_snr", "Is the evidence sufficient, necessary and recoverable?"),
    "budget": (
        "budget:measure_budget",
        "Which rule finds the best patches, all having the same number?",
    ),
    "posthoc": ("posthoc:measure_posthoc", "Do explanations made after training do as well?"),
    "subsets": ("subsets:measure_subsets", "How many disjoint subsets would be evidence enough?"),
    "regions": ("regions:measure_regions", "Which connected regions are enough, which are needed?"),
    "stability": (
        "stability:measure_stability",
        "Does the evidence stay when bag or seed change a little?",
    ),
    "localisation": ("localisation:measure_localisation", "Does it lie on the annotated lesions?"),
    "failures": ("failures:measure_failures", "Which slides fail, and how?"),
    "cost": ("cost:measure_inference_cost", "What does the evidence cost, and what does it save?"),
    "guarantee": (
        "guarantee:measure_guarantee",
        "Which evidence size keeps the prediction, with which promise?",
    ),
    "adaptive": (
        "adaptive:measure_adaptive",
        "How few patches does a slide need, and which rule picks them best?",
    ),
    "bounds": (
        "bounds:measure_bounds",
        "How near is repair to the best coverage, and what is promised of it?",
    ),
    "sweep": ("sweep:measure_sweep", "How do threshold and coverage target move the result?"),
    "sanity": ("sanity:measure_sanity", "Do the figures detect a model without information?"),
}
"""module:function and question of the diagnostics of one fold."""
SIGNIFICANCE = "significance"
ON_REQUEST = ("sanity",)
"""Not measured unless they are named: they train hosts of their own."""
QUESTIONS = {name: question for name, (_, question) in DIAGNOSTICS.items()} | {
    SIGNIFICANCE: "Is the run better than the plain host, and how surely?"
}
"""The question of every diagnostic, as `gcemil diagnose` and the report print it."""
