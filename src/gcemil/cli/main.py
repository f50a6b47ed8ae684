"""The `gcemil` command, and how it ends.

Exit code 0 is fine, 1 a problem was found, 2 the command was not understood, 130 it was stopped
with Ctrl-C. An error is one sentence on standard error; `--debug` (or GCEMIL_DEBUG=1) shows the
traceback before it.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gcemil import __version__
from gcemil.cli import (
    anchors,
    benchmark,
    cohort,
    demo,
    diagnose,
    doctor,
    explain,
    predict,
    report,
    simulate,
    slides,
    train,
)
from gcemil.cli.console import QUIET, VERBOSE, is_set
from gcemil.errors import UsageError, describe_fault, error_text, printable

DEBUG = "GCEMIL_DEBUG"
"""Set to 1 it shows tracebacks; worker processes inherit it."""
STOPPED = 130
"""What a shell expects of a command that Ctrl-C ended."""
RESUMING = frozenset(
    ("adopt", "annotate", "benchmark", "compose", "demo", "diagnose", "encode", "import", "predict",
     "prefilter", "report", "simulate", "train")
)  # fmt: skip
"""Commands that continue where they stopped when they are given again."""
ALIASES = {
    "config": ("train", "--print-config"),
    "evaluate": ("train", "--again"),
    "patch": ("encode", "--patches-only"),
    "repack": ("import", "--repack"),
}
"""Old names of commands, and what they are now. They work until the next release."""


TYPE_WORDS = {"int": "NUMBER", "float": "NUMBER", "path": "PATH", "Path": "PATH", "str": "TEXT"}
"""A word for what an option takes, in place of a type of Python."""


def _name_values(params: list[Any], context: Any) -> list[Any]:
    """The options and arguments with a word for their values; a flag has none."""
    for param in params:
        if param.param_type_name == "argument":
            param.metavar = param.metavar or param.name.upper() + "..." * (param.nargs != 1)
            param.display_type_rich = lambda ctx: None
        elif param.is_flag:
            param.metavar = ""
        elif param.metavar is None:
            kind = param.display_type(context).strip("<>").removeprefix("list[").rstrip("]")
            param.metavar = TYPE_WORDS.get(kind.split()[0], kind)
    return params


class Command(TyperCommand):
    """One command."""

    def get_params(self, ctx: Any) -> Any:
        """Its options and arguments."""
        return _name_values(super().get_params(ctx), ctx)


class Commands(TyperGroup):
    """The commands; one that is stopped with Ctrl-C prints how to continue."""

    def get_params(self, ctx: Any) -> Any:
        """The options of the group itself."""
        return _name_values(super().get_params(ctx), ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of a name or of an old name."""
        return super().resolve_command(ctx, [*ALIASES.get(args[0], args[:1]), *args[1:]])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; handle Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            resumes = ctx.invoked_subcommand in RESUMING
            again = "; run the same command again to go on" if resumes else ""
            print(f"\ngcemil: stopped{again}.", file=sys.stderr)
            # A caller from Python has no command line to repeat.
            if resumes and Path(sys.argv[0]).name.startswith("gcemil"):
                print(f"  gcemil {printable(shlex.join(sys.argv[1:]))}", file=sys.stderr)
            raise typer.Exit(STOPPED) from None


