"""The meaning of every figure: which way is better, and what it is about (resources/metrics.csv).

Tables take arrows and bold from here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Literal, cast

from gcemil.resources import HERE

Direction = Literal["higher", "lower", "neither"]
ARROWS: dict[Direction, str] = {"higher": "↑", "lower": "↓", "neither": ""}
Criterion = Literal[
    "task",
    "sufficiency",
    "necessity",
    "recoverability",
    "truth",
    "stability",
    "size",
    "cost",
    "guarantee",
    "failure",
]


@dataclass(frozen=True)
class Metric:
    """A figure: its label, its better side, what it is about and what it means."""

    label: str
    direction: Direction
    criterion: Criterion
    meaning: str

    @property
    def arrow(self) -> str:
        """Its better side as a sign."""
        return ARROWS[self.direction]


CHANCE = {"auc": 0.5, "c_index": 0.5, "r2": 0.0}
"""The metrics of a prediction that does not depend on the bag."""


@dataclass(frozen=True)
class TaskFigures:
    """Words and metrics of the predictions of a task; keys are names of METRICS."""

    metrics: tuple[str, ...]
    lead: str
    """The metric by which epochs and subsets are judged, and which tables and figures lead with."""
    columns: tuple[str, ...]
    """Columns of the truth in a table of predictions."""
    number: str | None
    """The column of a prediction that is one number; None for classes, which have prob_<class>."""
    phi: str
    """What Phi is, in words."""


TASKS = {
    "classification": TaskFigures(
        ("accuracy", "macro_f1", "auc"),
        "macro_f1",
        ("target",),
        None,
        "the probability of the predicted class",
    ),
    "survival": TaskFigures(
        ("c_index",),
        "c_index",
        ("target", "event"),
        "risk",
        "the risk in units of the training risks",
    ),
    "regression": TaskFigures(
        ("r2", "pearson", "spearman", "mae"),
        "r2",
        ("target",),
        "value",
        "the value in standard deviations of the training labels",
    ),
}
"""Every task of a cohort."""

with (HERE / "metrics.csv").open(encoding="utf-8", newline="") as _file:
    METRICS: dict[str, Metric] = {
        row["name"]: Metric(
            row["label"],
            cast(Direction, row["better"]),
            cast(Criterion, row["criterion"]),
            row["meaning"],
        )
        for row in csv.DictReader(_file)
    }
"""Every figure a diagnostic may report; a new one is one line of the table."""
FAILURE_TYPES = {
    name.removesuffix("_share"): metric.label
    for name, metric in METRICS.items()
    if metric.criterion == "failure" and name.endswith("_share")
}
"""How a slide can fail, each with the words for it."""
