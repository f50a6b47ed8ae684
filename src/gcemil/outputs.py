"""What the outputs of a network mean: logits of classes, one log-risk, or one value.

Phi(X')      classes: softmax(logits of X')_c, c the class predicted on X
             risk: (logit of X' - mean) / unit of the training risks
             value: the output itself, in standard deviations of the training labels from their mean
gap          |Phi(X') - Phi(X)|
sufficient   gap of the kept patches <= delta_s;   necessary   gap without them >= delta_n

For the class of a question, only a fall counts: patches may show it more clearly alone.

Phi(X')      softmax(logits of X')_t, t the target;  against a class a: softmax over t and a alone
gap          Phi(X) - Phi(X')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.bags.cohort import Task
from gcemil.errors import UsageError
from gcemil.shapes import AnchorWeights, ClassAnchorWeights, Logits, Scores
from gcemil.wording import did_you_mean

NUMBER_MARGIN = 0.5
"""In a search a number that moves less than this is close enough; beyond it the closest is best."""


@dataclass(frozen=True)
class ClassOutput:
    """One logit per class."""

    n_outputs: int
    is_number = False
    measures_unit = False

    def phi(self, full: Logits, logits: Float[Tensor, "k c"]) -> Float[Tensor, "k"]:
        """Phi of several predictions of the bag on which the network predicts `full`."""
        return torch.softmax(logits.double(), dim=1)[:, full.argmax()]

    def gap(self, full: Logits, other: Logits) -> float:
        """|Phi(other) - Phi(full)|."""
        before, after = self.phi(full, torch.stack([full, other])).tolist()
        return float(abs(after - before))

    def same_class(self, full: Logits, other: Logits) -> bool:
        """Whether both predict the same class."""
        return int(full.argmax()) == int(other.argmax())

    def overshoot(self, gap: float) -> float:
        """How far a gap is beyond NUMBER_MARGIN, which classes do not have."""
        return 0.0

    def values(self, logits: Logits) -> list[float]:
        """The probability of every class."""
        return torch.softmax(logits.double(), dim=0).tolist()

    def names(self, classes: Sequence[str] = ()) -> tuple[str, ...]:
        """What the values are called."""
        return tuple(classes) or tuple(map(str, range(self.n_outputs)))

    def shares(self, contributions: Scores) -> Scores:
        """How much each patch supports the prediction."""
        return contributions

    def calibrate(
        self, logits: Float[Tensor, "*n c"], scale: Float[Tensor, "2"]
    ) -> Float[Tensor, "*n c"]:
        """Log-probabilities at the inverse temperature scale[1]."""
        return torch.log_softmax(logits * scale[1], dim=-1)

    def contrast(self, weights: ClassAnchorWeights, logits: Logits) -> AnchorWeights:
        """Weights of the predicted class above the mean of all classes."""
        return weights.index_select(0, logits.argmax().unsqueeze(0))[0] - weights.mean(dim=0)

    def supports(self, contrast: AnchorWeights) -> Tensor:
        """Which anchors support the prediction."""
        return contrast > 0

    def target_row(self, weights: ClassAnchorWeights, target: Tensor) -> AnchorWeights:
        """The weights of the true class."""
        return weights.index_select(0, target.reshape(1)).squeeze(0)


@dataclass(frozen=True)
class AskedOutput(ClassOutput):
    """The class of a question, alone or against another class, by their indices."""

    target: int = 0
    against: int | None = None

    def phi(self, full: Logits, logits: Float[Tensor, "k c"]) -> Float[Tensor, "k"]:
        """The probability of the target, among all classes or among target and `against`."""
        return torch.sigmoid(self.margins(logits))

    def margins(self, logits: Float[Tensor, "k c"]) -> Float[Tensor, "k"]:
        """The log-odds of the target."""
        logits = logits.double()
        if self.against is not None:
            return logits[:, self.target] - logits[:, self.against]
        others = [index for index in range(self.n_outputs) if index != self.target]
        return logits[:, self.target] - logits[:, others].logsumexp(dim=1)

    def gap(self, full: Logits, other: Logits) -> float:
        """Phi(full) - Phi(other): how far the target falls."""
        before, after = self.phi(full, torch.stack([full, other])).tolist()
        return float(before - after)

    def prefers(self, logits: Logits) -> bool:
        """Whether the target is predicted, or at least as likely as `against`."""
        if self.against is None:
            return int(logits.argmax()) == self.target
        return bool(logits[self.target] >= logits[self.against])

    def same_class(self, full: Logits, other: Logits) -> bool:
        """Whether a preference for the target stays; one that was not there cannot be lost."""
        return self.prefers(other) or not self.prefers(full)


@dataclass(frozen=True)
class ClassQuestion:
    """A class to explain, alone or compared with another class."""

    names: tuple[str, ...]
    target: int | None
    """None is the predicted class."""
    against: int | None

    @classmethod
    def read(
        cls, names: Sequence[str], target: str | int | None, against: str | int | None
    ) -> ClassQuestion | None:
        """A question from classes by name or index; None without a class."""
        if target is None and against is None:
            return None
        if len(names) < 2:
            raise UsageError(
                "The model predicts one number and has no classes to explain. Leave the class out."
            )

        def find(one: str | int | None) -> int | None:
            """The index of a class, given by its name or as an index."""
            if one is None:
                return None
            if isinstance(one, int) and not isinstance(one, bool) and 0 <= one < len(names):
                return one
            if str(one) in names:
                return list(names).index(str(one))
            meant = did_you_mean(str(one), names)
            raise UsageError(f"The model has no class '{one}', only: {', '.join(names)}.{meant}")

        given = find(target), find(against)
        if given[0] == given[1]:
            raise UsageError(f"'{target}' against itself cannot be explained. Name two classes.")
        return cls(tuple(names), *given)

    def ask(self, full: Logits) -> AskedOutput:
        """The target of this question for a bag on which the network predicts `full`."""
        target = int(full.argmax()) if self.target is None else self.target
        if target == self.against:
            raise UsageError(
                f"'{self.names[target]}' is the predicted class. "
                "Name the class to compare it with as well."
            )
        return AskedOutput(len(self.names), target, self.against)


@dataclass(frozen=True)
class NumberOutput:
    """One number without classes; Phi is counted from `mean` in units of `unit`."""

    unit: float | Tensor = 1.0
    mean: float = 0.0
    n_outputs = 1
    is_number = True
    measures_unit = False
    """Whether the unit of Phi has to be measured on training slides, after training."""
    name = "number"

    def phi(self, full: Logits, logits: Float[Tensor, "k 1"]) -> Float[Tensor, "k"]:
        return (logits[:, 0].double() - self.mean) / float(self.unit)

    def gap(self, full: Logits, other: Logits) -> float:
        before, after = self.phi(full, torch.stack([full, other])).tolist()
        return float(abs(after - before))

    def same_class(self, full: Logits, other: Logits) -> bool:
        """A number has no class to lose."""
        return True

    def overshoot(self, gap: float) -> float:
        return max(gap - NUMBER_MARGIN, 0.0)

    def values(self, logits: Logits) -> list[float]:
        """The number itself."""
        return logits.double().tolist()

    def names(self, classes: Sequence[str] = ()) -> tuple[str, ...]:
        return (self.name,)

    def shares(self, contributions: Scores) -> Scores:
        # A patch that lowers the number is evidence as much as one that raises it.
        return (contributions - contributions.mean()).abs()

    def calibrate(
        self, logits: Float[Tensor, "*n 1"], scale: Float[Tensor, "2"]
    ) -> Float[Tensor, "*n 1"]:
        """A risk in deviations from the training mean; a value corrected by a slope."""
        return (logits - scale[0]) * scale[1]

    def contrast(self, weights: ClassAnchorWeights, logits: Logits) -> AnchorWeights:
        """The effect of every anchor, signed."""
        return weights[0]

    def supports(self, contrast: AnchorWeights) -> Tensor:
        return contrast != 0

    def target_row(self, weights: ClassAnchorWeights, target: Tensor) -> AnchorWeights:
        return weights[0]


@dataclass(frozen=True)
class RiskOutput(NumberOutput):
    """One log-risk; its unit is the spread of the training risks, counted from their mean."""

    name = "risk"
    measures_unit = True


@dataclass(frozen=True)
class ValueOutput(NumberOutput):
    """One value in standard deviations of the training labels from their mean."""

    label_mean: float = 0.0
    label_deviation: float = 1.0
    name = "value"

    def values(self, logits: Logits) -> list[float]:
        """The value in the unit of the labels."""
        return (self.label_mean + self.label_deviation * logits.double()).tolist()


Output = ClassOutput | NumberOutput


def create_output(
    task: Task, n_outputs: int, unit: float | Tensor = 1.0, mean: float = 0.0
) -> ClassOutput | RiskOutput | ValueOutput:
    """What the outputs of a model of this task mean; only a risk takes a unit and a mean."""
    if task == "classification":
        return ClassOutput(n_outputs)
    return RiskOutput(unit, mean) if task == "survival" else ValueOutput()


def guess_task(n_outputs: int) -> Task:
    """The task of a model by its outputs: one is a risk, more are classes."""
    return "survival" if n_outputs == 1 else "classification"


@dataclass(frozen=True)
class Tolerances:
    """delta_s, delta_n and delta_r in units of Phi; the paper states none, so these are ours."""

    sufficiency: float = 0.05
    necessity: float = 0.05
    recoverability: float = 0.01

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            # Written so that NaN fails too.
            if not value >= 0:
                raise UsageError(
                    f"The tolerance of {name} is a difference of outputs, 0 or more, got {value}."
                )


@dataclass(frozen=True)
class Verdict:
    """What keeping and removing one set of patches does to the prediction."""

    is_sufficient: bool
    is_necessary: bool
    keeps_class: bool
    """The patches alone are given the same class; always so for a number."""
    changes_class: bool
    """Without the patches another class is predicted; never so for a number."""
    overshoot: float = 0.0
    """How far the number of the patches alone is beyond NUMBER_MARGIN; 0 for classes."""

    @property
    def is_faithful(self) -> bool:
        """Sufficient, necessary and of the same class."""
        return self.is_sufficient and self.is_necessary and self.keeps_class

    @property
    def merit(self) -> tuple[bool, bool, bool, bool, float, int]:
        """Larger is better."""
        return (
            self.is_faithful and self.changes_class,
            self.is_faithful,
            self.keeps_class,
            self.changes_class,
            -self.overshoot,
            self.is_sufficient + self.is_necessary,
        )


def judge(
    output: Output, full: Logits, kept: Logits, removed: Logits | None, tolerances: Tolerances
) -> Verdict:
    """Compare the three predictions; `removed` is None if no patch is left."""
    gap = output.gap(full, kept)
    return Verdict(
        is_sufficient=gap <= tolerances.sufficiency,
        is_necessary=removed is not None and output.gap(full, removed) >= tolerances.necessity,
        keeps_class=output.same_class(full, kept),
        changes_class=removed is not None and not output.same_class(full, removed),
        overshoot=output.overshoot(gap),
    )
