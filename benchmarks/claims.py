"""Do the claims hold? One table per host or arm from the results of a grid whose folds have `budget`.

  python benchmarks/claims.py RESULTS... [--arms gce prototypes] [--json FILE] [--no-stability]
Rules are compared at the same number of patches per slide. The evidence does not train the host, so the rules of the plain
host are those of the wrapped one. Rivals are all rules but the wrapper's, random and the oracle; the best one is chosen after
the fact, figure by figure, over the mean of the runs. Intervals are 95 % of 2,000 bootstraps over the slides of every run,
paired: the same slides for both sides. A slide counts as sufficient and necessary where keeping moves the output by at most
0.05 and removing by at least 0.05.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcemil.bags.tables import read_table
from gcemil.diagnostics.stability import measure_across_runs
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.findings import Finding, read_finding
from gcemil.tasks.survival import c_index

OURS, CONTROLS = "gce_discrete", ("random", "oracle")
NOT_RIVALS = (*CONTROLS, OURS, "gce_soft")
TOLERANCE = 0.05
DRAWS = 2000
Rows = NDArray[np.int64]
Values = NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--arms", nargs="+", default=["gce"], help="Wrapped arms or variants to be judged.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-stability", action="store_true")
    parser.add_argument("--by-cohort", action="store_true", help="One table per cohort as well.")
    parser.add_argument(
        "--called", help="Figures of single slides only over those that all patches are given this class."
    )
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    for name, folders in find_folds(arguments.results, arguments.arms, arguments.by_cohort).items():
        runs = [Run.read(folder, arguments.called) for folder in folders]
        report[name] = judge(runs, [] if arguments.no_stability else folders)
        print_claims(name, report[name])
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def find_folds(results: Sequence[Path], arms: Sequence[str], by_cohort: bool) -> dict[str, list[Path]]:
    """Diagnosed folds by host and arm, and by cohort where asked."""
    found: dict[str, list[Path]] = {}
    for folder in results:
        for arm in arms:
            for path in sorted(folder.glob(f"runs/*/*/{arm}/seed_*/fold_*/diagnostics/budget.json")):
                cohort, host = path.parts[-7], path.parts[-6]
                name = host if arm == "gce" else f"{host}, {arm}"
                found.setdefault(name, []).append(path.parents[1])
                if by_cohort:
                    found.setdefault(f"{name}, {cohort}", []).append(path.parents[1])
    return found


@dataclass(frozen=True, eq=False)
class Run:
    """One diagnosed fold: figures of every rule slide by slide, and what each bag was predicted."""

    budget: Finding
    slides: dict[str, list[dict[str, Any]]]
    """By rule, in the order of the test slides."""
    metrics: dict[str, dict[str, float]]
    predictions: dict[str, NDArray[Any]]
    """Target, full, soft and discrete of the test cases: class numbers, or times and risks (and which times are events)."""

    @classmethod
    def read(cls, fold: Path, called: str | None = None) -> Run:
        budget = read_finding(fold / "diagnostics" / "budget.json")
        slides: dict[str, list[dict[str, Any]]] = {}
        wanted = None if called is None else find_called(fold, called)
        for one in budget.slides:
            if wanted is not None and one["bag_id"] not in wanted:
                continue
            # The taught recipe has a plain host of its own; its rules are the rivals.
            if one["rule"] in (OURS, "gce_soft") or one["network"] == rival_network(budget):
                slides.setdefault(one["rule"], []).append(one)
        metrics = json.loads((fold / "metrics.json").read_text())
        return cls(budget, slides, metrics, read_predictions(fold))

    @property
    def task(self) -> str:
        return "c_index" if "event" in self.predictions else "macro_f1"

    def figure(self, rule: str, name: str) -> Values:
        """One figure of a rule for every slide; NaN where the slide has none."""
        values = [one.get(name) for one in self.slides[rule]]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    def is_faithful(self, rule: str) -> Values:
        """1 for a slide on which the rule's patches are sufficient and necessary."""
        kept, removed = self.figure(rule, "full_kept_gap"), self.figure(rule, "removal_gap")
        return ((kept <= TOLERANCE) & (removed >= TOLERANCE)).astype(np.float64)

    def value(self, rule: str, name: str, comparison: str = "full-kept") -> float:
        """A figure over all slides, such as the metric of the complements."""
        network = "wrapped" if rule in (OURS, "gce_soft") else rival_network(self.budget)
        wanted = {"rule": rule, "network": network, "comparison": comparison}
        (row,) = (row for row in self.budget.rows if wanted.items() <= row.labels.items())
        return float(row.values[name] or 0.0)


def rival_network(budget: Finding) -> str:
    return "plain" if any(row.labels["network"] == "plain" for row in budget.rows) else "wrapped"


