"""The `gcemil` command: exit code 0 is fine, 1 a problem was found, 2 the command was not understood."""

from __future__ import annotations

import sys

import typer

from gcemil import __version__
from gcemil.cli import (
    anchors,
    annotate,
    audit,
    benchmark,
    demo,
    diagnose,
    doctor,
    encode,
    evaluate,
    explain,
    foreign,
    patch,
    predict,
    prefilter,
    repack,
    report,
    simulate,
    split,
    tables,
    train,
    validate,
    view,
)
from gcemil.errors import GcemilError, UsageError

app = typer.Typer(
    name="gcemil",
    help="Faithful evidence for multiple-instance learning on whole-slide images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("simulate")(simulate.simulate)
app.command("inspect")(foreign.inspect)
app.command("import")(foreign.import_)
app.command("patch")(patch.patch)
app.command("encode")(encode.encode)
app.command("annotate")(annotate.annotate)
app.add_typer(anchors.app, name="anchors")
app.command("repack")(repack.repack)
app.command("validate")(validate.validate)
app.command("split")(split.split)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("prefilter")(prefilter.prefilter)
app.command("predict")(predict.predict)
app.command("explain")(explain.explain)
app.command("diagnose")(diagnose.diagnose)
app.command("audit")(audit.audit)
app.command("benchmark")(benchmark.benchmark)
app.command("tables")(tables.tables)
app.command("report")(report.report)
app.command("view")(view.view)


@app.callback(invoke_without_command=True)
def version_option(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    if version:
        typer.echo(f"gcemil {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run a verb; an error of ours is one sentence on standard error, never a traceback."""
    try:
        app()
    except GcemilError as error:
        print(f"gcemil: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
