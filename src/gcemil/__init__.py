"""Faithful evidence for multiple-instance learning on whole-slide images.

Names are loaded when they are first used, so that `import gcemil` and `gcemil --help` need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcemil.bags.bag import Bag, case_bag, slide_bag
    from gcemil.bags.cohort import Cohort
    from gcemil.diagnostics.snr import SnrScores, snr
    from gcemil.errors import GcemilError
    from gcemil.evidence.anchors import AnchorBank
    from gcemil.explain import explain_slide
    from gcemil.hosts.adapters import CallableHost, TorchmilHost
    from gcemil.hosts.table import HOSTS, create_host
    from gcemil.interventions import Interventions
    from gcemil.model import EvidenceOutput, GceMil
    from gcemil.recovery.recover import Recovery, recover

__version__ = "0.2.0"

__all__ = [
    "HOSTS",
    "AnchorBank",
    "Bag",
    "CallableHost",
    "Cohort",
    "EvidenceOutput",
    "GceMil",
    "GcemilError",
    "Interventions",
    "Recovery",
    "SnrScores",
    "TorchmilHost",
    "case_bag",
    "create_host",
    "explain_slide",
    "recover",
    "slide_bag",
    "snr",
]

_HOME = {
    "AnchorBank": "gcemil.evidence.anchors",
    "Bag": "gcemil.bags.bag",
    "CallableHost": "gcemil.hosts.adapters",
    "Cohort": "gcemil.bags.cohort",
    "EvidenceOutput": "gcemil.model",
    "GceMil": "gcemil.model",
    "GcemilError": "gcemil.errors",
    "HOSTS": "gcemil.hosts.table",
    "Interventions": "gcemil.interventions",
    "Recovery": "gcemil.recovery.recover",
    "SnrScores": "gcemil.diagnostics.snr",
    "TorchmilHost": "gcemil.hosts.adapters",
    "case_bag": "gcemil.bags.bag",
    "create_host": "gcemil.hosts.table",
    "explain_slide": "gcemil.explain",
    "recover": "gcemil.recovery.recover",
    "slide_bag": "gcemil.bags.bag",
    "snr": "gcemil.diagnostics.snr",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gcemil' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names, also before they are loaded, so that tab completion shows them."""
    return sorted([*globals(), *__all__])
