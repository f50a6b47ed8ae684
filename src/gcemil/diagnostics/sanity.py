"""sanity: do figures detect a model without information? Four controls on the slides of a fold.

  random_weights     fresh weights; attention should rank patches otherwise: mean |Spearman| <= 0.5
  shuffled_labels    a fresh host fitted to labels in random order; its prediction should be at
                     chance: the interval of AUC or C-index holds 0.5, of R2 0
  planted_shortcut   a mark in 2 % of the patches of training bags of one class and a fresh host
                     fitted; attention should find the mark on test bags: average precision >= 0.5
  no_signal          every patch of a test bag replaced by a random one with the mean and deviation
                     of the training patches; sufficient and necessary evidence on <= 10 % of bags

Each value has one beside it for comparison: attention of two fresh hosts, the same short fit to
true labels, the average precision of a host fitted without the mark, and the share on the bags as
they are. A control passes, fails, or is inconclusive: the second and third are unless the
short fit has learned (true labels above chance; the mark changes the prediction of the marked class
on average by 0.1, or the risk by 0.2 deviations of the test risks).

Fits are short: FIT_STEPS bags of at most FIT_PATCHES patches, at the rate of the host table, by the
task loss alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

from gcemil.bags.bag import Bag
from gcemil.diagnostics.snr import RISK_TOLERANCE
from gcemil.diagnostics.trained_fold import (
    FoldBag,
    Measure,
    Pass,
    PredictedBag,
    TrainedFold,
    predict_bag,
)
from gcemil.errors import InputError
from gcemil.findings import Figures, Finding, Row
from gcemil.hosts.host import Host
from gcemil.hosts.table import AnyHost, host_spec
from gcemil.metrics import CHANCE, METRICS
from gcemil.recovery import random_k, subset_size, top_k
from gcemil.runs.checkpoint import build_host
from gcemil.runs.learning import Z95, bootstrap_error
from gcemil.shapes import Scores, Selected

FIT_STEPS, FIT_PATCHES, FIT_BAGS = 1200, 256, 100
MARKED_SHARE, MARK_LENGTH = 0.02, 4.0
MOST_ALIKE, LEAST_FOUND, MOST_FALSE = 0.5, 0.5, 0.1
TOLERANCE, LEAST_TAKEN = 0.05, 0.1


@dataclass(frozen=True, eq=False)
class Sample:
    """Some patches of a bag in memory."""

    features: Tensor
    coords: Tensor | None
    target: Tensor


@dataclass(frozen=True)
class Control:
    """The result of one control; `passed` is None if it is inconclusive."""

    name: str
    expected: str
    value: float
    beside: float
    passed: bool | None

    @property
    def row(self) -> Row:
        # NaN is a figure that does not exist.
        value, beside = (
            float(one) if math.isfinite(one) else None for one in (self.value, self.beside)
        )
        values: Figures = {
            "control_value": value,
            "control_beside": beside,
            "control_passed": None if self.passed is None else float(self.passed),
        }
        return Row({"control": self.name}, values)

    @property
    def sentence(self) -> str:
        """What it should show, what it shows, and the verdict."""
        verdict = {None: "inconclusive", True: "pass", False: "fail"}[self.passed]
        return (
            f"{self.name}: {self.expected}; it is {self.value:.3f} "
            f"(beside it {self.beside:.3f}): {verdict}."
        )


@Measure
def measure_sanity(
    fold: TrainedFold, *, steps: int = FIT_STEPS, bags: int = FIT_BAGS
) -> Pass[Finding]:
    """The four controls; a host that gcemil cannot build anew has `no_signal` alone."""
    generator = torch.Generator().manual_seed(fold.seed)
    train: list[Sample] = []
    while (bag := (yield "train")) is not None:
        if len(train) < bags:
            train.append(_sample(bag, generator))
    test: list[Sample] = []
    alike: list[tuple[float, float]] = []
    held: list[tuple[bool, bool]] = []
    hosts = _fresh_hosts(fold, 2)
    pooled = torch.cat([one.features for one in train])
    centre, deviation = pooled.mean(dim=0), pooled.std(dim=0)
    while (bag := (yield "test")) is not None:
        if len(test) >= bags:
            continue
        test.append(_sample(bag, generator))
        if hosts:
            alike.append(_compare_attention(bag, hosts))
        held.append((_holds(bag), _holds(_without_signal(bag, centre, deviation, generator))))
    controls = []
    if hosts:
        own, fresh = np.abs(np.array(alike)).mean(axis=0)
        expected = (
            "attention of fresh weights should rank patches otherwise, mean |Spearman| at most "
            f"{MOST_ALIKE}"
        )
        controls.append(Control("random_weights", expected, own, fresh, bool(own <= MOST_ALIKE)))
        data = Samples(fold, train, test, steps, generator)
        plain = data.fit(train, data.targets)
        controls += [_shuffle_labels(data, plain), _plant_shortcut(data, plain)]
    real, empty = np.array(held, dtype=float).mean(axis=0)
    expected = (
        "random patches should have sufficient and necessary evidence on at most "
        f"{MOST_FALSE:.0%} of the bags"
    )
    controls.append(Control("no_signal", expected, empty, real, bool(empty <= MOST_FALSE)))
    notes = [one.sentence for one in controls]
    if not hosts:
        notes.append("The host of this run cannot be built anew, so three controls are left out.")
    settings = {"steps": steps, "bags": bags, "seed": fold.seed}
    return Finding(
        "sanity", tuple(one.row for one in controls), notes=tuple(notes), settings=settings
    )


def _sample(bag: FoldBag, generator: torch.Generator) -> Sample:
    """At most FIT_PATCHES patches of a bag."""
    rows = torch.randperm(len(bag), generator=generator)[:FIT_PATCHES].sort().values
    coords = None if bag.coords is None else bag.coords[rows]
    return Sample(bag.features[rows].float(), coords, bag.target)


def _fresh_hosts(fold: TrainedFold, count: int) -> list[AnyHost]:
    """Untrained hosts of the run's settings; none if the run has a host of another kind."""
    if fold.settings.host.is_frozen or not isinstance(fold.host, nn.Module):
        return []
    return [_fresh_host(fold, fold.seed + number) for number in range(count)]


