"""One bag asked: its evidence, slide by slide, and what a network says of it when patches are kept or removed.

The interventions, as diagnostics ask for them (the check and repair ask `ask_subsets` of hosts/host.py for the same):

  X       the host, ungated, all rows
  X_pi    the same host under the gates
  X_S     the same host on the kept rows alone; the others are really gone, gates are never recomputed
  X_notS  the same host without the selected rows, which are really gone

Every subset rule, ours or a rival's, is judged by these. The bag is embedded once; a subset only pools again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.errors import BagError, UsageError
from gcemil.evidence.checking import Check, check_subset, compare_answers
from gcemil.evidence.coverage import anchor_coverage, marginal_gains, utility
from gcemil.hosts.host import Embedded, Host, HostOutput, ask_subsets, check_bag, embedded_bag
from gcemil.model import EvidenceOutput, GceMil
from gcemil.records import SlideEvidence
from gcemil.recovery.recover import Recovery, StopReason, ranking, recover, subset_size
from gcemil.row_blocks import is_large
from gcemil.shapes import LogGates, Logits

UNREPAIRED_GATES = {"sigmoid_threshold", "top_k"}
"""Rows of the paper's selector table that are a threshold, or a number of patches, and nothing else."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """A bag's outputs, its recovered evidence, and the prediction from the evidence alone."""

    output: EvidenceOutput
    recovery: Recovery
    discrete: HostOutput
    check: Check
    """What keeping and removing the recovered evidence does to the prediction."""


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
    recovery = recover_evidence(model, output, coords)
    asked = Interventions(model.host, features, coords, embedded=output.embedded)
    kept, removed = asked.kept(recovery.selected), asked.removed(recovery.selected)
    check = compare_answers(
        output.full_logits, kept.logits, None if removed is None else removed.logits, model.tolerances
    )
    return Explanation(output, recovery, kept, check)


def recover_evidence(model: GceMil, output: EvidenceOutput, coords: Tensor | None) -> Recovery:
    """The discrete evidence under the model's own recovery settings; what repair adds must not change what it says."""
    found = _recover(model, output)
    if model.settings.recovery.until_sufficient:
        return _grow(model, output, coords, found)
    if not model.settings.recovery.checked or len(found.added) == 0:
        return found
    confirmed = _count_confirmed(model, output, coords, found)
    return found if confirmed == len(found.added) else _recover(model, output, max_added=confirmed)


def _grow(model: GceMil, output: EvidenceOutput, coords: Tensor | None, found: Recovery) -> Recovery:
    """The recovered set with patches added by score until |Phi(X_pi) - Phi(X_S)| is within the tolerance, or the cap is met."""
    ask = ask_subsets(model.host, output.embedded, coords)
    tolerance = model.settings.recovery.recoverability_tolerance
    order, n_patches = ranking(output.scores), len(output.scores)
    waiting = order[~found.selected[order]]
    # A set that starts beyond the cap is judged as it is: growing never drops a patch.
    room = max(0, subset_size(n_patches, _largest_fraction(model, output)) - int(found.selected.sum()))
    for count in range(room + 1):
        grown = found.selected.index_fill(0, waiting[:count], True)
        if _gap_to_gated(output, ask(grown), model.tolerances.unit) <= tolerance:
            break
    weights, gains, selected = model.anchor_weights(output.full_logits), [], found.selected.clone()
    for patch in waiting[:count].tolist():
        before = utility(selected.to(output.responses.dtype), output.responses, weights)
        selected[patch] = True
        gains.append(float(utility(selected.to(output.responses.dtype), output.responses, weights) - before))
    return replace(
        found,
        selected=grown,
        coverage=anchor_coverage(grown.to(output.responses.dtype), output.responses),
        added=torch.cat([found.added, waiting[:count]]),
        gains=torch.cat([found.gains, found.gains.new_tensor(gains)]),
    )


def _recover(model: GceMil, output: EvidenceOutput, *, max_added: int | None = None) -> Recovery:
    settings, gate = model.settings.recovery, model.settings.gate
    weights = model.anchor_weights(output.full_logits)
    repairs = settings.repair and gate not in UNREPAIRED_GATES and model.is_grounded
    return recover(
        output.gates,
        output.responses,
        weights,
        threshold=model.settings.selection_threshold,
        coverage_target=settings.coverage_target,
        max_fraction=_largest_fraction(model, output),
        reachable=settings.reachable,
        min_weight_share=settings.min_weight_share,
        shortlist=None if repairs else torch.zeros_like(output.opened),
        max_added=max_added,
    )


