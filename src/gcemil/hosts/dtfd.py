"""DTFD-MIL: pseudo-bags in a first tier, what they distil in a second (Zhang et al., 2022).

  m_i = relu(W h_i), no bias;  z_i = gated attention;  groups g = 0..3
  tier 1:  a = softmax of z + log pi within g,   z_g = sum a_i m_i,   logits_g = head1(z_g)
  CAM:     p_i = softmax_C(W_head1 a_i m_i), read at the last class, as published for two classes
  distil:  afs z_g  |  max the patch of largest p in g  |  maxmin the largest and the smallest
  tier 2:  a second gated attention over the distilled rows, logits = head2(M)
  total = task loss(logits) + 1/4 sum_g task loss(logits_g), both tiers under one optimiser

Gates. `paper`: pi h, which without a bias is pi m. `deletion`: log pi on the tier-1 logit, and the
largest log pi of a group on its tier-2 logit, so that a group whose patches all close leaves as an
emptied one does: exact for afs. In max and maxmin a soft gate ranks through a_i only; a gate of
exactly 0 is removal in all three.

Groups. In training every bag is split at random each time it is embedded, into parts that differ by
at most one patch. In evaluation the group of a patch is a hash of its coordinates (of its feature's
bits where there are none): the authors' random split would make predictions random, and a patch
keeps its group when others are removed. Empty groups are dropped.

Deviations. The authors' order of steps kept tier 2 from training tier 1; here they train jointly.
With more than two classes, which the authors do not treat, the CAM is read at the label in training
and at the tier-1 prediction otherwise. With one output its softmax is constant, so patches are
ranked by the raw CAM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.attention import (
    GatedAttention,
    attention_weights,
    patch_values,
    read_means_without_each,
    value_contributions,
)
from gcemil.hosts.host import ClosedForm, Embedded, GateMode, HostOutput, MilHost, pool_rows
from gcemil.shapes import Coords, Features, Gates, LogGates, Logits, Scores, Selected

DISTILLATIONS = ("afs", "max", "maxmin")
N_FINGERPRINT = 8
"""Leading components of a feature that separate patches well enough to group them."""
ODD_MULTIPLIER = -7046029254386353131
"""2^64 over the golden ratio as a signed integer: neighbouring places spread over all high bits."""


@dataclass(frozen=True)
class PseudoBagEmbedded(Embedded):
    attention_logits: Scores
    fingerprint: Int[Tensor, "n p"]
    """Bits of the ungated feature, which group a patch that has no coordinates."""
    drawn: Int[Tensor, "n"] | None = None
    """The group of each patch in training."""


class Dtfd(MilHost[PseudoBagEmbedded]):
    paper_gate = "feature"
    lrp_constants = ("attention", "bag_attention")

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int = 512,
        hidden: int = 128,
        n_groups: int = 4,
        distillation: str = "afs",
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        if distillation not in DISTILLATIONS or n_groups < 1:
            raise UsageError(
                f"DTFD distils by one of {', '.join(DISTILLATIONS)} from n_groups >= 1, "
                f"got '{distillation}' and {n_groups}."
            )
        self.n_groups = n_groups
        self.distillation = distillation
        self.project = nn.Sequential(nn.Linear(in_dim, width, bias=False), nn.ReLU())
        self.attention = GatedAttention(width, hidden)
        self.group_head = nn.Linear(width, n_outputs)
        self.bag_attention = GatedAttention(width, hidden)
        self.head = nn.Linear(width, n_outputs)
        self.task_weights = {"bag": 1.0} | {f"tier1_{g}": 1 / n_groups for g in range(n_groups)}

    def embed(self, features: Features) -> PseudoBagEmbedded:
        tokens: Float[Tensor, "n w"] = self.project(features)
        drawn = None
        if self.training:
            # A random split into parts of equal size, up to one patch.
            drawn = torch.randperm(len(features), device=features.device) % self.n_groups
        return PseudoBagEmbedded(
            tokens, self.attention(tokens).squeeze(1), fingerprints(features), drawn
        )

    def embed_scaled(
        self, features: Features, factors: Gates, plain: PseudoBagEmbedded | None
    ) -> PseudoBagEmbedded:
        # The factor must not move a patch to another group.
        scaled = super().embed_scaled(features, factors, plain)
        scaled = replace(scaled, fingerprint=fingerprints(features))
        return scaled if plain is None else replace(scaled, drawn=plain.drawn)

    def pool(
        self,
        embedded: PseudoBagEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        tokens = embedded.tokens
        group = embedded.drawn
        if group is None:
            group = group_of(embedded.fingerprint if coords is None else coords, self.n_groups)
        groups, membership = present_groups(group, self.n_groups)
        weights = group_attention(embedded.attention_logits, log_gates, membership)
        group_logits = self.group_head(weights.T @ tokens)
        shares = self._shares(tokens, weights, membership, group_logits, target)
        distilled = shares.T @ tokens
        openness = (
            None if log_gates is None else group_openness(log_gates, membership, len(distilled))
        )
        bag_weights = attention_weights(self.bag_attention(distilled).squeeze(1), openness)
        bag_feature = bag_weights @ distilled
        logits = self.head(bag_feature)
        return HostOutput(
            logits=logits,
            bag_feature=bag_feature,
            scores=embedded.attention_logits,
            contributions=value_contributions(
                shares @ bag_weights, patch_values(tokens, self.head), logits
            ),
            auxiliary_logits={f"tier1_{g}": group_logits[i] for i, g in enumerate(groups)},
        )

    def _shares(
        self,
        tokens: Float[Tensor, "n w"],
        weights: Float[Tensor, "n g"],
        membership: Bool[Tensor, "n g"],
        group_logits: Float[Tensor, "g c"],
        target: Tensor | None,
    ) -> Float[Tensor, "n r"]:
        """The weight of each patch in each distilled row: attention, or 1 for a chosen patch."""
        if self.distillation == "afs":
            return weights
        with torch.no_grad():
            activations = weights.sum(dim=1, keepdim=True) * (tokens @ self.group_head.weight.T)
            evidence = class_evidence(activations, self._ranking_class(group_logits, target))
            rows = extreme_rows(evidence, membership, lowest_too=self.distillation == "maxmin")
        return tokens.new_zeros(len(tokens), len(rows)).scatter(0, rows.unsqueeze(0), 1.0)

    def _ranking_class(self, group_logits: Float[Tensor, "g c"], target: Tensor | None) -> int:
        if self.n_outputs <= 2:
            return self.n_outputs - 1
        return int(group_logits.mean(dim=0).argmax() if target is None else target)

    def subset_form(
        self, embedded: PseudoBagEmbedded, coords: Coords | None
    ) -> Callable[[Selected], Logits]:
        """The rows of a large subset stay where they are; what is left out has no weight."""
        group = group_of(embedded.fingerprint if coords is None else coords, self.n_groups)

        def predict(selected: Selected) -> Logits:
            if self.distillation != "afs" or 2 * int(selected.sum()) < len(selected):
                return pool_rows(self, embedded, coords, selected)
            groups = torch.bincount(group[selected], minlength=self.n_groups).nonzero().flatten()
            membership = (group.unsqueeze(1) == groups) & selected.unsqueeze(1)
            distilled = (
                group_attention(embedded.attention_logits, None, membership).T @ embedded.tokens
            )
            weights = attention_weights(self.bag_attention(distilled).squeeze(1))
            logits: Logits = self.head(weights @ distilled)
            return logits

        return predict

    def closed_form(self) -> ClosedForm | None:
        """Patch i changes its own group's row; the second tier is applied to every changed row.

        None for max and maxmin, whose choice of patches depends on all weights of the group.
        """
        if self.distillation != "afs":
            return None
        return ClosedForm(
            self._without_each,
            lambda embedded, index: patch_values(embedded.tokens, self.head)[:, index],
        )

    def _without_each(
        self, embedded: PseudoBagEmbedded, coords: Coords | None, index: int
    ) -> Scores:
        tokens, attention_logits = embedded.tokens, embedded.attention_logits
        place = embedded.fingerprint if coords is None else coords
        _, membership = present_groups(group_of(place, self.n_groups), self.n_groups)
        members = [column.nonzero().flatten() for column in membership.unbind(dim=1)]
        means = torch.stack(
            [attention_weights(attention_logits[rows]) @ tokens[rows] for rows in members]
        )
        tier_two = torch.stack(self._second_tier(means, index), dim=1)
        without = torch.empty_like(attention_logits)
        for group, rows in enumerate(members):
            others = torch.cat([tier_two[:group], tier_two[group + 1 :]])
            without[rows] = self._group_without(embedded, index, rows, others)
        return without

    def _group_without(
        self,
        embedded: PseudoBagEmbedded,
        index: int,
        rows: Int[Tensor, "k"],
        others: Float[Tensor, "g 2"],
    ) -> Float[Tensor, "k"]:
        """One logit without each patch of a group; `others` are the second tier's other rows."""
        other_logits, other_values = others.unbind(dim=1)
        if len(rows) == 1:
            # The group leaves with its only patch.
            return (attention_weights(other_logits) @ other_values).unsqueeze(0)

        def head(changed: Float[Tensor, "k w"]) -> Float[Tensor, "k"]:
            own_logits, own_values = self._second_tier(changed, index)
            logits = torch.cat(
                [own_logits.unsqueeze(1), other_logits.expand(len(changed), -1)], dim=1
            )
            values = torch.cat(
                [own_values.unsqueeze(1), other_values.expand(len(changed), -1)], dim=1
            )
            return (torch.softmax(logits, dim=1) * values).sum(dim=1)

        return read_means_without_each(embedded.attention_logits[rows], embedded.tokens[rows], head)

    def _second_tier(self, rows: Float[Tensor, "k w"], index: int) -> tuple[Tensor, Tensor]:
        """Attention logit of each distilled row, and the head applied to it."""
        return self.bag_attention(rows).squeeze(1), patch_values(rows, self.head)[:, index]


