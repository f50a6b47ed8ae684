"""Real multiple-instance sets (UCSB breast, MUSK1, MUSK2, Elephant): a host without and with the
wrapper, cross-validated.

  python benchmarks/real_sets.py [--sets musk1 ucsb_breast] [--host abmil] [--epochs 40] [--folds
  10] [--repeats 1] [--out DIR]
Both arms go through the same `train_run` on the same folds; a repeat deals the folds anew. Figures
others published stand beside ours, from real_sets_published.yaml. With --out the runs are kept, and
a second call goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from classic_sets import CLASSIC_SETS, WHEEL, write_classic_cohort

from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import fold_indices, make_folds, write_folds
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.training.run import train_run

ROOT = Path(__file__).parents[1]
PUBLISHED = Path(__file__).with_name("real_sets_published.yaml")
LINES = (
    ("host", "full", "host"),
    ("gce", "soft", "host + GCE"),
    ("gce", "discrete", "host + GCE, evidence alone"),
)
METRICS = ("accuracy", "auc", "macro_f1")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", choices=list(CLASSIC_SETS), default=list(CLASSIC_SETS))
    parser.add_argument("--host", default="abmil")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--wheel", type=Path, default=WHEEL)
    parser.add_argument("--out", type=Path, help="keep the cohorts and runs here")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.out or Path(scratch)
        results = {name: measured(name, folder, arguments) for name in arguments.sets}
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        print(as_markdown(results))
        recipe = settings("gce", arguments, 0).hash[:12]
        print(
            f"\n{arguments.host}, {arguments.epochs} epochs, {arguments.folds} folds, "
            f"{arguments.repeats} repeats; settings of host + GCE: {recipe}"
        )


def measured(name: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every metric of every line, per (repeat, fold), and the share of a bag that is evidence."""
    values: dict[str, dict[str, list[float]]] = {
        line: {m: [] for m in METRICS} for _, _, line in LINES
    }
    sizes: list[tuple[int, int]] = []
    for repeat in range(arguments.repeats):
        cohort = prepared(name, folder / "cohorts" / f"{name}_{repeat}", arguments, repeat)
        summaries = {
            arm: train_run(
                cohort, folder / "runs" / f"{name}_{repeat}" / arm,
                settings(arm, arguments, repeat), jobs=arguments.jobs,
            )
            for arm in ("host", "gce")
        }  # fmt: skip
        for arm, mode, line in LINES:
            for metric in METRICS:
                values[line][metric] += summaries[arm][mode][metric]["folds"]
        sizes += evidence_sizes(folder / "runs" / f"{name}_{repeat}" / "gce")
    share = fmean(selected / instances for selected, instances in sizes)
    return {"title": CLASSIC_SETS[name].title, "values": values, "evidence_fraction": share}


def evidence_sizes(run: Path) -> list[tuple[int, int]]:
    """Instances selected and instances held, for every test bag."""
    files = sorted(run.glob("fold_*/evidence/*.h5"))
    return [(len(store.read(path, "selected")), len(store.read(path, "gates"))) for path in files]


def prepared(name: str, folder: Path, arguments: argparse.Namespace, repeat: int) -> Path:
    """The cohort with its folds, written once."""
    if not fold_indices(folder):
        write_classic_cohort(name, arguments.wheel, folder)
        cohort = Cohort.load(folder)
        write_folds(cohort, make_folds(cohort, n_folds=arguments.folds, seed=repeat))
    return folder


def settings(arm: str, arguments: argparse.Namespace, repeat: int) -> TrainSettings:
    evidence = None if arm == "host" else EvidenceSettings()
    host = HostSettings(name=arguments.host)
    return TrainSettings(host=host, evidence=evidence, epochs=arguments.epochs, seed=repeat)


def as_markdown(results: dict[str, Any]) -> str:
    """One table: ours, then what others published."""
    names = list(results)
    out = [
        f"| figures | method | metric | {' | '.join(names)} |",
        f"|---|---|---|{'---|' * len(names)}",
    ]
    for _, _, line in LINES:
        for metric in METRICS:
            cells = [spread(results[name]["values"][line][metric]) for name in names]
            out.append(f"| ours | {line} | {metric} | {' | '.join(cells)} |")
    shares = [f"{results[name]['evidence_fraction']:.3f}" for name in names]
    out.append(f"| ours | host + GCE | evidence fraction | {' | '.join(shares)} |")
    for source in yaml.safe_load(PUBLISHED.read_text(encoding="utf-8")).values():
        for row in source["rows"]:
            cells = [row[name] or "-" for name in names]
            out.append(
                f"| published | {row['method']} | {source['metric']} | {' | '.join(cells)} |"
            )
    return "\n".join(out)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over (repeat, fold)."""
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{fmean(values):.3f} ± {deviation:.3f}"


if __name__ == "__main__":
    main()
