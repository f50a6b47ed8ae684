"""Which columns of a foreign label table mean what: one function per tool, each None when the table is not its own.

CLAM case_id, slide_id, label · MCAT and SurvPath survival_months, censorship · PANTHER and MMP <endpoint>_survival_days,
<endpoint>_censorship · Patho-Bench fold_0… · STAMP PATIENT · slideflow patient, slide · MIL_BASELINE slide_path ·
MHIM ID, Label · CAMIL train, train_label · cBioPortal PATIENT_ID, OS_STATUS, OS_MONTHS. `censorship` 1 means censored: event = 1 - censorship.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gcemil.bags.cohort import Task
from gcemil.bags.tables import RawTable
from gcemil.errors import CohortError, UsageError
from gcemil.wording import did_you_mean

PATIENT_ID = "PATIENT_ID"
"""cBioPortal's column of patients."""
ID_COLUMNS = (
    ("slide_id", "case_id"),
    ("FILENAME", "PATIENT"),
    ("FILENAME", PATIENT_ID),
    ("slide", "patient"),
    ("slide_path", "case_id"),
    ("ID", "Case"),
)
CASE_COLUMNS = (
    "case_id",
    "PATIENT",
    PATIENT_ID,
    "patient",
    "patient_id",
    "Case",
    "case",
    "bcr_patient_barcode",
    "submitter_id",
)
_FOLD_COLUMN = re.compile(r"fold_?(\d+)$")


@dataclass(frozen=True)
class Choice:
    """What the caller decided about a table that holds more than one target."""

    task: Task | None = None
    target: str | None = None
    time: str | None = None
    event: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True)
class Columns:
    """The columns to read; `time` makes it survival, `censorship` flips the event. Case and site may be missing."""

    slide: str
    case: str | None
    label: str | None = None
    time: str | None = None
    event: str | None = None
    censorship: bool = False
    site: str | None = None

    @property
    def task(self) -> Task:
        """Survival where there is a time."""
        return "classification" if self.time is None else "survival"


def _own(table: RawTable, choice: Choice) -> Columns | None:
    if not table.has("slide_id", "time", "event"):
        return None
    _refuse_both_polarities(table)
    return Columns("slide_id", "case_id", time="time", event="event", site="site")


def _clam(table: RawTable, choice: Choice) -> Columns | None:
    # With columns of folds the table is one of Patho-Bench.
    if not table.has("slide_id", "label") or find_fold_columns(table):
        return None
    return Columns("slide_id", "case_id", label="label", site="site")


def _mcat(table: RawTable, choice: Choice) -> Columns | None:
    if not table.has("case_id", "slide_id", "survival_months", "censorship"):
        return None
    _refuse_both_polarities(table)
    ending = "" if choice.endpoint in {None, "os"} else f"_{choice.endpoint}"
    time, event = f"survival_months{ending}", f"censorship{ending}"
    if not table.has(time, event):
        raise UsageError(
            f"{table.path} has no endpoint '{choice.endpoint}': columns {time}, {event} are missing."
        )
    return Columns("slide_id", "case_id", time=time, event=event, censorship=True, site="site")


def _panther(table: RawTable, choice: Choice) -> Columns | None:
    found = [name.removesuffix("_survival_days") for name in table.columns if name.endswith("_survival_days")]
    found = [name for name in found if table.has("case_id", "slide_id", f"{name}_censorship")]
    if not found:
        return None
    endpoint = choice.endpoint or (found[0] if len(found) == 1 else None)
    if endpoint not in found:
        raise UsageError(f"{table.path} has endpoints {', '.join(found)}. Choose one with --endpoint.")
    time, event = f"{endpoint}_survival_days", f"{endpoint}_censorship"
    return Columns("slide_id", "case_id", time=time, event=event, censorship=True, site="site")


def _patho_bench(table: RawTable, choice: Choice) -> Columns | None:
    if not table.has("case_id", "slide_id") or not find_fold_columns(table):
        return None
    known = {"", "case_id", "slide_id", "site", *find_fold_columns(table)}
    others = [name for name in table.columns if name not in known]
    survival = [name.removesuffix("_event") for name in others if name.endswith("_event")]
    survival = [name for name in survival if f"{name}_days" in others]
    timed = {f"{name}{end}" for name in survival for end in ("_event", "_days")}
    labels = [name for name in others if name not in timed]
    picked = _pick_target(table, [*survival, *labels], choice.target)
    if picked in survival:
        return Columns("slide_id", "case_id", time=f"{picked}_days", event=f"{picked}_event")
    return Columns("slide_id", "case_id", label=picked)


