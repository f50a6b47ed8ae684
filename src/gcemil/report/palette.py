"""One colour and one name per thing, in every figure, table and map.

Any two colours stay apart for normal, deuteranope, protanope and tritanope eyes (a test measures it), and no figure
leaves a difference to colour alone: lines have markers, bars have labels, maps have an outline.
"""

from __future__ import annotations

from gcemil.rules import RIVAL_COLOR, RULES, find_rule


def hexadecimal(color: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)


EVIDENCE_COLOR, ATTENTION_COLOR = RULES["evidence"].color, RULES["attention"].color
RANDOM_COLOR, TRUTH_COLOR = RULES["random"].color, RULES["oracle"].color
ORANGE, SKY, VIOLET, LEAF = RULES["gce_soft"].color, RIVAL_COLOR, "#4b2a7b", "#b2df8a"
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

NAMES = {
    "evidence scores": "GCE scores",
    "full": "all patches",
    "soft": "all patches, gated",
    "discrete": "evidence alone",
    "occlusion_closed_form": "occlusion, closed form",
    "wrapped": "host + GCE",
    "plain": "plain host",
}
"""Words for what findings name by key and is no rule; anything else is its key with spaces."""


def readable_name(key: str) -> str:
    """The word a reader sees."""
    return NAMES.get(key) or find_rule(key).label
