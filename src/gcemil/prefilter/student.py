"""The prefilter's student: what it sees of a slide, how it learns, and its file.

  view      the scanned part of a slide at low magnification, read once
  crop_i    crop_px x crop_px pixels of the view around the centre of patch i; white beyond the
            scanned part
  x_i       optical density -log10((pixel + 1) / 256), standardised by mean and deviation over all
            crops of the slide, because stains differ between laboratories
  h_i       three convolutions with normalisation, ReLU and pooling; mean and maximum over the crop
  f_i       linear in h_i: the student's score
  loss      per slide, KL(q || softmax f) with q = softmax(t / T): the order counts, not the
            distance

t are the teacher's standardised scores on the patches of a training slide. Patches are only
compared with patches of the same slide.

A fitted prefilter is one safetensors file: the student's weights and, as JSON in its header, what
predicting a new slide takes. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from pydantic import Field
from safetensors.torch import save
from torch import Tensor, nn

from gcemil.config import Settings
from gcemil.errors import RunError, UsageError
from gcemil.features.extract import FeatureOrigin
from gcemil.files import is_file, validate_as, write_bytes
from gcemil.runs.checkpoint import MISREAD, read_safetensors
from gcemil.slides.grid import PatchGrid, PatchSettings
from gcemil.slides.reader import Bounds, Pixels, SlideReader, read_overview

Crops = UInt8[np.ndarray, "n p p 3"]
DensityTable = Float[np.ndarray, "3 256"]
Densities = Float[Tensor, "n 3 p p"]

WHITE = 255
_FLATTEST = 0.02
"""Deviations of the density below this are the noise of a blank slide and are not blown up to 1."""
SCORED_AT_ONCE = 512
"""Crops in one pass of the student, so that a slide of any size needs the same memory."""
_SMALLEST_CROP = 8
PREFILTER_FILE = "prefilter.safetensors"
_HEADER_KEY = "gcemil_prefilter"


@dataclass(frozen=True, eq=False)
class LowView:
    """The scanned part of a slide at a few micrometres per pixel."""

    image: Pixels
    bounds: Bounds

    @property
    def scale(self) -> tuple[float, float]:
        """Level-0 pixels per pixel of the image, along x and y."""
        height, width = self.image.shape[:2]
        return self.bounds.width / width, self.bounds.height / height


def read_view(slide: SlideReader, mpp: float) -> LowView:
    """The view of an open slide at this many micrometres per pixel."""
    return LowView(read_overview(slide, mpp), slide.bounds)


def cut_crops(view: LowView, grid: PatchGrid, crop_px: int) -> Crops:
    """The square of the view around every patch, gathered at once."""
    centres = (grid.coords + grid.level0_side / 2 - (view.bounds.x, view.bounds.y)) / view.scale
    # First column and row of every crop, to the nearest pixel.
    corners = np.floor(centres - crop_px / 2 + 0.5).astype(np.int64)
    pixels = corners[:, :, None] + np.arange(crop_px)
    # One index for all that lies outside: the row and column of white around the image.
    height, width = view.image.shape[:2]
    lengths = np.array([width, height])[None, :, None]
    columns, rows = np.where((pixels >= 0) & (pixels < lengths), pixels, lengths).transpose(1, 0, 2)
    framed = np.pad(view.image, ((0, 1), (0, 1), (0, 0)), constant_values=WHITE)
    return framed[rows[:, :, None], columns[:, None, :]]


def density_table(crops: Crops) -> DensityTable:
    """The standardised density of all 256 values per channel, from a slide's crops."""
    counts = np.stack(
        [np.bincount(crops[..., channel].ravel(), minlength=256) for channel in range(3)]
    )
    density = -np.log10((np.arange(256) + 1) / 256)
    share = counts / max(1, counts[0].sum())
    mean = share @ density
    deviation = np.sqrt(np.maximum(share @ density**2 - mean**2, 0))
    table = (density - mean[:, None]) / np.maximum(deviation, _FLATTEST)[:, None]
    return table.astype(np.float32)


def densities(crops: Crops, table: DensityTable) -> Densities:
    """Crops as the student takes them: standardised densities, channels first."""
    channels = [torch.from_numpy(table[channel][crops[..., channel]]) for channel in range(3)]
    return torch.stack(channels, dim=1)


class PrefilterSettings(Settings):
    """How the student sees and learns."""

    view_mpp: float = Field(4.0, gt=0, le=20, description="Micrometres per pixel of the view.")
    context: float = Field(1.5, ge=1, le=5, description="Side of a crop in sides of a patch.")
    width: int = Field(
        16, ge=4, le=1024, multiple_of=4, description="Channels of the first convolution."
    )
    epochs: int = Field(10, ge=1)
    learning_rate: float = Field(3e-3, gt=0)
    weight_decay: float = Field(1e-2, ge=0)
    patches_per_slide: int = Field(
        256, ge=2, description="Patches of a training slide that are learned from."
    )
    slides_per_step: int = Field(2, ge=1)
    target_temperature: float = Field(
        0.5, gt=0, description="T: low values weight the first patches only."
    )
    seed: int = Field(0, ge=0)

    def crop_px(self, patches: PatchSettings) -> int:
        """Side of a crop in pixels of the view."""
        return max(_SMALLEST_CROP, round(self.context * patches.side / self.view_mpp))


