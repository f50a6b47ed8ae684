"""Predictions of a trained network on whole bags: full, soft, and from the discrete evidence alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.loader import SampleRule, load_bags
from gcemil.explain import Explanation, bag_tensors, explain_bag
from gcemil.runs.network import Ingredients

Mode = Literal["full", "soft", "discrete"]


def modes_of(ingredients: Ingredients) -> tuple[Mode, ...]:
    return ("full",) if ingredients.model is None else ("full", "soft", "discrete")


def evaluate_bags(
    ingredients: Ingredients,
    cohort: Cohort,
    bags: Sequence[BagSpec],
    *,
    modes: Sequence[Mode],
    on_explained: Callable[[BagSpec, Bag, Explanation], None] | None = None,
) -> dict[Mode, Tensor]:
    """Logits (bags, outputs) per mode, all patches, in the order given."""
    rows: dict[Mode, list[Tensor]] = {mode: [] for mode in modes}
    ingredients.network.eval()
    for spec, bag in load_bags(cohort, bags, rule=SampleRule(), ahead=2):
        logits, explanation = predicted_bag(ingredients, bag, modes=modes)
        for mode in modes:
            rows[mode].append(logits[mode].float().cpu())
        if on_explained and explanation is not None:
            on_explained(spec, bag, explanation)
        # A large bag and its embedding must be gone before the next one is read.
        del bag, explanation
    return {mode: torch.stack(found) for mode, found in rows.items()}


@torch.no_grad()
def predicted_bag(
    ingredients: Ingredients, bag: Bag, *, modes: Sequence[Mode]
) -> tuple[dict[Mode, Tensor], Explanation | None]:
    """Logits by mode; the subset is recovered only where the discrete mode is asked for."""
    device = next(ingredients.network.parameters()).device
    if ingredients.model is None:
        return {"full": ingredients.host(*bag_tensors(bag, device)).logits}, None
    if "discrete" in modes:
        found = explain_bag(ingredients.model, bag)
        return {
            "full": found.output.full_logits,
            "soft": found.output.logits,
            "discrete": found.discrete.logits,
        }, found
    output = ingredients.model(*bag_tensors(bag, device), step=bag.patch_size)
    return {"full": output.full_logits, "soft": output.logits}, None
