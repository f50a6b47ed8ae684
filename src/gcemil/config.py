"""Settings: one frozen, closed class per stage. YAML in, values out; an unknown key is an error.

`EvidenceSettings()` is the default recipe; `PAPER` is the paper read literally, kept as a control; RECIPES names them. `TrainSettings()` is the
common recipe for all hosts; how the authors of each train it stands in its entry of hosts/table.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gcemil.errors import ConfigError, InputError
from gcemil.files import parse_yaml, read_yaml, readable, refuse_wild_numbers

LARGEST_SIZE = 65_536
"""Of any layer, bank or rank: far beyond what helps, and small enough to be refused before memory runs out."""

AnchorSource = Literal[
    "auto", "cohort", "prototypes", "examples", "generic", "unrelated", "shuffled", "random"
]
# One word for each row of GATES in evidence/gates.py; a test holds them together.
GateKind = Literal[
    "sigmoid_threshold", "top_k", "gumbel_sigmoid", "concrete", "sparsemax", "entmax15", "consecutive"
]
GateModeName = Literal["paper", "deletion"]
BridgeKind = Literal["auto", "free", "proximal", "frozen", "orthogonal", "identity"]


S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """Base: frozen, closed, hashable by content."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_plain_numbers(cls, values: Any) -> Any:
        return refuse_wild_numbers(values)

    @classmethod
    def from_yaml(cls: type[S], path: Path) -> S:
        """Read the settings of a file; what it leaves out has its default."""
        try:
            values = read_yaml(path)
            return cls.model_validate({} if values is None else values)
        except InputError as error:
            raise ConfigError(str(error)) from error
        except ValidationError as error:
            raise ConfigError(f"{path}: {readable(error)}") from error

    def to_yaml(self) -> str:
        """As a file that `from_yaml` reads."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    @property
    def hash(self) -> str:
        """SHA-256 of the content."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class RecoverySettings(Settings):
    """From gates to the discrete evidence (Algorithm 1)."""

    threshold: float = Field(0.5, ge=0, le=1, description="A patch is selected when its gate is above this.")
    repair: bool = Field(True, description="Add patches until the anchors are covered.")
    coverage_target: float = Field(
        0.95, gt=0, le=1, description="Coverage every anchor that counts must reach."
    )
    reachable: bool = Field(
        True, description="Target a share of what the whole bag covers, not an absolute coverage."
    )
    min_weight_share: float = Field(
        0.5, ge=0, le=1, description="Anchors below this share of the largest weight do not count."
    )
    max_fraction: float = Field(
        0.10, gt=0, le=1, description="Repair never grows the evidence beyond this share of the bag."
    )
    checked: bool = Field(
        True,
        description="Ask the host what keeping and removing the evidence does, and take a ranking that passes.",
    )
    sufficiency_tolerance: float = Field(
        0.05, ge=0, description="Kept alone, checked evidence moves the output by no more than this."
    )
    necessity_tolerance: float = Field(
        0.05, ge=0, description="Removed, checked evidence moves the output by no less than this."
    )
    recoverability_tolerance: float = Field(
        0.01, ge=0, description="Checked repair moves the output of the evidence by no more than this."
    )


SUPPORT_GATES = {"sparsemax", "entmax15"}
"""They select where p > 0, however small."""


