"""Exact greedy maximisation of the noisy-OR utility, without looking at every patch in every step.

  gain_i(S) = sum_m r_im alpha_m prod_{j in S} (1 - r_jm)      a candidate's own gate is 0: nothing to leave out
  i* = argmax_i gain_i(S)                                      ties to the lower index

Lazy evaluation: the patches of highest gain form a pool, and only the pool is evaluated. Gains never grow, and a patch
outside gains at most max_m missed_m(now) / missed_m(then) times what it gained when the pool was filled. While the best
of the pool beats that, it is the best of the bag; otherwise the pool is filled again.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gcemil.recovery.rules import check_size, members
from gcemil.shapes import AnchorWeights, Coverage, Responses, Selected

POOL_SIZE = 512
# Far above the rounding of a sum over anchors, far below any difference between patches that matters.
ROUNDING_SLACK = 1.0 + 1e-12


class LazyGreedy:
    """What the selected patches still miss, and the candidate that would add most to them."""

    def __init__(
        self, responses: Responses, anchor_weights: AnchorWeights, *, selected: Selected, candidates: Selected
    ) -> None:
        self._dtype = responses.dtype
        candidates = candidates & ~selected
        # float64 keeps 100,000 small additions from stalling. A row of zeros has no gain: nothing else needs a mask.
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
        # A BLAS product may round equal rows differently by their position, and a tie would not be one.
        return (responses * self._demand).sum(dim=1)

    def _largest_gain_outside(self) -> float:
        then = self._demand_then
        growth = torch.where(then > 0, self._demand / then, 0.0).max()
        return ROUNDING_SLACK * float(growth) * self._gain_outside


def greedy_subset(responses: Responses, anchor_weights: AnchorWeights, k: int) -> Selected:
    """At most k patches, each the one of largest gain; fewer when the next would add nothing."""
    check_size(k, n_patches=len(responses))
    nobody = torch.zeros(len(responses), dtype=torch.bool)
    greedy = LazyGreedy(responses.cpu(), anchor_weights.cpu(), selected=nobody, candidates=~nobody)
    chosen: list[int] = []
    while len(chosen) < k:
        patch, gain = greedy.best()
        if gain <= 0.0:
            break
        greedy.add(patch)
        chosen.append(patch)
    return members(torch.tensor(chosen, dtype=torch.long), n_patches=len(responses)).to(responses.device)
