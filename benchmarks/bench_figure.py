"""The figure of docs/performance.md: cost against patches and against slides, from results/bench.json.

python benchmarks/bench_figure.py [--json results/bench.json --out docs/images/performance.png]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Curves = dict[str, list[tuple[int, float]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=Path("results/bench.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/performance.png"))
    options = parser.parse_args()
    lines = json.loads(options.json.read_text())["lines"]
    panels = {
        ("patches of one slide", "one prediction, 256-d, one thread"): curves(lines, "growth"),
        ("slides of a cohort", "whole commands, 24 patches of 32-d a slide"): curves(lines, "slides"),
    }
    # What was not measured has no panel.
    panels = {titles: found for titles, found in panels.items() if found}
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5 * len(panels), 4.2), layout="constrained", squeeze=False
    )
    for place, ((unit, title), found) in zip(axes[0], panels.items(), strict=True):
        draw(place, found, unit, title)
    figure.savefig(options.out, dpi=130)


def curves(lines: list[dict[str, Any]], measurement: str) -> Curves:
    """Points by the name of their curve; a line without a load is of an earlier machine, and no point of the same curve."""
    found: Curves = defaultdict(list)
    for line in lines:
        is_point = line["measurement"] == measurement and line["size"] is not None
        if is_point and line.get("load") is not None:
            found[line["series"]].append((line["size"], line["cpu"]))
    return found


def draw(axes: Any, found: Curves, unit: str, title: str) -> None:
    for name, points in found.items():
        sizes, seconds = zip(*sorted(points), strict=True)
        style = "--" if name.endswith(" host") else "-"
        axes.loglog(sizes, seconds, style, marker="o", markersize=3, label=name)
    axes.set(xlabel=unit, ylabel="CPU seconds", title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
