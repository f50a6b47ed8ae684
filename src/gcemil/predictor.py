"""F, host and evidence head together, behind the contract of a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gcemil.errors import UsageError
from gcemil.evidence.head import EvidenceHead, top_count
from gcemil.hosts.host import (
    ClosedForm,
    Embedded,
    Host,
    HostOutput,
    Stage,
    ask_subsets,
    check_bag,
    closed_form,
    embedded_bag,
    log_with_zero,
)
from gcemil.row_blocks import mapped_rows
from gcemil.shapes import Logits, Scores, Selected


@dataclass(frozen=True)
class GceEmbedded(Embedded):
    """A bag embedded for F: what the host pools, and what the head covers."""

    host: Embedded
    responses: Tensor
    n_patches: int
    """Number of patches of the whole slide, also for a part of it."""

    def present(self) -> dict[str, Tensor]:
        # The host's tensors, its tokens among them, and the responses beside them.
        return {**self.host.present(), "responses": self.responses}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> GceEmbedded:
        own = {name: one for name, one in tensors.items() if name != "responses"}
        host = self.host.with_tensors(own)
        return replace(self, tokens=host.tokens, responses=tensors["responses"], host=host)


class GcePredictor:
    """Host and evidence head together; it can stand wherever a host can."""

    task_weights: Mapping[str, float] = {"bag": 1.0}

    def __init__(self, host: Host, head: EvidenceHead) -> None:
        self.host, self.head = host, head
        self.in_dim, self.n_outputs, self.gate_mode = host.in_dim, host.n_outputs, host.gate_mode

    @property
    def training(self) -> bool:
        return bool(getattr(self.host, "training", False))

    @property
    def reweights_features(self) -> bool:
        return self.host.reweights_features

    def __call__(
        self,
        features: Tensor,
        coords: Tensor | None = None,
        *,
        gates: Tensor | None = None,
        target: Tensor | None = None,
    ) -> HostOutput:
        check_bag(features, coords, in_dim=self.in_dim)
        embedded = self.embed_bag(features)
        if gates is None:
            return self.aggregate(embedded, coords)
        return self.gated(features, embedded, coords, log_with_zero(gates))

    def embed(self, features: Tensor) -> GceEmbedded:
        return self.join(self.host.embed(features), features)

    def embed_bag(self, features: Tensor) -> GceEmbedded:
        """The same in blocks of rows where the bag is large."""
        return self.join(embedded_bag(self.host, features), features)

    def join(self, embedded: Embedded, features: Tensor) -> GceEmbedded:
        """What the host has embedded, with the responses of the head."""
        (responses,) = mapped_rows(lambda rows: [self.head.responses(rows)], features)
        return GceEmbedded(embedded.tokens, embedded, responses, len(features))

    def aggregate(
        self,
        embedded: Any,
        coords: Tensor | None,
        *,
        log_gates: Tensor | None = None,
        target: Tensor | None = None,
    ) -> HostOutput:
        inner = replace(embedded.host, tokens=embedded.tokens)
        return self._mix(
            self.host.aggregate(inner, coords, log_gates=log_gates), embedded, log_gates
        )

    def gated(
        self,
        features: Tensor,
        embedded: Any,
        coords: Tensor | None,
        log_gates: Tensor,
        *,
        target: Tensor | None = None,
    ) -> HostOutput:
        return self._mix(
            self.host.gated(features, embedded.host, coords, log_gates), embedded, log_gates
        )

    def subset_form(self, embedded: Any, coords: Tensor | None) -> Callable[[Selected], Logits]:
        """A function that predicts any subset of the bag, at the cost of the host's own."""
        ask = ask_subsets(self.host, embedded.host, coords)

        def answer(selected: Selected) -> Logits:
            coverage = self.head.coverage(embedded.responses[selected], embedded.n_patches)
            return self.head.mix(ask(selected), self.head.utility(coverage))

        return answer

    def closed_form(self) -> ClosedForm | None:
        """F without, and with only, each patch, where the host has this."""
        form = closed_form(self.host)
        if form is None:
            return None
        outputs = range(self.n_outputs)

        def without(embedded: Any, coords: Tensor | None, index: int) -> Scores:
            host = torch.stack([form.without(embedded.host, coords, c) for c in outputs], dim=1)
            coverage = self.head.coverage_without_each(embedded.responses, embedded.n_patches)
            return self.head.mix(host, self.head.utility(coverage))[:, index]

        def alone(embedded: Any, index: int) -> Scores:
            host = torch.stack([form.alone(embedded.host, c) for c in outputs], dim=1)
            coverage = torch.maximum(
                embedded.responses / top_count(embedded.n_patches), self.head.absent
            )
            return self.head.mix(host, self.head.utility(coverage))[:, index]

        return ClosedForm(without, alone)

    def stages(self) -> tuple[Stage, ...]:
        return self.host.stages()

    def begin_stage(self, stage: Stage, bag_features: Callable[[], Tensor], n_steps: int) -> None:
        raise UsageError("F is fitted after the host was trained; train the host itself.")

    def after_step(self) -> None:
        raise UsageError("F is fitted after the host was trained; train the host itself.")

    def _mix(
        self, output: HostOutput, embedded: GceEmbedded, log_gates: Tensor | None
    ) -> HostOutput:
        gates = None if log_gates is None else log_gates.exp()
        coverage = self.head.coverage(embedded.responses, embedded.n_patches, gates)
        logits = self.head.mix(output.logits, self.head.utility(coverage))
        return replace(
            output, logits=logits, contributions=self._contributions(output, embedded, logits)
        )

    def _contributions(
        self, output: HostOutput, embedded: GceEmbedded, logits: Logits
    ) -> Scores | None:
        """Share of each patch in F: the host's, if it agrees, and the head's marginal."""
        if output.contributions is None:
            return None
        head, weight = self.head, self.head.weight
        rows = head.output_kind.contrast(head.weights, logits)
        # Contributions to another class are not shares of the predicted one.
        agrees = (output.logits.argmax() == logits.argmax()).to(output.contributions.dtype)
        shares = agrees * output.contributions * head.host_scale[1]
        marginals = head.marginals(embedded.responses, embedded.n_patches, rows)
        return (1 - weight) * shares + weight * head.head_scale[1] * marginals
