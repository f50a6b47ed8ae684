"""What a report knows of one tested bag besides its patches: prediction, verdicts, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gcemil.exports.certificate import VERDICTS, Verdict, VerdictName
from gcemil.report.run_data import BagKey, Record
from gcemil.report.sections.context import Context
from gcemil.report.sections.failures import own_failures

CHANGES: dict[VerdictName, str] = {
    "sufficient": "full_kept_gap",
    "necessary": "removal_gap",
    "recoverable": "cd_gap",
}
TOLERANCES: dict[VerdictName, str] = {
    "sufficient": "sufficiency_tolerance",
    "necessary": "necessity_tolerance",
    "recoverable": "recoverability_tolerance",
}


@dataclass(frozen=True)
class BagFacts:
    """What is known of one bag besides its patches."""

    bag: BagKey
    judged: Record | None
    """Its line of the S/N/R diagnostic."""
    settings: Mapping[str, Any]
    outcome: Mapping[str, str]
    """Its line of predictions."""
    failures: Sequence[str] | None

    @property
    def predicted(self) -> str | None:
        """The class on all patches; None for a risk."""
        if self.judged is not None and "predicted" in self.judged:
            return str(self.judged["predicted"])
        shares = {name: float(value) for name, value in self.outcome.items() if name.startswith("prob_")}
        return max(shares, key=lambda name: shares[name]).removeprefix("prob_") if shares else None

    @property
    def is_wrong(self) -> bool:
        return self.predicted is not None and self.predicted != self.outcome.get("target")

    @property
    def verdicts(self) -> dict[VerdictName, Verdict]:
        if self.judged is None:
            return {}
        return {
            name: Verdict(
                self.judged[name],
                self.judged.get(CHANGES[name]),
                float(self.settings.get(TOLERANCES[name], np.nan)),
            )
            for name in VERDICTS
        }


def bag_facts(context: Context) -> list[BagFacts]:
    run = context.run
    judged = {
        (record["fold"], record["bag_id"]): record
        for record in run.slides("snr")
        if (record["rule"], record["network"]) == (run.rule, "wrapped")
    }
    outcomes = {
        (fold.number, row["slide_id"]): row for fold in run.folds for row in fold.predictions("full") or []
    }
    failures = own_failures(context)
    found = []
    for bag in run.bags:
        fold = run.fold(bag.fold)
        settings = fold.findings["snr"].settings if "snr" in fold.findings else {}
        outcome = outcomes.get((bag.fold, "|".join(bag.slide_ids)), {})
        record = judged.get((bag.fold, bag.bag_id))
        found.append(BagFacts(bag, record, settings, outcome, failures.get(bag.bag_id)))
    return found
