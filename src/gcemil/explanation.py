"""The evidence of a bag, the predictions with it kept and removed, and the verdict on it.

  X       the network on all patches
  X_pi    the same under the gates
  X_S     on the selected patches alone; the others are really gone, gates are never recomputed
  X_notS  without the selected patches

Every set of patches, ours or a rival's, is judged by these. The bag is embedded once; a subset is
only pooled again. outputs.py has Phi, the tolerances and the verdict; search.py finds the evidence
of a given host, or of a class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.errors import BagError, UsageError
from gcemil.evidence.coverage import anchor_coverage, marginal_gains, utility
from gcemil.hosts.host import Embedded, Host, HostOutput, ask_subsets, check_bag, embedded_bag
from gcemil.model import EvidenceOutput, GceMil
from gcemil.outputs import AskedOutput, ClassQuestion, Verdict, judge
from gcemil.predictor import GceEmbedded
from gcemil.records import SlideEvidence
from gcemil.recovery import (
    Recovery,
    StopReason,
    drop_free_riders,
    rank_scores,
    ranking,
    recover,
    subset_size,
    top_k,
)
from gcemil.row_blocks import is_large
from gcemil.search import ClassEvidence, find_class_evidence, find_evidence_of_host, open_only
from gcemil.shapes import LogGates, Scores, Selected


@dataclass(frozen=True, eq=False)
class Explanation:
    """The evidence of a bag, and the predictions from it alone and without it."""

    output: EvidenceOutput
    recovery: Recovery
    kept: HostOutput
    """X_S."""
    removed: HostOutput | None
    """X_notS; None if the evidence is the whole bag."""
    verdict: Verdict
    order: Scores
    """Ranks the patches for subsets of any size, the evidence first."""
    is_confirmed: bool | None = None
    """Whether the evidence exceeds what slides without a lesion show; None without such a class."""
    asked: AskedOutput | None = None
    """The class of the question; None for the predicted one."""
    turning: Selected | None = None
    """The smallest set found whose removal makes the network predict the other class."""


def bag_tensors(bag: Bag, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor | None]:
    """Features and coordinates on the device.

    Features are float32; those of a large bag stay in half precision if they are stored so, and
    share its memory.
    """
    features = torch.from_numpy(np.ascontiguousarray(bag.features)).to(device)
    if features.dtype != torch.float16 or not is_large(len(features)):
        features = features.float()
    coords = (
        None
        if bag.coords is None
        else torch.from_numpy(np.ascontiguousarray(bag.coords)).to(device)
    )
    return features, coords


@torch.no_grad()
def explain_bag(model: GceMil, bag: Bag, question: ClassQuestion | None = None) -> Explanation:
    """Find the evidence of a bag, or of a given class, and judge it by keeping and removing it."""
    if model.training:
        raise UsageError(
            "Evidence is read from a model in evaluation mode. Call model.eval() first."
        )
    features, coords = bag_tensors(bag, model.anchors.device)
    class_evidence = None
    if question is None:
        output = read_evidence_output(model, features, coords, bag.patch_size)
        recovery = recover_evidence(model, output, coords)
        order = order_patches(model, output, recovery.selected)
    else:
        output = model(features, coords, patch_size=bag.patch_size)
        class_evidence, output, recovery = _search_class(model, features, coords, output, question)
        order = rank_scores(ranking(output.scores))
    full = output.answer.logits
    bench = Interventions(model.explained, features, coords, embedded=output.embedded)
    kept, removed = bench.kept(recovery.selected), bench.removed(recovery.selected)
    without = None if removed is None else removed.logits
    kind = model.output_kind if class_evidence is None else class_evidence.asked
    verdict = judge(kind, full, kept.logits, without, model.tolerances)
    is_confirmed = None
    if class_evidence is None and int(model.negative_class) >= 0:
        strength = lesion_strength(model, output, kept, verdict)
        is_confirmed = strength > float(model.confirmation_threshold)
    return Explanation(
        output,
        recovery,
        kept,
        removed,
        verdict,
        order,
        is_confirmed,
        asked=None if class_evidence is None else class_evidence.asked,
        turning=None if class_evidence is None else class_evidence.turning,
    )


def _search_class(
    model: GceMil,
    features: Tensor,
    coords: Tensor | None,
    output: EvidenceOutput,
    question: ClassQuestion,
) -> tuple[ClassEvidence, EvidenceOutput, Recovery]:
    """The evidence of a class by search, as gates and anchors are for the predicted class."""
    host, full = model.explained, output.answer
    asked = question.ask(full.logits)
    class_evidence = find_class_evidence(
        host, features, output.embedded, coords, full, asked, model.tolerances
    )
    selected = class_evidence.selected
    scores = open_only(class_evidence.scores, selected)
    evidence = model.gate_scores(scores, output.responses, count=int(selected.sum()))
    soft = host.gated(features, output.embedded, coords, evidence.log_gates)
    coverage = anchor_coverage(selected.to(output.responses.dtype), output.responses)
    recovery = Recovery(
        selected=selected,
        coverage=coverage,
        targets=torch.zeros_like(coverage),
        stop_reason=StopReason.GATES,
        added=torch.empty(0, dtype=torch.long),
        gains=torch.empty(0),
    )
    return class_evidence, replace(output, **vars(evidence), soft=soft), recovery


def order_patches(model: GceMil, output: EvidenceOutput, selected: Selected) -> Scores:
    """Higher is earlier: selected patches first, each by mean rank of score and contribution."""
    ranks = rank_scores(ranking(output.scores))
    if output.answer.contributions is not None:
        shares = model.output_kind.shares(output.answer.contributions)
        ranks = (ranks + rank_scores(ranking(shares))) / 2
    return torch.where(selected, ranks + len(ranks), ranks)


def lesion_strength(
    model: GceMil, output: EvidenceOutput, kept: HostOutput, verdict: Verdict
) -> float:
    """How surely the evidence alone shows a lesion: 1 - p(no lesion | X_S).

    It is 0 for a slide that is predicted to have no lesion, and for evidence that is not sufficient
    and necessary.
    """
    negative = int(model.negative_class)
    if not verdict.is_faithful or int(output.answer.logits.argmax()) == negative:
        return 0.0
    return 1 - model.output_kind.values(kept.logits)[negative]


@torch.no_grad()
def read_evidence_output(
    model: GceMil, features: Tensor, coords: Tensor | None, patch_size: int | None
) -> EvidenceOutput:
    """The model's output on a bag; around a given host, with gates of the host's own evidence."""
    output = model(features, coords, patch_size=patch_size)
    return find_evidence_of_host(model, output, coords) if model.explains_host else output


# From gates to the discrete evidence


def recover_evidence(model: GceMil, output: EvidenceOutput, coords: Tensor | None) -> Recovery:
    """The discrete evidence: patches with open gates, repaired, without free riders."""
    recovery = _recover(model, output)
    if model.settings.recovery.until_sufficient:
        return _grow(model, output, coords, recovery)
    if not model.settings.recovery.drop_free_riders or model.explains_host:
        return recovery
    selected = drop_free_riders(recovery.selected, _importance(model, output))
    coverage = anchor_coverage(selected.to(output.responses.dtype), output.responses)
    is_kept = selected[recovery.added]
    return replace(
        recovery,
        selected=selected,
        coverage=coverage,
        added=recovery.added[is_kept],
        gains=recovery.gains[is_kept],
    )


def _importance(model: GceMil, output: EvidenceOutput) -> tuple[Scores, Scores]:
    """How much each patch supports the prediction, to the host and to the head; at least 0.

    To the host, its contribution above the mean, or its attention if the host has no contributions.
    To the head, its largest response to an anchor that supports the prediction, if it is beyond
    what slides of other classes show.
    """
    full, head, kind = output.full, model.head, model.output_kind
    shares = full.scores if full.contributions is None else kind.shares(full.contributions)
    to_host = (shares - shares.mean()).clamp_min(0)
    if not isinstance(output.embedded, GceEmbedded):
        return to_host, torch.zeros_like(to_host)
    # Contributions to another class are not evidence for the predicted one.
    if not kind.same_class(output.answer.logits, full.logits):
        to_host = torch.zeros_like(to_host)
    supports = kind.supports(kind.contrast(head.weights, output.answer.logits))
    responses = output.embedded.responses
    is_shown = responses > head.absent.clamp_min(torch.finfo(head.absent.dtype).tiny)
    return to_host, torch.where(is_shown & supports, responses, 0).amax(dim=1)


def _grow(
    model: GceMil, output: EvidenceOutput, coords: Tensor | None, recovery: Recovery
) -> Recovery:
    """Add patches by score until |Phi(X_pi) - Phi(X_S)| is within the tolerance, or to the cap."""
    predict, kind = ask_subsets(model.explained, output.embedded, coords), model.output_kind
    order, n_patches = ranking(output.scores), len(output.scores)
    waiting = order[~recovery.selected[order]]
    # A set that starts beyond the cap is judged as it is: growing never drops a patch.
    room = max(
        0, subset_size(n_patches, _largest_fraction(model, output)) - int(recovery.selected.sum())
    )
    # At most a hundred predictions, however large the slide.
    for count in [*range(0, room + 1, max(1, n_patches // 100)), room]:
        grown = recovery.selected.index_fill(0, waiting[:count], True)
        gated, kept = kind.phi(
            output.answer.logits, torch.stack([output.logits, predict(grown)])
        ).tolist()
        if abs(gated - kept) <= model.tolerances.recoverability:
            break
    weights = model.anchor_weights(output.answer.logits)
    gains, selected = [], recovery.selected.clone()
    for patch in waiting[:count].tolist():
        before = utility(selected.to(output.responses.dtype), output.responses, weights)
        selected[patch] = True
        after = utility(selected.to(output.responses.dtype), output.responses, weights)
        gains.append(float(after - before))
    return replace(
        recovery,
        selected=grown,
        coverage=anchor_coverage(grown.to(output.responses.dtype), output.responses),
        added=torch.cat([recovery.added, waiting[:count]]),
        gains=torch.cat([recovery.gains, recovery.gains.new_tensor(gains)]),
    )


def _recover(model: GceMil, output: EvidenceOutput) -> Recovery:
    settings, gates = model.settings.recovery, output.gates
    repairs = settings.repair and model.is_grounded
    # The patches that repair may add; None: all.
    shortlist: Selected | None = None if repairs else torch.zeros_like(output.opened)
    if repairs and settings.shortlist is not None:
        shortlist = top_k(gates, min(settings.shortlist, len(gates)))
    recovery = recover(
        gates,
        output.responses,
        model.anchor_weights(output.answer.logits),
        threshold=model.settings.selection_threshold,
        coverage_target=settings.coverage_target,
        max_fraction=_largest_fraction(model, output),
        reachable=settings.reachable,
        min_weight_share=settings.min_weight_share,
        shortlist=shortlist,
    )
    return recovery if settings.repair else replace(recovery, stop_reason=StopReason.GATES)


def _largest_fraction(model: GceMil, output: EvidenceOutput) -> float:
    """The largest share of the bag that evidence may be; never below what the gates may open."""
    settings, n_patches = model.settings, len(output.gates)
    return min(1.0, max(settings.recovery.max_fraction, settings.min_patches / n_patches))


def explain_slide(model: GceMil, bag: Bag) -> SlideEvidence:
    """Find the evidence of a bag of one slide.

    `gcemil.explain` does the same for any bag and returns tables and pictures too.

    Args:
        model: A trained model in evaluation mode.
        bag: A bag of one slide.

    Returns:
        Selected patches, gates, scores and responses of every patch, and the verdict.

    Raises:
        BagError: The bag has several slides, or does not fit the model.
        UsageError: The model is in training mode.

    Example:
        >>> import gcemil, torch
        >>> model = gcemil.wrap(lambda bag: bag.mean(dim=0)[:2], 2, patches=torch.randn(40, 8))
        >>> bag = gcemil.slide_bag("S-17", torch.randn(30, 8).numpy())
        >>> gcemil.explain_slide(model, bag).gates.shape
        (30,)
    """
    if len(bag.spans) != 1:
        raise BagError(
            f"Bag '{bag.bag_id}' has {len(bag.spans)} slides; use slide_evidence to get one "
            "record for each."
        )
    return slide_evidence(model, bag, explain_bag(model, bag))[0]


@torch.no_grad()
def slide_evidence(
    model: GceMil, bag: Bag, explanation: Explanation, hashes: dict[str, str] | None = None
) -> list[SlideEvidence]:
    """The evidence of a bag written back to each of its slides."""
    output, recovery = explanation.output, explanation.recovery
    weights = model.anchor_weights(output.answer.logits, explanation.asked)
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
            ranking="host" if model.explains_host else "gce",
            is_sufficient=explanation.verdict.is_sufficient,
            is_necessary=explanation.verdict.is_necessary,
            is_confirmed=explanation.is_confirmed,
            prompts=model.bank.prompts,
            anchor_weights=weights.cpu().numpy(),
            hashes=hashes or {},
            **{name: values[span.start : span.stop] for name, values in arrays.items()},
        )
        for span in bag.spans
    ]


class Interventions:
    """Predictions of one bag with patches kept, removed or gated; it is embedded once.

    Args:
        host: A host, or `model.explained` of a `GceMil`.
        features: Patch features, (patches, in_dim).
        coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
        embedded: The embedded bag; None embeds the features.

    Raises:
        BagError: Features and coordinates do not fit the host.

    Example:
        >>> import gcemil, torch
        >>> host = gcemil.create_host("abmil", in_dim=8, n_outputs=2).eval()
        >>> bench = gcemil.Interventions(host, torch.randn(5, 8))
        >>> selected = torch.tensor([True, True, False, False, False])
        >>> bench.kept(selected).logits.shape, bench.removed(selected).logits.shape
        (torch.Size([2]), torch.Size([2]))
        >>> torch.allclose(bench.gated(torch.zeros(5)).logits, bench.full().logits)
        True
    """

    def __init__(
        self,
        host: Host,
        features: Tensor,
        coords: Tensor | None = None,
        *,
        embedded: Embedded | None = None,
    ) -> None:
        check_bag(features, coords, in_dim=host.in_dim)
        self._host = host
        self._features = features
        self._coords = coords
        with torch.no_grad():
            self._embedded = embedded_bag(host, features) if embedded is None else embedded

    @torch.no_grad()
    def full(self) -> HostOutput:
        """Predict from all patches, X.

        Returns:
            The output of the host.
        """
        return self._host.aggregate(self._embedded, self._coords)

    @torch.no_grad()
    def gated(self, log_gates: LogGates) -> HostOutput:
        """Predict from the gated bag, X_pi.

        Args:
            log_gates: Logarithms of the gates, (patches,); -inf removes a patch.

        Returns:
            The output of the host.

        Raises:
            BagError: Every gate is 0.
        """
        return self._host.gated(self._features, self._embedded, self._coords, log_gates)

    @torch.no_grad()
    def kept(self, selected: Tensor) -> HostOutput:
        """Predict from the selected patches alone, X_S.

        Args:
            selected: Patches to keep, (patches,) of bool.

        Returns:
            The output of the host.

        Raises:
            BagError: No patch is selected, or the mask has the wrong shape or type.
        """
        self._check_selected(selected)
        if not bool(selected.any()):
            raise BagError(
                "A subset without a patch has no prediction. Keep at least the patch of highest "
                "score."
            )
        if bool(selected.all()):
            return self.full()
        coords = None if self._coords is None else self._coords[selected]
        return self._host.aggregate(self._embedded.rows(selected), coords)

    def removed(self, selected: Tensor) -> HostOutput | None:
        """Predict without the selected patches, X_notS.

        Args:
            selected: Patches to remove, (patches,) of bool.

        Returns:
            The output of the host; None if no patch is left.

        Raises:
            BagError: The mask has the wrong shape or type.
        """
        self._check_selected(selected)
        return None if bool(selected.all()) else self.kept(~selected)

    def _check_selected(self, selected: Tensor) -> None:
        # Users call this with tensors of their own: a message is clearer than a failed annotation.
        if selected.dtype != torch.bool or selected.shape != (len(self._features),):
            raise BagError(
                f"A selection is a bool mask over the bag's {len(self._features)} patches, got "
                f"{selected.dtype} {tuple(selected.shape)}."
            )
