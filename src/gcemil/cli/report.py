"""A run to look at: gcemil report, as one HTML file, and gcemil view, in the browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, progress, say
from gcemil.errors import MissingExtraError


@contextmanager
def needs_matplotlib() -> Iterator[None]:
    """Name the extra that an import inside lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise MissingExtraError("matplotlib", "report") from error


def report(
    run: Path = typer.Argument(help="A run folder, or a results folder of 'gcemil benchmark'."),
    against: Path | None = typer.Option(None, help="The run of the plain host on the same cohort."),
    out: Path | None = typer.Option(
        None, help="A file, or a folder for report.html; RUN by default."
    ),
    representations: bool = options.flag(
        "--representations", "First compute the representations for the t-SNE."
    ),
    seed: int = options.seed("the t-SNE"),
    trust_host: options.TrustHost = None,
    as_json: options.Json = False,
) -> None:
    """Write an HTML report of a run, which opens from disk without a network.

    It lists what is missing. Figures are also written to RUN/figures as PNG and SVG.

    Example: gcemil report runs/bracs_gce --against runs/bracs_host
    """
    with needs_matplotlib():
        from gcemil.report.run_report import write_report
    from gcemil.runs.folder import Run

    out = out or run
    # A name without an ending is a folder, whether it is there yet or not.
    page = out / "report.html" if out.is_dir() or not out.suffix else out
    if representations:
        with progress("representing bags") as advance:
            from gcemil.runs.predict import represent_runs

            represent_runs([run] if against is None else [run, against], on_bag=advance)
    with progress("writing sections") as advance:
        path = write_report(run, page, against=against, seed=seed, on_step=advance)
    size = path.stat().st_size
    if as_json:
        print_json({"report": str(path), "bytes": size, "figures": str(run / "figures")})
        return
    figures = f"; figures in {run / 'figures'}"
    if Run(run).targets:
        figures = "; a report of each target beside it"
    say(f"wrote {path} ({size / 1e6:.1f} MB){figures}")


def figures(
    run: options.RunFolder,
    out: Path | None = typer.Option(None, help="By default RUN/publication."),
    formats: str = typer.Option(
        "svg,pdf", "--format", metavar="NAMES", help="svg, pdf or png, several separated by commas."
    ),
    against: Path | None = typer.Option(
        None, help="The run of the plain host, for a further curve."
    ),
    slide: list[str] = typer.Option(
        [], help="A test slide to draw; may be repeated. By default a typical one and the worst."
    ),
    dpi: int = typer.Option(300, min=72, max=1200, help="Pixels per inch."),
    seed: int = options.seed("the bootstrap"),
    as_json: options.Json = False,
) -> None:
    """Write the figures and tables of a paper.

    Curves with intervals, confusion, calibration, survival, evidence on tissue; tables as LaTeX,
    Markdown and CSV. captions.md describes each file, and lists what the run lacks.

    Example: gcemil figures runs/bracs_gce --out paper --format pdf
    """
    with needs_matplotlib():
        from gcemil.report.publication.write import write_publication
    with progress("drawing figures") as advance:
        written = write_publication(
            run,
            out or run / "publication",
            against=against,
            formats=[name.strip() for name in formats.split(",")],
            dpi=dpi,
            slides=slide,
            seed=seed,
            on_step=advance,
        )
    if as_json:
        print_json({"files": list(map(str, written.files)), "left_out": written.left_out})
        return
    names = list(dict.fromkeys(path.stem for path in written.files))
    say(f"wrote {len(written.files)} files to {out or run / 'publication'}: {', '.join(names)}")
    for what, remedy in written.left_out.items():
        say(f"not shown: {what} {remedy}")


def view(
    run: options.RunFolder,
    fold: int | None = typer.Option(None, min=0, help="By default the first trained fold."),
    slides: Path | None = typer.Option(
        None, help="A folder of slide files, if they are not beside the features."
    ),
    port: int = typer.Option(0, min=0, max=65535, help="By default any free port."),
    browser: bool = typer.Option(
        True, "--browser/--no-browser", help="Open the page, or print its address."
    ),
    device: options.Device = None,
    trust_host: options.TrustHost = None,
    sufficiency: options.Sufficiency = 0.05,
    necessity: options.Necessity = 0.05,
    recoverability: options.Recoverability = 0.01,
) -> None:
    """Look at a run in the browser, and keep and remove patches by hand.

    Listens on this machine only; the address works once, and a new one is printed when a used one
    is opened again. Ctrl-C ends it. Reviews are saved in RUN/fold_<k>/reviews; nothing else is
    written.

    Example: gcemil view runs/bracs_gce
    """
    import webbrowser

    from gcemil.diagnostics.snr import Tolerances

    try:
        from gcemil.viewer.server import listen, serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise MissingExtraError(error.name, "viewer") from error
    from gcemil.viewer.session import ViewerSession

    # Refuse a port that is taken before reading the run.
    with listen(port) as listener:
        tolerances = Tolerances(sufficiency, necessity, recoverability)
        session = ViewerSession(
            run, fold, tolerances=tolerances, slides=slides, device=device or "auto"
        )
        seen = sum(session.slide_file(slide_id) is not None for slide_id in session.specs)
        say(
            f"{run.name}, fold {session.fold.fold}: {len(session.specs)} test slides, tissue of "
            f"{seen}. Ctrl-C ends the viewer."
        )
        if not seen and slides is None:
            say("To see tissue name the folder of the slide files with --slides.")
        addresses: list[str] = []

        def show(address: str) -> None:
            say(f"A new address: {address}" if addresses else address)
            if browser and not addresses:
                webbrowser.open(address)
            addresses.append(address)

        serve(session, listener, on_address=show)