class EvidenceSettings(Settings):
    """How the wrapper finds evidence. The defaults are the default recipe (docs/method.md)."""

    anchors: AnchorSource = Field(
        "auto",
        description="auto: examples where cohort.yaml says so, else the cohort's bank when pairs fit its bridge or the bridge is "
        "free, else prototypes.",
    )
    n_prototypes: int = Field(8, ge=2, le=LARGEST_SIZE, description="Anchors of a prototype bank.")
    ground_prototypes: bool = Field(
        False,
        description="Let prototypes act on scores, gates and repair as prompts do. They are tissue, not concepts.",
    )
    bridge: BridgeKind = Field(
        "auto", description="auto: proximal for a text bank, identity for prototypes, frozen for examples."
    )
    bridge_rank: int = Field(128, ge=1, le=LARGEST_SIZE, description="Rank of the learned bridges.")
    bridge_weight: float = Field(
        1.0, ge=0, description="Weight of what holds a proximal bridge near its fit."
    )
    responses: Literal["calibrated", "paper"] = Field(
        "calibrated", description="Response curve over the cosines."
    )
    adapter_rank: int = Field(32, ge=1, le=LARGEST_SIZE)
    hidden: int = Field(32, ge=1, le=LARGEST_SIZE, description="Hidden units of the selector.")
    gate: GateKind = Field("consecutive", description="How scores become gates (evidence/gates.py).")
    centre: Literal["slide", "zero"] = Field("slide", description="nu_x: per slide, or the paper's 0.")
    budget: float = Field(0.05, gt=0, le=1, description="rho: the share of patches meant to be evidence.")
    min_patches: int = Field(
        8,
        ge=1,
        description="Evidence is never meant to be fewer patches, one per anchor; this matters to bags below 160.",
    )
    temperature_start: float = Field(1.0, gt=0)
    temperature_end: float | None = Field(
        None, gt=0, description="None: what was measured for the host (hosts/table.py), 0.1 for most."
    )
    morphology_term: bool = Field(
        False, description="The paper's MLP on features and coordinates; it needs far more slides than 100."
    )
    presence_term: bool = Field(
        True, description="The selector reads how present the likely classes' concepts are in a patch."
    )
    attention_term: bool = Field(True, description="The selector reads the host's ungated attention.")
    contribution_term: bool = Field(
        True, description="The selector reads signed contributions, where the host has them."
    )
    likeness_term: bool = Field(
        True,
        description="The selector reads how alike a patch is to those that decided the training slides of the likely classes.",
    )
    smoothing: float = Field(
        0.5, ge=0, le=1, description="Share of the score that is its 3x3 neighbourhood's mean."
    )
    teaches_host: bool = Field(
        False,
        description="Let the evidence train the host too. Otherwise the host learns exactly as it would without a wrapper.",
    )
    warmup: float = Field(
        0.4,
        ge=0,
        lt=1,
        description="Share of the epochs in which the host trains plainly, unpulled by its evidence.",
    )
    ramp: float = Field(
        0.2, ge=0, le=1, description="Share of the epochs over which the evidence then gains its full say."
    )
    ungated_share: float = Field(0.8, ge=0, lt=1, description="Share of the task loss on the ungated bag.")
    budget_weight: float = Field(0.1, ge=0, description="lambda_b.")
    grounding: Literal["utility_kl", "literal", "none"] = "utility_kl"
    grounding_weight: float = Field(0.5, ge=0, description="lambda_g.")
    divergence_weight: float = Field(
        0.2, ge=0, description="Weight of KL(q || pi) inside the grounding term."
    )
    sufficiency_weight: float = Field(0.25, ge=0)
    necessity_weight: float = Field(1.0, ge=0, description="Classification.")
    risk_necessity_weight: float = Field(
        0.0,
        ge=0,
        description="The same for survival. A mean risk is a prediction and not silence, so it is off.",
    )
    necessity_margin: float = Field(
        3.0,
        ge=1,
        description="Training removes this many times the budget before the complement must say nothing.",
    )
    null_peak: float = Field(2.0, ge=0, description="t ~ nu^peak; 0 is the uniform null.")
    recovery: RecoverySettings = RecoverySettings()

    @property
    def selection_threshold(self) -> float:
        """The gate above which a patch is selected before repair."""
        return 0.0 if self.gate in SUPPORT_GATES else self.recovery.threshold


PAPER = EvidenceSettings(
    ground_prototypes=True,
    bridge="free",
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
    teaches_host=True,
    recovery=RecoverySettings(reachable=False, min_weight_share=0.0, max_fraction=1.0, checked=False),
)
"""The paper read literally. Where it gives no formula (B, L_ground, what teaches alpha_cm), docs/method.md has our reading."""

PAPER_CONSTRAINED = PAPER.model_copy(update={"bridge": "proximal"})
"""The same with a bridge fitted on pairs and held near the fit: the other reading of the paper's "Full" row."""

TAUGHT = EvidenceSettings(teaches_host=True)
"""Evidence that trains its host as well: more necessary, at a price or a gain in accuracy that depends on the host."""

PAPER_TRAINING: dict[str, Any] = {
    "epochs": 15,
    "learning_rate": 2e-4,
    "weight_decay": 1e-5,
    "clip": 5.0,
    "schedule": "cosine",
    "max_patches": 512,
    "sampling": "patches",
    "chosen_from": 1.0,
}
"""The paper's schedule for every width. It names no choice of an epoch, so the last one is taken, where the gates are coldest."""


@dataclass(frozen=True)
class Recipe:
    """How the evidence is found, and what it asks of the training and of the host's gates."""

    evidence: EvidenceSettings
    training: Mapping[str, Any] = field(default_factory=dict)
    gate_mode: GateModeName | None = None
    """Of the nine hosts; None: the mode that was measured to be the better one."""