def find_called(fold: Path, called: str) -> set[str]:
    """The test slides that all patches together are given this class."""
    rows = read_test_rows(fold / "predictions_full.csv")
    columns = [column for column in rows[0] if column.startswith("prob_")]
    return {
        row["slide_id"] for row in rows if max(columns, key=lambda one: float(row[one])) == f"prob_{called}"
    }


def read_test_rows(path: Path) -> list[dict[str, str]]:
    return [row for row in read_table(path, ("slide_id", "split", "target")) if row["split"] == "test"]


def read_predictions(fold: Path) -> dict[str, NDArray[Any]]:
    """Targets of the test cases, and what was predicted of them from all patches, gated and from the evidence alone."""
    found: dict[str, NDArray[Any]] = {}
    files = {
        "full": "predictions_full.csv",
        "soft": "predictions.csv",
        "discrete": "predictions_discrete.csv",
    }
    for mode, name in files.items():
        rows = read_test_rows(fold / name)
        if "risk" in rows[0]:
            found["target"] = np.array([float(row["target"]) for row in rows])
            found["event"] = np.array([row["event"] == "1" for row in rows])
            found[mode] = np.array([float(row["risk"]) for row in rows])
            continue
        columns = [column for column in rows[0] if column.startswith("prob_")]
        classes = [column.removeprefix("prob_") for column in columns]
        found["target"] = np.array([classes.index(row["target"]) for row in rows])
        found[mode] = np.array([int(np.argmax([float(row[one]) for one in columns])) for row in rows])
    return found


def judge(runs: Sequence[Run], folders: Sequence[Path]) -> dict[str, Any]:
    """Every figure of the claims over these runs."""
    rivals = sorted(set.intersection(*(set(run.slides) for run in runs)) - set(NOT_RIVALS))
    task = runs[0].task
    found: dict[str, Any] = {
        "runs": len(runs),
        "slides": [len(run.slides[OURS]) for run in runs],
        "task": task,
    }
    for mode in ("full", "soft", "discrete"):
        found[mode] = fmean(run.metrics[mode][task] for run in runs)
    for mode in ("soft", "discrete"):
        found[f"{mode} - full"] = gain_interval(runs, mode)
    alone = {rule: fmean(run.value(rule, "evidence_sufficiency") for run in runs) for rule in rivals}
    best = max(rivals, key=alone.__getitem__)
    found["rivals_alone"] = {
        "attention": alone["attention"],
        "best_rival": alone[best],
        "best_rival_name": best,
    }
    found["keep_only_drop"] = fmean(run.value(OURS, "keep_only_drop") for run in runs)
    found["cd_gap"] = fmean(run.value(OURS, "cd_gap", "soft-kept") for run in runs)
    found["evidence_fraction"] = fmean(run.value(OURS, "evidence_fraction") for run in runs)
    per_slide = {
        "precision": lambda run, rule: run.figure(rule, "precision"),
        "average_precision": lambda run, rule: run.figure(rule, "average_precision"),
        "sufficient_and_necessary": Run.is_faithful,
    }
    for name, of in per_slide.items():
        means = {rule: fmean(float(np.nanmean(of(run, rule))) for run in runs) for rule in [OURS, *rivals]}
        best = max(rivals, key=means.__getitem__)
        found[name] = {
            "evidence": means[OURS],
            "attention": means["attention"],
            "best_rival": means[best],
            "best_rival_name": best,
            **{rule: fmean(float(np.nanmean(of(run, rule))) for run in runs) for rule in CONTROLS},
            "ratio": means[OURS] / means["attention"] if means["attention"] else None,
            "runs_above_attention": sum(
                float(np.nanmean(of(run, OURS))) > float(np.nanmean(of(run, "attention"))) for run in runs
            ),
            "evidence - attention": interval(runs, difference(of, "attention")),
            "evidence - best_rival": interval(runs, difference(of, best)),
        }
    beyond = {
        rule: fmean(
            run.value(rule, "complement_degradation") - run.value("random", "complement_degradation")
            for run in runs
        )
        for rule in (OURS, *rivals, "oracle")
    }
    best = max(rivals, key=beyond.__getitem__)
    found["degradation_beyond_random"] = {
        "evidence": beyond[OURS], "attention": beyond["attention"], "best_rival": beyond[best], "best_rival_name": best,
        "oracle": beyond["oracle"], "ratio": beyond[OURS] / beyond["attention"] if beyond["attention"] else None,
    }  # fmt: skip
    if stability := seed_stability(folders):
        found["jaccard"] = {name: fmean(one[name] for one in stability) for name in stability[0]}
    return found


def difference(of: Callable[[Run, str], Values], rule: str) -> Callable[[Run, Rows], float]:
    """Evidence less the rule, on the slides drawn."""
    return lambda run, rows: float(np.nanmean((of(run, OURS) - of(run, rule))[rows]))


def gain_interval(runs: Sequence[Run], mode: str) -> dict[str, float]:
    """What a mode predicts better than all patches do; drawn are cases, of which a survival cohort has fewer than slides."""
    score = macro_f1_of if runs[0].task == "macro_f1" else concordance_of
    return interval(
        runs,
        lambda run, rows: score(run, rows, mode) - score(run, rows, "full"),
        [len(run.predictions["target"]) for run in runs],
    )