def fingerprints(features: Features) -> Int[Tensor, "n p"]:
    return features.detach()[:, :N_FINGERPRINT].float().contiguous().view(torch.int32)


def group_of(place: Int[Tensor, "n p"], n_groups: int) -> Int[Tensor, "n"]:
    """A stable hash of each row of integers, modulo n_groups (int64 arithmetic wraps)."""
    mixed = torch.zeros(len(place), dtype=torch.int64, device=place.device)
    for column in place.long().unbind(dim=1):
        mixed = (mixed ^ column) * ODD_MULTIPLIER
        # Coordinates are multiples of the patch size, so only the high bits differ after the
        # product.
        mixed = mixed ^ ((mixed >> 32) & 0xFFFFFFFF)
    return mixed % n_groups


def present_groups(group: Int[Tensor, "n"], n_groups: int) -> tuple[list[int], Bool[Tensor, "n g"]]:
    """The groups that hold a patch, and who belongs to which."""
    groups = torch.bincount(group, minlength=n_groups).nonzero().flatten()
    return groups.tolist(), group.unsqueeze(1) == groups


def group_attention(
    attention_logits: Scores, log_gates: LogGates | None, membership: Bool[Tensor, "n g"]
) -> Float[Tensor, "n g"]:
    """Attention weights that sum to 1 within each group."""
    if log_gates is not None:
        attention_logits = attention_logits + log_gates
    return attention_logits.unsqueeze(1).masked_fill(~membership, -torch.inf).softmax(dim=0)


