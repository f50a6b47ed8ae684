"""A trained fold, opened: its bags one at a time, and their predictions.

wrapped  F, host and evidence head together (or the host: of a run without evidence, and around a
         given host, where the head has no vote)
plain    the host of another run on the same folds, trained without the wrapper

A bag is predicted once under a network, and then for the prefixes of any ranking. A host that
pools linearly predicts every prefix in one pass down the ranking:

  a = softmax(z),   pooled = sum_i a_i u_i,   logits = read_out(pooled)

z_i is the attention logit of patch i and u_i what the head reads of it: as wide as the outputs,
not as the embedding. The pooled reading of the first k patches is

  log Z_k = logcumsumexp(z)_k,    reading_k = sum_{i <= k} e^{z_i} u_i / Z_k

and u = u_plus - u_minus makes both halves cumulative sums of exponentials too, so that nothing
underflows however far the logits of a badly ranked prefix lie below the largest one:

  reading_k = exp(logcumsumexp(z + log u_plus)_k - log Z_k)
            - exp(logcumsumexp(z + log u_minus)_k - log Z_k)

Other hosts pool every prefix.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort, SampleRule, load_bags
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.folds import read_fold
from gcemil.config import Precision, TrainSettings
from gcemil.diagnostics.snr import RISK_TOLERANCE, BagOutcome, OutputScale, RiskScale
from gcemil.diagnostics.truth import true_evidence, true_regions
from gcemil.errors import RunError, UsageError
from gcemil.explanation import Explanation, Interventions, bag_tensors, explain_bag
from gcemil.findings import Finding
from gcemil.hosts.attention import LinearPooling
from gcemil.hosts.host import (
    Embedded,
    Host,
    HostOutput,
    check_bag,
    check_finite,
    embedded_bag,
    shortcut,
)
from gcemil.model import GceMil
from gcemil.outputs import AskedOutput, ClassQuestion
from gcemil.recovery import members
from gcemil.runs.checkpoint import open_network
from gcemil.runs.folder import FoldParts, Run, RunCard, fold_parts
from gcemil.search import measure_class_support
from gcemil.shapes import Logits, Scores, Selected
from gcemil.tasks.task import Task, create_task, target_tensor

DEFAULT_BUDGET = 0.05
"""rho of the paper, for a run without a wrapper."""

NetworkName = Literal["wrapped", "plain"]
PartName = Literal["train", "val", "test"]
PARTS: tuple[PartName, ...] = ("train", "val", "test")
MeasurementKey = tuple[str, NetworkName, str, str]
"""Bag, network, rule and requested size."""


@dataclass(frozen=True, eq=False)
class FoldNetwork:
    """The network of a trained fold in evaluation mode, without its cohort."""

    run: Path
    fold: int
    task: Task
    settings: TrainSettings
    host: Host
    model: GceMil | None
    scale: RiskScale

    @property
    def explained(self) -> Host:
        """F, a given host, or the host of a run without evidence."""
        return self.host if self.model is None else self.model.explained

    @property
    def model_hash(self) -> str:
        """The fingerprint of the checkpoint."""
        return content_hash(Run(self.run).fold(self.fold).checkpoint)


class NetworkBag:
    """One bag and its predictions under one network, embedded once."""

    def __init__(
        self, bag: Bag, network: FoldNetwork, question: ClassQuestion | None = None
    ) -> None:
        self.bag, self.network, self.question = bag, network, question
        self.features, self.coords = bag_tensors(bag)

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def explanation(self) -> Explanation | None:
        """Gates and recovered evidence; None for a run without the wrapper."""
        model = self.network.model
        return None if model is None else explain_bag(model, self.bag, self.question)

    @cached_property
    def view(self) -> PredictedBag:
        """The bag under the explained host."""
        explanation, host = self.explanation, self.network.explained
        if explanation is None:
            return predict_bag(host, self.features, self.coords)
        output, selected = explanation.output, explanation.recovery.selected
        view = PredictedBag(host, self.features, self.coords, output.embedded, output.answer)
        view.predicted[_subset_key(selected)] = explanation.kept.logits
        return view


class FoldBag(NetworkBag):
    """A bag of the fold's cohort, under its network and under the plain host."""

    def __init__(
        self, spec: BagSpec, bag: Bag, fold: TrainedFold, random: Scores | None = None
    ) -> None:
        super().__init__(bag, fold)
        self.spec, self.fold = spec, fold
        self.random = torch.zeros(len(bag)) if random is None else random
        """One draw per patch, the same for every diagnostic and network."""
        self.measurements: dict[MeasurementKey, dict[str, Any]] = {}
        """What was measured on the bag so far (measurements.py)."""

    @property
    def target(self) -> Tensor:
        """Its class, its value, or time and event."""
        return target_tensor(self.spec)

    @cached_property
    def plain(self) -> PredictedBag:
        """The bag under the plain host."""
        return predict_bag(self.fold.host_of("plain"), self.features, self.coords)

    def predict(self, network: NetworkName) -> PredictedBag:
        """The bag under the wrapped or the plain host, predicted once."""
        return self.view if network == "wrapped" else self.plain

    @cached_property
    def truth(self) -> Selected | None:
        """Which patches are evidence, if the cohort has truth."""
        return true_evidence(self.fold.cohort, self.bag)

    @cached_property
    def regions(self) -> Tensor | None:
        """The connected true region of each patch, 0 = none."""
        return true_regions(self.fold.cohort, self.bag)

    @property
    def has_true_evidence(self) -> bool:
        """Whether figures against truth exist."""
        return self.truth is not None and bool(self.truth.any())