def _largest_fraction(model: GceMil, output: EvidenceOutput) -> float:
    """The largest share of the bag that evidence may be; never below what the gates were meant to open."""
    settings, n_patches = model.settings, len(output.gates)
    # The check goes beyond the cap where nothing within it keeps the class.
    n_meant = (
        settings.min_patches if output.check is None else max(settings.min_patches, int(output.opened.sum()))
    )
    return min(1.0, max(settings.recovery.max_fraction, n_meant / n_patches))


def _count_confirmed(model: GceMil, output: EvidenceOutput, coords: Tensor | None, found: Recovery) -> int:
    """How many of the patches that repair added may stay: all, or half as many until gates and set agree."""
    ask = ask_subsets(model.host, output.embedded, coords)
    # What the gates alone open is as far from X_pi as it is; repair must not lead further away.
    without = found.selected.index_fill(0, found.added, False)
    tolerance = max(
        model.settings.recovery.recoverability_tolerance,
        _gap_to_gated(output, ask(without), model.tolerances.unit),
    )
    before, count = output.check, len(found.added)
    while count:
        selected = without.index_fill(0, found.added[:count], True)
        if _gap_to_gated(output, ask(selected), model.tolerances.unit) <= tolerance and (
            before is None
            or _is_as_good(check_subset(ask, output.full_logits, selected, model.tolerances), before)
        ):
            return count
        count //= 2
    return count


def _is_as_good(after: Check, before: Check) -> bool:
    """Whether evidence that was faithful remains so, and evidence that kept the class, or the risk near, keeps it."""
    return (
        after.is_faithful >= before.is_faithful
        and after.keeps_class >= before.keeps_class
        and after.excess <= before.excess
    )


def _gap_to_gated(output: EvidenceOutput, kept: Logits, unit: float) -> float:
    """|Phi(X_pi) - Phi(X_S)| for the class predicted on X, or the risk."""
    if len(kept) == 1:
        return abs(float(output.logits[0]) - float(kept[0])) / unit
    predicted = int(output.full_logits.argmax())
    return abs(class_probability(output.logits, predicted) - class_probability(kept, predicted))


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
            ranking=output.ranking,
            is_sufficient=explanation.check.is_sufficient,
            is_necessary=explanation.check.is_necessary,
            prompts=model.bank.prompts,
            anchor_weights=weights.cpu().numpy(),
            hashes=hashes or {},
            **{name: values[span.start : span.stop] for name, values in arrays.items()},
        )
        for span in bag.spans
    ]


class Interventions:
    """One bag, embedded once, asked many questions; no gradient."""

    def __init__(
        self, host: Host, features: Tensor, coords: Tensor | None = None, *, embedded: Embedded | None = None
    ) -> None:
        check_bag(features, coords, in_dim=host.in_dim)
        self._host = host
        self._features = features
        self._coords = coords
        with torch.no_grad():
            self._embedded = embedded_bag(host, features) if embedded is None else embedded

    @torch.no_grad()
    def full(self) -> HostOutput:
        """X."""
        return self._host.aggregate(self._embedded, self._coords)

    @torch.no_grad()
    def gated(self, log_gates: LogGates) -> HostOutput:
        """X_pi."""
        return self._host.gated(self._features, self._embedded, self._coords, log_gates)

    @torch.no_grad()
    def kept(self, selected: Tensor) -> HostOutput:
        """X_S: only the selected patches exist."""
        check_selected(selected, n_patches=len(self._features))
        if not bool(selected.any()):
            raise BagError(
                "A subset without a patch has no prediction. Keep at least the patch of highest score."
            )
        if bool(selected.all()):
            return self.full()
        coords = None if self._coords is None else self._coords[selected]
        return self._host.aggregate(self._embedded.rows(selected), coords)

    def removed(self, selected: Tensor) -> HostOutput | None:
        """X_notS: the selected patches do not exist. None when nothing is left."""
        check_selected(selected, n_patches=len(self._features))
        return None if bool(selected.all()) else self.kept(~selected)


def class_probability(logits: Logits, class_index: int) -> float:
    """Phi of classification: the probability of the class predicted on X."""
    return float(torch.softmax(logits.double(), dim=0)[class_index])


def check_selected(selected: Tensor, *, n_patches: int) -> None:
    """BagError for what is no bool mask over the patches of the bag."""
    # Users call this with tensors of their own: a message says more than a failed annotation.
    if selected.dtype != torch.bool or selected.shape != (n_patches,):
        raise BagError(
            f"A selection is a bool mask over the bag's {n_patches} patches, got {selected.dtype} {tuple(selected.shape)}."
        )
