"""Settings: frozen and closed classes. YAML in, values out; an unknown key is an error.

`EvidenceSettings()` is the default recipe; RECIPES names it and the others. `TrainSettings()` is
the common recipe for all hosts; how the authors of each train it is in hosts/table.py.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gcemil.errors import ConfigError, InputError
from gcemil.files import check_finite_numbers, read_yaml
from gcemil.wording import comment_settings, readable

LARGEST_SIZE = 65_536
"""Largest layer, bank or rank; a larger one is refused before memory runs out."""

AnchorSource = Literal[
    "auto", "cohort", "prototypes", "examples", "generic", "unrelated", "shuffled", "random"
]
GateKind = Literal[
    "sigmoid_threshold", "top_k", "gumbel_sigmoid", "concrete", "sparsemax", "entmax15",
    "consecutive",
]  # fmt: skip
GateModeName = Literal["paper", "deletion"]
BridgeKind = Literal["auto", "free", "proximal", "frozen", "identity", "centred"]
Precision = Literal["32", "bf16"]
"""Numbers of the matrix products of a network."""
Preset = Literal["common", "published"]
"""The common recipe, or how the authors of the host train it (hosts/table.py)."""
TrackerName = Literal["tensorboard", "mlflow", "wandb", "none"]
"""Where the figures of an epoch go beside history.jsonl (training/trackers.py)."""
RANDOM_PREFIX = "random:"
"""Before the name of a patch encoder: its architecture, untrained (features/encoders.py)."""
SUPPORT_GATES = {"sparsemax", "entmax15"}
"""They select where p > 0, however small."""
EARLIEST_SELECTABLE_EPOCH = 0.6
"""Share of the schedule before which no epoch is chosen, since gates are still soft."""
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """Base: frozen, closed, hashable by content."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _has_plain_numbers(cls, values: Any) -> Any:
        return check_finite_numbers(values)

    @classmethod
    def from_yaml(cls: type[S], path: Path) -> S:
        """Read the settings of a file; what it leaves out has its default."""
        try:
            values = read_yaml(path)
        except InputError as error:
            raise ConfigError(str(error)) from error
        return cls.from_values(values, path)

    @classmethod
    def from_values(cls: type[S], values: Any, source: object) -> S:
        """Check what a file holds; `source` is what messages call it."""
        if values is not None and not isinstance(values, dict):
            raise ConfigError(
                f"{source} holds no settings. Write them as 'key: value', one to a line."
            )
        try:
            return cls.model_validate(values or {})
        except ValidationError as error:
            raise ConfigError(f"{source}: {readable(error, cls)}.") from error

    def to_yaml(self) -> str:
        """The text of a file that `from_yaml` reads."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    def to_commented_yaml(self) -> str:
        """The same with what every setting means and accepts beside it."""
        return "\n".join(comment_settings(self)) + "\n"

    @property
    def hash(self) -> str:
        """SHA-256 of the content."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class RecoverySettings(Settings):
    """From gates to the discrete evidence (Algorithm 1)."""

    threshold: float = Field(0.5, ge=0, le=1)
    """A patch is selected when its gate is above this."""
    repair: bool = False
    """Add patches until the anchors are covered (Algorithm 1)."""
    drop_free_riders: bool = True
    """Leave out patches without which the prediction is the same."""
    coverage_target: float = Field(0.95, gt=0, le=1)
    """Coverage every anchor that counts must reach."""
    reachable: bool = True
    """Target a share of what the whole bag covers, not an absolute coverage."""
    min_weight_share: float = Field(0.5, ge=0, le=1)
    """Anchors below this share of the largest weight do not count."""
    max_fraction: float = Field(0.10, gt=0, le=1)
    """Repair takes no more than this share of the bag."""
    shortlist: int | None = Field(None, ge=1)
    """Repair adds only from this many patches of largest gate; null: from all (Proposition 2)."""
    sufficiency_tolerance: float = Field(0.05, ge=0)
    """Largest change of the output from sufficient evidence alone."""
    necessity_tolerance: float = Field(0.05, ge=0)
    """Smallest change of the output without necessary evidence."""
    until_sufficient: bool = False
    """Add patches by score until the set predicts what the gates predict (Mechanism 6)."""
    recoverability_tolerance: float = Field(0.01, ge=0)
    """until_sufficient adds patches until gates and set differ by no more than this."""


