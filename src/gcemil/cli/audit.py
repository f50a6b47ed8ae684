"""gcemil audit: is an explanation faithful? For models and patch scores that were not made here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from torch import Tensor

    from gcemil.bags.bag import Bag
    from gcemil.bags.cohort import BagSpec, Cohort
    from gcemil.diagnostics.audit import ScoreSource
    from gcemil.diagnostics.audit_inputs import BlackBox
    from gcemil.findings import Finding
    from gcemil.hosts.host import HostOutput


class Part(StrEnum):
    train = "train"
    val = "val"
    test = "test"
    all = "all"


class Arrays(StrEnum):
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
    budget: float = typer.Option(0.05, help="Share of patches every rule may keep."),
    arrays: Arrays = typer.Option(Arrays.torch, help="What the callable is handed."),
    repeats: int = typer.Option(
        3, min=0, help="Changed versions of each bag, for stability; 0 leaves it out."
    ),
    out: Path = typer.Option(Path("audit.json"), help="Where the finding is written."),
    seed: int = typer.Option(0, min=0, help="Seed of random subsets and perturbations."),
    as_json: bool = typer.Option(False, "--json", help="Print the finding as JSON."),
) -> None:
    """Keep and remove the patches an explanation names, beside random patches and, where known, the true ones.

    The callable gets float32 features (n, d) and integer coords (n, 2) of one bag, all of it or some of its patches, and
    returns logits (one per class, in the order of cohort.yaml, or one risk), or the tuple (logits, scores) with one score
    per patch. Without scores of its own or from --scores, the slope of its output by each patch is audited.

    Example: gcemil audit cohorts/bracs --model my_lab.models:predict --scores attention/ --fold 0
    """
    from gcemil.bags.cohort import Cohort
    from gcemil.cli.console import print_json, progress
    from gcemil.config import TrainSettings
    from gcemil.diagnostics.audit import audit_model
    from gcemil.diagnostics.audit_inputs import BlackBox
    from gcemil.files import without_nan, write_json
    from gcemil.tasks.task import create_task, stacked_targets

    loaded = Cohort.load(cohort)
    task = create_task(loaded, TrainSettings())
    specs = chosen_bags(loaded, part.value, fold)
    targets = stacked_targets(specs)
    task.check(targets, where=f"{cohort}, fold {fold}, part {part.value}")
    with importable_here():
        box = BlackBox(
            host_of_fold(Path(model), fold) if Path(model).is_dir() else imported(model),
            model,
            in_dim=loaded.card.feature_dim,
            n_outputs=loaded.n_outputs,
            arrays=arrays.value,
        )
        sources = score_sources(box, loaded, specs[0], scores, column, gates)
        with progress("auditing bags") as advance:
            finding = audit_model(
                box.host(),
                loaded,
                specs,
                targets,
                task,
                score_sources=sources,
                budget=budget,
                seed=seed,
                on_bag=advance,
                repeats=repeats,
            )
    finding = with_origin(finding, loaded, model, scores, part.value, fold, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, finding.to_json())
    if as_json:
        print_json(without_nan(finding.to_json()))
    else:
        print_audit(finding, out)


def chosen_bags(cohort: Cohort, part: str, fold: int) -> Sequence[BagSpec]:
    from gcemil.bags.folds import read_fold
    from gcemil.runs.folder import fold_parts

    if part == "all":
        return cohort.bags
    parts = fold_parts(cohort, read_fold(cohort, fold))
    return {"train": parts.train, "val": parts.val, "test": parts.test}[part]


@contextmanager
def importable_here() -> Iterator[None]:
    """The working folder on the import path, as for `python -m`."""
    import sys

    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def host_of_fold(run: Path, fold: int) -> Any:
    """The host of a trained fold as a callable that gives logits and its own patch scores."""
    from gcemil.runs.folder import RunFolder
    from gcemil.runs.network import load_network

    host = load_network(RunFolder(run).fold(fold).checkpoint)[0].host

    def answer(features: Any, coords: Any) -> tuple[Any, Any]:
        output = host(features, coords)
        return output.logits, output.scores

    return answer


def imported(name: str) -> Any:
    """The object that --model names; a torch module is set to evaluation."""
    from torch import nn

    from gcemil.hosts.own import import_object

    found = import_object(name, "--model")
    return found.eval() if isinstance(found, nn.Module) else found


def score_sources(
    box: BlackBox, cohort: Cohort, first: BagSpec, folders: Sequence[Path], column: str | None, gates: bool
) -> dict[str, ScoreSource]:
    """The model's own scores, those of every folder, or the slope where there are neither."""
    import torch

    from gcemil.diagnostics.audit import OWN_SCORES
    from gcemil.diagnostics.audit_inputs import name_bag_in_errors
    from gcemil.errors import UsageError
    from gcemil.explain import bag_tensors

    found: dict[str, ScoreSource] = {}
    with name_bag_in_errors(first.bag_id), torch.no_grad():
        if box.answer(*bag_tensors(cohort.read_bag(first)))[1] is not None:
            found["model"] = OWN_SCORES
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"--scores {folder} is no folder. Give the folder of <slide_id>.h5, .csv or .npy files."
            )
        name = folder.resolve().name
        if name in found:
            raise UsageError(f"Two sources of scores are called '{name}'. Rename the folder {folder}.")
        found[name] = file_source(folder, column, gates)
    if gates and not folders:
        raise UsageError("--gates says what the score files hold. Give them with --scores DIR.")
    return found or {"slope": slope_source(box)}


def file_source(folder: Path, column: str | None, gates: bool) -> ScoreSource:
    import torch

    from gcemil.diagnostics.audit import ScoreSource
    from gcemil.diagnostics.audit_inputs import read_bag_scores

    def scores(bag: Bag, _full: HostOutput) -> Tensor:
        return torch.from_numpy(read_bag_scores(folder, bag, column=column))

    return ScoreSource(scores, follows_bag=False, are_gates=gates)


def slope_source(box: BlackBox) -> ScoreSource:
    from gcemil.diagnostics.audit import ScoreSource
    from gcemil.explain import bag_tensors

    def slopes(bag: Bag, _full: HostOutput) -> Tensor:
        return box.slopes(*bag_tensors(bag))

    return ScoreSource(slopes)


def with_origin(
    finding: Finding, cohort: Cohort, model: str, scores: Sequence[Path], part: str, fold: int, seed: int
) -> Finding:
    """What was audited, and on which data."""
    from dataclasses import replace

    import torch

    from gcemil.bags.fingerprint import record_cohort
    from gcemil.runs.environment import describe_environment

    notes = finding.notes
    if part != "test":
        notes = (*notes, f"Bags of part '{part}': the model may have been trained on them.")
    environment = describe_environment(
        seed=seed, device=torch.device("cpu"), inputs={"cohort": record_cohort(cohort).fingerprint}
    )
    named = {
        "cohort": cohort.card.name,
        "model": model,
        "scores": [folder.resolve().name for folder in scores],
        "part": part,
        "fold": None if part == "all" else fold,
    }
    return replace(finding, notes=notes, provenance={**environment, **named})


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
        print_finding(replace(finding, name=f"audit, {comparison}", rows=rows, notes=()))
    for note in finding.notes:
        say(note)
    say(f"wrote {out}")
