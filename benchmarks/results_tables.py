"""The tables of docs/results.md, from results/vote/*.json (benchmarks/vote.py), results/runs.csv
(benchmarks/collect.py) and results/sanity/*.json.

python benchmarks/results_tables.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

RESULTS = Path(__file__).resolve().parents[1] / "results"
VERDICT = "sufficient and necessary"
RIVALS = ("attention", "contribution", "occlusion")


def main() -> None:
    votes = {
        path.stem: json.loads(path.read_text())
        for path in sorted((RESULTS / "vote").glob("*.json"))
    }
    controls = {
        path.stem: json.loads(path.read_text())
        for path in sorted((RESULTS / "sanity").glob("*.json"))
    }
    runs = pd.read_csv(RESULTS / "runs.csv", keep_default_na=False)
    for title, rows in (
        ("Prediction", [prediction(name, one) for name, one in votes.items()]),
        ("Place and verdict", [place(name, one) for name, one in votes.items()]),
        ("Curves", [curves(name, one) for name, one in votes.items()]),
        ("Controls", [sanity(name, one) for name, one in controls.items()]),
        ("Runs", runs.to_dict("records")),
    ):
        print(f"## {title}\n\n{format_table(rows)}\n")


def format_table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [
        columns,
        ["---"] * len(columns),
        *([str(row.get(name, "")) for name in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def prediction(name: str, vote: dict[str, Any]) -> dict[str, Any]:
    """What F predicts, on the whole slide, from its evidence and without it."""
    evidence, complement = vote["rules"]["evidence"], vote["complement"]
    return {
        "run": name,
        "host": number(vote["metric host"]),
        "head": number(vote["metric head"]),
        "gce": number(vote["metric gce"]),
        "gain": interval(vote["gain"]),
        "w": number(vote["weight"]),
        "evidence alone": number(evidence["metric kept"]),
        "without it": number(evidence["metric removed"]),
        "loss / loss without attended": number(
            complement["F without evidence / F without attention"]
        ),
        "each model without its own": number(
            complement["F without evidence / host without attention"]
        ),
        "riders": number(vote["riders"]["share"]),
    }


def place(name: str, vote: dict[str, Any]) -> dict[str, Any]:
    """Where the evidence lies and whether it holds, beside as many attended patches."""
    evidence, attention = vote["rules"]["evidence"], vote["rules"]["attention"]
    verdicts = {
        f"S&N at {limit}": pair(evidence, attention, f"{VERDICT} {limit}")
        for limit in ("0.02", "0.05", "0.1")
    }
    return {
        "run": name,
        "size": number(evidence["size"]),
        "precision": pair(evidence, attention, "precision"),
        "average precision": pair(evidence, attention, "ap"),
        **verdicts,
        "log-odds": pair(evidence, attention, f"{VERDICT} log-odds"),
    }


def curves(name: str, vote: dict[str, Any]) -> dict[str, Any]:
    """Areas under the keep and removal curves, and the differences to the rivals."""
    evidence, less = vote["rules"]["evidence"], vote["evidence less rival"]
    row = {"run": name, "AUKC": number(evidence["aukc"]), "removal": number(evidence["removal"])}
    for rival in (one for one in RIVALS if one in less):
        row[f"AUKC - {rival}"] = interval(less[rival]["aukc"])
        row[f"removal - {rival}"] = interval(less[rival]["removal"])
    return row | {"MSK": number(evidence["msk"]), "SHI": number(evidence["shi"])}


def sanity(name: str, finding: dict[str, Any]) -> dict[str, Any]:
    """Each control of the diagnostic `sanity`: its figure, the one beside it, its verdict."""
    words = {1.0: "pass", 0.0: "fail", None: "says nothing"}
    return {"run": name} | {
        row["labels"]["control"].replace("_", " "): (
            f"{number(row['values']['control_value'])} ({number(row['values']['control_beside'])}) "
            f"{words[row['values']['control_passed']]}"
        )
        for row in finding["rows"]
    }


def pair(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> str:
    """The evidence's figure, and attention's in brackets."""
    return f"{number(ours.get(name))} ({number(theirs.get(name))})"


def interval(values: list[float] | None) -> str:
    """A signed figure with its interval."""
    if values is None:
        return ""
    return f"{values[0]:+.3f} [{values[1]:+.3f}, {values[2]:+.3f}]".replace("0.", ".")


def number(value: float | None) -> str:
    """Three digits without the leading zero."""
    return (
        ""
        if value is None
        else f"{value:.3f}".replace("0.", ".", 1)
        if abs(value) < 1
        else f"{value:.2f}"
    )


if __name__ == "__main__":
    main()
