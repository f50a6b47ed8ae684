"""Columns of slide, case and target in the label tables of other tools: `DIALECTS`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from gcemil.bags.cohort import Task
from gcemil.bags.tables import has_columns, list_columns
from gcemil.errors import CohortError, UsageError
from gcemil.wording import did_you_mean

PATIENT_ID = "PATIENT_ID"
"""cBioPortal's column of patients."""
CASE_COLUMNS = (
    *("case_id", "PATIENT", PATIENT_ID, "patient", "patient_id", "Case", "case"),
    *("bcr_patient_barcode", "submitter_id"),
)
ANY = "*"
ALIASES: dict[str, set[str]] = {
    "slide_id": {
        *("slide_id", "slide", "slideid", "image", "image_id", "filename", "file"),
        *("wsi", "wsi_id"),
    },
    "case_id": {*map(str.lower, CASE_COLUMNS), "pid", "caseid", "patientid"},
    "label": {"label", "y", "diagnosis", "class", "category", "subtype"},
    "time": {"time", "os.time", "os_time", "survival_time", "futime"},
    "event": {"event", "os", "os.event", "os_event", "status"},
}
"""Our column → names in lower case under which tables of no known tool hold it."""
VALUE_ALIASES = ALIASES["label"] | {"value", "score", "target"}
"""The same of a label that is a number."""
_FOLD_COLUMN = re.compile(r"fold_?(\d+)$")


@dataclass(frozen=True)
class Choice:
    """The user's choice in a table that holds more than one target."""

    task: Task | None = None
    target: str | None = None
    time: str | None = None
    event: str | None = None
    endpoint: str | None = None
    slide: str | None = None
    """The column of slides."""
    case: str | None = None
    """The column of cases."""
    sheet: str | None = None
    """Sheet of an Excel file; the first unless one is named."""


@dataclass(frozen=True)
class Dialect:
    """The columns of one tool's label table; of a table that was detected, the columns to read.

    In `DIALECTS`, '*' is the endpoint in `time` and `event`, and any other column as `label`.
    """

    tool: str
    slide: str
    case: str | None
    label: str | None = None
    time: str = ""
    event: str = ""
    flip: bool = False
    """1 in `event` means censored."""
    endpoint: str | None = None
    """Unless the user chooses another one."""
    folds: bool | None = None
    """Whether there are columns fold_0, …; None: either."""
    case_required: bool = False
    is_value: bool = False
    """The label is a number to predict, and not a class."""

    @property
    def task(self) -> Task:
        """Survival where there is a time."""
        if self.time:
            return "survival"
        return "regression" if self.is_value else "classification"


DIALECTS = (
    Dialect("gcemil", "slide_id", "case_id", time="time", event="event"),
    Dialect("CLAM", "slide_id", "case_id", "label", folds=False),
    Dialect(
        "MCAT/SurvPath",
        "slide_id",
        "case_id",
        time="survival_months*",
        event="censorship*",
        flip=True,
        endpoint="os",
    ),
    Dialect("PANTHER/MMP", "slide_id", "case_id", None, "*_survival_days", "*_censorship", True),
    Dialect("Patho-Bench", "slide_id", "case_id", ANY, "*_days", "*_event", folds=True),
    Dialect("STAMP", "FILENAME", "PATIENT", ANY, case_required=True),
    Dialect("slideflow/PathBench", "slide", "patient", "category", case_required=True),
    Dialect(
        "slideflow/PathBench", "slide", "patient", time="time", event="event", case_required=True
    ),
    Dialect("MIL_BASELINE", "slide_path", "case_id", "label"),
    Dialect("MHIM-MIL", "ID", "Case", "Label"),
    Dialect(
        "cBioPortal",
        "FILENAME",
        PATIENT_ID,
        time="*_MONTHS",
        event="*_STATUS",
        endpoint="os",
        case_required=True,
    ),
)


def detect_dialect(table: pd.DataFrame, path: Path, choice: Choice) -> Dialect:
    """The one dialect that fits a table, with its columns; none or several are an error."""
    is_value = choice.task == "regression"
    if (chosen := _use_chosen_columns(table, path, choice)) is not None:
        return replace(chosen, is_value=is_value)
    fits = [fit for one in DIALECTS if (fit := _fit(one, table, path, choice)) is not None]
    # The user states what a column of labels holds.
    fits = [replace(one, is_value=is_value and not one.time) for one in fits]
    fitting = [one for one in fits if choice.task in {None, one.task}]
    if len(fitting) != 1:
        raise _ambiguity_error(table, path, choice, bool(fits), fitting)
    (dialect,) = fitting
    # A target that the dialect does not read must not be ignored.
    if choice.target is not None and not dialect.event.startswith(choice.target):
        raise _absent_column_error(path, choice.target, table, "the label with --target")
    if dialect.event in {"event", "censorship"} and has_columns(table, "event", "censorship"):
        raise CohortError(
            f"{path} has 'censorship' and 'event'; only one can be right. Remove the other column."
        )
    return dialect