def group_openness(
    log_gates: LogGates, membership: Bool[Tensor, "n g"], n_distilled: int
) -> Float[Tensor, "r"]:
    """The largest log-gate of the group of each distilled row."""
    openness = log_gates.unsqueeze(1).masked_fill(~membership, -torch.inf).amax(dim=0)
    return openness.repeat(n_distilled // len(openness))


def class_evidence(activations: Float[Tensor, "n c"], class_index: int) -> Scores:
    """Ranks patches as softmax(activations)[class_index] does; of one output, by the activation."""
    if activations.shape[1] == 1:
        return activations[:, 0]
    # a_i is about 1/n: the probabilities tie at 1/C in float32, expm1 of the differences does not.
    return -torch.expm1(activations - activations[:, [class_index]]).sum(dim=1)


def extreme_rows(
    evidence: Scores, membership: Bool[Tensor, "n g"], *, lowest_too: bool
) -> Int[Tensor, "r"]:
    """In each group the row of the largest evidence, and, with `lowest_too`, of the smallest."""
    column = evidence.unsqueeze(1)
    highest = column.masked_fill(~membership, -torch.inf).argmax(dim=0)
    if not lowest_too:
        return highest
    return torch.cat([highest, column.masked_fill(~membership, torch.inf).argmin(dim=0)])
