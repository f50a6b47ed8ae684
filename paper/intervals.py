"""How large the paper's effects are here: an estimate, a 95 % interval and a ceiling for every
comparison, arm and host.

  estimate   mean over runs (cohort, host, seed)
  interval   percentiles of 1,000 bootstraps: slides of a cohort are drawn again, the same ones for
             all its hosts, arms and seeds, and runs are drawn again where there are two or more
  ceiling    the same effect if the true patches stood in place of the evidence, on the same network
             and slides; where the effect is not one of patches, its largest possible value

Prediction files and measurements.csv.gz of the runs hold what is needed. `measure_effects` is part
of `python -m paper collect`; the result is results/intervals.csv.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gcemil.benchmark.figures import MeasuredRun
from gcemil.findings import Count, read_finding
from gcemil.runs.folder import Run, RunFold
from gcemil.runs.learning import describe_learning
from gcemil.tasks.survival import comparable_pairs
from paper.measured import Measured

DRAWS = 1000
SEED = 0
ALL = "all"
DEFAULT, PARTS = "gce", "paper_budget"
"""The judged methods: the default recipe, and the paper's parts within the budget."""
WRAPPED = (DEFAULT, "taught", "paper", PARTS)
SIZE, RECOVERED = "0.05", "recovered"
SIGNIFICANT = 0.05
Draws = np.ndarray
"""Estimates: the first of the slides as they are, the others of slides drawn again."""


class MissingFigureError(Exception):
    """A run has no such figure."""


@dataclass(frozen=True)
class Interval:
    """One line of results/intervals.csv."""

    comparison: str
    arm: str
    host: str
    """A host, or all."""
    value: float
    low: float
    high: float
    ceiling: float | None
    runs: int
    at_chance: int
    """Runs of which a network has not learned."""


class Effect(NamedTuple):
    """The effect of one run, and what the truth would reach."""

    value: Draws
    ceiling: Draws | None = None


@dataclass(frozen=True, eq=False)
class Slides:
    """The test slides of a cohort and fold: their truth, and how often each draw holds them."""

    keys: tuple[str, ...]
    truth: np.ndarray
    """The class, or times and events in two rows."""
    weights: np.ndarray
    """Draws x slides; all 1 in the first."""

    def score(self, predicted: np.ndarray) -> Draws:
        """Macro-F1 of predicted classes, or the C-index of risks, of every draw."""
        if self.truth.ndim == 2:
            return weighted_c_index(self.weights, *self.truth, predicted)
        return weighted_macro_f1(self.weights, self.truth, predicted)


def draw_weights(n: int) -> np.ndarray:
    """How often each of n things stands in each draw; the first draw is the things as they are."""
    generator = np.random.default_rng([SEED, n])
    return np.vstack([np.ones(n), generator.multinomial(n, np.full(n, 1 / n), size=DRAWS)])


def weighted_macro_f1(weights: np.ndarray, truth: np.ndarray, predicted: np.ndarray) -> Draws:
    """Mean F1 over the classes that are there or predicted, as scikit-learn counts."""
    scores = []
    for name in np.unique(np.concatenate([truth, predicted])):
        hit = weights @ ((truth == name) & (predicted == name))
        # 2 tp + fp + fn
        total = weights @ (truth == name) + weights @ (predicted == name)
        scores.append(np.divide(2 * hit, total, out=np.full(len(weights), np.nan), where=total > 0))
    return np.nanmean(scores, axis=0)


def weighted_c_index(
    weights: np.ndarray, times: np.ndarray, events: np.ndarray, risks: np.ndarray
) -> Draws:
    """Agreement of higher risk with earlier event over all comparable pairs."""
    happened = events > 0
    pairs = comparable_pairs(times, happened)
    difference = risks[happened][:, None] - risks
    agree = pairs * ((difference > 0) + 0.5 * (difference == 0))
    early = weights[:, happened]
    counted = ((early @ pairs) * weights).sum(axis=1)
    return ((early @ agree) * weights).sum(axis=1) / np.where(counted > 0, counted, np.nan)


def weighted_mean(weights: np.ndarray, values: np.ndarray) -> Draws:
    """Mean over the slides that have a value."""
    known = np.isfinite(values)
    return weights[:, known] @ values[known] / weights[:, known].sum(axis=1)


