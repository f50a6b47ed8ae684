"""The tile prefilter: a small student that guesses from the low-magnification view which patches the selector would open.

  x_i   standardised optical density of the view around patch i                         (prefilter_view.py)
  h_i   three convolutions with normalisation, ReLU and pooling; mean and maximum over the crop
  f_i   linear in h_i: the student's score
  loss  per slide, KL(q || softmax f) with q = softmax(t / T): what counts is who comes first, not by how much

t are the teacher's standardised scores on the patches of a training slide; whoever trains the student hands them in. A slide is
put into the student as a list, because patches are only ever compared with patches of the same slide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from gcemil.config import Settings
from gcemil.errors import UsageError
from gcemil.features.prefilter_view import (
    Crops,
    Densities,
    DensityTable,
    LowView,
    densities,
    density_table,
    patch_crops,
)
from gcemil.slides.grid import PatchGrid, PatchSettings

SCORED_AT_ONCE = 512
"""Crops in one pass of the student, so that a slide of any size needs the same memory."""
SMALLEST_CROP = 8


class PrefilterSettings(Settings):
    """How the student sees and learns."""

    view_mpp: float = Field(4.0, gt=0, le=20, description="Micrometres per pixel of the view.")
    context: float = Field(1.5, ge=1, le=5, description="Side of a crop in sides of a patch.")
    width: int = Field(16, ge=4, le=1024, multiple_of=4, description="Channels of the first convolution.")
    epochs: int = Field(10, ge=1)
    learning_rate: float = Field(3e-3, gt=0)
    weight_decay: float = Field(1e-2, ge=0)
    patches_per_slide: int = Field(
        256, ge=2, description="Patches of a training slide that are learned from."
    )
    slides_per_step: int = Field(2, ge=1)
    target_temperature: float = Field(0.5, gt=0, description="T: low values look at the first patches only.")
    seed: int = Field(0, ge=0)

    def crop_px(self, patches: PatchSettings) -> int:
        """Side of a crop in pixels of the view."""
        return max(SMALLEST_CROP, round(self.context * patches.side / self.view_mpp))


class Student(nn.Module):
    """Three convolutions; about 25 thousand weights at width 16."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(4, 2 * width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.GroupNorm(4, 4 * width), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(8 * width, 1)

    def forward(self, images: Densities) -> Float[Tensor, "n"]:
        maps = self.layers(images)
        pooled = torch.cat([maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))], dim=1)
        return self.head(pooled).squeeze(1)


@dataclass(frozen=True, eq=False)
class Lesson:
    """Patches of one training slide: what the student sees, and the teacher's scores."""

    crops: Crops
    table: DensityTable
    targets: Float[Tensor, "n"]


def lesson(
    crops: Crops, scores: Float[Tensor, "n"], *, wanted: int, generator: np.random.Generator
) -> Lesson:
    """At most `wanted` patches of a slide: half of them those the teacher ranks first, half drawn from the others."""
    table, targets = density_table(crops), standardised(scores)
    if len(crops) <= wanted:
        return Lesson(crops, table, targets)
    order = targets.sort(descending=True, stable=True).indices.numpy()
    first, others = order[: wanted // 2], order[wanted // 2 :]
    rows = np.concatenate([first, generator.choice(others, wanted - len(first), replace=False)])
    return Lesson(crops[rows], table, targets[torch.from_numpy(rows)])


def standardised(scores: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Mean 0 and deviation 1; scores that are all alike become 0."""
    centred = scores.float() - scores.float().mean()
    deviation = centred.std(correction=0)
    return centred / deviation if bool(deviation > 1e-6) else torch.zeros_like(centred)


def fit_student(
    lessons: Sequence[Lesson],
    settings: PrefilterSettings,
    *,
    on_epoch: Callable[[int, int], None] | None = None,
) -> Student:
    """A student trained from the settings' seed alone; torch's global random numbers are left as they were."""
    if not lessons:
        raise UsageError("A student learns from at least one slide.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        student = Student(settings.width)
    draws = np.random.default_rng(settings.seed)
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    n_steps = settings.epochs * ceil(len(lessons) / settings.slides_per_step)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=max(2, n_steps + 1)
    )
    for epoch in range(settings.epochs):
        order = draws.permutation(len(lessons))
        for start in range(0, len(order), settings.slides_per_step):
            chosen = [lessons[place] for place in order[start : start + settings.slides_per_step]]
            losses = [ranking_loss(student, one, settings.target_temperature, draws) for one in chosen]
            optimizer.zero_grad()
            torch.autograd.backward(torch.stack(losses).mean())
            optimizer.step()
            schedule.step()
        if on_epoch:
            on_epoch(epoch + 1, settings.epochs)
    return student.eval()


def ranking_loss(
    student: Student, one: Lesson, temperature: float, draws: np.random.Generator
) -> Float[Tensor, ""]:
    """KL between the teacher's and the student's softmax over the patches of a slide, seen from a random side."""
    images = turned(
        densities(one.crops, one.table), turns=int(draws.integers(4)), flip=bool(draws.integers(2))
    )
    wanted = torch.softmax(one.targets / temperature, dim=0)
    guessed = torch.log_softmax(student(images), dim=0)
    return nn.functional.kl_div(guessed, wanted, reduction="sum")


def turned(images: Densities, *, turns: int, flip: bool) -> Densities:
    """One of the eight ways to lay a square; tissue has no upside."""
    rotated = torch.rot90(images, turns, dims=(2, 3))
    return rotated.flip(3) if flip else rotated


@torch.inference_mode()
def student_scores(student: Student, crops: Crops) -> Float[Tensor, "n"]:
    """The student's score of every patch of a slide."""
    if len(crops) == 0:
        return torch.empty(0)
    table = density_table(crops)
    parts = [
        student(densities(crops[start : start + SCORED_AT_ONCE], table))
        for start in range(0, len(crops), SCORED_AT_ONCE)
    ]
    return torch.cat(parts)


def view_scores(
    student: Student, view: LowView, grid: PatchGrid, settings: PrefilterSettings
) -> Float[Tensor, "n"]:
    """The student's scores straight from the view of a slide."""
    return student_scores(student, patch_crops(view, grid, settings.crop_px(grid.settings)))


def kept_rows(scores: Float[Tensor, "n"], keep_rate: float) -> Int[np.ndarray, "k"]:
    """The sorted rows of the ceil(rate n) patches of highest score; equal scores go to the lower row."""
    if not 0 < keep_rate <= 1:
        raise UsageError(f"A keep rate lies in (0, 1], got {keep_rate}.")
    # 0.1 * 30 is 3.0000000000000004 for a computer, and must not keep a fourth.
    size = ceil(keep_rate * len(scores) - 1e-9)
    order = scores.sort(descending=True, stable=True).indices[:size]
    return np.sort(order.numpy())