def interval(
    runs: Sequence[Run], statistic: Callable[[Run, Rows], float], sizes: Sequence[int] | None = None
) -> dict[str, float]:
    """The mean over runs, and 95 % of bootstraps over the slides of every run; `sizes` where something else is drawn."""
    generator = np.random.default_rng(0)
    sizes = sizes or [len(run.slides[OURS]) for run in runs]
    whole = fmean(statistic(run, np.arange(n)) for run, n in zip(runs, sizes, strict=True))
    draws = [
        fmean(statistic(run, generator.integers(0, n, n)) for run, n in zip(runs, sizes, strict=True))
        for _ in range(DRAWS)
    ]
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return {"mean": whole, "low": float(low), "high": float(high)}


def macro_f1_of(run: Run, rows: Rows, mode: str) -> float:
    return macro_f1(run.predictions["target"][rows], run.predictions[mode][rows])


def concordance_of(run: Run, rows: Rows, mode: str) -> float:
    found = run.predictions
    return c_index(found[mode][rows], found["target"][rows], found["event"][rows])


def macro_f1(target: Rows, predicted: Rows) -> float:
    """Mean over the classes that occur, as scikit-learn has it, many times faster on small arrays."""
    n = int(max(target.max(), predicted.max())) + 1
    table = np.bincount(target * n + predicted, minlength=n * n).reshape(n, n)
    hits, total = np.diag(table), table.sum(axis=0) + table.sum(axis=1)
    return float((2 * hits[total > 0] / total[total > 0]).mean())


def seed_stability(folders: Sequence[Path]) -> list[dict[str, float]]:
    """Jaccard across seeds, world by world: of the evidence, and of the host's attention at the same share."""
    worlds: dict[Path, list[Path]] = {}
    for fold in folders:
        worlds.setdefault(fold.parents[1], []).append(fold)
    found = []
    for of_world in worlds.values():
        number = int(of_world[0].name.removeprefix("fold_"))
        runs = [fold.parent for fold in of_world if fold.name == of_world[0].name]
        if len(runs) < 2:
            continue
        rows = measure_across_runs([TrainedFold.open(run, number) for run in runs]).rows
        by_rule = {row.labels["rule"]: row.values.get("jaccard") for row in rows}
        found.append({rule: float(by_rule[rule] or 0.0) for rule in ("evidence", "attention")})
    return found


def print_claims(name: str, found: dict[str, Any]) -> None:
    """The figures as lines of a Markdown table."""

    def shown(one: dict[str, float]) -> str:
        return f"{one['mean']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]"

    print(f"\n| {name}: {found['runs']} runs of {fmean(found['slides']):.0f} test slides | |\n|---|---|")
    print(
        f"| {found['task']}: full / soft / evidence alone | {found['full']:.3f} / {found['soft']:.3f} / {found['discrete']:.3f} |"
    )
    one = found["rivals_alone"]
    print(
        f"| attention alone, best rival alone | {one['attention']:.3f}, {one['best_rival']:.3f} ({one['best_rival_name']}) |"
    )
    for mode in ("soft", "discrete"):
        print(f"| {mode} less full | {shown(found[f'{mode} - full'])} |")
    print(
        f"| keep-only drop, C-D gap, fraction | {found['keep_only_drop']:.3f}, {found['cd_gap']:.3f}, {found['evidence_fraction']:.3f} |"
    )
    for metric in ("precision", "average_precision", "sufficient_and_necessary"):
        one = found[metric]
        ratio = (
            ""
            if one["ratio"] is None
            else f" ({one['ratio']:.2f}x, {one['runs_above_attention']} of {found['runs']})"
        )
        print(
            f"| {metric}: evidence / attention / best rival / oracle / random | {one['evidence']:.3f} / {one['attention']:.3f}{ratio} / "
            f"{one['best_rival']:.3f} ({one['best_rival_name']}) / {one['oracle']:.3f} / {one['random']:.3f} |"
        )
        print(
            f"| less attention; less best rival | {shown(one['evidence - attention'])}; {shown(one['evidence - best_rival'])} |"
        )
    one = found["degradation_beyond_random"]
    ratio = "" if one["ratio"] is None else f" ({one['ratio']:.2f}x)"
    print(
        f"| degradation beyond random: evidence / attention / best rival / oracle | {one['evidence']:.3f} / {one['attention']:.3f}{ratio} / "
        f"{one['best_rival']:.3f} ({one['best_rival_name']}) / {one['oracle']:.3f} |"
    )
    if "jaccard" in found:
        one = found["jaccard"]
        print(
            f"| Jaccard across seeds: evidence / attention | {one['evidence']:.3f} / {one['attention']:.3f} |"
        )


if __name__ == "__main__":
    main()
