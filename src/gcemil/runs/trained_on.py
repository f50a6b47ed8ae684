"""What a run was trained on, in cohort.json of its folder, and the check that the cohort is still that.

Every command that reads a run together with its cohort checks first: a result that mixes folds, labels or features of two
states of a cohort would be no result. Nothing here needs torch.
"""

from __future__ import annotations

from pathlib import Path

from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import CohortRecord, record_cohort
from gcemil.errors import InputError, RunError
from gcemil.files import read_json, write_json

FILE = "cohort.json"


def write_training_cohort(run: Path, record: CohortRecord) -> None:
    write_json(run / FILE, record.to_json())


def read_training_cohort(run: Path) -> CohortRecord:
    """The cohort as it was when the run was begun."""
    path = run / FILE
    if not path.is_file():
        raise RunError(
            f"{run} has no {FILE}: an earlier version of gcemil trained it and kept too little to tell whether the cohort is "
            "still the same. Train it again into another folder."
        )
    try:
        return CohortRecord.from_json(read_json(path), path)
    except InputError as error:
        raise RunError(f"{error} Train the run again into another folder.") from error


def check_cohort(run: Path, cohort: Cohort, before: CohortRecord | None = None) -> CohortRecord:
    """Refuse a cohort that is not what the run was begun with; `before` is its record, where that was read already."""
    before = before or read_training_cohort(run)
    now = record_cohort(cohort, run)
    if changed := before.differences(now):
        raise RunError(
            f"{run} was trained on other data: {', '.join(changed)} in {cohort.folder} changed since it was begun. "
            "Put back what was there, or train again into another folder (--out)."
        )
    return now


def check_cohort_if_there(run: Path, folder: Path) -> None:
    """The same for a command that can do without the cohort, which may have been moved away."""
    if (folder / "cohort.yaml").is_file():
        check_cohort(run, Cohort.load(folder))