class Outcome(NamedTuple):
    """A subset of every slide: predictions on X, X_S and X_notS, the gap, and its ranking."""

    full: np.ndarray
    kept: np.ndarray
    removed: np.ndarray
    gap: np.ndarray
    average_precision: np.ndarray


@dataclass(frozen=True, eq=False)
class Place:
    """Cohort, host and seed: the runs of all arms, and the slides that they test."""

    cohort: str
    dataset: str
    host: str
    seed: int
    runs: Mapping[str, Path]

    def fold(self, arm: str) -> RunFold:
        if arm not in self.runs:
            raise MissingFigureError(arm)
        folds = Run(self.runs[arm]).finished_folds()
        if not folds:
            raise MissingFigureError(arm)
        return folds[0]

    @cached_property
    def slides(self) -> Slides:
        table = read_predictions(self.fold("host"), "full")
        if "risk" in table:
            truth = table[["target", "event"]].to_numpy(float).T
        else:
            truth = table.target.map(
                {name: i for i, name in enumerate(class_names(table))}
            ).to_numpy()
        return Slides(tuple(table.index), truth, draw_weights(len(table)))

    def predicted(self, arm: str, *modes: str) -> np.ndarray:
        """Predicted classes or risks by the first of these modes that the run has."""
        fold = self.fold(arm)
        for mode in modes:
            if mode in fold.read_metrics().modes:
                table = read_predictions(fold, mode).loc[list(self.slides.keys)]
                return answers(table)
        raise MissingFigureError(f"{arm}: {modes}")

    def subset(self, arm: str, rule: str, network: str, size: str) -> Outcome:
        """What was measured of a rule at a size."""
        table = self.measurements(arm)
        try:
            rows = table.loc[(network, rule, size)].loc[list(self.slides.keys)]
        except KeyError:
            raise MissingFigureError(f"{arm}: {rule}") from None
        phi = rows[["phi_full", "phi_kept", "phi_removed"]].to_numpy(float).T
        classes = rows[["class_full", "class_kept", "class_removed"]].to_numpy(float).T
        answered = phi if np.isnan(classes[0]).all() else classes
        gap = np.abs(rows.phi_gated - rows.phi_kept).to_numpy(float)
        return Outcome(*answered, gap, rows.average_precision.to_numpy(float))

    def measurements(self, arm: str) -> pd.DataFrame:
        path = self.fold(arm).diagnostics / "measurements.csv.gz"
        if not path.is_file():
            raise MissingFigureError(arm)
        return read_measurements(path)

    def details(self, arm: str, diagnostic: str, **labels: str) -> pd.DataFrame:
        """The records of single slides of a diagnostic with these labels."""
        path = self.fold(arm).finding(diagnostic)
        if not path.is_file():
            raise MissingFigureError(f"{arm}: {diagnostic}")
        table = pd.DataFrame(read_finding(path).slides)
        if not set(labels) <= set(table):
            raise MissingFigureError(f"{arm}: {diagnostic}")
        for name, value in labels.items():
            table = table[table[name].astype(str) == value]
        if table.empty:
            raise MissingFigureError(f"{arm}: {diagnostic} {labels}")
        return table

    def has_not_learned(self, *arms: str) -> bool:
        """Whether the plain host or an arm's network has not learned."""
        found = (self.fold(name).read_metrics().details.learning for name in {"host", *arms} - {""})
        return any(describe_learning([one]) is not None for one in found if one is not None)


@cache
def read_measurements(path: Path) -> pd.DataFrame:
    """The measured outputs of every subset, by network, rule, size and bag."""
    table = pd.read_csv(path, dtype={"bag_id": str, "size": str})
    return table.set_index(["network", "rule", "size", "bag_id"]).sort_index()


def read_predictions(fold: RunFold, mode: str) -> pd.DataFrame:
    """The test rows by bag."""
    path = fold.predictions(mode, fold.read_metrics().modes)
    if not path.is_file():
        raise MissingFigureError(f"{fold.path}: {mode}")
    table = pd.read_csv(path, dtype={"slide_id": str, "case_id": str})
    table = table[table.split == "test"]
    # The bags of survival are cases.
    key = "case_id" if "risk" in table else "slide_id"
    return table.drop_duplicates(key).set_index(key).sort_index()


