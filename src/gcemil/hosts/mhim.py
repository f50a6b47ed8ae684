"""MHIM-MIL v1: hard instances masked, a slow teacher (Tang et al., 2023), on ABMIL.

  m_i = relu(E h_i),  z_i = w relu(V m_i),  a = softmax(z),  M = sum a_i m_i,  logits = head(M)
Stage "teacher" trains this base alone. Stage "student" starts a teacher and a student from its best
epoch; each training bag then hides from the student a random part, the easiest and some of the
hardest patches by the teacher's attention:
  L_consistency = - sum_d softmax(M_teacher / 0.1)_d log softmax(M_student)_d
  teacher <- mu teacher + (1 - mu) student
Evaluation is the student on the whole bag.
Defaults are v1's for ABMIL on Camelyon16 (random .5, low 0, high .01 of which share .5, consistency
.1): the milder of the two published sets, since training bags hold a few hundred patches. Over the
stage the high ratio falls to 0 by a cosine. mu is published as .9999 for one bag a step: the 266
bags x 130 epochs before which training cannot stop replace 97 % of the teacher. A shorter stage
would leave it frozen, so mu is what replaces that share in as many steps as the stage has.
Under gates the teacher ranks patches ungated, or the high mask would hide the evidence that the
gates select; its bag feature is gated (without gradient), so that the two features are comparable.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gcemil.errors import UsageError
from gcemil.hosts.attention import (
    AttentionEmbedded,
    LinearPooling,
    attention_weights,
    create_projection,
    init_xavier,
    patch_values,
    value_contributions,
)
from gcemil.hosts.host import GateMode, GatePosition, HostOutput, MilHost, Stage
from gcemil.shapes import Coords, Features, Gates, LogGates, Scores, Selected

TEACHER_TEMPERATURE = 0.1
TEACHER_LEFT = 0.9999 ** (266 * 130)
"""What the published schedule leaves of the teacher it began with: 3 %."""


@dataclass(frozen=True)
class MhimEmbedded(AttentionEmbedded):
    """The student's patches and, while a student trains, the teacher's."""

    teacher_tokens: Float[Tensor, "n w"] | None = None
    teacher_logits: Scores | None = None
    hardness: Scores | None = None
    """The teacher's attention logits on ungated features: what the masks rank by."""


