"""Is this explanation faithful? S/N/R and stability of any model and any patch scores, beside random and oracle.

A rule turns patch scores into a subset, for every rule the same number of patches: max(1, round(budget N)).

  <source>   scores of the model itself, or read from files
  random     one draw per bag: what chance gives
  oracle     truth first, one region after another; only where every bag has its truth

Every row is one comparison:

  whole bag    the model's own task metrics: an explanation of a model that knows nothing explains nothing
  full-kept    X against X_S and X_notS: sufficiency, necessity, size, truth
  soft-kept    X_pi against X_S, for scores that are gates: recoverability. A black box is gated at its input
  dropout s    the bag without a share s of its patches, noise s: features moved by a share s of their deviation. The
  noise s      scores are asked anew, so scores from files have no such row

Phi is the probability of the class predicted on X, or the risk in units of the audited bags' own risks, because the
training risks of a foreign model are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.loader import SampleRule, load_bags
from gcemil.diagnostics.audit_table import AuditTable, AuditTrial, PerturbedTrial, measure_risk_scale
from gcemil.diagnostics.black_box import name_bag_in_errors
from gcemil.diagnostics.judged_evidence import jaccard
from gcemil.diagnostics.perturbed_bags import PERTURBATIONS
from gcemil.diagnostics.snr import bag_outcome
from gcemil.diagnostics.truth import oracle_scores, true_evidence, true_regions, truth_figures
from gcemil.diagnostics.verdicts import Tolerances
from gcemil.errors import BagError, UsageError
from gcemil.explain import bag_tensors
from gcemil.findings import Finding
from gcemil.hosts.host import Host, HostOutput, logarithm
from gcemil.interventions import Interventions
from gcemil.recovery.rules import members, subset_size, top_k
from gcemil.rules import CONTROLS
from gcemil.shapes import Scores, Selected
from gcemil.tasks.task import Task

OnBag = Callable[[int, int], None]


@dataclass(frozen=True)
class ScoreSource:
    """Where the scores of a rule come from."""

    of: Callable[[Bag, HostOutput], Tensor]
    """One score per patch, from the bag and from what the model says of it."""
    follows_bag: bool = True
    """Whether a changed bag gets scores of its own; scores from files do not."""
    are_gates: bool = False
    """Whether they lie in [0, 1] and mean how much of a patch there is."""


OWN_SCORES = ScoreSource(lambda _bag, full: full.scores)
"""What the model itself returns."""


@torch.no_grad()
def audit_model(
    host: Host,
    cohort: Cohort,
    specs: Sequence[BagSpec],
    targets: Tensor,
    task: Task,
    *,
    score_sources: Mapping[str, ScoreSource],
    budget: float = 0.05,
    seed: int = 0,
    on_bag: OnBag | None = None,
    tolerances: Tolerances | None = None,
    dropout: float = 0.1,
    noise: float = 0.1,
    repeats: int = 3,
) -> Finding:
    """Every source and both controls on these bags; the host is any that `Interventions` accepts."""
    check_sources(score_sources, specs)
    tolerances = tolerances or Tolerances()
    changes = {"dropout": dropout, "noise": noise}
    trials: dict[str, list[AuditTrial]] = {}
    bags = load_bags(cohort, specs, rule=SampleRule(), ahead=2)
    for done, (spec, bag) in enumerate(bags, start=1):
        with name_bag_in_errors(spec.bag_id):
            for trial in try_rules(host, cohort, bag, score_sources, budget, changes, repeats, seed):
                trials.setdefault(trial.rule, []).append(trial)
        if on_bag:
            on_bag(done, len(specs))
    # A control over some of the bags would be compared with rules over all of them.
    n_with_truth = len(trials.get("oracle", ()))
    if n_with_truth < len(specs):
        trials.pop("oracle", None)
    table = AuditTable(trials, targets, task, measure_risk_scale(trials["random"], task), tolerances)
    still = [name for name, source in score_sources.items() if not source.follows_bag]
    return Finding(
        name="audit",
        rows=tuple(table.rows()),
        slides=tuple(table.records(specs)),
        notes=tuple(table.notes(n_with_truth=n_with_truth, without_stability=still)),
        settings={
            "budget": budget,
            **{f"{name}_tolerance": value for name, value in vars(tolerances).items()},
            **changes,
            "repeats": repeats,
            "seed": seed,
        },
    )


def try_rules(
    host: Host,
    cohort: Cohort,
    bag: Bag,
    sources: Mapping[str, ScoreSource],
    budget: float,
    changes: Mapping[str, float],
    repeats: int,
    seed: int,
) -> list[AuditTrial]:
    """Every rule on one bag and on its changed versions."""
    truth, regions = true_evidence(cohort, bag), true_regions(cohort, bag)
    bench = Interventions(host, *bag_tensors(bag))
    full = bench.full()
    everyone = torch.arange(len(bag))
    draw = random_stream(seed, bag, "random")
    fixed = {"oracle": oracle_scores(truth, regions, torch.zeros(len(bag)))} if truth is not None else {}
    size = subset_size(len(bag), budget)
    rankings = score_patches(bag, full, sources, fixed, everyone, draw)
    chosen = {rule: top_k(scores, size) for rule, scores in rankings.items()}
    found = {}
    for rule, scores in rankings.items():
        gates = rule in sources and sources[rule].are_gates
        outcome = bag_outcome(
            bench, chosen[rule], take_log_gates(scores) if gates else None, full=full.logits
        )
        found[rule] = AuditTrial(rule, outcome, truth_figures(chosen[rule], scores, truth, regions))
    following = {name: source for name, source in sources.items() if source.follows_bag}
    for name, strength in changes.items():
        for repeat in range(repeats):
            changed = PERTURBATIONS[name](
                bag, strength, generator=random_stream(seed, bag, f"{name} {repeat}")
            )
            rows = torch.from_numpy(changed.rows)
            again = Interventions(host, *bag_tensors(changed.bag))
            rankings = score_patches(changed.bag, again.full(), following, fixed, rows, draw)
            for rule, scores in rankings.items():
                selected = top_k(scores, subset_size(len(rows), budget))
                overlap = subset_overlap(chosen[rule], selected, rows)
                kept = again.kept(selected).logits
                found[rule].perturbed.append(PerturbedTrial(f"{name} {strength:g}", overlap, kept))
    return list(found.values())


def score_patches(
    bag: Bag,
    full: HostOutput,
    sources: Mapping[str, ScoreSource],
    fixed: Mapping[str, Scores],
    rows: Int[Tensor, "k"],
    draw: np.random.Generator,
) -> dict[str, Float[Tensor, "k"]]:
    """Scores of every rule for the patches of this bag; `fixed` ones are those of the bag it came from."""
    found = {name: source.of(bag, full).double() for name, source in sources.items()}
    found["random"] = torch.from_numpy(draw.random(len(rows)))
    return found | {rule: scores[rows].double() for rule, scores in fixed.items()}


def subset_overlap(before: Selected, after: Bool[Tensor, "k"], rows: Int[Tensor, "k"]) -> float:
    """Jaccard of two subsets over the patches both bags have."""
    alive = members(rows, n_patches=len(before))
    return jaccard(before & alive, members(rows[after], n_patches=len(before)))


def take_log_gates(scores: Scores) -> Scores:
    if not bool(((scores >= 0) & (scores <= 1)).all()):
        wrong = int((~((scores >= 0) & (scores <= 1))).nonzero()[0])
        raise BagError(
            f"Gates lie in [0, 1], but patch {wrong} has {float(scores[wrong])}. Audit them as scores."
        )
    return logarithm(scores.float())


def random_stream(seed: int, bag: Bag, purpose: str) -> np.random.Generator:
    """What is drawn depends on seed, bag and purpose alone, not on the bags before."""
    return np.random.default_rng([seed, *f"{purpose} {bag.bag_id}".encode()])


def check_sources(sources: Mapping[str, ScoreSource], specs: Sequence[BagSpec]) -> None:
    if not specs:
        raise UsageError("There is no bag to audit. Choose another --part or --fold.")
    if not sources:
        raise UsageError(
            "There are no scores to audit. Let the model return (logits, scores), or give --scores DIR."
        )
    if taken := [name for name in sources if name in CONTROLS]:
        raise UsageError(f"'{taken[0]}' is the name of a control. Call these scores something else.")