def _fresh_host(fold: TrainedFold, seed: int) -> AnyHost:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        host = build_host(
            fold.settings.host, in_dim=fold.cohort.card.feature_dim, n_outputs=fold.cohort.n_outputs
        )
    host.eval()
    return host


def _compare_attention(bag: FoldBag, hosts: Sequence[Host]) -> tuple[float, float]:
    """Spearman's rho of a fresh host's attention with the trained and with another fresh host."""
    own, first, second = (
        predict_bag(host, bag.features, bag.coords).full.scores for host in (bag.fold.host, *hosts)
    )
    return _rank_correlation(own, first), _rank_correlation(second, first)


def _rank_correlation(one: Scores, other: Scores) -> float:
    """0 where a ranking is constant."""
    if len(one) < 2 or one.min() == one.max() or other.min() == other.max():
        return 0.0
    return float(spearmanr(one.numpy(), other.numpy()).statistic)


def _without_signal(
    bag: FoldBag, centre: Tensor, deviation: Tensor, generator: torch.Generator
) -> FoldBag:
    """The bag with random patches at the places of its own."""
    features = centre + deviation * torch.randn(len(bag), len(centre), generator=generator)
    stored = bag.bag.features.dtype
    changed = Bag(**{**vars(bag.bag), "features": features.numpy().astype(stored)})
    return FoldBag(bag.spec, changed, bag.fold)


def _holds(bag: FoldBag) -> bool:
    """Whether the evidence, of a plain host the attended 5 %, is sufficient and necessary."""
    if (explanation := bag.explanation) is not None:
        return explanation.verdict.is_sufficient and explanation.verdict.is_necessary
    view = bag.predict("wrapped")
    selected = top_k(view.full.scores, subset_size(len(bag), bag.fold.own_budget))
    outputs = bag.fold.output_scale("wrapped").read(view.outcome(selected))
    tolerance = RISK_TOLERANCE if bag.fold.task.n_outputs == 1 else TOLERANCE
    return outputs.full_kept_gap <= tolerance and (outputs.removal_gap or 0.0) >= tolerance


@dataclass(frozen=True, eq=False)
class Samples:
    """Training and test samples of a fold, with short fits of fresh hosts on them."""

    fold: TrainedFold
    train: Sequence[Sample]
    test: Sequence[Sample]
    steps: int
    generator: torch.Generator

    @property
    def targets(self) -> Tensor:
        """Targets of the training samples."""
        return torch.stack([one.target for one in self.train])

    def fit(self, bags: Sequence[Sample], targets: Tensor) -> AnyHost:
        """A fresh host after a short fit of the task loss."""
        fold, host = self.fold, _fresh_host(self.fold, self.fold.seed + 10)
        task, settings = fold.task, fold.settings
        rate = settings.learning_rate or host_spec(settings.host.name).default_rate(host.in_dim)
        size = 1 if task.n_outputs > 1 else min(settings.window, len(bags))
        n_epochs = max(1, round(self.steps / len(bags)))
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(fold.seed)
            host.begin_stage(
                host.stages()[-1],
                lambda: torch.stack(
                    [host(one.features, one.coords).bag_feature.detach() for one in bags]
                ),
                n_epochs * len(bags),
            )
            host.train()
            learned = [weight for weight in host.parameters() if weight.requires_grad]
            optimizer = torch.optim.AdamW(learned, lr=rate, weight_decay=settings.weight_decay)
            generator = np.random.default_rng(fold.seed)
            for _ in range(n_epochs):
                for window in task.windows(targets, window_size=size, generator=generator):
                    logits = [host(bags[i].features, bags[i].coords).logits for i in window]
                    loss = task.loss(torch.stack(logits), targets[torch.as_tensor(window)])
                    if loss is None:
                        continue
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]
                    nn.utils.clip_grad_norm_(learned, 5.0)
                    optimizer.step()
                    host.after_step()
        host.eval()
        return host

    def score(self, host: Host) -> tuple[float, float]:
        """AUC, C-index or R2 on the test samples, and its bootstrap error."""
        task, targets = self.fold.task, torch.stack([one.target for one in self.test])
        with torch.no_grad():
            logits = torch.stack([host(one.features, one.coords).logits for one in self.test])
        predictions = task.prediction(logits)

        def figure(rows: np.ndarray) -> float:
            return task.metrics(targets[rows], predictions[rows])[task.figure]

        try:
            every = np.arange(len(targets))
            return figure(every), bootstrap_error(figure, len(targets)) or float("inf")
        except InputError:
            return float("nan"), float("inf")


