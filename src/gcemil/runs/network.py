"""The network of a fold: how it is saved, and how it is built again from its checkpoint alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gcemil.bags.cohort import Cohort
from gcemil.config import TrainSettings
from gcemil.evidence.anchors import AnchorBank
from gcemil.hosts.table import create_host
from gcemil.model import GceMil
from gcemil.runs import checkpoint


@dataclass(frozen=True)
class Ingredients:
    """A network, trained or about to be: `model` is None for the plain host."""

    host: Any
    model: GceMil | None
    reference: Tensor | None

    @property
    def network(self) -> nn.Module:
        return self.model if self.model is not None else self.host


def save_network(path: Path, ingredients: Ingredients, cohort: Cohort, settings: TrainSettings) -> None:
    """Weights, and what is needed to build the network again without the cohort."""
    meta: dict[str, Any] = {
        "settings": settings.model_dump(mode="json"),
        "in_dim": cohort.card.feature_dim,
        "n_outputs": cohort.n_outputs,
        "task": cohort.card.task,
        "classes": list(cohort.card.classes),
        "patch_size_level0": cohort.card.patch_size_level0,
        "encoder": cohort.card.encoder,
    }
    if ingredients.model is not None:
        bank = ingredients.model.bank
        meta["bank"] = {"prompts": list(bank.prompts), "provenance": bank.provenance, "hash": bank.hash}
    checkpoint.save(path, ingredients.network.state_dict(), meta)


def load_network(path: Path, device: torch.device | str = "cpu") -> tuple[Ingredients, dict[str, Any]]:
    """A trained network from its checkpoint alone, in evaluation mode, and what was saved beside it."""
    tensors, meta = checkpoint.load(path)
    settings = TrainSettings.model_validate(meta["settings"])
    host = create_host(
        settings.host.name,
        in_dim=meta["in_dim"],
        n_outputs=meta["n_outputs"],
        gate_mode=settings.host.gate_mode,
        options=settings.host.options,
    )
    model = None
    if settings.evidence is not None:
        bank = AnchorBank(tensors["anchors"], tuple(meta["bank"]["prompts"]), meta["bank"]["provenance"])
        model = GceMil(host, bank, in_dim=meta["in_dim"], settings=settings.evidence)
    ingredients = Ingredients(host, model, None)
    ingredients.network.load_state_dict(tensors)
    ingredients.network.to(device).eval()
    return ingredients, meta
