"""gcemil report: one self-contained HTML file of a run, a pair of runs, or a grid."""

from __future__ import annotations

from pathlib import Path

import typer

from gcemil.cli.options import TRUST_HOST, seed_option


def report(
    run: Path = typer.Argument(help="A run folder, or a results folder of 'gcemil benchmark'."),
    against: Path | None = typer.Option(None, help="The run of the plain host on the same cohort."),
    out: Path | None = typer.Option(None, help="By default RUN/report.html."),
    representations: bool = typer.Option(
        False,
        "--representations",
        help="First pass the validation and test bags through the networks and store what their heads see, for the t-SNE.",
    ),
    seed: int = seed_option("the t-SNE"),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = typer.Option(False, "--json", help="Print the path and its size as JSON."),
) -> None:
    """Write a report that opens from disk, asks nothing of the network, and says what is missing.

    Figures are also written to RUN/figures as PNG and SVG.

    Example: gcemil report runs/bracs_gce --against runs/bracs_host
    """
    from gcemil.cli.console import print_json, progress, say
    from gcemil.errors import MissingExtraError

    try:
        from gcemil.report.run_report import write_report
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise MissingExtraError("matplotlib", "report") from error
    if representations:
        with progress("representing bags") as advance:
            from gcemil.runs.predict import represent_runs

            represent_runs([run] if against is None else [run, against], on_bag=advance)
    with progress("writing sections") as advance:
        path = write_report(run, out or run / "report.html", against=against, seed=seed, on_step=advance)
    size = path.stat().st_size
    if as_json:
        print_json({"report": str(path), "bytes": size, "figures": str(run / "figures")})
        return
    say(f"wrote {path} ({size / 1e6:.1f} MB); figures in {run / 'figures'}")
