"""A run folder as plain values: settings, folds, findings, predictions and evidence.

What is missing is None or empty; a file that cannot be read is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gcemil.bags.cohort import CohortCard, read_card
from gcemil.bags.fingerprint import content_hash
from gcemil.bags.tables import check_slide_id, read_table
from gcemil.config import EvidenceSettings
from gcemil.errors import InputError, RunError
from gcemil.files import is_file, read_record
from gcemil.findings import SAME_NETWORK, Finding, join_folds, read_finding
from gcemil.metrics import TASKS
from gcemil.records import MODES, SlideEvidence, read_evidence
from gcemil.report.claim import Claim, make_claim
from gcemil.runs.folder import Run, RunFold

Record = dict[str, Any]


@dataclass(frozen=True)
class BagKey:
    """One tested bag: which fold tests it, and its slides."""

    fold: int
    bag_id: str
    slide_ids: tuple[str, ...]


class FoldData:
    """A finished fold."""

    def __init__(self, files: RunFold) -> None:
        self.files, self.number = files, files.number
        metrics = files.read_metrics()
        self.metrics: Record = metrics.modes
        """Metrics of every mode."""
        self.modes = [mode for mode in MODES if mode in self.metrics]
        self.details: Record = metrics.details.model_dump(exclude_unset=True)
        """Details of the training."""

    @cached_property
    def history(self) -> list[Record]:
        """One record per epoch."""
        return self.files.read_history()

    @cached_property
    def findings(self) -> dict[str, Finding]:
        paths = sorted(self.files.diagnostics.glob("*.json"))
        return {path.stem: read_finding(path) for path in paths}

    @property
    def outdated(self) -> list[str]:
        """Diagnostics that were made with other weights than the present ones."""
        if not self.files.checkpoint.is_file():
            return []
        expected = (None, content_hash(self.files.checkpoint))
        return [
            name
            for name, finding in self.findings.items()
            if finding.provenance.get("inputs", {}).get("run") not in expected
        ]

    def predictions(self, mode: str, part: str = "test") -> list[dict[str, str]] | None:
        """Lines of a part of the fold; None without a table."""
        path = self.files.predictions(mode, self.modes)
        if not path.is_file():
            return None
        rows = read_table(path, ("slide_id", "case_id", "split"))
        return [row for row in rows if row["split"] == part]

    def evidence(self, slide_id: str) -> SlideEvidence | None:
        """None for a plain host, or a bag that the fold did not test."""
        path = self.files.evidence(check_slide_id(slide_id, self.files.path / "predictions.csv"))
        return read_evidence(path) if path.is_file() else None


class RunData:
    """A run and all its finished folds; it has at least one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = Run(folder).card
        self.folds = [FoldData(fold) for fold in Run(folder).finished_folds()]
        if not self.folds:
            raise RunError(f"{folder} has no finished fold. Train it with 'gcemil train'.")
        self.settings = self.config.settings
        self.is_wrapped = self.settings.evidence is not None
        self.rule = "evidence" if self.is_wrapped else "attention"
        """The subset rule the run stands for."""
        self.cohort = self.config.cohort
        """Where the cohort was during training."""
        self.card: CohortCard | None = None
        """None if the cohort was moved."""
        with suppress(InputError):
            self.card = read_card(self.cohort)
        self.cohort_name = self.cohort.name if self.card is None else self.card.name
        full = self.folds[0].metrics["full"]
        self.task = next(task for task, figures in TASKS.items() if figures.lead in full)
        self.phi = TASKS[self.task].phi
        self.task_metrics, self.task_metric = TASKS[self.task].metrics, TASKS[self.task].lead
        stated = None if self.card is None else self.card.bag_unit
        self.bag_unit = stated or ("case" if self.task == "survival" else "slide")
        """What a bag is: a slide or a case."""

    @property
    def evidence(self) -> EvidenceSettings:
        """The evidence settings of a wrapped run."""
        if self.settings.evidence is None:
            raise RunError(f"{self.folder} was trained without evidence.")
        return self.settings.evidence

    @cached_property
    def environment(self) -> Record:
        """Versions and machine; empty where the run did not record them."""
        path = Run(self.folder).environment
        if not is_file(path):
            return {}
        return read_record(path, Record, error=RunError, remedy="Train again.")

    def finding(self, name: str) -> Finding | None:
        """Joined over folds; of one fold as it is, so that the spread is over its slides.

        Rows of the plain host are left out if both networks are the same.
        """
        findings = [fold.findings[name] for fold in self.folds if name in fold.findings]
        path = Run(self.folder).finding(name)
        if not findings and not path.is_file():
            return None
        if len(findings) > 1:
            finding = join_folds(findings)
        else:
            finding = findings[0] if findings else read_finding(path)
        if not finding.is_same_network:
            return finding
        rows = tuple(row for row in finding.rows if row.labels.get("network") != "plain")
        return replace(finding, rows=rows)

    @cached_property
    def is_same_network(self) -> bool:
        """Whether the plain host it was compared with has the very weights of the wrapped one."""
        findings = [finding for fold in self.folds for finding in fold.findings.values()]
        compared = [finding for finding in findings if SAME_NETWORK in finding.provenance]
        return bool(compared) and all(finding.is_same_network for finding in compared)

    @cached_property
    def claim(self) -> Claim | None:
        """The claim that the S/N/R diagnostic allows; None where it was not made."""
        return make_claim(self.slides("snr"), rule=self.rule, is_same_network=self.is_same_network)

    def spread(self, name: str) -> str:
        """What the deviations of a finding are over."""
        count = sum(name in fold.findings for fold in self.folds)
        if count == 0:
            return "folds"
        return f"{count} folds" if count > 1 else "the slides of one fold"

    def slides(self, name: str) -> list[Record]:
        """The slides a finding has in detail, each with its fold."""
        return [
            {**slide, "fold": fold.number}
            for fold in self.folds
            if name in fold.findings
            for slide in fold.findings[name].slides
        ]

    def own_slides(self, name: str) -> list[Record]:
        """Those of the run's own rule under its own network."""
        own = (self.rule, "wrapped")
        return [slide for slide in self.slides(name) if (slide["rule"], slide["network"]) == own]

    def values(self, mode: str, metric: str) -> dict[int, float]:
        """A task metric of one mode, fold by fold."""
        values = {fold.number: fold.metrics.get(mode, {}).get(metric) for fold in self.folds}
        return {number: value for number, value in values.items() if value is not None}

    @cached_property
    def bags(self) -> tuple[BagKey, ...]:
        """Every tested bag, by fold and in the order of the predictions."""
        bags = []
        for fold in self.folds:
            names = {
                tuple(record["slide_ids"]): str(record["bag_id"])
                for name in ("snr", "failures")
                if name in fold.findings
                for record in fold.findings[name].slides
            }
            for row in fold.predictions(fold.modes[-1]) or []:
                slides = tuple(row["slide_id"].split("|"))
                bag_id = slides[0] if self.bag_unit == "slide" else row["case_id"]
                bags.append(BagKey(fold.number, names.get(slides, bag_id), slides))
        return tuple(bags)

    def fold(self, number: int) -> FoldData:
        return next(fold for fold in self.folds if fold.number == number)


def find_predicted_class(prediction: Mapping[str, str]) -> str | None:
    """The most probable class of a line of predictions; None for a number."""
    shares = {name: float(value) for name, value in prediction.items() if name.startswith("prob_")}
    return max(shares, key=lambda name: shares[name]).removeprefix("prob_") if shares else None
