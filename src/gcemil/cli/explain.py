"""gcemil explain: the evidence of one slide as files for people, scripts and QuPath."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.options import TRUST_HOST

if TYPE_CHECKING:
    from gcemil.bags.cohort import Cohort
    from gcemil.cli.explained import ExplainedSlide
    from gcemil.report.certificate import Certificate
    from gcemil.report.overlay import Thumbnail


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
    from gcemil.bags.cohort import Cohort
    from gcemil.cli.console import print_json, say
    from gcemil.cli.explained import explained_slide, fold_of
    from gcemil.diagnostics.verdicts import Tolerances
    from gcemil.runs.folder import read_run

    index = fold_of(run, slide, fold)
    cohort = Cohort.load(read_run(run).cohort)
    tolerances = Tolerances(sufficiency, necessity, recoverability)
    found = explained_slide(run, slide, index, budget=budget, tolerances=tolerances)
    files = written(
        found,
        out or run / f"fold_{index}" / "explain" / slide,
        size=patch_size(cohort, found),
        bounds=slide_bounds(cohort, slide, bounds_x, bounds_y),
        thumbnail=slide_thumbnail(cohort, slide, thumbnail, downsample),
        all_patches=all_patches,
    )
    if as_json:
        shown = {name: str(path) for name, path in files.items()}
        print_json({"certificate": found.certificate.to_json(), "files": shown})
        return
    print_certificate(found.certificate)
    for path in files.values():
        say(f"wrote {path}")
    if found.coords is None:
        say("The slide has no coordinates: neither GeoJSON nor overlay can be drawn.")


def written(
    found: ExplainedSlide,
    folder: Path,
    *,
    size: int | None,
    bounds: tuple[int, int],
    thumbnail: Thumbnail | None,
    all_patches: bool,
) -> dict[str, Path]:
    """Every file of the explanation; what needs coordinates is left out where there are none."""
    from gcemil.files import remove_leftovers, write_json
    from gcemil.report import certificate, geojson, overlay
    from gcemil.report.evidence_json import evidence_list

    remove_leftovers(folder)
    shown = geojson.EVIDENCE if found.evidence is not None else geojson.ATTENTION
    collection, picture = None, None
    # What may fail is made before the first file is written.
    if found.coords is not None and size is not None:
        collection = geojson.feature_collection(
            found.slide_id,
            found.coords,
            found.selected,
            patch_size=size,
            ranked_by=found.ranked_by,
            measurements=found.measurements,
            model=found.hashes["model"],
            selected_class=shown,
            unselected_class=geojson.UNSELECTED if all_patches else None,
            bounds=bounds,
        )
        picture = overlay.overlay(
            found.slide_id,
            found.coords,
            found.scores,
            found.selected,
            patch_size=size,
            patch_class=shown,
            thumbnail=thumbnail,
        )
    files = {"hdf5": write_hdf5(folder / "evidence.h5", found)}
    listed = evidence_list(
        found.slide_id,
        found.selected,
        found.coords,
        rule=found.certificate.rule,
        patch_size=size,
        measurements=found.measurements,
        stop_reason=found.certificate.stop_reason,
        hashes=found.hashes,
    )
    files["json"] = write_json(folder / "evidence.json", listed.to_json())
    if collection is not None and picture is not None:
        files["geojson"] = geojson.write_geojson(folder / "evidence.geojson", collection)
        files["overlay"] = overlay.write_overlay(folder / "overlay.png", picture)
    files["certificate"] = certificate.write_certificate(folder / "certificate.json", found.certificate)
    return files


def write_hdf5(path: Path, found: ExplainedSlide) -> Path:
    """The layout of fold_<k>/evidence; without the wrapper only what a plain host has."""
    from gcemil.bags import store
    from gcemil.training.fold import write_slide_evidence

    if found.evidence is not None:
        write_slide_evidence(path, found.evidence, found.hashes)
        return path
    datasets = {"selected": found.selected.nonzero()[0], "scores": found.scores}
    if found.coords is not None:
        datasets["coords"] = found.coords
    attributes: dict[str, str | int | float | bool] = {
        "slide_id": found.slide_id,
        "rule": found.certificate.rule,
        "fraction": float(found.selected.mean()),
        **{f"{name}_hash": value for name, value in found.hashes.items()},
    }
    store.write(path, datasets, attributes)
    return path


def patch_size(cohort: Cohort, found: ExplainedSlide) -> int | None:
    """In level-0 pixels: the cohort's, the feature file's own, or the step of the grid."""
    from gcemil.bags.arrays import stated_number
    from gcemil.bags.bag import grid_stride
    from gcemil.errors import CohortError

    if cohort.patch_size is not None or found.coords is None:
        return cohort.patch_size
    stated = stated_number(feature_attributes(cohort, found.slide_id), "patch_size_level0")
    size = stated or grid_stride(found.coords)
    if size is None:
        raise CohortError(
            f"Slide '{found.slide_id}': the size of its patches is not known, and they are no grid to read it from. "
            f"Write patch_size_level0 into {cohort.folder / 'cohort.yaml'}."
        )
    return max(1, round(size))


def slide_bounds(
    cohort: Cohort, slide_id: str, bounds_x: int | None, bounds_y: int | None
) -> tuple[int, int]:
    """The options, else the attributes of the feature file, else nothing to subtract."""
    from gcemil.errors import UsageError
    from gcemil.report.geojson import bounds_of

    if bounds_x is not None and bounds_y is not None:
        return bounds_x, bounds_y
    if bounds_x is not None or bounds_y is not None:
        raise UsageError("Bounds are two numbers: give both --bounds-x and --bounds-y, or neither.")
    where = str(cohort.feature_file(slide_id))
    return bounds_of(feature_attributes(cohort, slide_id), where) or (0, 0)


def slide_thumbnail(
    cohort: Cohort, slide_id: str, path: Path | None, downsample: float | None
) -> Thumbnail | None:
    from gcemil.bags.arrays import stated_number
    from gcemil.errors import UsageError
    from gcemil.report.figures.slide_pixels import slide_thumbnail as own_thumbnail
    from gcemil.report.overlay import read_thumbnail

    own = cohort.folder / "thumbnails" / f"{slide_id}.jpg"
    if path is None or (downsample is None and path.resolve() == own.resolve()):
        return own_thumbnail(cohort.folder, slide_id)
    if downsample is not None:
        return read_thumbnail(path, downsample=downsample)
    width = stated_number(feature_attributes(cohort, slide_id), "level0_width")
    if width is None:
        raise UsageError(
            f"{cohort.feature_file(slide_id)} does not say how wide the slide is, so {path} has no scale. Give --downsample."
        )
    return read_thumbnail(path, level0_width=width)


def feature_attributes(cohort: Cohort, slide_id: str) -> dict[str, object]:
    """Attributes of the feature file and of its coordinates."""
    from gcemil.bags import store

    path = cohort.feature_file(slide_id)
    on_coords = store.attributes(path, "coords") if store.has(path, "coords") else {}
    return {**store.attributes(path), **on_coords}


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