def class_names(table: pd.DataFrame) -> list[str]:
    return [name.removeprefix("prob_") for name in table if name.startswith("prob_")]


def answers(table: pd.DataFrame) -> np.ndarray:
    """The predicted class, or the risk."""
    if "risk" in table:
        return table.risk.to_numpy(float)
    return table.filter(like="prob_").to_numpy().argmax(axis=1)


# The effect of one run, comparison by comparison


def gain(place: Place, arm: str) -> Effect:
    """The task metric less that of the plain host; ceiling: the host on the true patches."""
    slides = place.slides
    modes = ("full",) if arm.startswith("host") else ("gce", "soft")
    host = slides.score(place.predicted("host", "full"))
    oracle = place.subset(DEFAULT, "oracle", "plain", SIZE)
    return Effect(
        slides.score(place.predicted(arm, *modes)) - host, slides.score(oracle.kept) - host
    )


def beside_attention(place: Place, arm: str, *, keep: bool) -> Effect:
    """Change by keeping the evidence, or loss by removing it, less that of attended patches.

    Attention is that of the plain host; each change is from the full bag of the same network.
    """

    def measure(rule: str, network: str) -> Draws:
        one, score = place.subset(arm, rule, network, SIZE), place.slides.score
        if keep:
            return score(one.kept) - score(one.full)
        return score(one.full) - score(one.removed)

    evidence, attention = measure("gce_discrete", "wrapped"), measure("attention", "plain")
    return Effect(evidence - attention, measure("oracle", "wrapped") - attention)


def beside_rule(place: Place, arm: str, *, rule: str) -> Effect:
    """The task metric on the evidence alone less that on as many patches by a rule, same network."""
    evidence, rival, oracle = (
        place.slides.score(place.subset(arm, name, "wrapped", SIZE).kept)
        for name in ("gce_discrete", rule, "oracle")
    )
    return Effect(evidence - rival, oracle - rival)


def gap_of_gates(place: Place, arm: str) -> Effect:
    """The C-D gap of the recovered evidence; 0 is the best there is."""
    gap = weighted_mean(
        place.slides.weights, place.subset(arm, "evidence", "wrapped", RECOVERED).gap
    )
    return Effect(gap, np.zeros_like(gap))


def gap_less(place: Place, arm: str, *, variant: str) -> Effect:
    """The C-D gap of a variant less that of the full method; ceiling: no gap in the full method."""
    other = gap_of_gates(place, variant).value
    return Effect(other - gap_of_gates(place, arm).value, other)


def own_degradation(place: Place, arm: str) -> Effect:
    """What removing the recovered evidence costs; ceiling: as many true patches."""
    values = []
    for rule in ("evidence", "oracle"):
        one = place.subset(arm, rule, "wrapped", RECOVERED)
        values.append(place.slides.score(one.full) - place.slides.score(one.removed))
    return Effect(*values)


def degradation_by_grounding(place: Place, arm: str) -> Effect:
    full, none = own_degradation(place, arm), own_degradation(place, "grounding_none")
    return Effect(
        full.value - none.value, None if full.ceiling is None else full.ceiling - none.value
    )


def precision_by_grounding(place: Place, arm: str) -> Effect:
    """Average precision of the evidence's ranking, less that without grounding."""
    full, none = (
        weighted_mean(
            place.slides.weights,
            place.subset(one, "evidence", "wrapped", RECOVERED).average_precision,
        )
        for one in (arm, "grounding_none")
    )
    return Effect(full - none, 1 - none)


def metric_by_budget(place: Place, arm: str) -> Effect:
    """The gated prediction at a budget of 5 % less that at 1 %; ceiling: the full bag."""
    small = place.slides.score(place.predicted("budget_0.01", "soft"))
    own, full = (place.slides.score(place.predicted(arm, mode)) for mode in ("soft", "full"))
    return Effect(own - small, full - small)


def jaccard_gain(place: Place, arm: str, *, kind: str) -> Effect:
    """Overlap of the evidence of two seeds, or of a bag and its copy, less that of attention."""
    if kind == "seeds" and place.seed:
        raise MissingFigureError("one pair of seeds is counted once")
    table = place.details(arm, "stability")
    table = table[table.perturbation.str.startswith(kind)]
    own, attention = (
        table[(table.rule == rule) & (table.network == network)]
        for rule, network in (("evidence", "wrapped"), ("attention", "plain"))
    )
    if own.empty or attention.empty:
        raise MissingFigureError(f"{arm}: {kind}")
    rival = _slide_mean(attention, "jaccard")
    return Effect(_slide_mean(own, "jaccard") - rival, 1 - rival)