def name_chosen_ids(table: pd.DataFrame, path: Path, choice: Choice) -> pd.DataFrame:
    """The table with the columns of slides and cases that the user names under our names."""
    for name, chosen, option in (
        ("slide_id", choice.slide, "--slide-column"),
        ("case_id", choice.case, "--case-column"),
    ):
        if chosen is None or chosen == name:
            continue
        if chosen not in table:
            raise _absent_column_error(path, chosen, table, f"one of them with {option}")
        # Another column may already have our name.
        table = table.drop(columns=name, errors="ignore").rename(columns={chosen: name})
    return table


def rename_ids(table: pd.DataFrame) -> pd.DataFrame:
    """The table with slides under slide_id and cases under case_id, if no known tool names them."""
    if find_wide_parts(table):
        return table
    if find_id_columns(table) is None:
        table = _rename_alias(table, "slide_id")
    return _rename_alias(table, "case_id") if "slide_id" in table else table


def rename_targets(table: pd.DataFrame, choice: Choice) -> pd.DataFrame:
    """The table with its target under our names, for tables of no known tool."""
    if "slide_id" not in table or find_fold_columns(table) or choice.target or choice.time:
        return table
    known = any(one.slide in table and list_endpoints(table, one) for one in DIALECTS)
    both = _rename_alias(_rename_alias(table, "time"), "event")
    if not known and has_columns(both, "time", "event"):
        table, known = both, True
    if choice.task == "regression":
        return _rename_alias(table, "label", VALUE_ALIASES)
    return table if known and choice.task == "survival" else _rename_alias(table, "label")


def _rename_alias(table: pd.DataFrame, name: str, aliases: Collection[str] = ()) -> pd.DataFrame:
    """The table with the only column of these names renamed, in upper or lower case."""
    matches = [column for column in table if str(column).lower() in (aliases or ALIASES[name])]
    return (
        table.rename(columns={matches[0]: name})
        if name not in table and len(matches) == 1
        else table
    )


def list_endpoints(table: pd.DataFrame, dialect: Dialect) -> dict[str, tuple[str, str]]:
    """Endpoint → columns of time and event; 'os' where the columns do not name one."""
    if not dialect.event:
        return {}
    before, _, after = dialect.event.partition(ANY)
    marks = [
        name[len(before) : len(name) - len(after)]
        for name in table
        if name.startswith(before) and name.endswith(after)
    ]
    pairs = {
        mark.strip("_") or "os": (dialect.time.replace(ANY, mark), dialect.event.replace(ANY, mark))
        for mark in marks
    }
    return {endpoint: pair for endpoint, pair in pairs.items() if has_columns(table, *pair)}


def find_id_columns(table: pd.DataFrame) -> tuple[str, str] | None:
    """The columns of slides and of cases (which may be missing); None without slides."""
    pairs = [(one.slide, str(one.case)) for one in DIALECTS if one.slide in table]
    return next((pair for pair in pairs if pair[1] in table), pairs[0] if pairs else None)


def find_case_column(table: pd.DataFrame) -> str | None:
    """The column of cases of a table that names no slides: one row per patient."""
    if find_id_columns(table) is not None or find_wide_parts(table):
        return None
    exact = (column for column in CASE_COLUMNS if column in table)
    return next(exact, None) or next(
        (name for name in table if name.lower() in ALIASES["case_id"]), None
    )


def find_fold_columns(table: pd.DataFrame) -> list[str]:
    """fold_0, fold_1, … in order."""
    columns = {int(match[1]): name for name in table if (match := _FOLD_COLUMN.match(name))}
    return [columns[number] for number in sorted(columns)]


def find_wide_parts(table: pd.DataFrame) -> dict[str, tuple[str, str | None]]:
    """Part → (id column, label column) of tables with one column per part, as CLAM's splits."""
    parts: dict[str, tuple[str, str | None]] = {}
    for part in ("train", "val", "test"):
        for ids in (part, f"{part}_slide_path"):
            if ids in table:
                parts[part] = ids, f"{part}_label" if f"{part}_label" in table else None
    return parts if "train" in parts and len(parts) > 1 else {}


