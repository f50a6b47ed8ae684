"""gcemil repack: rewrite slowly chunked feature files."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer


def repack(
    path: Path = typer.Argument(help="A feature file, or a folder of them (a cohort works too)."),
) -> None:
    """Rewrite HDF5 files that hold one row per chunk, or are compressed, as contiguous ones; values stay the same.

    CLAM and TRIDENT write such files; they read an order of magnitude slower. A link is never rewritten.

    Example: gcemil repack cohorts/bracs
    """
    from gcemil.bags import store
    from gcemil.bags.untrusted import untrusted_files
    from gcemil.cli.console import progress, say
    from gcemil.errors import InputError

    files = [path] if path.is_file() else sorted(path.rglob("*.h5"))
    if not files:
        said = "holds no .h5 file" if path.exists() else "does not exist"
        raise InputError(f"{path} {said}. Give a feature file, or a folder of them.")
    links = [file for file in files if file.is_symlink()]
    done = 0
    with untrusted_files(), progress("repacking") as advance:
        for index, file in enumerate(files, start=1):
            if not file.is_symlink():
                done += store.repack(file)
            advance(index, len(files))
    say(f"{path}: {done} of {len(files)} files rewritten, {len(links)} links left alone.")
    if links:
        sources = sorted({str(file.resolve().parent) for file in links})
        typed = " ".join(f"'gcemil repack {shlex.quote(source)}'" for source in sources)
        say(
            f"Links point to another tool's files: run {typed} if they may be changed, or import again with --copy."
        )