RECIPES: dict[str, Recipe] = {
    "default": Recipe(EvidenceSettings()),
    "taught": Recipe(TAUGHT),
    "paper": Recipe(PAPER, PAPER_TRAINING, "paper"),
    "paper_constrained": Recipe(PAPER_CONSTRAINED, PAPER_TRAINING, "paper"),
}


class HostWeights(Settings):
    """Weights that a host starts from, trained elsewhere or in another run."""

    source: str = Field(min_length=1, description="A file of weights, or a run whose folds give one each.")
    frozen: bool = Field(False, description="The host is never changed; only the evidence around it learns.")
    sha256: str | None = Field(None, description="Of what was read; filled in when a run begins.")


class HostSettings(Settings):
    """Which host, and how gates enter it."""

    name: str = "abmil"
    gate_mode: GateModeName | None = Field(None, description="None: the host's measured default.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword-only arguments of the host's class."
    )
    weights: HostWeights | None = Field(None, description="None: fresh weights.")

    @property
    def is_frozen(self) -> bool:
        """Whether training leaves the host as it was given."""
        return self.weights is not None and self.weights.frozen


GATES_HAVE_COOLED = 0.6
"""Share of the schedule before which gates are still warm, so that no epoch of a wrapped host is chosen."""


class TrainSettings(Settings):
    """One run. The paper's optimiser; rate and bags per step are settled per width (docs/training.md)."""

    host: HostSettings = HostSettings()
    evidence: EvidenceSettings | None = Field(EvidenceSettings(), description="None trains the plain host.")
    epochs: int = Field(15, ge=1, le=1_000_000)
    learning_rate: float | None = Field(
        None, gt=0, description="None: the rate settled for the feature width."
    )
    weight_decay: float = Field(1e-5, ge=0)
    optimizer: Literal["adamw", "adam", "lookahead_radam"] = "adamw"
    betas: tuple[float, float] = Field((0.9, 0.999), description="Decay of the optimiser's two averages.")
    schedule: Literal["cosine", "constant", "step"] = Field(
        "cosine", description="cosine: down to final_rate; step: a fifth of the rate from half-way on."
    )
    final_rate: float = Field(0.0, ge=0, description="Where the cosine ends.")
    clip: float | None = Field(
        5.0, gt=0, description="Largest norm of the gradient, of host and wrapper each; None never clips."
    )
    bags_per_step: int = Field(4, ge=1, description="Classification: bags whose gradients one step sums.")
    window: int = Field(16, ge=2, description="Survival: bags in one Cox partial likelihood.")
    survival_loss: Literal["cox", "discrete_time"] = Field(
        "cox",
        description="discrete_time: the auxiliary analysis on four intervals, never mixed with Cox results.",
    )
    ties: Literal["efron", "breslow"] = "efron"
    class_weights: tuple[float, ...] | None = None
    max_patches: int | None = Field(
        512, ge=1, description="Patches sampled from a training bag; None takes all."
    )
    sampling: Literal["blocks", "patches"] = Field(
        "blocks", description="4x4 blocks of the grid, or single patches."
    )
    early_stopping: int | None = Field(
        None, ge=1, description="Stop after so many epochs without a better validation."
    )
    chosen_from: float = Field(
        GATES_HAVE_COOLED,
        ge=0,
        le=1,
        description="No epoch before this share of the schedule is chosen; 1 takes the last.",
    )
    chosen_by: Literal["metric", "loss"] = Field(
        "metric", description="What is better on validation: the task's metric, or the loss."
    )
    precision: Literal["fp32", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    seed: int = Field(0, ge=0)


Preset = Literal["common", "published"]
"""The common recipe, or how the authors of the host train it (hosts/table.py)."""


def with_overrides(settings: TrainSettings, overrides: list[str]) -> TrainSettings:
    """The settings with dotted assignments applied, such as evidence.budget=0.1."""
    values = settings.model_dump(mode="json")
    for text in overrides:
        path, found, value = text.partition("=")
        if not found:
            raise ConfigError(f"An override is written key=value, got '{text}'.")
        *parents, last = path.split(".")
        target: Any = values
        for parent in parents:
            if not isinstance(target, dict) or parent not in target:
                raise ConfigError(f"There is no setting '{path}'.")
            target = target[parent]
        if not isinstance(target, dict):
            raise ConfigError(f"There is no setting '{path}': '{'.'.join(parents)}' is switched off.")
        try:
            target[last] = parse_yaml(value, f"The value of '{path}'")
        except InputError as error:
            raise ConfigError(str(error)) from error
    try:
        return TrainSettings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(readable(error)) from error
