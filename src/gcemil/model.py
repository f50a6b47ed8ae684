"""GCE-MIL: a host and the evidence wrapper around it. The only place where the two meet.

  r = response(cos(B(h), a))                  response of each patch to each anchor          (Eq. 2)
  s = selector(F's ungated view, r, coords)   one score per patch
  pi = gate((s - nu_x) / T)                   continuous evidence                            (Eq. 3)
  v = noisy-OR(pi, r)                         probability that the evidence shows an anchor  (Eq. 4)
  F(X), F(X_pi)                               host and evidence head together, ungated and gated
  f(X)                                        the host's own prediction

`model(...)` is a pure function: no search, and the same in training and evaluation but for dropout
and the temperature of the gates. Which patches are the evidence, and whether they hold, is decided
in explanation.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gcemil.bags.cohort import Task
from gcemil.config import EvidenceSettings
from gcemil.errors import UsageError
from gcemil.evidence.anchors import AnchorBank, CalibratedResponse, PaperResponse
from gcemil.evidence.bridge import BRIDGES
from gcemil.evidence.coverage import (
    ClassUtility,
    RiskPathways,
    anchor_coverage,
    patch_concept_presence,
)
from gcemil.evidence.gates import Gate
from gcemil.evidence.head import EvidenceHead
from gcemil.evidence.selector import (
    LIKENESS_WEIGHT_WITHOUT_ANCHORS,
    Neighbourhood,
    Selector,
    class_likeness,
)
from gcemil.hosts.host import (
    Embedded,
    Host,
    HostOutput,
    check_bag,
    check_finite,
    closed_form,
    embedded_bag,
    not_finite_error,
)
from gcemil.outputs import AskedOutput, Output, Tolerances, create_output, guess_task
from gcemil.predictor import GcePredictor
from gcemil.row_blocks import apply_reads, plain_read
from gcemil.shapes import (
    AnchorWeights,
    ClassAnchorWeights,
    Coverage,
    Gates,
    LogGates,
    Logits,
    Responses,
    Scores,
    Selected,
)


@dataclass(frozen=True)
class Evidence:
    """Gates, scores, responses and coverage of one bag."""

    gates: Gates
    log_gates: LogGates
    opened: Selected
    """Patches the gate itself opens, before any repair."""
    scores: Scores
    """The selector's score of every patch."""
    responses: Responses
    coverage: Coverage
    """v_m of the gates."""


@dataclass(frozen=True)
class GatedOutput(Evidence):
    """Evidence, and the prediction under it."""

    soft: HostOutput
    """F on the gated bag X_pi."""

    @property
    def logits(self) -> Logits:
        return self.soft.logits


@dataclass(frozen=True)
class EvidenceOutput(GatedOutput):
    """The output of `GceMil` for one bag: predictions, gates, scores, responses and coverage.

    Example:
        >>> import gcemil, torch
        >>> model = gcemil.wrap(lambda bag: bag.mean(dim=0)[:2], 3, patches=torch.randn(60, 8))
        >>> output = model(torch.randn(20, 8))
        >>> output.gates.shape, output.coverage.shape, output.answer.logits.shape
        (torch.Size([20]), torch.Size([3]), torch.Size([2]))
    """

    full: HostOutput
    """Output of the host on the ungated bag X."""
    gce: HostOutput
    """Output of F on the ungated bag; that of the host if the head has no vote."""
    head_logits: Logits | None
    """Logits of the evidence head alone, (n_outputs,); None before it is fitted."""
    answer: HostOutput
    """The main prediction, which the evidence explains: `gce`, or `full` for a given host."""
    embedded: Embedded
    """The embedded bag from which `answer` was pooled."""

    @property
    def full_logits(self) -> Logits:
        """Logits of the host on the ungated bag, (n_outputs,)."""
        return self.full.logits


