"""The evidence of every rule in one bag, what the network says of it, and how two such answers differ.

  rule              evidence
  whole_bag         all patches: the part of flips and gaps that is the network's own
  attention         as many patches as the recovered evidence has, by the network's attention
  evidence          the recovered evidence
  soft_thresholded  gates above the threshold, without repair
  random            as many random patches, drawn anew every time: what chance gives
  oracle            as many patches, the true ones first, in an order that never changes

A run without gates takes a fixed share of the bag. Further rules (gradient, occlusion) come in as scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from gcemil.diagnostics.answers import RISK_TOLERANCE, Answers, answers_of
from gcemil.diagnostics.bench import FoldBag, NetworkName, TrainedFold
from gcemil.diagnostics.prefixes import network_view
from gcemil.diagnostics.truth import oracle_scores
from gcemil.explain import Explanation
from gcemil.model import GceMil
from gcemil.recovery.rules import above_threshold, members, random_k, subset_size, top_k
from gcemil.rules import GATED_RULES
from gcemil.shapes import Logits, Scores, Selected

ScoreRule = Callable[[FoldBag, NetworkName], Tensor]
"""Patch scores of one bag under one network, for a rule made elsewhere."""
RuleKey = tuple[str, NetworkName]

WHOLE_BAG = "whole_bag"
FIXED_SHARE = 0.05
"""Evidence of a run without gates."""


@dataclass(frozen=True, eq=False)
class RuleEvidence:
    """The evidence of one rule in one bag, and what the network says of it."""

    selected: Selected
    """Over the patches of the unperturbed bag."""
    full: Logits
    kept: Logits
    gated: Logits | None
    answers: Answers


@dataclass(frozen=True, eq=False)
class OriginalBag:
    """What a bag was before anyone perturbed it."""

    n_patches: int
    truth: Tensor | None
    oracle: Tensor | None
    """A score that ranks the true patches first, whatever any network thinks."""

    @classmethod
    def of(cls, bag: FoldBag) -> OriginalBag:
        nobody = torch.zeros(len(bag))
        oracle = None if bag.truth is None else oracle_scores(bag.truth, bag.regions, nobody)
        return cls(len(bag), bag.truth, oracle)


@dataclass(frozen=True, eq=False)
class EvidenceRules:
    """Every rule's evidence, under every network of a fold."""

    generator: torch.Generator
    share: float = FIXED_SHARE
    risk_tolerance: float = RISK_TOLERANCE
    scores: Mapping[str, ScoreRule] = field(default_factory=dict)

    def collect(
        self, fold: TrainedFold, bag: FoldBag, original: OriginalBag, rows: Int[Tensor, "k"]
    ) -> dict[RuleKey, RuleEvidence]:
        """The evidence in a bag whose patches stand at `rows` of the original."""
        found: dict[RuleKey, RuleEvidence] = {}
        for network in fold.networks:
            view = network_view(fold, bag, network)
            answers = answers_of(fold, network, risk_tolerance=self.risk_tolerance)
            oracle = None if original.oracle is None else original.oracle[rows]
            for rule, selected in self.subsets(fold, bag, network, view.full.scores, oracle).items():
                found[rule, network] = RuleEvidence(
                    selected=members(rows[selected], n_patches=original.n_patches),
                    full=view.full.logits,
                    kept=view.bench.kept(selected).logits,
                    gated=soft_logits(bag.explanation) if rule in GATED_RULES else None,
                    answers=answers,
                )
        return found

    def subsets(
        self, fold: TrainedFold, bag: FoldBag, network: NetworkName, attention: Scores, oracle: Scores | None
    ) -> dict[str, Tensor]:
        """Selections over the patches of the bag at hand."""
        explanation = bag.explanation
        size = subset_size(len(bag), self.share)
        if explanation is not None:
            size = int(explanation.recovery.selected.sum())
        found = {
            WHOLE_BAG: torch.ones(len(bag), dtype=torch.bool),
            "random": random_k(len(bag), size, generator=self.generator),
            "attention": top_k(attention, size),
        }
        found |= {name: top_k(score(bag, network), size) for name, score in self.scores.items()}
        if network == "wrapped" and fold.model is not None and explanation is not None:
            found["soft_thresholded"] = threshold_gates(fold.model, explanation)
            found["evidence"] = explanation.recovery.selected
        if oracle is not None:
            found["oracle"] = top_k(oracle, size)
        return found


def jaccard(one: Selected, other: Selected) -> float:
    """Shared over joint patches; two empty sets are the same set."""
    joint = int((one | other).sum())
    return int((one & other).sum()) / joint if joint else 1.0


def predictions_differ(one: RuleEvidence, other: RuleEvidence) -> bool:
    """Whether the two predictions from the evidence are different answers."""
    if one.answers.is_risk:
        return output_gap(one, other) > one.answers.risk_tolerance
    return int(one.kept.argmax()) != int(other.kept.argmax())


def output_gap(one: RuleEvidence, other: RuleEvidence) -> float:
    """|Phi - Phi'| of the predictions from the evidence, a risk in units of its own network's training risks."""
    first = one.answers.outputs(one.full, one.kept.unsqueeze(0))
    second = other.answers.outputs(one.full, other.kept.unsqueeze(0))
    return abs(float(first) - float(second))


def own_gap(judged: RuleEvidence) -> float:
    """|Phi(X_pi) - Phi(X_S)| of a rule made from gates, |Phi(X) - Phi(X_S)| of any other."""
    reference = judged.full if judged.gated is None else judged.gated
    one, other = judged.answers.outputs(judged.full, torch.stack([reference, judged.kept])).tolist()
    return abs(one - other)


def threshold_gates(model: GceMil, explanation: Explanation) -> Selected:
    """Gates above the threshold, without repair; the best patch when there are none."""
    return above_threshold(explanation.output.gates, model.settings.selection_threshold)


def soft_logits(explanation: Explanation | None) -> Logits | None:
    return None if explanation is None else explanation.output.soft.logits