class EvidenceSettings(Settings):
    """How the wrapper finds evidence. The defaults are the default recipe (docs/method.md).

    Example:
        >>> import gcemil
        >>> gcemil.EvidenceSettings(budget=0.1).min_patches
        8
    """

    anchors: AnchorSource = "auto"
    """auto: named examples, else a text bank with pairs or a free bridge, else prototypes."""
    n_prototypes: int = Field(8, ge=2, le=LARGEST_SIZE)
    """Anchors of a prototype bank."""
    ground_prototypes: bool = False
    """Let prototypes act on scores, gates and repair as prompts do."""
    bridge: BridgeKind = "auto"
    """auto: centred for examples and patches of prompts, proximal for text, else identity."""
    prompt_examples: int = Field(30, ge=0, le=LARGEST_SIZE)
    """Under bridge auto, this many training patches represent a prompt; 0: the prompt itself."""
    bridge_rank: int = Field(128, ge=1, le=LARGEST_SIZE)
    """Rank of the learned bridges."""
    bridge_weight: float = Field(1.0, ge=0)
    """Weight of the loss that keeps a proximal bridge near its fit."""
    head: bool = True
    """Mix the host with the evidence head, by a weight chosen on validation slides."""
    responses: Literal["calibrated", "paper"] = "calibrated"
    """How the cosine of a patch and an anchor becomes a response from 0 to 1."""
    adapter_rank: int = Field(32, ge=1, le=LARGEST_SIZE)
    """Rank of the low-rank map that adapts features to the anchors."""
    hidden: int = Field(32, ge=1, le=LARGEST_SIZE)
    """Hidden units of the selector."""
    gate: GateKind = "consecutive"
    """How scores become gates (evidence/gates.py)."""
    centre: Literal["slide", "zero"] = "slide"
    """Reference of the scores: a centre of the slide (nu_x), or the paper's 0."""
    budget: float = Field(0.05, gt=0, le=1)
    """The share of patches that evidence may take (rho)."""
    min_patches: int = Field(8, ge=1)
    """The budget is never below this number of patches."""
    temperature_end: float | None = Field(None, gt=0)
    """Final temperature. null: 0.1 for most hosts, and 1e-6 after training unless train_host."""
    morphology_term: bool = False
    """The paper's MLP on features and coordinates; it needs far more slides than 100."""
    presence_term: bool = True
    """The selector reads how present the concepts of the likely classes are in a patch."""
    attention_term: bool = True
    """The selector reads the host's ungated attention."""
    contribution_term: bool = True
    """The selector reads signed contributions, where the host has them."""
    likeness_term: bool = True
    """The selector reads how similar a patch is to decisive patches of the training slides."""
    smoothing: float = Field(0.5, ge=0, le=1)
    """Share of the score that is its 3x3 neighbourhood's mean."""
    train_host: bool = False
    """Let the evidence train the host too; otherwise the host is that of a plain run."""
    warmup: float = Field(0.4, ge=0, lt=1)
    """Share of the epochs in which the host trains without its evidence."""
    ramp: float = Field(0.2, ge=0, le=1)
    """Share of the epochs in which the weight of the evidence then grows from 0 to 1."""
    ungated_share: float = Field(0.8, ge=0, lt=1)
    """Share of the task loss on the bag without gates."""
    budget_weight: float = Field(0.1, ge=0)
    """Weight of the loss that keeps the gates within the budget (lambda_b)."""
    grounding: Literal["utility_kl", "literal", "none"] = "utility_kl"
    """The loss that ties gates to the anchors; literal is the paper's."""
    grounding_weight: float = Field(0.5, ge=0)
    """Weight of the loss that ties gates to the anchors (lambda_g)."""
    divergence_weight: float = Field(0.2, ge=0)
    """Weight of the divergence from the anchors' choice to the gates, inside that loss."""
    sufficiency_weight: float = Field(0.25, ge=0)
    """Weight of the loss for the right prediction from the evidence alone."""
    necessity_weight: float = Field(1.0, ge=0)
    """Classes: weight of the loss for an undecided prediction without the evidence."""
    recovery: RecoverySettings = RecoverySettings()
    """From gates to the set of patches that is the evidence."""

    @property
    def selection_threshold(self) -> float:
        """The gate above which a patch is selected before repair."""
        return 0.0 if self.gate in SUPPORT_GATES else self.recovery.threshold


