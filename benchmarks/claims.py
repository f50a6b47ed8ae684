"""Do the claims hold? One table per host or arm from the results of a grid whose folds have `snr` and `budget`.

  python benchmarks/claims.py RESULTS [--arms gce ...] [--json FILE] [--markdown] [--by-cohort] [--no-stability]
Every figure is a mean over worlds and seeds of paired runs; sd is between runs. `better` counts the runs in which the
evidence beats the attention of the plain host at the same number of patches per slide. The best rival is the best rule of
either network, smoothed ones included, chosen after the fact: the hardest comparison.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, pstdev

from claim_tables import Figures, cohort_table, listing, markdown, one_line_each

from gcemil.diagnostics.stability import measure_across_runs
from gcemil.diagnostics.trained_fold import TrainedFold
from gcemil.findings import Finding, read_finding

CONTROLS = {"random", "oracle", "gce_soft", "gce_discrete"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--arms", nargs="+", default=["gce"], help="Wrapped arms or variants to be judged.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="Print the tables of docs/results.md.")
    parser.add_argument("--by-cohort", action="store_true", help="Also one line per cohort.")
    parser.add_argument("--no-stability", action="store_true")
    arguments = parser.parse_args()
    report = {}
    for name, folds in judged_folds(arguments.results, arguments.arms).items():
        runs = [paired_figures(fold) for fold in folds]
        stability = [] if arguments.no_stability else seed_stability(folds)
        report[name] = {
            "runs": len(runs),
            "rows": rows_of(runs, stability),
            "cohorts": by_cohort(folds, runs),
        }
    if arguments.by_cohort:
        print("\n".join(cohort_table(found["cohorts"]) for found in report.values()))
    if not arguments.markdown:
        print("\n".join(listing(name, found) for name, found in report.items()))
    elif len(report) == 1:
        print("\n".join(markdown(name, found["runs"], found["rows"]) for name, found in report.items()))
    else:
        print(one_line_each(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def judged_folds(results: Path, arms: list[str]) -> dict[str, list[Path]]:
    """The folds of every host, or of every arm where there are several."""
    found: dict[str, list[Path]] = {}
    for arm in arms:
        for path in sorted(results.glob(f"runs/*/*/{arm}/seed_*/fold_*/diagnostics/budget.json")):
            found.setdefault(path.parts[-6] if len(arms) == 1 else arm, []).append(path.parent.parent)
    return found


def paired_figures(fold: Path) -> Figures:
    """The evidence of one fold beside the rules of the plain host trained on the same fold with the same seed."""
    budget, snr = (read_finding(fold / "diagnostics" / f"{name}.json") for name in ("budget", "snr"))
    metrics = json.loads((fold / "metrics.json").read_text())
    task = "macro_f1" if "macro_f1" in metrics["soft"] else "c_index"
    figures = {
        "soft": metrics["soft"][task],
        "discrete": metrics["discrete"][task],
        "full": metrics["full"][task],
    }
    for arm in ("host", "host_long"):
        path = fold.parents[2] / arm / fold.parent.name / fold.name / "metrics.json"
        if path.is_file():
            figures[arm] = json.loads(path.read_text())["full"][task]
    evidence = row(snr, rule="evidence", comparison="full-kept", **{"class": "all"})
    figures |= {name: evidence[name] for name in ("keep_only_drop", "evidence_fraction")}
    figures["cd_gap"] = row(snr, rule="evidence", comparison="soft-kept", **{"class": "all"})["cd_gap"]
    ours = row(budget, rule="gce_discrete", budget="recovered", comparison="full-kept")
    for network in ("plain", "wrapped"):
        chance = row(budget, rule="random", network=network, budget="recovered")
        figures[f"random_degradation_{network}"] = chance["complement_degradation"]
    for name, rule, network in (
        ("evidence", "gce_discrete", "wrapped"),
        ("attention", "attention", "plain"),
        ("attention_smoothed", "attention_smoothed", "plain"),
        ("oracle", "oracle", "plain"),
    ):
        found = row(budget, rule=rule, network=network, budget="recovered", comparison="full-kept")
        figures[f"precision_{name}"] = found["precision"]
        figures[f"average_precision_{name}"] = found["average_precision"]
        excess = found["complement_degradation"] - figures[f"random_degradation_{network}"]
        figures[f"degradation_{name}"] = excess
        figures[f"kept_{name}"] = found["evidence_sufficiency"]
    rivals = [
        found
        for found in budget.rows
        if found.labels["rule"] not in CONTROLS and found.labels["budget"] == "recovered"
    ]
    for metric in ("precision", "average_precision"):
        figures[f"{metric}_best_rival"] = max(found.values[metric] or 0.0 for found in rivals)
    figures["average_precision_evidence"] = ours["average_precision"]
    return figures | adaptive_figures(fold / "diagnostics" / "adaptive.json")


def adaptive_figures(path: Path) -> Figures:
    """The same at the sizes of the adaptive evidence, where a fold has them."""
    if not path.is_file():
        return {}
    finding, figures = read_finding(path), {}
    for name, rule, network in (
        ("evidence", "gce_soft", "wrapped"),
        ("attention", "attention", "plain"),
        ("oracle", "oracle", "plain"),
    ):
        found, chance = (
            row(finding, rule=one, network=network, comparison="full-kept") for one in (rule, "random")
        )
        figures[f"adaptive_precision_{name}"] = found["precision"]
        figures[f"adaptive_degradation_{name}"] = (
            found["complement_degradation"] - chance["complement_degradation"]
        )
        figures["adaptive_fraction"] = found["evidence_fraction"]
    return figures


def row(finding: Finding, **labels: str) -> dict[str, float]:
    """The one row with these labels."""
    found = [r for r in finding.rows if all(r.labels.get(key) == value for key, value in labels.items())]
    return {name: value for name, value in found[0].values.items() if value is not None}


def rows_of(runs: list[Figures], stability: list[Figures]) -> dict[str, Figures]:
    rows = {name: spread([run[name] for run in runs if name in run]) for name in runs[0]}
    for metric in ("precision", "average_precision", "degradation"):
        ours, theirs = ([run[f"{metric}_{who}"] for run in runs] for who in ("evidence", "attention"))
        rows[f"{metric}: evidence / attention"] = {
            "ratio": fmean(ours) / fmean(theirs),
            "better": sum(a > b for a, b in zip(ours, theirs, strict=True)) / len(runs),
        }
    oracle = fmean(run["precision_oracle"] for run in runs)
    rows["precision: evidence / oracle"] = {
        "ratio": fmean(run["precision_evidence"] for run in runs) / oracle
    }
    rival = fmean(run["precision_best_rival"] for run in runs)
    rows["precision: evidence / best rival"] = {
        "ratio": fmean(run["precision_evidence"] for run in runs) / rival
    }
    if "host" in runs[0]:
        gain = [run["soft"] - run["host"] for run in runs]
        rows["soft - host"] = {**spread(gain), "better": sum(value > 0 for value in gain) / len(runs)}
    if stability:
        for name in stability[0]:
            rows[f"jaccard_{name}"] = spread([world[name] for world in stability])
    return rows


BY_COHORT = (
    "host", "soft", "discrete", "cd_gap", "evidence_fraction", "precision_evidence", "precision_attention",
    "average_precision_evidence", "average_precision_attention", "average_precision_best_rival",
)  # fmt: skip


def by_cohort(folds: list[Path], runs: list[Figures]) -> dict[str, Figures]:
    """The chief figures of every cohort, means over its runs."""
    cohorts = [fold.parts[-5] for fold in folds]
    return {
        cohort: {
            name: fmean(run[name] for run, of in zip(runs, cohorts, strict=True) if of == cohort)
            for name in BY_COHORT
            if name in runs[0]
        }
        for cohort in dict.fromkeys(cohorts)
    }


def spread(values: list[float]) -> Figures:
    return {"mean": fmean(values), "sd": pstdev(values)}


def seed_stability(folds: list[Path]) -> list[Figures]:
    """Jaccard across seeds, world by world: of the evidence, and of the plain host's attention at the same share."""
    worlds: dict[Path, list[Path]] = {}
    for fold in folds:
        worlds.setdefault(fold.parents[2], []).append(fold)
    found = []
    for world, of_world in worlds.items():
        number = int(of_world[0].name.removeprefix("fold_"))
        wrapped = [fold.parent for fold in of_world if fold.name == of_world[0].name]
        if len(wrapped) < 2:
            continue
        plain = [world / "host" / run.name for run in wrapped]
        ours, theirs = (
            measure_across_runs([TrainedFold.open(run, number) for run in runs]) for runs in (wrapped, plain)
        )
        found.append(
            {
                "evidence": row(ours, rule="evidence")["jaccard"],
                "attention": row(theirs, rule="attention")["jaccard"],
            }
        )
    return found


if __name__ == "__main__":
    main()