@dataclass(frozen=True, eq=False)
class TrainedFold(FoldNetwork):
    """A trained fold, opened with its cohort, and beside it a plain host."""

    cohort: Cohort
    parts: FoldParts
    plain: Host | None
    plain_scale: RiskScale
    seed: int = 0
    measurements: dict[MeasurementKey, dict[str, Any]] = field(default_factory=dict)
    """What the diagnostics measured on the test bags (measurements.py)."""

    @classmethod
    def open(
        cls,
        run: Path,
        fold: int,
        *,
        against: Path | None = None,
        seed: int = 0,
        opened: tuple[RunCard, Cohort] | None = None,
        device: str = "cpu",
        precision: Precision = "32",
    ) -> TrainedFold:
        """The network of `run`, and the plain host of `against` on the same folds.

        `opened` is what open_cohort returned.
        """
        card, cohort = opened or Run(run).open_cohort()
        network, _ = open_network(Run(run).fold(fold).checkpoint, device, precision)
        plain = None
        if against is not None:
            Run(run).check_same_cohort(against)
            plain = open_network(Run(against).fold(fold).checkpoint, device, precision)[0].host
        return cls(
            run=run,
            fold=fold,
            cohort=cohort,
            task=create_task(cohort, card.settings, network.label_scale),
            settings=card.settings,
            parts=fold_parts(cohort, read_fold(cohort, fold)),
            host=network.host,
            model=network.model,
            plain=plain,
            scale=read_risk_scale(run, fold),
            plain_scale=RiskScale() if against is None else read_risk_scale(against, fold),
            seed=seed,
        )

    @property
    def networks(self) -> tuple[NetworkName, ...]:
        """The networks that are compared."""
        return ("wrapped",) if self.plain is None else ("plain", "wrapped")

    @property
    def is_same_network(self) -> bool:
        """Whether the plain host has the very weights of the wrapped one."""
        if not isinstance(self.plain, nn.Module) or not isinstance(self.explained, nn.Module):
            return False
        own, other = self.explained.state_dict(), self.plain.state_dict()
        return own.keys() == other.keys() and all(
            torch.equal(own[name], other[name]) for name in own
        )

    def host_of(self, network: NetworkName) -> Host:
        """The host of one of the two networks."""
        if network == "wrapped":
            return self.explained
        if self.plain is None:
            raise RunError("There is no plain host to compare with. Name its run with --against.")
        return self.plain

    @property
    def own_budget(self) -> float:
        """The share of patches that the run means to be evidence."""
        return DEFAULT_BUDGET if self.model is None else self.model.settings.budget

    def output_scale(
        self, network: NetworkName, *, risk_tolerance: float = RISK_TOLERANCE
    ) -> OutputScale:
        """How predictions of a network are compared, in units of its own training risks."""
        scale = self.scale if network == "wrapped" else self.plain_scale
        return OutputScale(self.task.n_outputs, scale, risk_tolerance)

    def specs(self, part: PartName = "test") -> Sequence[BagSpec]:
        """The bags of a part."""
        specs: Sequence[BagSpec] = getattr(self.parts, part)
        return specs

    def require_parts(self, reason: str) -> None:
        """Refuse a fold without validation or without test bags."""
        for part in ("val", "test"):
            if not self.specs(part):
                raise UsageError(
                    f"Fold {self.fold} of {self.cohort.folder} has no {part} bags; {reason}. "
                    "Make folds that have both with 'gcemil split'."
                )

    def bags(self, part: PartName = "test") -> Iterator[FoldBag]:
        """Every bag of the part with all its patches; one bag in memory at a time."""
        generator = torch.Generator().manual_seed(self.seed)
        for spec, bag in load_bags(self.cohort, self.specs(part), rule=SampleRule(), ahead=2):
            yield FoldBag(spec, bag, self, torch.rand(len(bag), generator=generator))
            # Let go of it: the next bag is read while this name would still hold the last.
            del bag


