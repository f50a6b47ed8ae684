"""The catalogue of subset rules: ways to take patches from a bag, with name, label and colour.

Diagnostics build the subsets (diagnostics/rules.py); findings carry the names. A rule
`<name>_smoothed` is the same ranking under the selector's half smoothing.

The recovered evidence has two entries: `evidence` is the set itself, `gce_discrete` the ranking
that puts this set first, which can be compared with other rankings at any number of patches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SMOOTHED = "_smoothed"
RIVAL_COLOR = "#8ccbee"
"""Explanations made after training: in the background of every figure."""


@dataclass(frozen=True)
class Rule:
    """One way to take patches from a bag."""

    name: str
    label: str
    color: str = RIVAL_COLOR
    is_ours: bool = False
    """Made by the wrapper, so it exists under the wrapped host only."""
    is_gated: bool = False
    """Made from gates, so it has a C-D gap."""
    is_control: bool = False
    """Random and oracle stand beside every comparison and are never part of it."""
    is_main: bool = False
    """Drawn with full strength."""


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("evidence", "GCE evidence", "#a50ff0", is_ours=True, is_gated=True, is_main=True),
        Rule("gce_discrete", "GCE evidence", "#a50ff0", is_ours=True, is_gated=True, is_main=True),
        Rule("gce_soft", "GCE scores", "#e6a000", is_ours=True, is_gated=True, is_main=True),
        Rule("soft_thresholded", "gates above threshold", "#e6a000", is_ours=True, is_gated=True),
        Rule("attention", "attention", "#1f77b4", is_main=True),
        Rule("clam_attention", "clam attention"),
        Rule("contribution", "contribution"),
        Rule("saliency", "saliency"),
        Rule("gradient_x_input", "gradient times input"),
        Rule("integrated_gradients", "integrated gradients"),
        Rule("occlusion", "occlusion"),
        Rule("occlusion_blocks", "occlusion blocks"),
        Rule("single", "single patch"),
        Rule("single_blocks", "single blocks"),
        Rule("lrp", "LRP"),
        Rule("sufficient_prefix", "attention, shortest sufficient"),
        Rule("whole_bag", "whole bag"),
        Rule("random", "random", "#a8a8a8", is_control=True, is_main=True),
        Rule("oracle", "oracle (truth)", "#1b1b1b", is_control=True, is_main=True),
    )
}
"""In the order in which readers want them: ours, attention, rivals, controls."""

CONTROLS = tuple(rule.name for rule in RULES.values() if rule.is_control)
GATED_RULES = tuple(rule.name for rule in RULES.values() if rule.is_gated)
MAIN_RULES = tuple(rule.name for rule in RULES.values() if rule.is_main)
FIRST_RULES = tuple(name for name in MAIN_RULES if name not in CONTROLS)


def find_rule(name: str) -> Rule:
    """The rule of this name; scores from elsewhere are a rival under their own name."""
    plain = name.removesuffix(SMOOTHED)
    rule = RULES.get(plain, Rule(plain, plain.replace("_", " ")))
    return rule if plain == name else replace(rule, name=name, label=f"{rule.label}, smoothed")


def order_rules(names: Iterable[str]) -> list[str]:
    """Ours first, attention next, then the rivals by name, the two controls last."""
    distinct = list(dict.fromkeys(names))
    first = [name for name in FIRST_RULES if name in distinct]
    last = [name for name in CONTROLS if name in distinct]
    return [*first, *sorted(name for name in distinct if name not in (*first, *last)), *last]
