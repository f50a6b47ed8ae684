"""gcemil audit: is an explanation faithful? For models and patch scores that were not made here."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.options import seed_option

if TYPE_CHECKING:
    from gcemil.findings import Finding


class Part(StrEnum):
    """Bags of a fold, or all bags."""

    train = "train"
    val = "val"
    test = "test"
    all = "all"


class Arrays(StrEnum):
    """What a callable is handed."""

    torch = "torch"
    numpy = "numpy"


def audit(
    cohort: Path = typer.Argument(help="A cohort folder; truth/ in it adds the oracle."),
    model: str = typer.Option(
        ...,
        help="A run folder, of which the fold's network is audited; or pkg.module:callable, whose module is imported, "
        "which RUNS ITS CODE: name only code you trust.",
    ),
    scores: list[Path] = typer.Option(
        [],
        help="A folder of <slide_id>.h5, .csv or .npy with one score per patch; may be given several times.",
    ),
    column: str | None = typer.Option(None, help="Dataset or column of the score files."),
    gates: bool = typer.Option(
        False, "--gates", help="The score files hold gates in [0, 1]: measure recoverability too."
    ),
    part: Part = typer.Option(Part.test, help="Which bags of the fold; all needs no folds."),
    fold: int = typer.Option(0, min=0, help="The fold the model was not trained on."),
    budget: float = typer.Option(0.05, min=0, max=1, help="Share of patches every rule may keep."),
    arrays: Arrays = typer.Option(Arrays.torch, help="What the callable is handed."),
    repeats: int = typer.Option(
        3, min=0, help="Changed versions of each bag, for stability; 0 leaves it out."
    ),
    out: Path = typer.Option(Path("audit.json"), help="Where the finding is written."),
    seed: int = seed_option("random subsets and perturbations"),
    as_json: bool = typer.Option(False, "--json", help="Print the finding as JSON."),
) -> None:
    """Keep and remove the patches an explanation names, beside random patches and, where known, the true ones.

    The callable gets float32 features (n, d) and integer coords (n, 2) of one bag, all of it or some of its patches, and
    returns logits (one per class, in the order of cohort.yaml, or one risk), or the tuple (logits, scores) with one score
    per patch. Without scores of its own or from --scores, the slope of its output by each patch is audited.

    Example: gcemil audit cohorts/bracs --model my_lab.models:predict --scores attention/ --fold 0
    """
    from gcemil.cli.console import print_json, progress
    from gcemil.diagnostics.audit_cohort import audit_cohort
    from gcemil.files import without_nan, write_json

    with progress("auditing bags") as advance:
        finding = audit_cohort(
            cohort,
            model,
            scores=scores,
            column=column,
            gates=gates,
            part=part.value,
            fold=fold,
            budget=budget,
            arrays=arrays.value,
            repeats=repeats,
            seed=seed,
            on_bag=advance,
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, finding.to_json())
    if as_json:
        print_json(without_nan(finding.to_json()))
    else:
        print_audit(finding, out)


def print_audit(finding: Finding, out: Path) -> None:
    """One table per comparison, then what follows from them."""
    from dataclasses import replace

    from gcemil.cli.console import say
    from gcemil.cli.diagnose import print_finding

    for comparison in dict.fromkeys(row.labels["comparison"] for row in finding.rows):
        rows = tuple(
            replace(row, labels={"rule": row.labels["rule"]})
            for row in finding.rows
            if row.labels["comparison"] == comparison
        )
        print_finding(replace(finding, name=f"audit, {comparison}", rows=rows, notes=()), everything=True)
    for note in finding.notes:
        say(note)
    say(f"wrote {out}")