class GceMil(nn.Module):
    """A host with the evidence wrapper around it.

    `gcemil.wrap` calibrates one for a trained host, `gcemil.fit` trains host and wrapper.

    Args:
        host: A module that implements the `Host` protocol.
        anchors: Concept embeddings.
        in_dim: Width of the features.
        settings: How evidence is found; None takes the default recipe.
        explains_host: The evidence explains the host. False: host and evidence head together (F).
        task: What the host predicts; None takes one output as a risk.

    Raises:
        UsageError: `in_dim` is not that of the host.

    Example:
        >>> import gcemil, torch
        >>> host = gcemil.create_host("abmil", in_dim=8, n_outputs=2)
        >>> patches, features = torch.randn(60, 8), torch.randn(20, 8)
        >>> model = gcemil.GceMil(host, gcemil.anchors.prototypes(patches, 3), in_dim=8).eval()
        >>> model.calibrate(patches)
        >>> model.set_temperature(0.1)
        >>> output = model(features)
        >>> model.responses(features).shape, model.anchor_weights(output.answer.logits).shape
        (torch.Size([20, 3]), torch.Size([3]))
        >>> model.gated(features).logits.shape
        torch.Size([2])
        >>> evidence = model.evidence(features, None, output.answer, None)
        >>> torch.equal(evidence.gates, output.gates)
        True
        >>> model.gate_scores(output.scores, output.responses, count=5).gates.shape
        torch.Size([20])
        >>> model.presence(output.responses, output.answer.logits).shape
        torch.Size([20])
        >>> model.patch_shares(output.answer, output.embedded, None).shape
        torch.Size([20])
    """

    anchors: Tensor
    temperature: Tensor
    risk_spread: Tensor
    class_directions: Tensor
    negative_class: Tensor
    confirmation_threshold: Tensor

    def __init__(
        self,
        host: Host,
        anchors: AnchorBank,
        *,
        in_dim: int,
        settings: EvidenceSettings | None = None,
        explains_host: bool = False,
        task: Task | None = None,
    ) -> None:
        super().__init__()
        settings = settings or EvidenceSettings()
        if in_dim != host.in_dim:
            raise UsageError(
                f"The host takes features of width {host.in_dim}, "
                f"the wrapper was given in_dim={in_dim}."
            )
        self.host: Host = host
        self.explains_host = explains_host
        self.settings = settings
        self.in_dim = in_dim
        self.n_outputs = host.n_outputs
        self.task: Task = task or guess_task(host.n_outputs)
        self.bank = anchors
        self.is_grounded = settings.ground_prototypes or anchors.kind != "prototypes"
        """Whether the anchors act on scores, gates and repair, or are shown only."""
        self.register_buffer("anchors", anchors.embeddings.clone())
        self.register_buffer("temperature", torch.tensor(1.0))
        # The unit in which risks are compared; set after training.
        self.register_buffer("risk_spread", torch.tensor(1.0))
        # Directions of patches that decide a class; set after training (training/directions.py).
        self.register_buffer("class_directions", torch.zeros(host.n_outputs, in_dim))
        # The class without a lesion (-1: none), and the threshold of confirmed evidence; set after.
        self.register_buffer("negative_class", torch.tensor(-1))
        self.register_buffer("confirmation_threshold", torch.tensor(0.0))
        kind = bridge_kind(settings, anchors, in_dim)
        self.bridge = BRIDGES[kind](in_dim, anchors.anchor_dim, rank=settings.bridge_rank)
        self.response: PaperResponse | CalibratedResponse = (
            PaperResponse()
            if settings.responses == "paper"
            else CalibratedResponse(anchors.n_anchors)
        )
        self.selector = Selector(
            in_dim,
            adapter_rank=settings.adapter_rank,
            hidden=settings.hidden,
            morphology=settings.morphology_term,
            smoothing=settings.smoothing,
        )
        self.gate = Gate(
            settings.gate,
            budget=settings.budget,
            centre=settings.centre,
            floor=settings.min_patches,
        )
        n_read = anchors.n_anchors if self.is_grounded else max(1, host.n_outputs)
        self.head = EvidenceHead(in_dim, n_read, host.n_outputs, self.task)
        self.utility: ClassUtility | RiskPathways = (
            RiskPathways(anchors.n_anchors)
            if self.output_kind.is_number
            else ClassUtility(host.n_outputs, anchors.n_anchors)
        )

    def forward(
        self,
        features: Tensor,
        coords: Tensor | None = None,
        *,
        patch_size: int | None = None,
        target: Tensor | None = None,
    ) -> EvidenceOutput:
        """Predict one bag and compute its gates.

        Args:
            features: Patch features, (patches, in_dim).
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
            patch_size: Side of a patch in level-0 pixels; None if unknown.
            target: The label in training; None otherwise.

        Returns:
            Predictions on all patches and under the gates, with gates, scores and responses.

        Raises:
            BagError: Features and coordinates do not fit together, or the host returns NaN.

        Example:
            >>> import gcemil, torch
            >>> model = gcemil.wrap(lambda bag: bag.mean(dim=0)[:2], 3, patches=torch.randn(60, 8))
            >>> model(torch.randn(20, 8)).answer.logits.shape
            torch.Size([2])
        """
        # Users call this: shapes are checked here with a message, not by annotation.
        check_bag(features, coords, in_dim=self.in_dim)
        embedded: Embedded = embedded_bag(self.host, features)
        full = self.host.aggregate(embedded, coords, target=target)
        check_finite(full, features)
        predictor = GcePredictor(self.host, self.head)
        gce, of_gce, head_logits = full, embedded, None
        if self.head.is_fitted:
            joined = predictor.join(embedded, features)
            head_logits = self.head.utility(self.head.coverage(joined.responses, joined.n_patches))
            if self.head.has_vote:
                gce, of_gce = predictor.aggregate(joined, coords), joined
        answer, embedded = (full, embedded) if self.explains_host else (gce, of_gce)
        evidence = self.evidence(features, coords, answer, patch_size)
        soft = self.explained.gated(features, embedded, coords, evidence.log_gates, target=target)
        return EvidenceOutput(
            **vars(evidence),
            soft=soft,
            full=full,
            gce=gce,
            head_logits=head_logits,
            answer=answer,
            embedded=embedded,
        )

    @property
    def explained(self) -> Host:
        """The predictor that the evidence explains: F, or a given host."""
        return self.host if self.explains_host else self.predictor

    @property
    def predictor(self) -> Host:
        """F: host and evidence head together, or the host itself if the head has no vote."""
        return GcePredictor(self.host, self.head) if self.head.has_vote else self.host

    def gated(
        self, features: Tensor, coords: Tensor | None = None, *, patch_size: int | None = None
    ) -> GatedOutput:
        """Predict the gated bag X_pi.

        Args:
            features: Patch features, (patches, in_dim).
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
            patch_size: Side of a patch in level-0 pixels; None if unknown.

        Returns:
            The prediction under the gates, with gates, scores and responses.

        Raises:
            BagError: Features and coordinates do not fit together, or a score is NaN.
        """
        if self.reads_host:
            return self(features, coords, patch_size=patch_size)
        check_bag(features, coords, in_dim=self.in_dim)
        evidence = self.evidence(features, coords, None, patch_size)
        # A NaN score would close its gate unnoticed.
        if not bool(torch.isfinite(evidence.scores).all()):
            raise not_finite_error(
                features,
                "The selector returned NaN or infinite scores for finite features: "
                "it has diverged.",
            )
        if self.host.reweights_features:
            soft = self.host(features, coords, gates=evidence.log_gates.exp())
        else:
            embedded = embedded_bag(self.host, features)
            soft = self.host.gated(features, embedded, coords, evidence.log_gates)
            check_finite(soft, features)
        return GatedOutput(**vars(evidence), soft=soft)

    @property
    def reads_host(self) -> bool:
        """Whether the score depends on the host's output for the ungated bag."""
        settings = self.settings
        return (
            settings.attention_term
            or settings.contribution_term
            or self.reads_presence
            or self.reads_likeness
        )

    @property
    def reads_likeness(self) -> bool:
        """Whether the score reads the decisive patches of training slides; for classes only."""
        return (
            self.settings.likeness_term
            and not self.output_kind.is_number
            and not self.training
            and bool(self.class_directions.any())
        )

    @property
    def reads_presence(self) -> bool:
        """Whether the score reads the responses to the anchors."""
        return self.settings.presence_term and self.is_grounded

    def evidence(
        self,
        features: Tensor,
        coords: Tensor | None,
        full: HostOutput | None,
        patch_size: int | None,
    ) -> Evidence:
        """Compute the evidence of a bag.

        Args:
            features: Patch features, (patches, in_dim).
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.
            full: The prediction on all patches; None leaves out the terms that read it.
            patch_size: Side of a patch in level-0 pixels; None if unknown.

        Returns:
            Scores, gates, responses and coverage.
        """
        settings, reads_likeness = self.settings, full is not None and self.reads_likeness
        # One matrix product serves the selector, the bridge and the class directions.
        reads = [*self.selector.reads(), self.bridge.read(self.anchors)]
        n_hidden = len(reads) - 1
        if reads_likeness:
            reads.append(plain_read(self.class_directions))
        products = apply_reads(features, reads)
        responses = self.response(products[n_hidden])
        terms: dict[str, Scores | None] = {}
        if full is not None:
            if settings.attention_term:
                terms["attention_logits"] = full.scores
            if settings.contribution_term and full.contributions is not None:
                terms["contributions"] = self.output_kind.shares(full.contributions)
            if self.reads_presence:
                terms["presence"] = self.presence(responses, full.logits)
            if reads_likeness:
                likeness = class_likeness(products[-1], torch.softmax(full.logits.float(), dim=0))
                weight = 1.0 if self.reads_presence else LIKENESS_WEIGHT_WITHOUT_ANCHORS
                terms["likeness"] = weight * likeness
        around = None
        if coords is not None and settings.smoothing > 0:
            around = Neighbourhood.of(coords, patch_size)
        scores = self.selector.scores(
            list(products[:n_hidden]),
            coords,
            n_patches=len(responses),
            neighbourhood=around,
            **terms,
        )
        return self.gate_scores(scores, responses)

    def gate_scores(
        self, scores: Scores, responses: Responses, count: int | None = None
    ) -> Evidence:
        """Turn scores into gates.

        Args:
            scores: One score per patch, (patches,).
            responses: Response of each patch to each anchor in [0, 1], (patches, anchors).
            count: Number of patches whose gates open; None takes the budget.

        Returns:
            Gates, scores, responses and coverage.
        """
        gate = self.gate(scores, temperature=float(self.temperature), count=count)
        if not self.training:
            gate = gate.shut()
        return Evidence(
            gates=gate.gates,
            log_gates=gate.log_gates,
            opened=gate.selected,
            scores=scores,
            responses=responses,
            coverage=anchor_coverage(gate.gates, responses),
        )

    @property
    def output_kind(self) -> Output:
        """Meaning of the outputs: classes, a risk or a value."""
        return create_output(self.task, self.n_outputs, self.risk_spread)

    @property
    def tolerances(self) -> Tolerances:
        """Tolerances of the verdicts sufficient, necessary and recoverable."""
        given = self.settings.recovery
        return Tolerances(
            given.sufficiency_tolerance, given.necessity_tolerance, given.recoverability_tolerance
        )

    def patch_shares(
        self, full: HostOutput, embedded: Embedded, coords: Tensor | None
    ) -> Scores | None:
        """Compute how much each patch supports the prediction of the host.

        Args:
            full: The output of the host on all patches.
            embedded: The embedded bag.
            coords: Top-left corners in level-0 pixels, (patches, 2); None if unknown.

        Returns:
            The contribution of each patch, or the logit lost without it, (patches,); None if the
            host has neither.
        """
        if full.contributions is not None:
            return self.output_kind.shares(full.contributions)
        form = closed_form(self.host)
        # A bag of one patch has nothing left without it.
        if form is None or self.output_kind.is_number or len(full.scores) < 2:
            return None
        losses: Scores = -form.without(embedded, coords, int(full.logits.argmax()))
        return losses

    @torch.no_grad()
    def presence(self, responses: Responses, logits: Logits) -> Gates:
        """Compute q_i, how present the concepts of the likely classes are in each patch.

        Classes are weighted by their probability on X: with the predicted class alone, a wrong
        prediction would select the wrong concepts.

        Args:
            responses: Response of each patch to each anchor in [0, 1], (patches, anchors).
            logits: The prediction on all patches, (n_outputs,).

        Returns:
            A number in [0, 1] per patch, (patches,).
        """
        weights = self._class_weights
        tiny = torch.finfo(weights.dtype).tiny
        relative = weights / weights.amax(dim=1, keepdim=True).clamp_min(tiny)
        # A single output has probability 1, so a number needs no case of its own.
        mean = torch.softmax(logits.float(), dim=0) @ relative
        return patch_concept_presence(responses, mean / mean.max().clamp_min(tiny))

    def responses(self, features: Tensor) -> Responses:
        """Compute the responses r_im to the anchors.

        Args:
            features: Patch features, (patches, in_dim).

        Returns:
            Numbers in [0, 1], (patches, anchors).
        """
        return self.response(self.bridge.cosines(features, self.anchors))

    def anchor_weights(self, logits: Logits, asked: AskedOutput | None = None) -> AnchorWeights:
        """Look up the weights of the anchors for a class, or for the risk or value.

        Args:
            logits: The prediction on all patches, (n_outputs,).
            asked: The class of a question; None takes the predicted class.

        Returns:
            One weight per anchor, at least 0, (anchors,).
        """
        return self._class_weights[logits.argmax() if asked is None else asked.target]

    @property
    def _class_weights(self) -> ClassAnchorWeights:
        """alpha_cm, or |beta_m| in one row; of the head if it votes on these anchors."""
        if self.head.has_vote and self.is_grounded:
            return self.head.weights.abs()
        return self.utility.anchor_weights

    @torch.no_grad()
    def calibrate(self, reference: Tensor) -> None:
        """Set the offsets and scales of the responses from reference patches.

        Args:
            reference: Patches of training slides, (patches, in_dim).

        Raises:
            InputError: The patches have no spread.
        """
        self.response.calibrate(self.bridge.cosines(reference, self.anchors))

    def set_temperature(self, temperature: float) -> None:
        """Set the temperature of the gates.

        Args:
            temperature: Above 0; the lower, the closer the gates are to 0 and 1.
        """
        self.temperature.fill_(temperature)


def bridge_kind(settings: EvidenceSettings, anchors: AnchorBank, in_dim: int) -> str:
    """The bridge a bank needs: prototypes and patches live in feature space, text needs pairs."""
    if settings.bridge != "auto":
        return settings.bridge
    if anchors.kind in ("examples", "prompt_patches"):
        return "centred"
    return (
        "identity" if anchors.kind == "prototypes" and anchors.anchor_dim == in_dim else "proximal"
    )