def two_subsets(place: Place, arm: str) -> Effect:
    """Per cent of slides with two disjoint sufficient subsets of 8 patches; ceiling: truth first."""
    return Effect(*(
        100 * _slide_mean(place.details(arm, "subsets", rule=rule, network="plain", k="8"), "two_subsets_share")
        for rule in ("sufficient_prefix", "oracle")
    ))  # fmt: skip


def dice_gain(place: Place, arm: str, *, rule: str = "evidence scores") -> Effect:
    """Dice of the evidence scores, or of the set, less that of attention; ceiling: the truth."""
    own, attention, oracle = (
        _slide_mean(place.details(arm, "localisation", rule=name, network=network), "dice")
        for name, network in ((rule, "wrapped"), ("attention", "plain"), ("oracle", "none"))
    )
    return Effect(own - attention, oracle - attention)


def relative_cost(place: Place, arm: str) -> Effect:
    """Time of a prediction from known evidence over the full bag's; ceiling: patch share."""
    table = place.details(arm, "cost", mode="discrete", network="wrapped")
    return Effect(_slide_mean(table, "aggregation_time"), _slide_mean(table, "patch_ratio"))


def _slide_mean(table: pd.DataFrame, column: str) -> Draws:
    name = "bag_id" if "bag_id" in table else "slide_id"
    values = table.groupby(name)[column].mean().astype(float).sort_index().to_numpy()
    return weighted_mean(draw_weights(len(values)), values)


# Every comparison


@dataclass(frozen=True)
class Comparison:
    """What is measured, in which arms and datasets, and how runs are joined."""

    effect: Callable[[Place, str], Effect]
    arms: tuple[str, ...]
    datasets: tuple[str, ...] = ()
    """None: all."""
    beside: str = ""
    """A variant that the effect is taken from, whose network must have learned too."""
    is_gain: bool = False
    """A gain counts networks that have not learned, which is an outcome."""
    largest_host: bool = False
    """The largest of the hosts in place of their mean."""


CLASSES, RISKS = ("bracs", "camelyon16"), ("kirc",)
GAIN_ARMS = (*WRAPPED, "examples", "prototypes", "host_long")
COMPARISONS: dict[str, Comparison] = {
    "classification": Comparison(gain, GAIN_ARMS, CLASSES, is_gain=True),
    "survival": Comparison(gain, GAIN_ARMS, RISKS, is_gain=True),
    "components": Comparison(
        partial(gap_less, variant="naive_selector"), (PARTS,), beside="naive_selector"
    ),
    "intervention": Comparison(partial(beside_attention, keep=True), WRAPPED),
    "same_budget_short": Comparison(partial(beside_rule, rule="attention"), WRAPPED, ("bracs",)),
    "same_budget": Comparison(partial(beside_attention, keep=False), WRAPPED, ("bracs",)),
    "diagnostics_bracs": Comparison(gap_of_gates, WRAPPED, ("bracs",), largest_host=True),
    "diagnostics": Comparison(own_degradation, WRAPPED),
    "stability": Comparison(partial(jaccard_gain, kind="seeds"), (DEFAULT,)),
    "stability with patches missing": Comparison(partial(jaccard_gain, kind="dropout"), (DEFAULT,)),
    "stability with noise": Comparison(partial(jaccard_gain, kind="noise"), (DEFAULT,)),
    "posthoc": Comparison(partial(beside_rule, rule="occlusion"), WRAPPED),
    "minimal_subsets": Comparison(two_subsets, (DEFAULT,)),
    "localisation": Comparison(dice_gain, WRAPPED),
    "localisation of the set": Comparison(partial(dice_gain, rule="evidence"), WRAPPED),
    "budget": Comparison(metric_by_budget, (PARTS,), beside="budget_0.01"),
    "selector": Comparison(
        partial(gap_less, variant="selector_top_k"), (PARTS,), beside="selector_top_k"
    ),
    "grounding": Comparison(degradation_by_grounding, (PARTS,), beside="grounding_none"),
    "average precision by grounding": Comparison(
        precision_by_grounding, (PARTS,), beside="grounding_none"
    ),
    "cost": Comparison(relative_cost, (DEFAULT,)),
}


