"""Subset rules at the same size per bag, judged by the same interventions, beside truth where it is known.

The size is that of the recovered evidence. Attention, random and oracle (truth first) are subsets of the plain host;
evidence is judged under the wrapped host, whose evidence it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.loader import SampleRule, load_bags
from gcemil.diagnostics.snr import BagOutcome, SnrScores, bag_outcome, snr_scores
from gcemil.diagnostics.truth import TruthScores, oracle_scores, true_evidence, true_regions, truth_scores
from gcemil.explain import bag_tensors, explain_bag
from gcemil.hosts.host import Host
from gcemil.interventions import Interventions
from gcemil.model import GceMil
from gcemil.recovery.rules import random_k, top_k
from gcemil.shapes import Selected
from gcemil.tasks.task import Task


@dataclass(frozen=True)
class RuleRow:
    rule: str
    snr: SnrScores
    truth: TruthScores | None


@torch.no_grad()
def same_budget_rows(
    model: GceMil,
    plain_host: Host,
    cohort: Cohort,
    bags: Sequence[BagSpec],
    targets: Tensor,
    task: Task,
    *,
    seed: int = 0,
) -> list[RuleRow]:
    """Random, attention, evidence and, where truth exists, oracle; both networks in evaluation mode."""
    outcomes: dict[str, list[BagOutcome]] = {}
    subsets: dict[str, list[Selected]] = {}
    truths: list[Tensor | None] = []
    generator = torch.Generator().manual_seed(seed)
    for _, bag in load_bags(cohort, bags, rule=SampleRule(), ahead=2):
        features, coords = bag_tensors(bag)
        truth = true_evidence(cohort, bag)
        explanation = explain_bag(model, bag)
        evidence = explanation.recovery.selected
        size = int(evidence.sum())
        bench = Interventions(plain_host, features, coords)
        attention = bench.full().scores
        rules = {"random": random_k(len(bag), size, generator=generator), "attention": top_k(attention, size)}
        if truth is not None:
            oracle = oracle_scores(truth, true_regions(cohort, bag), attention)
            rules["oracle"] = top_k(oracle, size)
        found = {name: bag_outcome(bench, selected) for name, selected in rules.items()}
        wrapped = Interventions(model.host, features, coords, embedded=explanation.output.embedded)
        found["evidence"] = bag_outcome(wrapped, evidence, explanation.output.log_gates)
        rules["evidence"] = evidence
        for name, outcome in found.items():
            outcomes.setdefault(name, []).append(outcome)
            subsets.setdefault(name, []).append(rules[name])
        truths.append(truth)
    order = [name for name in ("random", "attention", "evidence", "oracle") if name in outcomes]
    return [
        RuleRow(name, snr_scores(outcomes[name], targets, task), truth_scores(subsets[name], truths))
        for name in order
    ]