def _use_chosen_columns(table: pd.DataFrame, path: Path, choice: Choice) -> Dialect | None:
    """The target columns the user names, beside the id columns of the table."""
    chosen = [name for name in (choice.time, choice.event) if name is not None]
    if len(chosen) == 1:
        raise UsageError("Survival needs both columns: give --time and --event.")
    if not chosen and (choice.target is None or choice.target not in table):
        return None
    for name in chosen:
        if name not in table:
            raise _absent_column_error(path, name, table, "two of them with --time and --event")
    ids = find_id_columns(table)
    if ids is None:
        raise UsageError(
            f"{path} has no column of slides; it has: {list_columns(table)}. "
            "Name it with --slide-column."
        )
    tool, slide, case = "chosen columns", ids[0], ids[1] if ids[1] in table else None
    if not chosen:
        return Dialect(tool, slide, case, choice.target)
    time, event = chosen
    flip = "censor" in event.lower()
    return Dialect(tool, slide, case, time=time, event=event, flip=flip)


def _fit(dialect: Dialect, table: pd.DataFrame, path: Path, choice: Choice) -> Dialect | None:
    """The columns of a table of this dialect, None where it is not one."""
    folds = find_fold_columns(table)
    required = (dialect.slide, dialect.case) if dialect.case_required else (dialect.slide,)
    if not has_columns(table, *required) or dialect.folds not in {None, bool(folds)}:
        return None
    label, pair = dialect.label, None
    pairs = list_endpoints(table, dialect)
    if label == ANY:
        ids = {"", dialect.slide, dialect.case, *folds, *({"site"} if dialect.folds else ())}
        used = {*ids, *(column for one in pairs.values() for column in one)}
        candidates = [*pairs, *(name for name in table if name not in used)]
        if choice.target not in {None, *candidates}:
            remedy = "the label with --target"
            raise _absent_column_error(path, str(choice.target), candidates, remedy)
        if choice.target is None and len(candidates) != 1:
            raise UsageError(
                f"{path} has {len(candidates)} possible targets ({', '.join(candidates)}). "
                "Choose one with --target."
            )
        label = choice.target or candidates[0]
        pair = pairs.get(label)
    elif label is None and pairs:
        # The endpoint of the user, else of the tool, else the only one.
        by_name = {endpoint.lower(): one for endpoint, one in pairs.items()}
        wanted = choice.endpoint if ANY in dialect.event and choice.endpoint else dialect.endpoint
        wanted = wanted or (next(iter(by_name)) if len(by_name) == 1 else "")
        if wanted.lower() not in by_name:
            raise UsageError(
                f"{path} has endpoints {', '.join(pairs)}. Choose one with --endpoint."
            )
        pair = by_name[wanted.lower()]
    elif label not in table:
        return None
    time, event = pair or ("", "")
    case = dialect.case if dialect.case in table else None
    return replace(dialect, case=case, label=None if pair else label, time=time, event=event)


def _absent_column_error(path: Path, name: str, names: Iterable[str], remedy: str) -> UsageError:
    return UsageError(
        f"{path} has no column '{name}'.{did_you_mean(name, names)} "
        f"Its columns are: {list_columns(names)}. Name {remedy}."
    )


def _ambiguity_error(
    table: pd.DataFrame,
    path: Path,
    choice: Choice,
    is_known: bool,
    fitting: Sequence[Dialect],
) -> CohortError | UsageError:
    columns = list_columns(table)
    if len({one.task for one in fitting}) > 1:
        remedy = "Choose with --task classification or --task survival."
        return CohortError(f"{path} holds labels and survival times. {remedy}")
    if fitting:
        tools = " or ".join(one.tool for one in fitting)
        return CohortError(f"{path} could be a table of {tools}. Keep the columns of one of them.")
    if is_known:
        remedy = "them with --time and --event" if choice.task == "survival" else "it with --target"
        return CohortError(
            f"{path} has no {choice.task} target; its columns are: {columns}. Name {remedy}."
        )
    if find_id_columns(table) is None:
        return CohortError(
            f"{path} is not a label table in a known format; its columns are: {columns}. A table "
            "needs slide_id and label, or slide_id, time and event. Name the column of slides "
            "with --slide-column."
        )
    if choice.target is not None:
        return _absent_column_error(path, choice.target, table, "the label with --target")
    return UsageError(
        f"{path} does not say which column is the label: it has {columns}. "
        "Name it with --target, or for survival give --time and --event."
    )
