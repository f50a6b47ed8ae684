"""The subset rules by the paper's row, and the labels under which diagnostics write them.

Rivals are those of the plain host, as in the paper; the same rule asked of the wrapped host is a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gcemil.benchmark.paper_figures import PaperTable
from gcemil.benchmark.tables.query import Wanted


@dataclass(frozen=True)
class Rule:
    name: str
    names: tuple[str, ...]
    """What diagnostics call it."""
    network: str = "plain"
    is_control: bool = False
    """Random and oracle: beside every comparison, never part of it."""

    @property
    def labels(self) -> Wanted:
        return {"rule": self.names, "network": self.network}

    @property
    def is_gated(self) -> bool:
        """Made from gates: it has a C-D gap."""
        return self.names[0] in ("evidence", "gce_soft", "soft_thresholded")


OCCLUSION = ("occlusion", "occlusion_blocks")
SALIENCY = ("saliency", "gradient", "gradient_saliency")

RULES: dict[str, Rule] = {
    "random": Rule("Random-k", ("random",), is_control=True),
    "attention": Rule("Attention top-k", ("attention",)),
    "attention_smoothed": Rule("Attention top-k, half smoothed", ("attention_smoothed",)),
    "clam_attention": Rule("CLAM attention", ("clam_attention",)),
    "gradient": Rule("Gradient saliency", SALIENCY),
    "integrated_gradients": Rule("Integrated gradients", ("integrated_gradients",)),
    "occlusion": Rule("Occlusion", OCCLUSION),
    "contribution": Rule("Signed contribution", ("contribution",)),
    "single": Rule("Keep-one", ("single", "single_blocks")),
    "lrp": Rule("LRP", ("lrp",)),
    "oracle": Rule("Oracle (truth first)", ("oracle",), is_control=True),
    "gce_soft": Rule("GCE soft", ("gce_soft",), "wrapped"),
    "gce_soft_thresholded": Rule("GCE soft thresholded", ("soft_thresholded",), "wrapped"),
    "gce_discrete": Rule("GCE discrete", ("evidence", "gce_discrete"), "wrapped"),
}


def of_wrapped_host(rule: Rule) -> Rule:
    return replace(rule, name=f"{rule.name}, wrapped host", network="wrapped")


def rule_name(key: str, paper: PaperTable, rule: Rule) -> str:
    """As the paper prints it, else our own name."""
    row = paper.row(key)
    return row.name if row else rule.name