T = TypeVar("T")
P = ParamSpec("P")
NOT_SETTINGS = ("others", "clock")
"""Options of a pass that are not values."""
Pass = Generator[PartName, FoldBag | None, T]
"""A measurement that shares its bags with others: it yields the part of which it needs a bag, is
sent one bag after another, and None after the last. Parts are read in the order of PARTS."""


class Measure(Generic[P, T]):
    """A decorator that makes a pass a function of the fold; `steps` is the pass itself.

    The settings of a finding are the options of its pass, unless the finding sets them.
    """

    def __init__(self, measure: Callable[Concatenate[TrainedFold, P], Pass[T]]) -> None:
        self._measure = measure
        update_wrapper(self, measure)

    def steps(self, fold: TrainedFold, *args: P.args, **options: P.kwargs) -> Pass[T]:
        """The pass, with its options in the settings of its finding."""
        result = yield from self._measure(fold, *args, **options)
        if not isinstance(result, Finding):
            return result
        bound = inspect.signature(self._measure).bind(fold, *args, **options)
        bound.apply_defaults()
        settings = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in list(bound.arguments.items())[1:]
            if name not in NOT_SETTINGS
        }
        return replace(result, settings={"seed": fold.seed, **settings, **result.settings})

    def __call__(self, fold: TrainedFold, /, *args: P.args, **options: P.kwargs) -> T:
        return run_passes(fold, {"only": self.steps(fold, *args, **options)})["only"]


def run_passes(fold: TrainedFold, passes: Mapping[str, Pass[T]]) -> dict[str, T]:
    """Send every bag of the fold to all passes that need it: it is read and explained once."""
    results: dict[str, T] = {}
    wanted: dict[str, PartName] = {}

    def advance(name: str, bag: FoldBag | None) -> None:
        try:
            wanted[name] = passes[name].send(bag)
        except StopIteration as ended:
            wanted.pop(name, None)
            results[name] = ended.value

    for name in passes:
        advance(name, None)
    for part in PARTS:
        readers = [name for name in wanted if wanted[name] == part]
        for bag in fold.bags(part) if readers else ():
            for name in readers:
                advance(name, bag)
            if part == "test":
                fold.measurements.update(bag.measurements)
            del bag
        for name in readers:
            advance(name, None)
    if wanted:
        raise ValueError(
            f"Parts are read in the order {', '.join(PARTS)}: {', '.join(wanted)} went back."
        )
    return {name: results[name] for name in passes}


def read_risk_scale(run: Path, fold: int, *, of_host: bool = False) -> RiskScale:
    """Mean and deviation of the training risks of F, or of its host; (0, 1) but for survival."""
    details = Run(run).fold(fold).read_metrics().details
    if of_host and details.host_risk_deviation is not None:
        return RiskScale(details.host_risk_mean, details.host_risk_deviation)
    return RiskScale(details.risk_mean, details.risk_deviation)


COLUMNS = 8
"""Readings summed down a ranking at once, so that a wide row does not outweigh the bag."""
Ranking = Int[Tensor, "k"]
Order = Int[Tensor, "n"]


