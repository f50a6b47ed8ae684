"""The search for the evidence of a given model, or of a class: along rankings, by intervention.

  1. rank the patches in a few ways the host offers
  2. from the smallest size on, keep and remove the first patches of each ranking; stop at a
     faithful set
  3. drop its last patches as long as it stays faithful

The search is stricter than the reported verdict, needs no label, and predicts subsets of an
embedded bag only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gcemil.hosts.host import Host, HostOutput, ask_subsets, closed_form
from gcemil.model import EvidenceOutput, GceMil
from gcemil.outputs import AskedOutput, Output, Tolerances, Verdict, judge
from gcemil.recovery import members, ranking, subset_size
from gcemil.shapes import Logits, Scores, Selected

SEARCHED_SHARES = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2)
"""Shares of a bag that the search for the evidence of a given host tries."""
STRICTER = 0.4
"""The tolerances of the search are this much stricter than the reported ones."""


def find_evidence_of_host(
    model: GceMil, output: EvidenceOutput, coords: Tensor | None
) -> EvidenceOutput:
    """The smallest sufficient and necessary set along the host's own rankings.

    Rankings: attention, signed contribution, loss of the prediction without each patch, prediction
    from each patch alone. Anchors have no part in this; they only name what the patches show. The
    search is stricter than the reported verdict.
    """
    search = Search(
        ask_subsets(model.host, output.embedded, coords),
        output.full_logits,
        model.output_kind,
        _tighten(model.tolerances),
    )
    candidate = search.choose(
        list(_host_rankings(model, output, coords).values()), _searched_sizes(output.scores)
    )
    selected = search.shrink(candidate)
    scores = open_only(candidate.scores, selected)
    evidence = model.gate_scores(scores, output.responses, count=int(selected.sum()))
    soft = model.host.aggregate(output.embedded, coords, log_gates=evidence.log_gates)
    return replace(output, **vars(evidence), soft=soft)


def _host_rankings(
    model: GceMil, output: EvidenceOutput, coords: Tensor | None
) -> dict[str, Scores]:
    """How the host itself ranks the patches of a bag, as far as it can."""
    full, index = output.full, int(output.full_logits.argmax())
    rankings = {"attention": full.scores}
    if (shares := model.patch_shares(full, output.embedded, coords)) is not None:
        rankings["contribution"] = shares
    form = closed_form(model.host)
    if form is not None and len(full.scores) > 1:
        rankings["occlusion"] = -form.without(output.embedded, coords, index)
        rankings["alone"] = form.alone(output.embedded, index)
    return rankings


def _tighten(reported: Tolerances) -> Tolerances:
    """Stricter tolerances for a search, so that its result holds within the reported ones."""
    sufficiency, necessity = STRICTER * reported.sufficiency, reported.necessity / STRICTER
    return replace(reported, sufficiency=sufficiency, necessity=necessity)


def _searched_sizes(scores: Scores) -> list[int]:
    return sorted({subset_size(len(scores), share) for share in SEARCHED_SHARES})


def open_only(scores: Scores, selected: Selected) -> Scores:
    """Scores under which exactly these patches open, in the order of their ranking."""
    spread = (scores.max() - scores.min()).clamp_min(torch.finfo(scores.dtype).tiny)
    return torch.where(selected, scores + 2 * spread, scores)


@dataclass(frozen=True, eq=False)
class ClassEvidence:
    """The patches that support a class."""

    asked: AskedOutput
    selected: Selected
    scores: Scores
    """The ranking that they were taken from."""
    turning: Selected | None
    """The smallest set found whose removal makes the network predict the other class."""


def find_class_evidence(
    host: Host,
    features: Tensor,
    embedded: Any,
    coords: Tensor | None,
    full: HostOutput,
    asked: AskedOutput,
    tolerances: Tolerances,
) -> ClassEvidence:
    """The smallest set along three rankings that is sufficient and necessary for the class.

    Rankings: slope of the log-odds of the class by each patch's gate, its log-odds without each
    patch, and from each alone.
    """
    predict = ask_subsets(host, embedded, coords)
    rankings = _class_rankings(host, features, embedded, coords, asked) or [full.scores]
    search = Search(predict, full.logits, asked, _tighten(tolerances))
    candidate = search.choose(rankings, _searched_sizes(full.scores))
    turning = _find_turning(predict, rankings, full.logits, asked.against)
    return ClassEvidence(asked, search.shrink(candidate), candidate.scores, turning)


def measure_class_support(
    host: Host,
    features: Tensor,
    embedded: Any,
    coords: Tensor | None,
    questions: Sequence[AskedOutput],
) -> list[Scores]:
    """The slope of the log-odds of each class by each patch's log-gate; above 0 it supports it.

    Empty for a host without gradients.
    """
    with torch.enable_grad():
        log_gates = torch.zeros(len(features), device=features.device, requires_grad=True)
        logits = host.gated(features, embedded, coords, log_gates).logits
        if not logits.requires_grad:
            return []
        margins = [asked.margins(logits.unsqueeze(0))[0] for asked in questions]
        return [torch.autograd.grad(one, log_gates, retain_graph=True)[0] for one in margins]


def _class_rankings(
    host: Host, features: Tensor, embedded: Any, coords: Tensor | None, asked: AskedOutput
) -> list[Scores]:
    rankings = measure_class_support(host, features, embedded, coords, [asked])
    form = closed_form(host)
    if form is not None and len(features) > 1:
        outputs = range(asked.n_outputs)
        without = torch.stack([form.without(embedded, coords, index) for index in outputs], dim=1)
        alone = torch.stack([form.alone(embedded, index) for index in outputs], dim=1)
        rankings += [-asked.margins(without).float(), asked.margins(alone).float()]
    return rankings


def _find_turning(
    predict: Callable[[Selected], Logits],
    rankings: Sequence[Scores],
    full: Logits,
    against: int | None,
) -> Selected | None:
    """The smallest first part of a ranking, thinned, without which `against` is predicted."""
    if against is None or int(full.argmax()) == against:
        return None

    def turns(selected: Selected) -> bool:
        return not bool(selected.all()) and int(predict(~selected).argmax()) == against

    best: Selected | None = None
    for scores in rankings:
        order, n_patches = ranking(scores), len(scores)
        sizes = {2**power for power in range(n_patches.bit_length())}
        sizes |= {subset_size(n_patches, share) for share in (0.3, 0.4, 0.6, 0.7, 0.8, 0.9)}
        largest = n_patches if best is None else int(best.sum())
        for size in sorted(size for size in sizes if size < largest):
            if turns(first := members(order[:size], n_patches=n_patches)):
                best = _thin(first, order, turns)
                break
    return best


def _thin(selected: Selected, order: Tensor, holds: Callable[[Selected], bool]) -> Selected:
    """Drop the last patches of the order, many at first, as long as the set holds."""
    chunk = int(selected.sum()) // 2
    while chunk:
        smaller = selected.index_fill(0, order[selected[order]][-chunk:], False)
        if bool(smaller.any()) and holds(smaller):
            selected = smaller
            chunk = min(chunk, int(selected.sum()) // 2)
        else:
            chunk //= 2
    return selected


@dataclass(frozen=True, eq=False)
class Candidate:
    """The first patches of one ranking, and what keeping and removing them shows."""

    scores: Scores
    selected: Selected
    kept: Logits
    verdict: Verdict
    """The best that removal can still show, until the patches were removed."""
    was_removed: bool = False


@dataclass(frozen=True, eq=False)
class Search:
    """A sufficient and necessary set along given rankings. It needs no label."""

    predict: Callable[[Selected], Logits]
    """The prediction from these patches alone."""
    full: Logits
    output: Output
    tolerances: Tolerances

    @torch.no_grad()
    def choose(self, rankings: Iterable[Scores], sizes: Iterable[int]) -> Candidate:
        """The best ranking at the smallest size that has a faithful one; else the best of all.

        Of equals the smaller one, so a set grows only if that makes it more faithful.
        """
        best: Candidate | None = None
        for size in sizes:
            candidate = self.choose_ranking(rankings, size)
            if best is None or candidate.verdict.merit > best.verdict.merit:
                best = candidate
            if best.verdict.is_faithful:
                break
        if best is None:
            raise ValueError("There is no size to choose from.")
        return best

    def choose_ranking(self, rankings: Iterable[Scores], size: int) -> Candidate:
        """The best ranking by its first `size` patches; of equals the earlier one.

        Removing a few patches leaves nearly the whole bag to be pooled, so it is done only where it
        can decide.
        """
        candidates: dict[bytes, Candidate] = {}
        for scores in rankings:
            selected = torch.zeros_like(scores, dtype=torch.bool)
            selected[scores.topk(size).indices] = True
            # Two rankings often begin with the same patches.
            if (key := selected.cpu().numpy().tobytes()) in candidates:
                continue
            kept = self.predict(selected)
            hoped = judge(self.output, self.full, kept, None, self.tolerances)
            hoped = replace(hoped, is_necessary=True, changes_class=not self.output.is_number)
            candidates[key] = Candidate(scores, selected, kept, hoped)
            if hoped.is_faithful:
                candidates[key] = self._remove(candidates[key])
                if candidates[key].verdict.is_faithful:
                    return candidates[key]
        while True:
            key = max(candidates, key=lambda one: candidates[one].verdict.merit)
            if candidates[key].was_removed:
                return candidates[key]
            candidates[key] = self._remove(candidates[key])

    def shrink(self, candidate: Candidate) -> Selected:
        """Drop the last patches of the ranking as long as the set stays faithful."""
        if not candidate.verdict.is_faithful:
            return candidate.selected
        return _thin(
            candidate.selected,
            ranking(candidate.scores),
            lambda one: self.judge_set(one).is_faithful,
        )

    def judge_set(self, selected: Selected, kept: Logits | None = None) -> Verdict:
        """Keep the patches, unless that was done, and remove them."""
        kept = self.predict(selected) if kept is None else kept
        removed = None if bool(selected.all()) else self.predict(~selected)
        return judge(self.output, self.full, kept, removed, self.tolerances)

    def _remove(self, one: Candidate) -> Candidate:
        return replace(one, verdict=self.judge_set(one.selected, one.kept), was_removed=True)