def _shuffle_labels(data: Samples, plain: Host) -> Control:
    """A host fitted to labels in random order, beside the plain one."""
    order = torch.randperm(len(data.train), generator=data.generator)
    figure = data.fold.task.figure
    label, chance = METRICS[figure].label, CHANCE[figure]
    shuffled, error = data.score(data.fit(data.train, data.targets[order]))
    true, true_error = data.score(plain)
    learned = true - Z95 * true_error > chance
    expected = f"after labels in random order the interval of the {label} should hold {chance:g}"
    passed = abs(shuffled - chance) <= Z95 * error
    return Control("shuffled_labels", expected, shuffled, true, passed if learned else None)


def _plant_shortcut(data: Samples, plain: Host) -> Control:
    """A host fitted to bags of which one class is marked, beside the plain one."""
    targets, generator = data.targets, data.generator
    pooled = torch.cat([one.features for one in data.train])
    signs = torch.randint(0, 2, (pooled.shape[1],), generator=generator) * 2 - 1
    mark = pooled.mean(dim=0) + MARK_LENGTH * pooled.std(dim=0) * signs
    is_number = data.fold.task.n_outputs == 1
    # The largest class; of survival the cases with an early event; of values the upper half.
    chosen = _highest(targets) if is_number else targets == targets.mode().values
    marked = [
        _put_mark(one, mark, generator)[0] if bool(is_chosen) else one
        for one, is_chosen in zip(data.train, chosen, strict=True)
    ]
    misled = data.fit(marked, targets)
    planted = [_put_mark(one, mark, generator) for one in data.test]
    with torch.no_grad():
        views = [predict_bag(misled, one.features, one.coords) for one, _ in planted]
        clean = [predict_bag(misled, one.features, one.coords) for one in data.test]
        others = [predict_bag(plain, one.features, one.coords) for one, _ in planted]
    taken = _mark_effect(views, clean, None if is_number else int(targets.mode().values))
    marks = [where.numpy() for _, where in planted]
    share, beside = (
        float(np.mean(list(map(average_precision_score, marks, scores))))
        for scores in ([view.full.scores.numpy() for view in side] for side in (views, others))
    )
    expected = f"attention should find the planted mark, average precision at least {LEAST_FOUND}"
    has_learned = taken >= (RISK_TOLERANCE if is_number else LEAST_TAKEN)
    passed = share >= LEAST_FOUND if has_learned else None
    return Control("planted_shortcut", expected, share, beside, passed)


def _highest(targets: Tensor) -> Tensor:
    """Events before the median time of events, or values above the median."""
    if targets.ndim == 1:
        return targets > targets.median()
    times, events = targets[:, 0], targets[:, 1] > 0
    return events & (times <= times[events].median()) if bool(events.any()) else events


def _put_mark(one: Sample, mark: Tensor, generator: torch.Generator) -> tuple[Sample, Selected]:
    """The bag with a mark in the place of some patches, and which those are."""
    where = random_k(
        len(one.features), subset_size(len(one.features), MARKED_SHARE), generator=generator
    )
    features = one.features.clone()
    features[where] = mark
    return Sample(features, one.coords, one.target), where


def _mark_effect(
    marked: Sequence[PredictedBag], clean: Sequence[PredictedBag], index: int | None
) -> float:
    """How far the mark moves the probability of its class, or the risk in deviations."""
    logits = [torch.stack([view.full.logits for view in side]) for side in (marked, clean)]
    if index is not None:
        after, before = (side.softmax(dim=1)[:, index] for side in logits)
        return float((after - before).mean())
    after, before = (side[:, 0] for side in logits)
    return float((after - before).mean() / before.std().clamp_min(1e-12))
