"""Faithful evidence for multiple-instance learning on whole-slide images.

Names are loaded on first use, so that `import gcemil` and `gcemil --help` need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcemil import hosts
    from gcemil.api import FittedModel, audit, explain, fit, load, save, wrap
    from gcemil.bags.bag import Bag, case_bag, slide_bag
    from gcemil.bags.cohort import Cohort
    from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
    from gcemil.diagnostics.snr import SnrScores, snr
    from gcemil.errors import GcemilError
    from gcemil.evidence.anchors import AnchorBank
    from gcemil.evidence.anchors import AnchorBank as anchors  # noqa: N813
    from gcemil.explanation import Interventions, explain_slide
    from gcemil.exports.evidence import Evidence
    from gcemil.hosts.adapters import CallableHost, TorchmilHost
    from gcemil.hosts.host import Embedded, Host, HostOutput, MilHost, Stage
    from gcemil.hosts.own import trust_host
    from gcemil.hosts.slide_encoder import SlideEncoderHost
    from gcemil.hosts.table import HOSTS, HostSpec, create_host
    from gcemil.model import EvidenceOutput, GceMil
    from gcemil.recovery import Recovery, recover
    from gcemil.runs.checkpoint import load_network
    from gcemil.runs.pretrained import from_pretrained, save_pretrained
    from gcemil.training.run import train_run

__version__ = "0.3.0"

__all__ = [
    "HOSTS",
    "AnchorBank",
    "Bag",
    "CallableHost",
    "Cohort",
    "Embedded",
    "Evidence",
    "EvidenceOutput",
    "EvidenceSettings",
    "FittedModel",
    "GceMil",
    "GcemilError",
    "Host",
    "HostOutput",
    "HostSettings",
    "HostSpec",
    "Interventions",
    "MilHost",
    "Recovery",
    "SlideEncoderHost",
    "SnrScores",
    "Stage",
    "TorchmilHost",
    "TrainSettings",
    "anchors",
    "audit",
    "case_bag",
    "create_host",
    "explain",
    "explain_slide",
    "fit",
    "from_pretrained",
    "hosts",
    "load",
    "load_network",
    "recover",
    "save",
    "save_pretrained",
    "slide_bag",
    "snr",
    "train_run",
    "trust_host",
    "wrap",
]

_HOME = {
    name: module
    for module, names in {
        "gcemil.api": ("fit", "explain", "audit", "wrap", "save", "load", "FittedModel"),
        "gcemil.exports.evidence": ("Evidence",),
        "gcemil.bags.bag": ("Bag", "case_bag", "slide_bag"),
        "gcemil.bags.cohort": ("Cohort",),
        "gcemil.config": ("EvidenceSettings", "HostSettings", "TrainSettings"),
        "gcemil.diagnostics.snr": ("SnrScores", "snr"),
        "gcemil.errors": ("GcemilError",),
        "gcemil.evidence.anchors": ("AnchorBank",),
        "gcemil.explanation": ("Interventions", "explain_slide"),
        "gcemil.hosts.adapters": ("CallableHost", "TorchmilHost"),
        "gcemil.hosts.host": ("Embedded", "Host", "HostOutput", "MilHost", "Stage"),
        "gcemil.hosts.own": ("trust_host",),
        "gcemil.hosts.slide_encoder": ("SlideEncoderHost",),
        "gcemil.hosts.table": ("HOSTS", "HostSpec", "create_host"),
        "gcemil.model": ("EvidenceOutput", "GceMil"),
        "gcemil.recovery": ("Recovery", "recover"),
        "gcemil.runs.checkpoint": ("load_network",),
        "gcemil.runs.pretrained": ("from_pretrained", "save_pretrained"),
        "gcemil.training.run": ("train_run",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name == "hosts":
        return import_module("gcemil.hosts")
    if name == "anchors":
        # gcemil.anchors.prototypes(patches) reads better than the name of the class.
        name = "AnchorBank"
    if name not in _HOME:
        raise AttributeError(f"module 'gcemil' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names, also before they are loaded, for tab completion."""
    return [*__all__, "__version__"]