PAPER = EvidenceSettings(
    head=False,
    ground_prototypes=True,
    bridge="free",
    prompt_examples=0,
    responses="paper",
    centre="zero",
    min_patches=1,
    temperature_end=0.4,
    morphology_term=True,
    presence_term=False,
    attention_term=False,
    contribution_term=False,
    likeness_term=False,
    warmup=0.0,
    ramp=0.0,
    smoothing=0.0,
    ungated_share=0.0,
    grounding="literal",
    sufficiency_weight=0.0,
    necessity_weight=0.0,
    train_host=True,
    recovery=RecoverySettings(
        repair=True,
        drop_free_riders=False,
        reachable=False,
        min_weight_share=0.0,
        max_fraction=1.0,
        until_sufficient=True,
    ),
)
"""The paper read literally; docs/departures.md has our reading where it gives no formula."""

JOINT = EvidenceSettings(
    train_host=True,
    prompt_examples=0,
    head=False,
    recovery=RecoverySettings(repair=True, drop_free_riders=False),
)
"""Evidence that trains its host as well."""

PAPER_TRAINING: dict[str, Any] = {
    "epochs": 15,
    "weight_decay": 1e-5,
    "clip": 5.0,
    "schedule": "cosine",
    "max_patches": 512,
    "sampling": "patches",
    "chosen_from": 1.0,
}
"""The paper's schedule, at the rate of the host table; the last epoch is taken."""


@dataclass(frozen=True)
class Recipe:
    """How the evidence is found, and what it changes in the training and in the host's gates."""

    evidence: EvidenceSettings
    training: Mapping[str, Any] = field(default_factory=dict)
    gate_mode: GateModeName | None = None
    """Gate mode of the built-in hosts; None: the default of the host."""


def _paper(**changes: Any) -> Recipe:
    return Recipe(PAPER.model_copy(update=changes), PAPER_TRAINING, "paper")


RECIPES: dict[str, Recipe] = {
    "default": Recipe(EvidenceSettings()),
    "joint": Recipe(JOINT),
    # The name of joint before version 0.3.
    "taught": Recipe(JOINT),
    "paper": _paper(),
    # A bridge held near its fit on pairs: the other reading of the paper's "Full" row.
    "paper_constrained": _paper(bridge="proximal"),
    # With a centre per slide, grounding by divergence and repair that is capped.
    "paper_budget": _paper(
        bridge="proximal",
        centre="slide",
        grounding="utility_kl",
        recovery=RecoverySettings(repair=True, drop_free_riders=False, until_sufficient=True),
    ),
}


class HostWeights(Settings):
    """Weights that a host starts from, trained elsewhere or in another run."""

    source: str = Field(min_length=1)
    """A file of weights, or a run whose folds give one each."""
    frozen: bool = False
    """The host is never changed; only the evidence around it learns."""
    sha256: str | None = None
    """SHA-256 of the weights, filled in when a run begins."""


class HostSettings(Settings):
    """Which host, and how gates enter it.

    Example:
        >>> import gcemil
        >>> gcemil.HostSettings(name="clam_sb", options={"dropout": 0.25}).is_frozen
        False
    """

    name: str = "abmil"
    """A host of gcemil, or a class of yours as package.module:Class."""
    gate_mode: GateModeName | None = None
    """null: the host's measured default."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword-only arguments of the host's class."""
    weights: HostWeights | None = None
    """null: fresh weights."""

    @property
    def is_frozen(self) -> bool:
        """Whether training leaves the host as it was given."""
        return self.weights is not None and self.weights.frozen


