"""One colour and one name per thing, in every figure, table and map.

Any two colours stay apart for normal, deuteranope, protanope and tritanope eyes (a test measures it), and no figure
leaves a difference to colour alone: lines have markers, bars have labels, maps have an outline.
"""

from __future__ import annotations

from gcemil.report.geojson import ATTENTION, EVIDENCE


def hexadecimal(color: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)


EVIDENCE_COLOR = hexadecimal(EVIDENCE.color)
ATTENTION_COLOR = hexadecimal(ATTENTION.color)
RANDOM_COLOR = "#a8a8a8"
TRUTH_COLOR = "#1b1b1b"
ORANGE, SKY, VIOLET, LEAF = "#e6a000", "#8ccbee", "#4b2a7b", "#b2df8a"
PALETTE = (
    EVIDENCE_COLOR,
    ATTENTION_COLOR,
    RANDOM_COLOR,
    TRUTH_COLOR,
    ORANGE,
    SKY,
    VIOLET,
    LEAF,
)
GROUPS = (ATTENTION_COLOR, ORANGE, VIOLET, LEAF, EVIDENCE_COLOR, SKY, TRUTH_COLOR, RANDOM_COLOR)
"""For things without a colour of their own, such as classes; they repeat after eight, and markers then differ."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")

INK, MUTED, LINE, PAPER = "#23272b", "#667078", "#d9dee2", "#ffffff"

SMOOTHED = "_smoothed"
RULE_COLORS = {
    "evidence": EVIDENCE_COLOR,
    "gce_discrete": EVIDENCE_COLOR,
    "gce_soft": ORANGE,
    "soft_thresholded": ORANGE,
    "attention": ATTENTION_COLOR,
    "random": RANDOM_COLOR,
    "oracle": TRUTH_COLOR,
}
RIVAL_COLOR = SKY
"""Every other rule: explanations made after training."""
NAMES = {
    "evidence": "GCE evidence",
    "evidence scores": "GCE scores",
    "gce_discrete": "GCE evidence",
    "gce_soft": "GCE scores",
    "soft_thresholded": "gates above threshold",
    "sufficient_prefix": "attention, shortest sufficient",
    "whole_bag": "whole bag",
    "oracle": "oracle (truth)",
    "lrp": "LRP",
    "single": "single patch",
    "gradient_x_input": "gradient times input",
    "full": "all patches",
    "soft": "all patches, gated",
    "discrete": "evidence alone",
    "occlusion_closed_form": "occlusion, closed form",
    "wrapped": "host + GCE",
    "plain": "plain host",
}
"""Words for what findings name by key; anything else is its key with spaces."""


def rule_color(rule: str) -> str:
    return RULE_COLORS.get(rule.removesuffix(SMOOTHED), RIVAL_COLOR)


def readable_name(key: str) -> str:
    """The word a reader sees."""
    if key.endswith(SMOOTHED):
        return f"{readable_name(key.removesuffix(SMOOTHED))}, smoothed"
    return NAMES.get(key, key.replace("_", " "))
