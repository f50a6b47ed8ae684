"""What a fold trains: the host, the wrapper around it, its anchors and their reference patches.

A text bank needs pairs to be reached, examples only that some lie on slides the fold may see; without either the anchors are
prototypes of the fold's own training patches, and every record says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcemil.bags import arrays
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.examples import EXAMPLES
from gcemil.bags.loader import sample_patches
from gcemil.config import EvidenceSettings, TrainSettings
from gcemil.errors import CohortError, ConfigError
from gcemil.evidence.alignment import FactoredFit
from gcemil.evidence.anchors import AnchorBank
from gcemil.evidence.bridge import FreeBridge
from gcemil.hosts.table import create_host
from gcemil.model import GceMil, bridge_kind
from gcemil.runs.network import Ingredients
from gcemil.training.examples import create_example_bank
from gcemil.training.optimizer import stream_seed

REFERENCE_PATCHES_PER_BAG = 20
FITTED_BRIDGES = {"proximal", "frozen", "orthogonal"}


def create_network(
    cohort: Cohort,
    train_bags: Sequence[BagSpec],
    settings: TrainSettings,
    device: torch.device,
    host_weights: Mapping[str, Tensor] | None = None,
) -> Ingredients:
    """Fresh weights from torch's current seed, those of the host as given; anchors, bridge and responses from training patches."""
    host = create_host(
        settings.host.name,
        in_dim=cohort.card.feature_dim,
        n_outputs=cohort.n_outputs,
        gate_mode=settings.host.gate_mode,
        options=settings.host.options,
    )
    if host_weights is not None:
        host.load_state_dict(host_weights)
    if settings.evidence is None:
        return Ingredients(host.to(device), None, None)
    reference = reference_patches(cohort, train_bags, seed=settings.seed)
    fit = None
    if takes_examples(cohort, settings.evidence):
        bank, fit = create_example_bank(cohort, train_bags, reference, rank=settings.evidence.bridge_rank)
    else:
        bank = create_bank(cohort, settings.evidence, reference, seed=settings.seed)
    model = GceMil(host, bank, in_dim=cohort.card.feature_dim, settings=settings.evidence)
    if fit is not None:
        set_example_bridge(model, fit)
    elif bridge_kind(settings.evidence, bank, cohort.card.feature_dim) in FITTED_BRIDGES:
        model.fit_bridge(*read_pairs(cohort))
    model.calibrate(reference)
    return Ingredients(host.to(device), model.to(device), reference.to(device))


def takes_examples(cohort: Cohort, settings: EvidenceSettings) -> bool:
    """Whether the anchors are examples: by the settings, or by the card where the settings leave it open."""
    return settings.anchors == EXAMPLES or (settings.anchors == "auto" and cohort.card.anchors == EXAMPLES)


def set_example_bridge(model: GceMil, fit: FactoredFit) -> None:
    """Examples are reached by the map they were made with."""
    if not isinstance(model.bridge, FreeBridge):
        raise ConfigError(
            f"evidence.bridge is '{model.settings.bridge}', but anchors from examples take auto, frozen, proximal or free."
        )
    model.bridge.set_fit(fit)


def create_bank(cohort: Cohort, settings: EvidenceSettings, reference: Tensor, *, seed: int) -> AnchorBank:
    """The bank the settings ask for; `auto` takes the cohort's own when pairs exist, else prototypes."""
    source = settings.anchors
    if source == "auto":
        source = "cohort" if has_bank(cohort) and has_pairs(cohort) else "prototypes"
    if source == "prototypes":
        return AnchorBank.prototypes(reference, settings.n_prototypes, seed=stream_seed(seed, 1) % 2**31)
    if source in ("generic", "unrelated"):
        return AnchorBank.from_file(existing(cohort, f"anchors_{source}.h5"))
    bank = AnchorBank.from_file(existing(cohort, bank_file(cohort)))
    generator = torch.Generator().manual_seed(stream_seed(seed, 2))
    if source == "shuffled":
        return AnchorBank.shuffled(bank, generator)
    return AnchorBank.random_like(bank, generator) if source == "random" else bank


def bank_file(cohort: Cohort) -> str:
    named = cohort.card.anchors
    return named if named is not None and named.endswith(".h5") else "anchors.h5"


def has_bank(cohort: Cohort) -> bool:
    return (cohort.folder / bank_file(cohort)).is_file()


def has_pairs(cohort: Cohort) -> bool:
    return (cohort.folder / "anchor_pairs.h5").is_file()


def existing(cohort: Cohort, name: str) -> Any:
    """A file directly inside the cohort folder."""
    path = cohort.folder / name
    if path.parent != cohort.folder or not path.is_file():
        raise CohortError(
            f"{cohort.folder} has no '{name}', which these settings need. Use anchors: prototypes."
        )
    return path


def read_pairs(cohort: Cohort) -> tuple[Tensor, Tensor]:
    """The same patches in feature space and in anchor space."""
    path = existing(cohort, "anchor_pairs.h5")
    features, anchor_space = arrays.read_pairs(path)
    if features.shape[1] != cohort.card.feature_dim:
        raise CohortError(
            f"{path}: features of width {features.shape[1]}, but the cohort has width {cohort.card.feature_dim}. "
            "Pairs come from the cohort's own encoder: write them again with 'gcemil anchors pairs'."
        )
    return torch.from_numpy(features), torch.from_numpy(anchor_space)


def reference_patches(cohort: Cohort, bags: Sequence[BagSpec], *, seed: int) -> Tensor:
    """A few random patches of every training bag."""
    parts = []
    for spec in bags:
        layout = cohort.layout(spec)
        generator = np.random.default_rng([stream_seed(seed, 3), *spec.bag_id.encode()])
        rows = sample_patches(len(layout), REFERENCE_PATCHES_PER_BAG, generator)
        parts.append(cohort.read_bag(spec, layout, rows).features.astype(np.float32))
    return torch.from_numpy(np.concatenate(parts))
