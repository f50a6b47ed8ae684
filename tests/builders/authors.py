"""Checkpoints as the authors of the hosts save them: their names and shapes, values by the recipe of the parity files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from builders import grid_coords, make_cohort, write_slide
from gcemil.bags.cohort import Cohort
from gcemil.hosts.published import LAYOUTS, expected_length, number

PARITY = Path(__file__).parents[1] / "reference" / "parity"
EXPECTED = {
    "abmil": ("eval", "logit"),
    "clam_sb": ("eval", "logits"),
    "transmil": ("eval_main", "logits"),
    "dsmil": ("eval", "prediction_bag"),
    "ibmil": ("eval_stage2", "Y_prob"),
    "mhim": ("eval_student", "logits"),
    "hdmil": ("eval", "select_logits"),
}
"""Where a parity file has the logits of the whole bag; the pseudo-bags of dtfd and the graph of camil need more than a bag."""


def parity_facts(name: str) -> dict[str, Any]:
    return json.loads((PARITY / f"{name}.json").read_text())


def has_parity(name: str) -> bool:
    """Whether the authors' own code was run for this host."""
    return (PARITY / f"{name}.json").is_file()


def authors_weights(name: str) -> dict[str, Tensor]:
    """The authors' state dict; of ibmil the second stage."""
    told = parity_facts(name)
    generator = np.random.default_rng(told["weights"]["seed"])
    tensors = {}
    for key, shape, scale in told["tensors"]:
        if scale is None:
            tensors[key] = torch.tensor(told["buffers"][key])
        else:
            drawn = (generator.standard_normal(shape) * scale).astype(np.float32)
            tensors[key] = torch.from_numpy(drawn)
    if name == "ibmil":
        tensors = {
            key.removeprefix("stage2/"): one for key, one in tensors.items() if "stage2" in key
        }
    return tensors


def authors_checkpoint(name: str) -> Any:
    """The same as their trainers nest it: several networks, a list of them, a prefix."""
    tensors = authors_weights(name)
    if name in ("dtfd", "mhim"):
        networks: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            network, rest = key.split("/")
            networks.setdefault(network, {})[rest] = tensor
        if name == "dtfd":
            return [
                networks[part]
                for part in ("classifier", "dim_reduction", "attention", "att_classifier")
            ]
        return {"model": networks["student"], "teacher": networks["teacher"]}
    if name == "transmil":
        return {"epoch": 3, "state_dict": {f"model.{key}": one for key, one in tensors.items()}}
    if name == "dsmil":
        return {f"module.{key}": one for key, one in tensors.items()}
    return tensors


def authors_bag(name: str) -> np.ndarray:
    recipe = parity_facts(name)["input"]["bags"]["main"]
    values = np.random.default_rng(recipe["seed"]).standard_normal((recipe["n"], recipe["dim"]))
    values = values.astype(np.float32)
    return np.abs(values) if recipe["abs"] else values


def authors_cohort(name: str, folder: Path, *, n_cases: int = 15) -> Cohort:
    """A cohort of the width this checkpoint reads; its first slide is the bag of the parity file."""
    bag = authors_bag(name)
    cohort = make_cohort(folder, n_cases=n_cases, n_patches=20, dim=bag.shape[1])
    write_slide(folder, cohort.slides[0].slide_id, bag, grid_coords(len(bag)))
    return cohort


def small_checkpoint(name: str, *, in_dim: int, seed: int = 0) -> dict[str, Tensor]:
    """Tensors under the authors' names in small shapes, for two outputs; convolutions keep the shapes they have."""
    sizes = {"in_dim": in_dim, "width": 16, "hidden": 8, "n_outputs": 2, "terms": 5, "heads": 8}
    sizes |= {"key_width": 8, "n_confounders": 3, "n_branches": 2}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for row in LAYOUTS[name][0].rows:
        shape = [expected_length(text, sizes) or 0 for text in row.shape.split()]
        for place in range(2 if row.counted else 1):
            key = number(row.theirs, place)
            tensors[key] = torch.randn(shape, generator=generator) / max(1, shape[-1]) ** 0.5
    return tensors