class AttentionBase(nn.Module):
    """The network that teacher and student both are."""

    def __init__(
        self, in_dim: int, n_outputs: int, *, width: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.project = create_projection(in_dim, width, dropout)
        self.attention = nn.Sequential(
            nn.Linear(width, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, 1, bias=False)
        )
        self.head = nn.Linear(width, n_outputs)
        init_xavier(self)

    def forward(self, features: Features) -> tuple[Float[Tensor, "n w"], Scores]:
        tokens = self.project(features)
        return tokens, self.attention(tokens).squeeze(1)


class Mhim(MilHost[MhimEmbedded]):
    paper_gate: GatePosition = "both"
    lrp_constants = ("student.attention",)
    student_stage: Tensor
    steps_done: Tensor
    n_steps: Tensor

    def __init__(
        self,
        in_dim: int,
        n_outputs: int,
        gate_mode: GateMode = "paper",
        *,
        width: int = 512,
        hidden: int = 128,
        dropout: float = 0.25,
        random_ratio: float = 0.5,
        low_ratio: float = 0.0,
        high_ratio: float = 0.01,
        high_share: float = 0.5,
        consistency_weight: float = 0.1,
        momentum: float | None = None,
    ) -> None:
        super().__init__(in_dim, n_outputs, gate_mode)
        check_ratios(random_ratio=random_ratio, low_ratio=low_ratio, high_ratio=high_ratio)
        check_ratios(momentum=0.0 if momentum is None else momentum)
        if not 0 < high_share <= 1:
            raise UsageError(f"mhim needs high_share in (0, 1], got {high_share}.")
        self.student = AttentionBase(in_dim, n_outputs, width=width, hidden=hidden, dropout=dropout)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.random_ratio, self.low_ratio = random_ratio, low_ratio
        self.high_ratio, self.high_share = high_ratio, high_share
        self.consistency_weight = consistency_weight
        self.chosen_momentum = momentum
        # Buffers, so that the weights of a resumed run hold its stage and progress.
        self.register_buffer("student_stage", torch.tensor(False))
        self.register_buffer("steps_done", torch.tensor(0))
        self.register_buffer("n_steps", torch.tensor(1))

    def embed(self, features: Features) -> MhimEmbedded:
        tokens, attention_logits = self.student(features)
        if not (self.training and bool(self.student_stage)):
            return MhimEmbedded(tokens, attention_logits)
        with torch.no_grad():
            teacher_tokens, teacher_logits = self.teacher(features)
        return MhimEmbedded(
            tokens, attention_logits, None, teacher_tokens, teacher_logits, hardness=teacher_logits
        )

    def embed_scaled(
        self, features: Features, factors: Gates, plain: MhimEmbedded | None
    ) -> MhimEmbedded:
        scaled = super().embed_scaled(features, factors, plain)
        if scaled.hardness is None:
            return scaled
        with torch.no_grad():
            return replace(scaled, hardness=self.teacher(features)[1])

    def pool(
        self,
        embedded: MhimEmbedded,
        coords: Coords | None,
        log_gates: LogGates | None,
        target: Tensor | None,
    ) -> HostOutput:
        attention_logits = embedded.attention_logits
        if self.training and embedded.hardness is not None:
            masked = masked_patches(
                embedded.hardness,
                self.random_ratio,
                self.low_ratio,
                self.decayed_high_ratio,
                self.high_share,
            )
            attention_logits = attention_logits.masked_fill(masked, -torch.inf)
        weights = attention_weights(attention_logits, log_gates)
        bag_feature = weights @ embedded.tokens
        logits = self.student.head(bag_feature)
        return HostOutput(
            logits=logits,
            bag_feature=bag_feature,
            scores=embedded.attention_logits,
            contributions=value_contributions(
                weights, patch_values(embedded.tokens, self.student.head), logits
            ),
            losses={} if target is None else self._losses(embedded, log_gates, bag_feature),
        )

    def linear_form(self, embedded: MhimEmbedded) -> LinearPooling:
        return LinearPooling(embedded.attention_logits, self.student.head(embedded.tokens))

    def _losses(
        self, embedded: MhimEmbedded, log_gates: LogGates | None, bag_feature: Float[Tensor, "w"]
    ) -> dict[str, Tensor]:
        if embedded.teacher_tokens is None or embedded.teacher_logits is None:
            return {}
        with torch.no_grad():
            teacher_feature = (
                attention_weights(embedded.teacher_logits, log_gates) @ embedded.teacher_tokens
            )
        return {"consistency": self.consistency_weight * consistency(teacher_feature, bag_feature)}

    @property
    def decayed_high_ratio(self) -> float:
        """A cosine from the given ratio, at the first step of the stage, to 0 after its last."""
        progress = min(1.0, int(self.steps_done) / int(self.n_steps))
        return 0.5 * self.high_ratio * (1 + math.cos(math.pi * progress))

    @property
    def momentum(self) -> float:
        """mu as given, or such that the stage replaces as much of the teacher as published."""
        if self.chosen_momentum is not None:
            return self.chosen_momentum
        return float(TEACHER_LEFT ** (1 / int(self.n_steps)))

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("teacher", prepares=True, keeps_best=True), Stage("student"))

    def begin_stage(self, stage: Stage, bag_features: Callable[[], Tensor], n_steps: int) -> None:
        """The trained base becomes the teacher; the student keeps its projection only."""
        self.student_stage.fill_(stage.name == "student")
        self.n_steps.fill_(n_steps)
        self.steps_done.zero_()
        if stage.name == "student":
            self.teacher.load_state_dict(self.student.state_dict())
            init_xavier(self.student.attention)
            init_xavier(self.student.head)

    @torch.no_grad()
    def after_step(self) -> None:
        self.steps_done += 1
        if bool(self.student_stage):
            momentum = self.momentum
            for slow, fast in zip(
                self.teacher.parameters(), self.student.parameters(), strict=True
            ):
                slow.lerp_(fast, 1 - momentum)


def masked_patches(
    hardness: Scores, random_ratio: float, low_ratio: float, high_ratio: float, high_share: float
) -> Selected:
    """A random part, the lowest part, and a random share of a larger highest part."""
    n_patches = len(hardness)
    hardest_first = hardness.argsort(descending=True)
    shuffled = torch.randperm(n_patches, device=hardness.device)
    highest = hardest_first[: ceiling(n_patches * high_ratio / high_share)]
    drawn = torch.randperm(len(highest), device=hardness.device)[
        : ceiling(len(highest) * high_share)
    ]
    masked = torch.zeros_like(hardness, dtype=torch.bool)
    masked[shuffled[: ceiling(n_patches * random_ratio)]] = True
    masked[hardest_first[n_patches - ceiling(n_patches * low_ratio) :]] = True
    masked[highest[drawn]] = True
    if bool(masked.all()):
        masked[hardest_first[0]] = False
    return masked


def consistency(teacher: Float[Tensor, "w"], student: Float[Tensor, "w"]) -> Float[Tensor, ""]:
    """Cross-entropy between the bag features as distributions over their dimensions."""
    return -(
        torch.softmax(teacher / TEACHER_TEMPERATURE, dim=0) * torch.log_softmax(student, dim=0)
    ).sum()


def ceiling(count: float) -> int:
    """Round up, but not because 0.07 * 100 is 7.000000000000001."""
    return math.ceil(count - 1e-9)


def check_ratios(**ratios: float) -> None:
    for name, ratio in ratios.items():
        if not 0 <= ratio <= 1:
            raise UsageError(f"mhim needs {name} in [0, 1], got {ratio}.")