class Student(nn.Module):
    """Three convolutions; about 25 thousand weights at width 16."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2), nn.GroupNorm(4, width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
            nn.MaxPool2d(2),
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


def draw_lesson(
    crops: Crops, scores: Float[Tensor, "n"], *, wanted: int, generator: np.random.Generator
) -> Lesson:
    """At most `wanted` patches of a slide: half the teacher's first, half drawn from the others."""
    table, targets = density_table(crops), _standardise(scores)
    if len(crops) <= wanted:
        return Lesson(crops, table, targets)
    order = targets.sort(descending=True, stable=True).indices.numpy()
    first, others = order[: wanted // 2], order[wanted // 2 :]
    rows = np.concatenate([first, generator.choice(others, wanted - len(first), replace=False)])
    return Lesson(crops[rows], table, targets[torch.from_numpy(rows)])


def _standardise(scores: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Mean 0 and deviation 1; scores that are all alike become 0."""
    centred = scores.float() - scores.float().mean()
    deviation = centred.std(correction=0)
    return centred / deviation if bool(deviation > 1e-6) else torch.zeros_like(centred)


def fit_student(lessons: Sequence[Lesson], settings: PrefilterSettings) -> Student:
    """A student trained from the settings' seed alone; torch's global generator is not advanced."""
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
    for _ in range(settings.epochs):
        order = draws.permutation(len(lessons))
        for start in range(0, len(order), settings.slides_per_step):
            chosen = [lessons[place] for place in order[start : start + settings.slides_per_step]]
            losses = [
                _ranking_loss(student, lesson, settings.target_temperature, draws)
                for lesson in chosen
            ]
            optimizer.zero_grad()
            torch.autograd.backward(torch.stack(losses).mean())
            optimizer.step()
            schedule.step()
    return student.eval()


def _ranking_loss(
    student: Student, lesson: Lesson, temperature: float, draws: np.random.Generator
) -> Float[Tensor, ""]:
    """KL between the teacher's and the student's softmax over the patches of a slide."""
    # One of the eight ways to lay a square; tissue has no upside.
    images = torch.rot90(densities(lesson.crops, lesson.table), int(draws.integers(4)), dims=(2, 3))
    if draws.integers(2):
        images = images.flip(3)
    targets = torch.softmax(lesson.targets / temperature, dim=0)
    guessed = torch.log_softmax(student(images), dim=0)
    return nn.functional.kl_div(guessed, targets, reduction="sum")


@torch.inference_mode()
def score_crops(student: Student, crops: Crops) -> Float[Tensor, "n"]:
    """The student's score of every patch of a slide."""
    table, parts = density_table(crops), [torch.empty(0)]
    for start in range(0, len(crops), SCORED_AT_ONCE):
        parts.append(student(densities(crops[start : start + SCORED_AT_ONCE], table)))
    return torch.cat(parts)


def keep_rows(scores: Float[Tensor, "n"], keep_rate: float) -> Int[np.ndarray, "k"]:
    """The sorted rows of the ceil(rate n) highest scores; ties go to the lower row."""
    # 0.1 * 30 is 3.0000000000000004 for a computer, and must not keep a fourth.
    size = ceil(keep_rate * len(scores) - 1e-9)
    order = scores.sort(descending=True, stable=True).indices[:size]
    return np.sort(order.numpy())


@dataclass(frozen=True, eq=False)
class PrefilterRecord:
    """How a student sees, and how far it is to be trusted: the header of its file."""

    settings: PrefilterSettings
    origin: FeatureOrigin
    keep_rate: Annotated[float, Field(gt=0, le=1)]
    doubt_limit: float | None
    """Predictions from kept patches up to this doubt are certified; None certifies nothing."""
    risk_deviation: Annotated[float, Field(gt=0)]
    """Deviation of the training risks, the unit of doubt of a survival model."""
    model_hash: str
    """The checkpoint whose selector taught the student."""
    provenance: dict[str, Any]


@dataclass(frozen=True, eq=False)
class FittedPrefilter(PrefilterRecord):
    """The record with its student."""

    student: Student

    def certifies(self, doubt: float) -> bool:
        """Whether a prediction of this doubt is trusted."""
        return self.doubt_limit is not None and doubt <= self.doubt_limit


def save_prefilter(path: Path, fitted: FittedPrefilter) -> None:
    """A file that appears whole or not at all."""
    meta = {
        **{field.name: getattr(fitted, field.name) for field in fields(PrefilterRecord)},
        "settings": fitted.settings.model_dump(mode="json"),
        "settings_hash": fitted.settings.hash,
        "origin": asdict(fitted.origin),
    }
    tensors = {name: tensor.contiguous() for name, tensor in fitted.student.state_dict().items()}
    write_bytes(path, save(tensors, metadata={_HEADER_KEY: json.dumps(meta, sort_keys=True)}))


def load_prefilter(path: Path) -> FittedPrefilter:
    """A prefilter as it was saved, its student in evaluation mode."""
    if not is_file(path):
        raise UsageError(
            f"{path} does not exist: no prefilter was fitted. Fit it with "
            f"'gcemil prefilter {path.parent.parent} SLIDES', or predict with --mode discrete."
        )
    remedy = "Fit it again with 'gcemil prefilter'."
    try:
        tensors, meta = read_safetensors(path, _HEADER_KEY)
        record = validate_as(meta, PrefilterRecord, path, error=RunError, remedy=remedy)
        student = Student(record.settings.width)
        student.load_state_dict(tensors)
    except MISREAD as error:
        raise RunError(f"{path} is not a prefilter of gcemil ({error}). {remedy}") from error
    return FittedPrefilter(**vars(record), student=student.eval())
