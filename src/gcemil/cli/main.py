"""The `gcemil` command, and how it ends.

Exit code 0 is fine, 1 a problem was found, 2 the command was not understood, 130 it was stopped with Ctrl-C. Whatever
goes wrong is one sentence on standard error; `--debug` (or GCEMIL_DEBUG=1) shows the traceback before it.
"""

from __future__ import annotations

import _thread
import inspect
import os
import re
import select
import shlex
import sys
import threading
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO, get_args, get_origin, get_type_hints

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
from gcemil.errors import RunError, UsageError, describe_fault, error_text, printable

DEBUG = "GCEMIL_DEBUG"
"""Set to 1 it shows tracebacks; worker processes inherit it."""
STOPPED = 130
"""What a shell expects of a command that Ctrl-C ended."""
INTERRUPT_AGAIN_S = 0.05
RESUMING = frozenset({"adopt", "annotate", "benchmark", "compose", "demo", "diagnose", "encode", "import", "patch", "predict", "prefilter", "repack", "report", "simulate", "train"})  # fmt: skip
"""Commands that, given again, go on where they stopped or do again what was not finished."""


class Command(TyperCommand):
    """One command; its flags show as flags, without a value."""

    def get_params(self, ctx: Any) -> Any:
        """Options and arguments, with nothing after a flag."""
        return _bare_flags(super().get_params(ctx))


def _bare_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            # Its name says what it is; beside it stood a type of Python.
            param.display_type_rich = lambda ctx: None
    return params


class Commands(TyperGroup):
    """The commands; one that is stopped with Ctrl-C says how to go on."""

    def get_params(self, ctx: Any) -> Any:
        """The options of the group itself, with nothing after a flag."""
        return _bare_flags(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and end well when it is stopped or its output is no longer read."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            again = "; run the same command again to go on" if ctx.invoked_subcommand in RESUMING else ""
            print(f"\ngcemil: stopped{again}.", file=sys.stderr)
            # A caller that is no shell has no command to give again.
            if again and Path(sys.argv[0]).name.startswith("gcemil"):
                print(f"  gcemil {printable(shlex.join(sys.argv[1:]))}", file=sys.stderr)
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
    epilog="--quiet, --verbose and --debug may stand before or after any command. 'gcemil COMMAND --help' has an example of each.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Start": {
        "demo": demo.demo,
        "doctor": doctor.doctor,
        "inspect": cohort.inspect,
        "config": train.config,
    },
    "Make a cohort": {
        "import": cohort.import_,
        "encode": slides.encode,
        "patch": slides.patch,
        "annotate": slides.annotate,
        "simulate": simulate.simulate,
        "compose": simulate.compose,
        "validate": cohort.validate,
        "split": cohort.split,
        "repack": cohort.repack,
    },
    "Train": {"train": train.train, "adopt": train.adopt, "evaluate": train.evaluate},
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
        "benchmark": benchmark.benchmark,
        "tables": benchmark.tables,
    },
}
"""The commands as '--help' groups them."""


def _show_kinds(function: Callable[..., None]) -> Callable[..., None]:
    """The command with words for what each option takes: a flag takes nothing, and no type of Python is shown."""
    kinds = get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        declared = parameter.default
        if getattr(declared, "metavar", "given") is None:
            is_argument = (
                not getattr(declared, "param_decls", None) and type(declared).__name__ == "ArgumentInfo"
            )
            more = "..." if get_origin(kinds[name]) is list else ""
            declared.metavar = f"{name.upper()}{more}" if is_argument else _name_kind(kinds[name])
    return function


def _name_kind(kind: Any) -> str:
    parts = [part for part in get_args(kind) or (kind,) if part is not type(None)]
    first = parts[0]
    if first is bool:
        return ""
    if isinstance(first, type) and issubclass(first, StrEnum):
        return "|".join(choice.value for choice in first)
    return {Path: "PATH", int: "NUMBER", float: "NUMBER"}.get(first, "TEXT")


for _group, _commands in GROUPS.items():
    for _name, _function in _commands.items():
        app.command(_name, cls=Command, rich_help_panel=_group)(_show_kinds(_function))
    if _group == "Make a cohort":
        for _info in anchors.app.registered_commands:
            if _info.callback is not None:
                _show_kinds(_info.callback)
            _info.cls = Command
        app.add_typer(anchors.app, name="anchors", rich_help_panel=_group)


@app.callback(invoke_without_command=True)
def global_options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
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
        typer.echo(context.get_help())


ANYWHERE = {"--debug": DEBUG, "--quiet": QUIET, "--verbose": VERBOSE}
"""Flags that may stand before or after a command, where one adds them to a command that was just given."""


def main() -> None:
    """Run a command; an error is one sentence on standard error, with its traceback only where that was asked for."""
    arguments = sys.argv[1:]
    sys.unraisablehook = repeat_lost_interrupt
    for flag, variable in ANYWHERE.items():
        if flag in arguments:
            os.environ[variable] = "1"
            arguments = [argument for argument in arguments if argument != flag]
    try:
        sys.exit(app(arguments, prog_name="gcemil", standalone_mode=False))
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    except Exception as error:
        print_error(error)
        sys.exit(2 if isinstance(error, UsageError) or is_misuse(error) else 1)
    finally:
        flush_output()


def repeat_lost_interrupt(lost: sys.UnraisableHookArgs) -> None:
    """Give Ctrl-C once more where Python could not raise it: in a weak reference's clean-up it is printed and forgotten."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        # A moment later: an interrupt that is raised in here would be lost as well.
        threading.Timer(INTERRUPT_AGAIN_S, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


def is_misuse(error: Exception) -> bool:
    """Whether the command line itself was not understood."""
    return hasattr(error, "format_message")


def describe_misuse(error: Any) -> str:
    """What was not understood of the command line, in one sentence, and where to read on."""
    said = " ".join(error.format_message().split())
    for pattern, plain in MISUSE:
        said = re.sub(pattern, plain, said)
    context = getattr(error, "ctx", None)
    command = "gcemil" if context is None else context.command_path
    end = "" if said.endswith("?") else "."
    return f"{said.rstrip('.')}{end} See '{command} --help'."


MISUSE = (
    (r"Value error, ", ""),
    (r"Input should be greater than or equal to ", "it must be at least "),
    (r"Input should be less than or equal to ", "it must be at most "),
    (r"Input should be greater than ", "it must be more than "),
    (r"Input should be less than ", "it must be less than "),
    (r"Input should be a valid integer.*", "it must be a whole number"),
    (r"Input should be a valid number.*", "it must be a number"),
    (r"No such option: (\S+) \(Possible options: ([^)]*)\)", r"There is no option \1. Did you mean \2?"),
    (r"No such option: (\S+?)\.?$", r"There is no option \1"),
    (r"Got unexpected extra argument\S* \((.*)\)", r"There is one argument too many: \1"),
    (r"No such command ", "There is no command "),
    (r"Missing (option|argument|parameter) '(\S+)'", r"\2 is missing"),
    (r"Option '(\S+)' requires an argument", r"\1 needs a value after it"),
)
"""The parser's own words, and ours."""


def print_error(error: Exception) -> None:
    """What happened, in one sentence."""
    if is_set(DEBUG):
        traceback.print_exception(error)
    sentence = (describe_misuse(error) if is_misuse(error) else describe_fault(error)) or (
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
