"""The `gcemil` command, and how it ends.

Exit code 0 is fine, 1 a problem was found, 2 the command was not understood, 130 it was stopped with Ctrl-C. Whatever
goes wrong is one sentence on standard error; `--debug` (or GCEMIL_DEBUG=1) shows the traceback before it.
"""

from __future__ import annotations

import os
import select
import sys
import traceback
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from gcemil import __version__
from gcemil.cli import (
    adopt,
    anchors,
    annotate,
    audit,
    benchmark,
    compose,
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
from gcemil.errors import RunError, UsageError, describe_fault, error_text, printable

DEBUG = "GCEMIL_DEBUG"
"""Set to 1 it shows tracebacks; worker processes inherit it."""
STOPPED = 130
"""What a shell expects of a command that Ctrl-C ended."""
RESUMING = frozenset({"adopt", "annotate", "benchmark", "compose", "demo", "diagnose", "encode", "import", "patch", "prefilter", "repack", "report", "simulate", "train"})  # fmt: skip
"""Commands that, given again, go on where they stopped or do again what was not finished."""


class Commands(TyperGroup):
    """The commands; one that is stopped with Ctrl-C says how to go on."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and end well when it is stopped or its output is no longer read."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            again = "; run the same command again to go on" if ctx.invoked_subcommand in RESUMING else ""
            print(f"\ngcemil: stopped{again}.", file=sys.stderr)
            raise typer.Exit(STOPPED) from None
        except BrokenPipeError as error:
            if flush_output():
                raise typer.Exit(1) from None
            raise RunError(
                "A process that worked for this command ended before its time. Run the same command again; what is "
                "finished is kept."
            ) from error


app = typer.Typer(
    name="gcemil",
    cls=Commands,
    help="Faithful evidence for multiple-instance learning on whole-slide images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("simulate")(simulate.simulate)
app.command("compose")(compose.compose)
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
app.command("adopt")(adopt.adopt)
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
def global_options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Options that stand before a command."""
    if debug:
        os.environ[DEBUG] = "1"
    if version:
        typer.echo(f"gcemil {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run a command; an error is one sentence on standard error, with its traceback only where that was asked for."""
    arguments = sys.argv[1:]
    if "--debug" in arguments:
        # Accepted after the command as well, where one adds it to a command that has just failed.
        os.environ[DEBUG] = "1"
        arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        app(arguments, prog_name="gcemil")
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    except Exception as error:
        print_error(error)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    finally:
        flush_output()


def print_error(error: Exception) -> None:
    """What happened, in one sentence."""
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        traceback.print_exception(error)
    sentence = describe_fault(error) or (
        f"unexpected {type(error).__name__}: {error_text(error)}. This is a mistake in gcemil, not yours: "
        "run the same command with --debug and report what it prints."
    )
    print(f"gcemil: {printable(sentence)}", file=sys.stderr)


def flush_output() -> bool:
    """Print what is left; True when the reader of our output, such as `head`, has gone and further output is dropped."""
    try:
        sys.stdout.flush()
        left = _has_no_reader(sys.stdout)
    except OSError:
        # No reader, or no room where the output is kept.
        left = True
    if left:
        # Python flushes once more at its end, and would complain there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return left


def _has_no_reader(stream: TextIO) -> bool:
    try:
        asked = select.poll()
        asked.register(stream.fileno(), select.POLLERR)
    except (AttributeError, OSError, ValueError):
        # No pipe, or a system that cannot be asked.
        return False
    return any(events & select.POLLERR for _, events in asked.poll(0))