class TrainSettings(Settings):
    """Host, evidence and training of a run.

    Example:
        >>> import gcemil
        >>> settings = gcemil.TrainSettings(seed=1, evidence=None)
        >>> settings.count_epochs(100, survival=False)
        20
    """

    host: HostSettings = HostSettings()
    """The model that predicts."""
    evidence: EvidenceSettings | None = EvidenceSettings()
    """How evidence is found; null trains the plain host."""
    epochs: int | None = Field(None, ge=1, le=1_000_000)
    """Passes over the training bags; null: as many as min_steps and min_epochs require."""
    min_steps: int = Field(2000, ge=1, le=1_000_000_000)
    """Fewest optimiser steps; a survival window counts once per bag."""
    min_epochs: int = Field(15, ge=1, le=1_000_000)
    """Fewest passes over the training bags."""
    learning_rate: float | None = Field(None, gt=0)
    """null: the rate of the host table, 5e-4 for most, lower for wide features."""
    weight_decay: float = Field(1e-5, ge=0)
    """Weight decay of the optimiser."""
    optimizer: Literal["adamw", "adam", "lookahead_radam"] = "adamw"
    """How weights are updated."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the optimiser's two moving averages."""
    schedule: Literal["cosine", "constant", "step"] = "cosine"
    """cosine: down to final_rate; step: a fifth of the rate from half-way on."""
    final_rate: float = Field(0.0, ge=0)
    """Where the cosine ends."""
    clip: float | None = Field(5.0, gt=0)
    """Largest norm of the gradient, of host and wrapper each; null never clips."""
    bags_per_step: int = Field(1, ge=1)
    """Classification: bags in one optimiser step."""
    window: int = Field(16, ge=2)
    """Survival: bags in one Cox partial likelihood."""
    survival_loss: Literal["cox", "discrete_time"] = "cox"
    """discrete_time: the auxiliary analysis on four intervals."""
    class_weights: tuple[float, ...] | None = None
    """Weight of each class in the loss, in the order of cohort.yaml; null: all alike."""
    max_patches: Annotated[int, Field(ge=1)] | Literal["host", "all"] = "host"
    """Patches sampled from a training bag; host: 2048 for most, 512 for transformers."""
    sampling: Literal["blocks", "patches"] = "blocks"
    """4x4 blocks of the grid, or single patches."""
    early_stopping: int | None = Field(None, ge=1)
    """Stop after this many epochs without improvement on validation slides."""
    chosen_from: float = Field(EARLIEST_SELECTABLE_EPOCH, ge=0, le=1)
    """No epoch before this share of the schedule is chosen; 1 takes the last."""
    chosen_by: Literal["metric", "loss"] = "metric"
    """What is better on validation: the task's metric, or the loss."""
    keep_epochs: bool = False
    """Store the representations of every epoch, for the report's t-SNE."""
    precision: Precision = "32"
    """Matrix products in float32 or bfloat16; weights and losses stay in float32."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps; auto takes a GPU if there is one."""
    seed: int = Field(0, ge=0)
    """Random seed."""

    def count_epochs(self, n_bags: int, *, survival: bool) -> int:
        """Compute the number of passes over the training bags.

        Args:
            n_bags: Number of training bags.
            survival: Whether the task is survival.

        Returns:
            `epochs`, or as many as `min_steps` and `min_epochs` require.
        """
        n_steps = n_bags if survival else math.ceil(n_bags / self.bags_per_step)
        return self.epochs or max(self.min_epochs, math.ceil(self.min_steps / max(1, n_steps)))

    @property
    def host_is_unchanged(self) -> bool:
        """True if the host of a wrapped run has the weights it would have without a wrapper."""
        return (
            self.evidence is not None and not self.evidence.train_host and not self.host.is_frozen
        )

    @field_validator("precision", mode="before")
    @classmethod
    def _names_precision(cls, value: Any) -> Any:
        # YAML reads a bare 32 as a number.
        return "32" if value == 32 else value

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device):
            raise ValueError("a device is auto, cpu, cuda, cuda:1 or mps")
        return device


def read_train_settings(path: Path) -> tuple[TrainSettings, bool]:
    """The settings of a file or a run folder, and whether they are those of a run."""
    file = path / "config.yaml" if path.is_dir() else path
    try:
        values = read_yaml(file)
    except InputError as error:
        raise ConfigError(
            f"{error} 'gcemil train --print-config' prints a file to start from."
        ) from error
    # The file of a run holds its cohort beside its settings.
    is_run = isinstance(values, dict) and "settings" in values
    return TrainSettings.from_values(values["settings"] if is_run else values, file), is_run
