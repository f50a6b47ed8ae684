"""gcemil explain: the evidence of one slide as files for people, scripts and QuPath."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.options import TRUST_HOST

if TYPE_CHECKING:
    from gcemil.exports.certificate import Certificate


def explain(
    run: Path = typer.Argument(help="A run folder."),
    slide: str = typer.Option(..., help="The id of a slide of the run's cohort."),
    fold: int | None = typer.Option(None, min=0, help="By default the first fold that tests the slide."),
    out: Path | None = typer.Option(None, help="By default RUN/fold_<k>/explain/<slide>."),
    bounds_x: int | None = typer.Option(
        None, help="openslide.bounds-x of the slide; by default the attribute of its feature file, else 0."
    ),
    bounds_y: int | None = typer.Option(None, help="openslide.bounds-y of the slide."),
    all_patches: bool = typer.Option(
        False, "--all-patches", help="The GeoJSON shows unselected patches too, for measurement maps."
    ),
    thumbnail: Path | None = typer.Option(
        None,
        help="A picture of the whole slide, to lie under the overlay; by default the one 'gcemil patch' made.",
    ),
    downsample: float | None = typer.Option(
        None,
        help="Level-0 pixels per pixel of the thumbnail; by default from the slide's width in its feature file.",
    ),
    budget: float | None = typer.Option(
        None, help="Share of patches, for a run without the wrapper (0.05 by default)."
    ),
    sufficiency: float = typer.Option(0.05, min=0, help="Largest change that still counts as sufficient."),
    necessity: float = typer.Option(0.05, min=0, help="Smallest change that counts as necessary."),
    recoverability: float = typer.Option(0.01, min=0, help="Largest gap between gates and evidence."),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = typer.Option(False, "--json", help="Print the certificate and the files as JSON."),
) -> None:
    """Write one slide's evidence as HDF5, JSON, QuPath GeoJSON and overlay, with its keep/remove certificate.

    The certificate says what the model predicts from all patches, from the gated ones, from the evidence alone and
    without it. Of a case with several slides it is about the case. A run without the wrapper has no evidence; there the
    patches of highest attention take its place, named as such.

    Example: gcemil explain runs/bracs_abmil --slide BRACS_1234
    """
    from gcemil.cli.console import print_json, say
    from gcemil.diagnostics.snr import Tolerances
    from gcemil.errors import UsageError
    from gcemil.exports.explain import explain_cohort_slide, write_explanation

    if (bounds_x is None) != (bounds_y is None):
        raise UsageError("Bounds are two numbers: give both --bounds-x and --bounds-y, or neither.")
    tolerances = Tolerances(sufficiency, necessity, recoverability)
    found = explain_cohort_slide(run, slide, fold=fold, budget=budget, tolerances=tolerances)
    files = write_explanation(
        found,
        out,
        bounds=None if bounds_x is None or bounds_y is None else (bounds_x, bounds_y),
        thumbnail=thumbnail,
        downsample=downsample,
        all_patches=all_patches,
    )
    if as_json:
        shown = {name: str(path) for name, path in files.items()}
        print_json({"certificate": found.certificate.to_json(), "files": shown})
        return
    print_certificate(found.certificate)
    for path in files.values():
        say(f"wrote {path}")
    if found.patches.coords is None:
        say("The slide has no coordinates: neither GeoJSON nor overlay can be drawn.")


def print_certificate(certificate: Certificate) -> None:
    """Four predictions, three verdicts, the anchors, and what a reader must know."""
    from gcemil.cli.console import print_table, say

    found = certificate.predictions
    versions = {
        "X, all patches": found.full,
        "X_pi, gated": found.gated,
        "X_S, evidence alone": found.kept,
        "X_notS, without it": found.removed,
    }
    names = list(found.full.values)
    rows = [
        (name, *(f"{one.values[column]:.3f}" for column in names), f"{one.output:.3f}")
        for name, one in versions.items()
        if one is not None
    ]
    subject = certificate.subject
    print_table(
        f"{subject.slide_id}: {certificate.rule}, {subject.n_selected} of {subject.n_patches} patches "
        f"({subject.fraction:.1%}); Phi is the {certificate.output_name}",
        ("bag", *names, "Phi"),
        rows,
    )
    if certificate.anchors:
        words = {True: "yes", False: "no", None: "does not count"}
        anchors = [
            (one.prompt, f"{one.coverage:.3f}", f"{one.target:.3f}", words[one.covered])
            for one in certificate.anchors
        ]
        print_table(
            f"recovery ended: {certificate.stop_reason}", ("anchor", "coverage", "target", "covered"), anchors
        )
    say(certificate.headline)
    for note in (*subject.notes, *certificate.notes):
        say(f"note: {note}")