def measure_effects(measured: Measured, runs: Sequence[MeasuredRun]) -> list[Interval]:
    """Every comparison that the runs allow: over all hosts, then host by host."""
    places = list_places(measured, runs)
    found = [
        line
        for name, comparison in COMPARISONS.items()
        for arm in comparison.arms
        for line in _measure_arm(name, comparison, arm, places)
    ]
    return [*found, *_shares_of_tests(measured)]


def list_places(measured: Measured, runs: Sequence[MeasuredRun]) -> list[Place]:
    """The runs by cohort, host and seed, of each dataset's main encoder."""
    datasets = {
        one.name: one.dataset
        for one in measured.cohorts
        if one.encoder == measured.main_encoders[one.dataset]
    }
    groups: dict[tuple[str, str, int], dict[str, Path]] = {}
    for run in runs:
        if run.cohort in datasets:
            groups.setdefault((run.cohort, run.host, run.seed), {})[run.label] = run.folder
    return [
        Place(cohort, datasets[cohort], host, seed, own)
        for (cohort, host, seed), own in groups.items()
        if "host" in own
    ]


def _measure_arm(
    name: str, comparison: Comparison, arm: str, places: Sequence[Place]
) -> list[Interval]:
    effects: list[tuple[Place, Effect]] = []
    for place in places:
        if not comparison.datasets or place.dataset in comparison.datasets:
            try:
                effects.append((place, comparison.effect(place, arm)))
            except MissingFigureError:
                continue
    hosts = list(dict.fromkeys(place.host for place, _ in effects))
    lines = []
    for host in [ALL, *hosts] if len(hosts) > 1 else [ALL] if hosts else []:
        own = [(place, effect) for place, effect in effects if host in (ALL, place.host)]
        if host == ALL and not comparison.is_gain:
            # Over all hosts, the networks that have learned; where none has, all.
            own = [one for one in own if not one[0].has_not_learned(arm, comparison.beside)] or own
        groups = [
            group
            for one in hosts
            if (group := [effect for place, effect in own if place.host == one])
        ]
        if comparison.largest_host and host == ALL:
            value = np.max([join_runs([one.value for one in group]) for group in groups], axis=0)
        else:
            value = join_runs([effect.value for _, effect in own])
        ceilings = [effect.ceiling[0] for _, effect in own if effect.ceiling is not None]
        low, high = np.nanpercentile(value[1:], (2.5, 97.5))
        lines.append(
            Interval(
                name, arm, host, float(value[0]), float(low), float(high),
                float(np.mean(ceilings)) if ceilings else None,
                len(own), sum(place.has_not_learned(arm, comparison.beside) for place, _ in own),
            )
        )  # fmt: skip
    return lines


def join_runs(values: Sequence[Draws]) -> Draws:
    """The mean over runs, which are drawn again too."""
    weights = draw_weights(len(values))
    return (weights * np.array(values).T).sum(axis=1) / weights.sum(axis=1)


def _shares_of_tests(measured: Measured) -> list[Interval]:
    """The share of significant tests over slides, with Wilson's interval."""
    tasks = {one.dataset: one.task for one in measured.cohorts}
    lines = []
    for task in ("classification", "survival"):
        p = [test.p for test in measured.slide_tests if tasks[test.dataset] == task]
        if p:
            count = Count(sum(one < SIGNIFICANT for one in p), len(p))
            name = f"significance_{task}"
            lines.append(Interval(name, DEFAULT, ALL, count.share, *count.interval, 1.0, len(p), 0))
    return lines


def write_intervals(lines: Sequence[Interval], path: Path) -> None:
    """A row per line, with five digits."""
    names = [field.name for field in fields(Interval)]
    table = pd.DataFrame([asdict(line) for line in lines], columns=names)
    table.to_csv(path, index=False, float_format="%.5g")


def read_intervals(path: Path) -> list[Interval]:
    """What `write_intervals` wrote."""
    rows = pd.read_csv(path).to_dict("records")
    return [
        Interval(**{**row, "ceiling": None if pd.isna(row["ceiling"]) else row["ceiling"]})
        for row in rows
    ]