app = typer.Typer(
    name="gcemil",
    cls=Commands,
    help="Faithful evidence for multiple-instance learning on whole-slide images.",
    epilog="--quiet, --verbose and --debug can be given before or after any command. "
    "'gcemil COMMAND --help' has an example of each.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

WELCOME = f"""gcemil {__version__}: faithful evidence for MIL on whole-slide images

  gcemil demo           train on simulated slides and write a report: minutes, no download
  gcemil inspect PATH   what your features are, and the command to use them
  gcemil doctor         what is installed on this machine, and what is missing

'gcemil --help' lists all commands; 'gcemil COMMAND --help' has an example of each."""

GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Start": {
        "demo": demo.demo,
        "doctor": doctor.doctor,
        "inspect": cohort.inspect,
    },
    "Make a cohort": {
        "import": cohort.import_,
        "encode": slides.encode,
        "annotate": slides.annotate,
        "simulate": simulate.simulate,
        "compose": simulate.compose,
        "validate": cohort.validate,
        "split": cohort.split,
    },
    "Train": {"train": train.train, "adopt": train.adopt},
    "Look at evidence": {
        "explain": explain.explain,
        "predict": predict.predict,
        "prefilter": predict.prefilter,
        "view": report.view,
        "export": explain.export,
    },
    "Measure": {
        "diagnose": diagnose.diagnose,
        "review": diagnose.review,
        "audit": diagnose.audit,
        "report": report.report,
        "figures": report.figures,
        "benchmark": benchmark.benchmark,
        "tables": benchmark.tables,
    },
}
"""The commands as '--help' groups them."""


for _group, _commands in GROUPS.items():
    for _name, _function in _commands.items():
        app.command(_name, cls=Command, rich_help_panel=_group)(_function)
    if _group == "Make a cohort":
        for _info in anchors.app.registered_commands:
            _info.cls = Command
        app.add_typer(anchors.app, name="anchors", rich_help_panel=_group)


@app.callback(invoke_without_command=True)
def global_options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    quiet: bool = typer.Option(False, "--quiet", help="Print results and errors, no progress."),
    verbose: bool = typer.Option(
        False, "--verbose", help="Print a line for every step, in place of a progress bar."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Options that stand before a command."""
    if version:
        typer.echo(f"gcemil {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(WELCOME)


ANYWHERE = {"--debug": DEBUG, "--quiet": QUIET, "--verbose": VERBOSE}
"""Flags that may stand before or after a command."""


def main() -> None:
    """Run a command; an error is one sentence on standard error."""
    arguments = sys.argv[1:]
    for flag, variable in ANYWHERE.items():
        if flag in arguments:
            os.environ[variable] = "1"
            arguments = [argument for argument in arguments if argument != flag]
    try:
        code = app(arguments, prog_name="gcemil", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has gone. Python flushes again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        print_error(error)
        sys.exit(2 if isinstance(error, UsageError) or hasattr(error, "format_message") else 1)


def print_error(error: Exception) -> None:
    """What happened, in one sentence."""
    if is_set(DEBUG):
        traceback.print_exception(error)
    describe = describe_misuse if hasattr(error, "format_message") else describe_fault
    sentence = describe(error) or (
        f"unexpected {type(error).__name__}: {error_text(error)}. This is a mistake in gcemil, "
        "not yours: run the same command with --debug and report what it prints."
    )
    print(f"gcemil: {printable(sentence)}", file=sys.stderr)


MEANT_OPTIONS = {
    "--lr": "--set learning_rate=VALUE",
    "--learning-rate": "--set learning_rate=VALUE",
    "--weight-decay": "--set weight_decay=VALUE",
    "--dropout": "--set host.options.dropout=VALUE",
    "--batch-size": "--set bags_per_step=NUMBER",
    "--amp": "--precision bf16",
    "--fp16": "--precision bf16",
    "--patience": "--set early_stopping=EPOCHS",
    "--gpu": "--device cuda",
    "--cuda": "--device cuda",
    "--cpu": "--device cpu",
    "--workers": "--jobs NUMBER",
    "--num-workers": "--jobs NUMBER",
    "--output": "--out PATH",
    "--model": "--host NAME",
}
"""Options of other tools, and what they are here."""


def describe_misuse(error: Any) -> str:
    """What the parser of the command line did not understand, and where to read more."""
    text = " ".join(error.format_message().split()).replace("Value error, ", "").removesuffix(".")
    if meant := MEANT_OPTIONS.get(getattr(error, "option_name", None) or ""):
        text = f"No such option: {error.option_name}. Did you mean {meant}?"
    context = getattr(error, "ctx", None)
    command = "gcemil" if context is None else context.command_path
    return f"{text}{'' if text.endswith('?') else '.'} See '{command} --help'."