def _stamp(table: RawTable, choice: Choice) -> Columns | None:
    if not table.has("PATIENT", "FILENAME"):
        return None
    others = [name for name in table.columns if name not in {"", "PATIENT", "FILENAME"}]
    return Columns("FILENAME", "PATIENT", label=_pick_target(table, others, choice.target))


def _slideflow(table: RawTable, choice: Choice) -> Columns | None:
    if not table.has("patient", "slide"):
        return None
    if table.has("time", "event"):
        return Columns("slide", "patient", time="time", event="event")
    if not table.has("category"):
        raise CohortError(
            f"{table.path}: a slideflow table needs 'category', or 'time' and 'event'; numbers to regress on are no task here."
        )
    return Columns("slide", "patient", label="category")


def _mil_baseline(table: RawTable, choice: Choice) -> Columns | None:
    return Columns("slide_path", None, label="label") if table.has("slide_path", "label") else None


def _mhim(table: RawTable, choice: Choice) -> Columns | None:
    return Columns("ID", "Case", label="Label") if table.has("ID", "Label") else None


def list_endpoints(table: RawTable) -> list[str]:
    """Endpoints of a cBioPortal table: OS, DFS, PFS, DSS, whichever have a status and months."""
    found = [name.removesuffix("_STATUS") for name in table.columns if name.endswith("_STATUS")]
    return [name for name in found if table.has(f"{name}_MONTHS")]


def choose_endpoint(table: RawTable, choice: Choice) -> str:
    """The endpoint asked for, overall survival by default."""
    endpoint = (choice.endpoint or "os").upper()
    if endpoint not in (found := list_endpoints(table)):
        raise UsageError(f"{table.path} has endpoints {', '.join(found)}. Choose one with --endpoint.")
    return endpoint


def _cbioportal(table: RawTable, choice: Choice) -> Columns | None:
    if not table.has(PATIENT_ID, "FILENAME") or not list_endpoints(table):
        return None
    endpoint = choose_endpoint(table, choice)
    return Columns("FILENAME", PATIENT_ID, time=f"{endpoint}_MONTHS", event=f"{endpoint}_STATUS")


DIALECTS: dict[str, Callable[[RawTable, Choice], Columns | None]] = {
    "gcemil": _own,
    "CLAM": _clam,
    "MCAT/SurvPath": _mcat,
    "PANTHER/MMP": _panther,
    "Patho-Bench": _patho_bench,
    "STAMP": _stamp,
    "slideflow/PathBench": _slideflow,
    "MIL_BASELINE": _mil_baseline,
    "MHIM-MIL": _mhim,
    "cBioPortal": _cbioportal,
}


def _use_chosen_columns(table: RawTable, choice: Choice) -> Columns | None:
    """The target columns the caller named, beside whatever id columns the table has."""
    wanted = [name for name in (choice.time, choice.event) if name is not None]
    if len(wanted) == 1:
        raise UsageError("Survival needs both columns: give --time and --event.")
    if not wanted and (choice.target is None or choice.target not in table.columns):
        return None
    listed = ", ".join(name or "(index)" for name in table.columns)
    if absent := [name for name in wanted if name not in table.columns]:
        raise UsageError(
            f"{table.path} has no column '{absent[0]}'.{did_you_mean(absent[0], table.columns)} Its columns are: {listed}. "
            "Name two of them with --time and --event."
        )
    ids = find_id_columns(table)
    if ids is None:
        raise UsageError(
            f"{table.path} has no column of slides; it has: {listed}. Call the column of slides slide_id."
        )
    if not wanted:
        return Columns(*ids, label=choice.target, site="site")
    time, event = wanted
    return Columns(*ids, time=time, event=event, censorship="censor" in event.lower(), site="site")


def find_id_columns(table: RawTable) -> tuple[str, str] | None:
    """The column of slides and the name its column of cases would have; None where the table names no slides."""
    return next((pair for pair in ID_COLUMNS if pair[0] in table.columns), None)


