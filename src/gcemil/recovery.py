"""Sets of patches: by score, and by discrete recovery (Algorithm 1) from gates.

Ties go to the lower index, everywhere. A fraction of a bag is one number of patches, everywhere:
max(1, round(f N)).

Recovery ends with the subset of patches that is the evidence:

  S <- {i : pi_i > threshold}, or the patch of highest gate when there is none
  while some anchor has v_m(S) < target_m:
      S <- S + argmax_{i not in S} [U(S + i) - U(S)]

The paper's loop has no exit when an anchor cannot be covered. Ours ends in one of five ways, named
by `StopReason`. Two options exclude what cannot or need not be covered:

  reachable          target_m = coverage_target * v_m(whole bag), instead of coverage_target
  min_weight_share   anchors with alpha_m below this share of the largest weight do not count

The best candidate is found exactly, without looking at every patch in every step:

  gain_i(S) = sum_m r_im alpha_m prod_{j in S} (1 - r_jm)      a candidate's own gate is 0
  i* = argmax_i gain_i(S)                                      ties to the lower index

Lazy evaluation: the patches of highest gain form a pool, and only the pool is evaluated. Gains
never grow, and a patch outside gains at most max_m missed_m(now) / missed_m(then) times what it
gained when the pool was filled. While the best of the pool beats that, it is the best of the bag;
otherwise the pool is filled again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.errors import BagError, UsageError
from gcemil.evidence.coverage import anchor_coverage
from gcemil.shapes import AnchorWeights, Coverage, Responses, Scores, Selected


class StopReason(StrEnum):
    """Why recovery ended."""

    COVERED = "covered"
    """Every anchor that counts has reached its target."""
    CAPPED = "capped"
    """The subset is as large as allowed; above the cap, the lowest gates were dropped."""
    NO_GAIN = "no_gain"
    """A target is missed, and no remaining patch would add anything."""
    EXHAUSTED = "exhausted"
    """A target is missed, and no patch is left that repair may add."""
    GATES = "gates"
    """Repair is off: the evidence is what the gates open."""


@dataclass(frozen=True, eq=False)
class Recovery:
    """The result of `recover`: the evidence of one bag, and how it was chosen.

    Example:
        >>> import gcemil, torch
        >>> responses = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.1]])
        >>> result = gcemil.recover(torch.tensor([0.9, 0.1, 0.1]), responses, torch.ones(2),
        ...     coverage_target=0.8)
        >>> result.added.tolist(), str(result.stop_reason), round(result.fraction, 2)
        ([1], 'covered', 0.67)
    """

    selected: Selected
    """The patches that are evidence, (patches,)."""
    coverage: Coverage
    """v_m(S) of every anchor, (anchors,), whether it counts or not."""
    targets: Coverage
    """Coverage each anchor had to reach, (anchors,); 0 where it does not count."""
    stop_reason: StopReason
    """Why recovery ended."""
    added: Int[Tensor, "k"]
    """Patches added by repair, in order; the rest of `selected` is above the threshold."""
    gains: Float[Tensor, "k"]
    """U(S + i) - U(S) when each of them was added."""

    @property
    def fraction(self) -> float:
        """The share of the bag that is evidence."""
        return float(self.selected.double().mean())


@torch.no_grad()
def recover(
    gates: Tensor,
    responses: Tensor,
    anchor_weights: Tensor,
    *,
    threshold: float = 0.5,
    coverage_target: float = 0.95,
    max_fraction: float = 1.0,
    reachable: bool = False,
    min_weight_share: float = 0.0,
    shortlist: Tensor | None = None,
) -> Recovery:
    """Threshold gates, then add patches until every anchor is covered (Algorithm 1).

    Args:
        gates: One gate per patch in [0, 1], (patches,).
        responses: Response of each patch to each anchor in [0, 1], (patches, anchors).
        anchor_weights: Weight of each anchor for the predicted class, at least 0, (anchors,).
        threshold: Gate above which a patch is selected.
        coverage_target: Coverage that every anchor must reach, in (0, 1].
        max_fraction: Largest share of the bag that may be selected, in (0, 1].
        reachable: The target is a share of what the whole bag covers.
        min_weight_share: Anchors below this share of the largest weight do not count.
        shortlist: Patches that may be added, (patches,) of bool; None allows all.

    Returns:
        The selected patches and why recovery ended; at least one patch is selected.

    Raises:
        BagError: Shapes do not match, or gates, responses or weights are out of bounds.
        UsageError: An option is out of bounds.

    Example:
        >>> import gcemil, torch
        >>> responses = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.1]])
        >>> gates, weights = torch.tensor([0.9, 0.1, 0.1]), torch.ones(2)
        >>> gcemil.recover(gates, responses, weights, coverage_target=0.8).selected.tolist()
        [True, True, False]
    """
    # Users call this with tensors of their own: a message is clearer than a failed annotation.
    _check_bag(gates, responses, anchor_weights, shortlist)
    if not (0 <= threshold <= 1 and 0 < coverage_target <= 1 and 0 <= min_weight_share <= 1):
        raise UsageError(
            "threshold and min_weight_share lie in [0, 1], coverage_target in (0, 1], got "
            f"{threshold}, {min_weight_share} and {coverage_target}."
        )
    device, dtype = responses.device, responses.dtype
    # Every step of repair reads one index back, so a GPU would only wait.
    gates, responses, weights = gates.cpu(), responses.cpu(), anchor_weights.cpu().double()
    candidates = torch.ones_like(gates, dtype=torch.bool) if shortlist is None else shortlist.cpu()

    counts = weights >= min_weight_share * weights.max()
    targets = coverage_target * counts.to(dtype)
    if reachable:
        targets = targets * anchor_coverage(responses.new_ones(len(responses)), responses)

    cap = subset_size(len(gates), max_fraction)
    thresholded = above_threshold(gates, threshold)
    room = cap - int(thresholded.sum())
    start = thresholded if room >= 0 else top_k(gates, cap)
    greedy = LazyGreedy(responses, weights * counts, selected=start, candidates=candidates)
    added, gains, stop_reason = _repair(greedy, targets, room=room)

    return Recovery(
        selected=start.index_fill(0, torch.tensor(added, dtype=torch.long), True).to(device),
        coverage=greedy.coverage.to(device),
        targets=targets.to(device),
        stop_reason=stop_reason,
        added=torch.tensor(added, dtype=torch.long, device=device),
        gains=torch.tensor(gains, dtype=dtype, device=device),
    )


def _repair(
    greedy: LazyGreedy, targets: Coverage, *, room: int
) -> tuple[list[int], list[float], StopReason]:
    """Add the best candidate until something stops it: patches, gains and reason."""
    added: list[int] = []
    gains: list[float] = []
    if room < 0:
        return added, gains, StopReason.CAPPED
    while bool((greedy.coverage < targets).any()):
        if greedy.n_candidates == 0:
            return added, gains, StopReason.EXHAUSTED
        if len(added) == room:
            return added, gains, StopReason.CAPPED
        patch, gain = greedy.best()
        if gain <= 0.0:
            return added, gains, StopReason.NO_GAIN
        greedy.add(patch)
        added.append(patch)
        gains.append(gain)
    return added, gains, StopReason.COVERED


def _check_bag(
    gates: Tensor, responses: Tensor, anchor_weights: Tensor, shortlist: Tensor | None
) -> None:
    if responses.ndim != 2 or 0 in responses.shape or not responses.is_floating_point():
        raise BagError(
            "Responses are probabilities in floating point, (patches, anchors), "
            f"got {responses.dtype} of shape {tuple(responses.shape)}."
        )
    n_patches, n_anchors = responses.shape
    if gates.shape != (n_patches,) or anchor_weights.shape != (n_anchors,):
        raise BagError(
            f"Responses of {n_patches} patches to {n_anchors} anchors need as many gates and "
            f"anchor weights, got {tuple(gates.shape)} and {tuple(anchor_weights.shape)}. "
            "Pass the weights of the predicted class."
        )
    if shortlist is not None and (shortlist.dtype != torch.bool or shortlist.shape != gates.shape):
        raise BagError(
            f"A shortlist is a bool mask over {n_patches} patches, "
            f"got {shortlist.dtype} {tuple(shortlist.shape)}."
        )
    for name, values, highest in (
        ("Gates", gates, 1.0),
        ("Responses", responses, 1.0),
        ("Anchor weights", anchor_weights, sys.float_info.max),
    ):
        # Written so that NaN fails too.
        is_valid = (values >= 0) & (values <= highest)
        if not bool(is_valid.all()):
            place = tuple((~is_valid).nonzero()[0].tolist())
            raise BagError(
                f"{name} lie in [0, {highest:g}], but the one at {place} is {float(values[place])}."
            )


POOL_SIZE = 512
# Far above the rounding of a sum over anchors, far below any difference between patches that
# matters.
ROUNDING_SLACK = 1.0 + 1e-12


class LazyGreedy:
    """What the selected patches still miss, and the candidate that would add most to them."""

    def __init__(
        self,
        responses: Responses,
        anchor_weights: AnchorWeights,
        *,
        selected: Selected,
        candidates: Selected,
    ) -> None:
        self._dtype = responses.dtype
        candidates = candidates & ~selected
        # float64 keeps 100,000 small additions from stalling. A row of zeros has no gain: nothing
        # else needs a mask.
        self._responses = responses.double() * candidates.unsqueeze(1)
        self._weights = anchor_weights.double()
        self._log_missed = torch.log1p(-responses[selected].double()).sum(dim=0)
        self._demand = self._weights * self._log_missed.exp()
        self.n_candidates = int(candidates.sum())
        self._fill_pool()

    @property
    def coverage(self) -> Coverage:
        """v_m of the selected patches, in the precision of the responses."""
        return -torch.expm1(self._log_missed).to(self._dtype)

    def best(self) -> tuple[int, float]:
        """The candidate of largest gain, and that gain."""
        gains = self._gains(self._pool_responses)
        row = int(gains.argmax())
        gain = float(gains[row])
        if gain > self._largest_gain_outside():
            return int(self._pool[row]), gain
        return self._fill_pool()

    def add(self, patch: int) -> None:
        """Select a candidate."""
        self._log_missed = self._log_missed + torch.log1p(-self._responses[patch])
        self._demand = self._weights * self._log_missed.exp()
        self._responses[patch] = 0.0
        self._pool_responses[self._pool == patch] = 0.0
        self.n_candidates -= 1

    def _fill_pool(self) -> tuple[int, float]:
        gains = self._gains(self._responses)
        highest = gains.topk(min(POOL_SIZE, len(gains)))
        # Ascending, so that the first maximum of the pool is the one of lowest index.
        self._pool: Int[Tensor, "p"] = highest.indices.sort().values
        self._pool_responses: Float[Tensor, "p m"] = self._responses[self._pool]
        self._gain_outside = float(highest.values[-1])
        self._demand_then = self._demand
        best = int(gains.argmax())
        return best, float(gains[best])

    def _gains(self, responses: Responses) -> Float[Tensor, "n"]:
        # A BLAS product may round equal rows differently by their position, and a tie would not be
        # one.
        return (responses * self._demand).sum(dim=1)

    def _largest_gain_outside(self) -> float:
        then = self._demand_then
        growth = torch.where(then > 0, self._demand / then, 0.0).max()
        return ROUNDING_SLACK * float(growth) * self._gain_outside


def greedy_subset(responses: Responses, anchor_weights: AnchorWeights, k: int) -> Selected:
    """At most k patches, each the one of largest gain; fewer when the next would add nothing."""
    device, responses = responses.device, responses.cpu()
    no_patch = torch.zeros(len(responses), dtype=torch.bool)
    greedy = LazyGreedy(responses, anchor_weights.cpu(), selected=no_patch, candidates=~no_patch)
    # A target that no coverage reaches, so that only k or a gain of 0 ends it.
    chosen, _, _ = _repair(greedy, torch.full_like(responses[0], 2.0), room=k)
    return members(torch.tensor(chosen, dtype=torch.long), n_patches=len(responses)).to(device)


# Sets by one score per patch


def subset_size(n_patches: int, fraction: float) -> int:
    """The number of patches that a fraction of the bag stands for, at least one."""
    if not 0.0 < fraction <= 1.0:
        raise UsageError(f"A fraction of the bag lies in (0, 1], got {fraction}.")
    return max(1, round(fraction * n_patches))


def ranking(scores: Scores) -> Int[Tensor, "n"]:
    """Patch indices by decreasing score."""
    if bool(scores.isnan().any()):
        wrong = int(scores.isnan().nonzero()[0])
        raise BagError(
            f"Patch {wrong} of {len(scores)} has score NaN, so the patches cannot be ranked."
        )
    return scores.sort(descending=True, stable=True).indices


def rank_scores(order: Int[Tensor, "n"]) -> Scores:
    """Scores from n down to 1 that give this ranking."""
    scores = torch.empty(len(order), device=order.device)
    scores[order] = torch.arange(len(order), 0, -1, dtype=scores.dtype, device=order.device)
    return scores


def top_k(scores: Scores, k: int) -> Selected:
    """The k patches of highest score."""
    return members(ranking(scores)[:k], n_patches=len(scores))


def drop_free_riders(selected: Selected, importances: Sequence[Scores]) -> Selected:
    """Drop patches until each is among the first |S| of the slide by one importance.

    A patch of importance 0 does not count. The last patches stay, whatever they mean: evidence is
    never empty.
    """
    while True:
        size = int(selected.sum())
        first = [top_k(values, size) & (values > 0) for values in importances]
        kept = selected & torch.stack(first).any(dim=0)
        if int(kept.sum()) in (0, size):
            return selected
        selected = kept


def above_threshold(scores: Scores, threshold: float) -> Selected:
    """Patches strictly above the threshold or, when there are none, the single best one."""
    above = scores > threshold
    return above if bool(above.any()) else top_k(scores, 1)


def random_k(n_patches: int, k: int, *, generator: torch.Generator) -> Selected:
    """k patches drawn without replacement."""
    order = torch.randperm(n_patches, generator=generator, device=generator.device)
    return members(order[:k], n_patches=n_patches)


def members(patches: Int[Tensor, "k"], *, n_patches: int) -> Selected:
    """Patch indices as a mask over the bag."""
    selected = torch.zeros(n_patches, dtype=torch.bool, device=patches.device)
    selected[patches] = True
    return selected
