"""Several folds of a run as one: their mean prediction, and the patches that most of them chose.

  prediction   classes: the mean probability;  risk or value: the mean
  share        share of the folds that chose a patch
  consensus    patches that more than half of the folds chose; without any, those most chose
  scores       log of the mean of softmax(scores): the scores of different folds share no scale

The consensus is kept and removed under the mean prediction, like any evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.evidence.coverage import anchor_coverage, marginal_gains
from gcemil.explanation import Explanation, Interventions, bag_tensors, slide_evidence
from gcemil.hosts.host import Embedded, Host, HostOutput, MilHost, embedded_bag
from gcemil.model import GceMil
from gcemil.outputs import create_output, judge
from gcemil.records import SlideEvidence
from gcemil.shapes import Selected

MAJORITY = "majority of folds"
"""The stop reason of a consensus, which is not recovered but voted."""


@dataclass(frozen=True)
class EnsembleEmbedded(Embedded):
    """A bag embedded by every fold."""

    parts: tuple[Embedded, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Embedded]) -> EnsembleEmbedded:
        """The embeddings of one bag by each fold."""
        return cls(parts[0].tokens, tuple(parts))

    def rows(self, index: Tensor) -> EnsembleEmbedded:
        return EnsembleEmbedded.of([one.rows(index) for one in self.parts])


class Ensemble(MilHost[Any]):
    """The networks of several folds as one host, in evaluation mode; nothing of it is trained."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        super().__init__(hosts[0].in_dim, hosts[0].n_outputs)
        self.hosts = tuple(hosts)
        self.eval()

    def embed_bag(self, features: Tensor) -> EnsembleEmbedded:
        """The bag embedded by every fold."""
        return EnsembleEmbedded.of([embedded_bag(host, features) for host in self.hosts])

    def aggregate(
        self,
        embedded: Any,
        coords: Tensor | None,
        *,
        log_gates: Tensor | None = None,
        target: Tensor | None = None,
    ) -> HostOutput:
        pairs = zip(self.hosts, embedded.parts, strict=True)
        return average_outputs(
            [host.aggregate(one, coords, log_gates=log_gates) for host, one in pairs]
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
        pairs = zip(self.hosts, embedded.parts, strict=True)
        return average_outputs(
            [host.gated(features, one, coords, log_gates) for host, one in pairs]
        )


def average_outputs(outputs: Sequence[HostOutput]) -> HostOutput:
    """The mean prediction as logits, and the mean scores."""
    logits = torch.stack([one.logits for one in outputs])
    mean = logits.mean(dim=0) if logits.shape[1] == 1 else average_scores(logits)
    return HostOutput(
        mean, outputs[0].bag_feature, average_scores(torch.stack([one.scores for one in outputs]))
    )


def average_scores(scores: Float[Tensor, "k n"]) -> Float[Tensor, "n"]:
    """log mean_k softmax(scores_k)."""
    return torch.log_softmax(scores, dim=1).logsumexp(dim=0) - math.log(len(scores))


def share_folds(chosen: Sequence[Selected]) -> Float[Tensor, "n"]:
    """The share of the folds that chose each patch."""
    return torch.stack(list(chosen)).double().mean(dim=0)


def choose_majority(share: Float[Tensor, "n"]) -> Selected:
    """The patches that more than half of the folds chose, else the most chosen ones."""
    majority = share > 0.5
    return majority if bool(majority.any()) else share == share.max()


@torch.no_grad()
def find_consensus(
    models: Sequence[GceMil],
    bag: Bag,
    explanations: Sequence[Explanation],
    hashes: dict[str, str] | None = None,
) -> list[SlideEvidence]:
    """The consensus of the folds on a bag, a record per slide; of one fold its own evidence."""
    per_fold = [
        slide_evidence(model, bag, explanation, hashes)
        for model, explanation in zip(models, explanations, strict=True)
    ]
    if len(per_fold) == 1:
        return per_fold[0]
    share = share_folds([one.recovery.selected.cpu() for one in explanations])
    selected = choose_majority(share)
    verdict = _judge(models, bag, explanations, selected)
    confirmed = [one.is_confirmed for one in explanations if one.is_confirmed is not None]
    votes: dict[str, Any] = {
        "is_sufficient": verdict.is_sufficient,
        "is_necessary": verdict.is_necessary,
        "is_confirmed": sum(confirmed) > len(confirmed) / 2 if confirmed else None,
    }
    # Prototypes of two folds share their names and nothing else.
    shares_anchors = all(
        one.bank.kind != "prototypes" and one.bank.prompts == models[0].bank.prompts
        for one in models
    )
    joined = []
    for span, records in zip(bag.spans, zip(*per_fold, strict=True), strict=True):
        rows = slice(span.start, span.stop)
        one = _join_records(records, selected[rows], keeps_anchors=shares_anchors)
        joined.append(replace(one, **votes, fold_share=share[rows].numpy()))
    return joined


def _judge(
    models: Sequence[GceMil], bag: Bag, explanations: Sequence[Explanation], selected: Selected
) -> Any:
    """The verdict on the consensus under the mean prediction."""
    features, coords = bag_tensors(bag, models[0].anchors.device)
    embedded = EnsembleEmbedded.of([one.output.embedded for one in explanations])
    host = Ensemble([one.explained for one in models])
    bench = Interventions(host, features, coords, embedded=embedded)
    selected = selected.to(features.device)
    kept, removed = bench.kept(selected), bench.removed(selected)
    spread = fmean(float(one.risk_spread) for one in models)
    kind = create_output(models[0].task, models[0].n_outputs, spread)
    without = None if removed is None else removed.logits
    return judge(kind, bench.full().logits, kept.logits, without, models[0].tolerances)


def _join_records(
    records: Sequence[SlideEvidence], selected: Selected, *, keeps_anchors: bool
) -> SlideEvidence:
    """The records of one slide as one: means over the folds, coverage of the selection."""
    first = records[0]

    def mean(name: str) -> Tensor:
        return torch.from_numpy(np.mean([getattr(one, name) for one in records], axis=0))

    def scores(name: str) -> np.ndarray:
        return average_scores(
            torch.from_numpy(np.stack([getattr(one, name) for one in records]))
        ).numpy()

    responses, weights = torch.zeros(len(selected), 0), torch.zeros(0)
    if keeps_anchors:
        responses, weights = mean("responses"), mean("anchor_weights")
    chosen = selected.to(responses.dtype)
    return replace(
        first,
        selected=selected.numpy(),
        gates=mean("gates").numpy(),
        scores=scores("scores"),
        evidence_scores=scores("evidence_scores"),
        responses=responses.numpy(),
        anchor_weights=weights.numpy(),
        coverage=anchor_coverage(chosen, responses).numpy(),
        marginal_gain=marginal_gains(chosen, responses, weights).numpy(),
        prompts=first.prompts if keeps_anchors else (),
        stop_reason=MAJORITY,
    )
