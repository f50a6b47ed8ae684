"""gcemil validate: every check of a cohort, all problems in one table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer


def validate(
    cohort: Path = typer.Argument(help="A cohort folder."),
    as_json: bool = typer.Option(False, "--json", help="Print the problems as JSON."),
) -> None:
    """Find everything that would spoil training: files, values, ids, labels, leakage, survival coding.

    Exits with 1 when there is an error; warnings alone exit with 0.

    Example: gcemil validate cohorts/bracs
    """
    from gcemil.bags import guards
    from gcemil.bags.cohort import read_card
    from gcemil.cli.console import print_json, print_table, progress, say

    if not (cohort / "cohort.yaml").is_file():
        # A table of problems is for cohorts; what is none is told in one sentence.
        read_card(cohort)
    with progress("checking slides") as advance:
        problems = guards.validate(cohort, advance)
    errors = guards.select_errors(problems)
    if as_json:
        print_json([asdict(problem) for problem in problems])
    elif problems:
        rows = [
            (group.problem.level, group.where, group.problem.what, group.problem.remedy)
            for group in guards.group_problems(problems)
        ]
        print_table(f"{cohort}", ("level", "where", "what", "remedy"), rows)
    if not as_json:
        say(f"{cohort}: {len(errors)} errors, {len(problems) - len(errors)} warnings.")
    raise typer.Exit(1 if errors else 0)