def find_case_column(table: RawTable) -> str | None:
    """The column of cases of a table that names no slides: one row per patient."""
    if find_id_columns(table) is not None or find_wide_parts(table):
        return None
    return _first_column(table, *CASE_COLUMNS)


def _describe_wrong_target(table: RawTable, target: str, candidates: Sequence[str] | None = None) -> str:
    names = table.columns if candidates is None else candidates
    listed = ", ".join(name or "(index)" for name in names) or "none"
    return (
        f"{table.path} has no column '{target}'.{did_you_mean(target, names)} It has: {listed}. "
        "Name the label with --target."
    )


def find_fold_columns(table: RawTable) -> list[str]:
    """fold_0, fold_1, … in order."""
    found = [name for name in table.columns if _FOLD_COLUMN.match(name)]
    return sorted(found, key=lambda name: int(_FOLD_COLUMN.findall(name)[0]))


def detect_dialect(table: RawTable, choice: Choice) -> tuple[str, Columns]:
    """The one dialect that fits, without columns that the table does not have."""
    name, columns = _choose_dialect(table, choice)
    case, site = (one if one in table.columns else None for one in (columns.case, columns.site))
    return name, replace(columns, case=case, site=site)


def _choose_dialect(table: RawTable, choice: Choice) -> tuple[str, Columns]:
    """None or several that fit are an error that says what to do."""
    if (columns := _use_chosen_columns(table, choice)) is not None:
        return "chosen columns", columns
    found = {
        name: columns for name, reader in DIALECTS.items() if (columns := reader(table, choice)) is not None
    }
    fitting = {name: columns for name, columns in found.items() if choice.task in {None, columns.task}}
    if len(fitting) == 1:
        name, columns = next(iter(fitting.items()))
        # A target that the dialect does not read must not be passed over in silence.
        if choice.target is not None and not (columns.event or "").startswith(choice.target):
            raise UsageError(_describe_wrong_target(table, choice.target))
        return name, columns
    listed = ", ".join(name or "(index)" for name in table.columns)
    if not found and find_id_columns(table) is not None:
        if choice.target is not None:
            raise UsageError(_describe_wrong_target(table, choice.target))
        raise UsageError(
            f"{table.path} does not say which column is the label: it has {listed}. Name it with --target, or for survival "
            "give --time and --event."
        )
    if not found:
        raise CohortError(
            f"{table.path} is no label table of {', '.join(DIALECTS)} or CAMIL; its columns are: {listed}. "
            "A table needs slide_id and label, or slide_id, time and event."
        )
    if not fitting:
        remedy = (
            "Name them with --time and --event." if choice.task == "survival" else "Name it with --target."
        )
        raise CohortError(
            f"{table.path} ({', '.join(found)}) has no {choice.task} target; its columns are: {listed}. {remedy}"
        )
    if len({columns.task for columns in fitting.values()}) > 1:
        raise CohortError(
            f"{table.path} holds labels and survival times. Choose with --task classification or --task survival."
        )
    raise CohortError(
        f"{table.path} could be a table of {' or '.join(fitting)}. Keep the columns of one of them."
    )


def find_wide_parts(table: RawTable) -> dict[str, tuple[str, str | None]]:
    """Part → (id column, label column) of tables with one column per part: CLAM and MCAT splits, CAMIL, MIL_BASELINE."""
    parts: dict[str, tuple[str, str | None]] = {}
    for part in ("train", "val", "test"):
        for ids in (part, f"{part}_slide_path"):
            if ids in table.columns:
                parts[part] = ids, _first_column(table, f"{part}_label")
    return parts if "train" in parts and len(parts) > 1 else {}


def _refuse_both_polarities(table: RawTable) -> None:
    if table.has("censorship", "event"):
        raise CohortError(
            f"{table.path} has 'censorship' and 'event'; only one can be right. Remove the other column."
        )


def _pick_target(table: RawTable, candidates: list[str], target: str | None) -> str:
    if target is not None and target not in candidates:
        raise UsageError(_describe_wrong_target(table, target, candidates))
    if target is None and len(candidates) != 1:
        raise UsageError(
            f"{table.path} has {len(candidates)} possible targets ({', '.join(candidates)}). Choose one with --target."
        )
    return target or candidates[0]


def _first_column(table: RawTable, *columns: str) -> str | None:
    return next((column for column in columns if column in table.columns), None)