@dataclass(frozen=True, eq=False)
class PredictedBag:
    """A bag embedded and pooled once by a host in evaluation mode: every subset starts here."""

    host: Host
    features: Tensor
    """As stored: those of a large bag may be in half precision."""
    coords: Tensor | None
    embedded: Embedded
    full: HostOutput
    attributed: dict[str, Scores] = field(default_factory=dict)
    """Scores of the attributions computed so far, by name."""
    predicted: dict[bytes, Logits] = field(default_factory=dict)
    """Predictions from the subsets kept so far, which all diagnostics of a pass share."""

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def index(self) -> int:
        """The output that is explained."""
        return int(self.full.logits.argmax())

    @property
    def logit(self) -> Float[Tensor, ""]:
        """The explained output on the whole bag."""
        return self.full.logits[self.index]

    @cached_property
    def class_support(self) -> list[Scores]:
        """How much each patch supports each class; empty for numbers and without gradients."""
        n_outputs = len(self.full.logits)
        questions = [AskedOutput(n_outputs, index) for index in range(n_outputs)]
        return (
            []
            if n_outputs == 1
            else measure_class_support(
                self.host, self.features, self.embedded, self.coords, questions
            )
        )

    @cached_property
    def interventions(self) -> Interventions:
        """The interventions on the bag, which is not embedded again."""
        return Interventions(self.host, self.features, self.coords, embedded=self.embedded)

    def kept(self, selected: Selected) -> Logits:
        """The prediction from the selected patches alone, computed once."""
        if bool(selected.all()):
            return self.full.logits
        key = _subset_key(selected)
        if key not in self.predicted:
            self.predicted[key] = self.interventions.kept(selected).logits
        return self.predicted[key]

    def removed(self, selected: Selected) -> Logits | None:
        """The prediction without the selected patches; None if none is left."""
        return None if bool(selected.all()) else self.kept(~selected)

    def outcome(self, selected: Selected, gated: Logits | None = None) -> BagOutcome:
        """The four predictions for a subset; `gated` is the one under its gates, if it has any."""
        kept, removed = self.kept(selected), self.removed(selected)
        return BagOutcome(self.full.logits, kept, removed, gated, float(selected.double().mean()))

    @cached_property
    def linear(self) -> LinearPooling | None:
        """The bag ready for prefixes; None for a host whose patches attend to each other."""
        form = linear_form(self.host)
        with torch.no_grad():
            return None if form is None else form(self.embedded)


def _subset_key(selected: Selected) -> bytes:
    return np.packbits(selected.cpu().numpy()).tobytes()


@torch.no_grad()
def predict_bag(host: Host, features: Tensor, coords: Tensor | None) -> PredictedBag:
    """One pass of a host in evaluation mode over the whole bag."""
    check_bag(features, coords, in_dim=host.in_dim)
    if getattr(host, "training", False):
        raise UsageError("A host is explained in evaluation mode. Call host.eval() first.")
    embedded = embedded_bag(host, features)
    full = host.aggregate(embedded, coords)
    check_finite(full, features)
    return PredictedBag(host, features, coords, embedded, full)


def linear_form(host: Host) -> Callable[[Embedded], LinearPooling] | None:
    """How the host reads an embedded bag; None if patches attend to each other, or in training."""
    return None if getattr(host, "training", False) else shortcut(host, "linear_form")


def _pool_prefixes(
    pooling: LinearPooling, order: Int[Tensor, "n"], sizes: Sequence[int]
) -> Float[Tensor, "s v"]:
    """The pooled readings of the first patches of a ranking, for each number of them."""
    order, last = order[: max(sizes)], torch.tensor(sizes) - 1
    logits = pooling.attention_logits[order].double().unsqueeze(1)
    log_total = logits.logcumsumexp(dim=0)

    def pooled(part: Float[Tensor, "n w"]) -> Float[Tensor, "s w"]:
        sums = (logits + part.clamp(min=0).log()).logcumsumexp(dim=0)
        return (sums - log_total)[last].exp()

    columns = (part[order].double() for part in torch.split(pooling.readings, COLUMNS, dim=1))
    return torch.cat([pooled(part) - pooled(-part) for part in columns], dim=1)


@torch.no_grad()
def prefix_logits(bag: PredictedBag, order: Ranking, sizes: Sequence[int]) -> Float[Tensor, "s c"]:
    """Predictions from the first patches of a ranking, for each number of them."""
    if bag.linear is None:
        subsets = [members(order[:size], n_patches=len(bag)) for size in sizes]
        return torch.stack([bag.kept(selected) for selected in subsets])
    return bag.linear.read_out(_pool_prefixes(bag.linear, order, sizes).to(bag.full.logits.dtype))
