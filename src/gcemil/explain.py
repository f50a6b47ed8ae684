"""One bag through a trained wrapper: its evidence, slide by slide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.errors import BagError, UsageError
from gcemil.evidence.coverage import marginal_gains
from gcemil.hosts.host import HostOutput
from gcemil.interventions import Interventions
from gcemil.model import EvidenceOutput, GceMil
from gcemil.records import SlideEvidence
from gcemil.recovery.recover import Recovery, StopReason, recover
from gcemil.row_blocks import is_large

UNREPAIRED_GATES = {"sigmoid_threshold"}
"""The row of the paper's selector table that is a threshold and nothing else."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """A bag's outputs, its recovered evidence, and the prediction from the evidence alone."""

    output: EvidenceOutput
    recovery: Recovery
    discrete: HostOutput


def bag_tensors(bag: Bag, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor | None]:
    """Features and coordinates, where the model is.

    Features are float32; those of a large bag stay in half precision where they are stored so, and share its memory.
    """
    features = torch.from_numpy(np.ascontiguousarray(bag.features)).to(device)
    if features.dtype != torch.float16 or not is_large(len(features)):
        features = features.float()
    coords = None if bag.coords is None else torch.from_numpy(np.ascontiguousarray(bag.coords)).to(device)
    return features, coords


@torch.no_grad()
def explain_bag(model: GceMil, bag: Bag) -> Explanation:
    """Gates, recovered subset, and the host on that subset alone."""
    if model.training:
        raise UsageError("Evidence is read from a model in evaluation mode. Call model.eval() first.")
    features, coords = bag_tensors(bag, model.anchors.device)
    output = model(features, coords, step=bag.patch_size)
    recovery = recover_evidence(model, output)
    kept = Interventions(model.host, features, coords, embedded=output.embedded).kept(recovery.selected)
    return Explanation(output, recovery, kept)


def recover_evidence(model: GceMil, output: EvidenceOutput) -> Recovery:
    """The discrete evidence under the model's own recovery settings."""
    settings, gate = model.settings.recovery, model.settings.gate
    weights = model.anchor_weights(output.full_logits)
    repairs = settings.repair and gate not in UNREPAIRED_GATES and model.is_grounded
    return recover(
        output.gates,
        output.responses,
        weights,
        threshold=model.settings.selection_threshold,
        coverage_target=settings.coverage_target,
        # The cap is on what repair adds; it never falls below what the gates were meant to open.
        max_fraction=min(1.0, max(settings.max_fraction, model.settings.min_patches / len(output.gates))),
        reachable=settings.reachable,
        min_weight_share=settings.min_weight_share,
        shortlist=None if repairs else torch.zeros_like(output.opened),
    )


def explain_slide(model: GceMil, bag: Bag) -> SlideEvidence:
    """The evidence of a bag of one slide."""
    if len(bag.spans) != 1:
        raise BagError(
            f"Bag '{bag.bag_id}' has {len(bag.spans)} slides; use slide_evidence to get one record for each."
        )
    return slide_evidence(model, bag, explain_bag(model, bag))[0]


@torch.no_grad()
def slide_evidence(
    model: GceMil, bag: Bag, explanation: Explanation, hashes: dict[str, str] | None = None
) -> list[SlideEvidence]:
    """The evidence of a bag written back to each of its slides."""
    output, recovery = explanation.output, explanation.recovery
    weights = model.anchor_weights(output.full_logits)
    gains = marginal_gains(recovery.selected.to(output.responses.dtype), output.responses, weights)
    per_patch = {
        "selected": recovery.selected,
        "gates": output.gates,
        "scores": output.full.scores,
        "evidence_scores": output.scores,
        "responses": output.responses,
        "marginal_gain": gains,
    }
    arrays = {name: value.cpu().numpy() for name, value in per_patch.items()}
    return [
        SlideEvidence(
            slide_id=span.slide_id,
            coords=bag.slide_coords(span.slide_id),
            coverage=recovery.coverage.cpu().numpy(),
            stop_reason=StopReason(recovery.stop_reason).value,
            prompts=model.bank.prompts,
            hashes=hashes or {},
            **{name: values[span.start : span.stop] for name, values in arrays.items()},
        )
        for span in bag.spans
    ]
