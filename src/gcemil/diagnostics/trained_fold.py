"""A trained fold, opened: its bags, one at a time, with everything a diagnostic asks of them.

wrapped  the host inside the wrapper (or the run's own host, when it has no wrapper)
plain    the host of another run on the same folds, trained without the wrapper
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from torch import Tensor

from gcemil.bags.bag import Bag
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.folds import read_fold
from gcemil.bags.loader import SampleRule, load_bags
from gcemil.config import TrainSettings
from gcemil.diagnostics.snr import RISK_TOLERANCE, Answers, RiskScale
from gcemil.diagnostics.truth import true_evidence, true_regions
from gcemil.errors import RunError
from gcemil.explain import Explanation, bag_tensors, explain_bag
from gcemil.hosts.host import Host
from gcemil.interventions import Interventions
from gcemil.model import GceMil
from gcemil.runs.folder import (
    FoldParts,
    RunCard,
    RunFolder,
    check_same_cohort,
    fold_parts,
    open_cohort,
    read_metrics,
)
from gcemil.runs.network import load_network
from gcemil.tasks.task import Task, create_task, stacked_targets

DEFAULT_BUDGET = 0.05
"""rho of the paper, for a run that has no wrapper to say its own."""

NetworkName = Literal["wrapped", "plain"]
PartName = Literal["train", "val", "test"]
NO_PLAIN_HOST = "There is no plain host to compare with. Name its run with --against."


class FoldBag:
    """One bag, embedded once per network, asked many questions."""

    def __init__(self, spec: BagSpec, bag: Bag, fold: TrainedFold) -> None:
        self.spec = spec
        self.bag = bag
        self.features, self.coords = bag_tensors(bag)
        self._fold = fold

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def explanation(self) -> Explanation | None:
        """Gates and recovered evidence; None for a run without the wrapper."""
        return None if self._fold.model is None else explain_bag(self._fold.model, self.bag)

    @cached_property
    def wrapped(self) -> Interventions:
        embedded = None if self.explanation is None else self.explanation.output.embedded
        return Interventions(self._fold.host, self.features, self.coords, embedded=embedded)

    @cached_property
    def plain(self) -> Interventions | None:
        host = self._fold.plain
        return None if host is None else Interventions(host, self.features, self.coords)

    def network(self, name: NetworkName) -> Interventions:
        """The interventions under one of the two networks."""
        found = self.wrapped if name == "wrapped" else self.plain
        if found is None:
            raise RunError(NO_PLAIN_HOST)
        return found

    @cached_property
    def truth(self) -> Tensor | None:
        """Which patches are evidence, where the cohort knows."""
        return true_evidence(self._fold.cohort, self.bag)

    @cached_property
    def regions(self) -> Tensor | None:
        """The connected true region of each patch, 0 = none; numbered apart for the slides of a case."""
        return true_regions(self._fold.cohort, self.bag)


@dataclass(frozen=True, eq=False)
class TrainedFold:
    """A trained fold, opened; both networks are in evaluation mode on the CPU."""

    run: Path
    fold: int
    cohort: Cohort
    task: Task
    settings: TrainSettings
    parts: FoldParts
    host: Host
    model: GceMil | None
    plain: Host | None
    scale: RiskScale
    plain_scale: RiskScale
    seed: int = 0

    @classmethod
    def open(
        cls,
        run: Path,
        fold: int,
        *,
        against: Path | None = None,
        seed: int = 0,
        opened: tuple[RunCard, Cohort] | None = None,
    ) -> TrainedFold:
        """The network of `run`, beside it the plain host of `against` on the same folds; `opened` is what open_cohort gave."""
        card, cohort = opened or open_cohort(run)
        network, _ = load_network(RunFolder(run).fold(fold).checkpoint)
        plain = None
        if against is not None:
            check_same_cohort(run, against)
            plain = load_network(RunFolder(against).fold(fold).checkpoint)[0].host
        return cls(
            run=run,
            fold=fold,
            cohort=cohort,
            task=create_task(cohort, card.settings),
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
        return ("wrapped",) if self.plain is None else ("plain", "wrapped")

    def host_of(self, network: NetworkName) -> Host:
        """The host of one of the two networks."""
        if network == "wrapped":
            return self.host
        if self.plain is None:
            raise RunError(NO_PLAIN_HOST)
        return self.plain

    @property
    def own_budget(self) -> float:
        """The share of patches that the run means to be evidence."""
        return DEFAULT_BUDGET if self.model is None else self.model.settings.budget

    def answers(self, network: NetworkName, *, risk_tolerance: float = RISK_TOLERANCE) -> Answers:
        """How predictions of one network are compared, in units of that network's own training risks."""
        return Answers(self.task.n_outputs, self.scale_of(network), risk_tolerance)

    def scale_of(self, network: NetworkName) -> RiskScale:
        return self.scale if network == "wrapped" else self.plain_scale

    def specs(self, part: PartName = "test") -> Sequence[BagSpec]:
        return {"train": self.parts.train, "val": self.parts.val, "test": self.parts.test}[part]

    def targets(self, part: PartName = "test") -> Tensor:
        return stacked_targets(self.specs(part))

    def bags(self, part: PartName = "test") -> Iterator[FoldBag]:
        """All patches of every bag of the part; one bag in memory at a time."""
        for spec, bag in load_bags(self.cohort, self.specs(part), rule=SampleRule(), ahead=2):
            yield FoldBag(spec, bag, self)
            # Let go of it: the next bag is read while this name would still hold the last.
            del bag


def read_risk_scale(run: Path, fold: int) -> RiskScale:
    """Mean and deviation of the training risks, as training wrote them; (0, 1) for classification."""
    details = read_metrics(RunFolder(run).fold(fold).path).details
    return RiskScale(details.risk_mean, details.risk_deviation)
