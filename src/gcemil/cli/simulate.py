"""Cohorts whose evidence is known: gcemil simulate and compose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, progress, say
from gcemil.errors import UsageError
from gcemil.resources import shipped_names

if TYPE_CHECKING:
    from gcemil.simulation.compose import ComposeSettings
    from gcemil.simulation.patch_pool import PatchPool


PROFILES = " ".join(shipped_names("simulator"))


Size = Literal["tiny", "default", "wide", "full"]
"""Names of simulation.profile.SIZES."""


def simulate(
    profile: str = typer.Argument(help=f"One of: {PROFILES}."),
    out: Path = typer.Option(..., help="The cohort folder to write."),
    size: Size = typer.Option("default", help="Number and size of slides; see docs/simulator.md."),
    slides: int | None = typer.Option(
        None, min=5, help="Number of slides, in place of the size's."
    ),
    dim: int | None = typer.Option(None, min=8, help="Feature width, in place of the size's."),
    dial: list[str] = typer.Option([], help="A dial as name=value; may be repeated."),
    seed: int = options.seed("each seed is a new cohort"),
    pixels: bool = options.flag("--pixels", "Draw H&E-like slides in place of features."),
    multilabel: bool = options.flag(
        "--multilabel", "Every class with a cause is a target of its own."
    ),
    force: bool = options.flag("--force", "Write into a folder that is not empty."),
) -> None:
    """Simulate a cohort with known evidence: features, labels, anchors, pairs, truth per patch.

    If a simulation is stopped, run the same command again to continue.

    Example: gcemil simulate bracs --slides 60 --out cohorts/bracs
    """
    from gcemil.files import lock_folder, parse_yaml
    from gcemil.simulation.pixels import simulate_pixels
    from gcemil.simulation.profile import as_targets, load_profile, resolve_dials
    from gcemil.simulation.simulate import simulate as simulate_cohort

    overrides = options.parse_pairs(
        dial,
        "A dial is written name=value",
        lambda value: parse_yaml(value, f"The value {value!r} of a dial"),
    )
    # Before the lock, which makes the folder: what is refused leaves nothing behind.
    chosen = load_profile(profile)
    resolve_dials((as_targets(chosen) if multilabel else chosen).dials, overrides)
    if pixels and dim is not None:
        raise UsageError(
            "--dim has no meaning with --pixels: the encoder decides the feature width."
        )
    if pixels and multilabel:
        raise UsageError("--multilabel simulates features: leave --pixels out.")
    given: dict[str, Any] = {"size": size, "seed": seed, "slides": slides, "dials": overrides}
    if pixels:
        with lock_folder(out), progress("drawing slides") as advance:
            drawn = simulate_pixels(profile, out, **given, replace_files=force, on_slide=advance)
        say(f"{out}: {len(drawn)} slides drawn, with masks and annotations.")
        say(f"next: gcemil encode {out / 'slides'} --out {out}")
        return
    with lock_folder(out), progress("simulating slides") as advance:
        cohort = simulate_cohort(
            profile,
            out,
            dim=dim,
            **given,
            multilabel=multilabel,
            replace_files=force,
            on_slide=advance,
        )
    say(
        f"{out}: {len(cohort.slides)} slides, {len(cohort.bags)} bags, width "
        f"{cohort.card.feature_dim}."
    )


def compose(
    patches: Path = typer.Argument(
        help="A folder with one folder of images per class, or an HDF5 file with features, labels "
        "and perhaps patients."
    ),
    out: Path = typer.Option(..., help="The cohort folder to write."),
    recipe: Path | None = typer.Option(
        None, help="A YAML file with any of the settings below; options overrule it."
    ),
    background: list[str] = typer.Option(
        [], help="A class unrelated to the label, as NAME or NAME=share; may be repeated."
    ),
    label: list[str] = typer.Option(
        [],
        help="A slide label and its evidence, as NAME=CLASS,CLASS "
        "(any of them; A+B: both) or NAME=; may be repeated.",
    ),
    hazard: list[str] = typer.Option(
        [],
        help="Survival in place of labels: CLASS=weight, negative if it protects; may be repeated.",
    ),
    slides: int | None = typer.Option(None, min=5, help="Number of slides; 150 by default."),
    bag: str | None = typer.Option(
        None, help="Fewest and most patches of a slide; 150-900 by default."
    ),
    evidence: str | None = typer.Option(
        None, help="Share of a slide that is evidence; 0.01-0.10 by default."
    ),
    folds: int | None = typer.Option(None, min=3, help="Folds of cross-validation; 5 by default."),
    parts: str | None = typer.Option(
        None,
        help="One split in place of folds: slides to train, "
        "validate and test on, such as 90,30,300.",
    ),
    examples_per_class: int | None = typer.Option(
        None, min=0, help="Patches of each class to hold out, for 'gcemil anchors from-examples'."
    ),
    text_like: bool = options.flag(
        "--text-like", "Also write a stand-in for a text bank with pairs."
    ),
    encoder: str = typer.Option(
        "efficientnet_lite0", help="Images only: an encoder of docs/encoders.md."
    ),
    weights: options.Weights = None,
    patient_pattern: str | None = typer.Option(
        None,
        help="Images only: a regular expression "
        "whose group is the patient in the name "
        "of an image.",
    ),
    save_patches: Path | None = typer.Option(
        None,
        help="Images only: keep their features as this .h5 file, to give in place of the images.",
    ),
    seed: int = options.seed("which patches make which slide"),
    force: bool = options.flag("--force", "Write into a folder that is not empty."),
    as_json: options.Json = False,
) -> None:
    """Compose slides with known evidence from labelled patches of real tissue.

    No patch of a test slide, and no patient if they are known, is on a training slide.

    Example: gcemil compose tiles.h5 --background normal --label ok= --label cancer=tumour --out co
    """
    from gcemil.files import lock_folder
    from gcemil.simulation.compose import compose as compose_cohort

    if text_like and examples_per_class is None:
        examples_per_class = 30
    chosen = _read_recipe(
        recipe,
        {
            "background": options.parse_pairs(
                [text if "=" in text else f"{text}=1" for text in background],
                "A background class is written CLASS=number",
                float,
            ),
            "labels": options.parse_pairs(
                label,
                "A label is written NAME=CLASS,CLASS, or NAME= for background alone",
                lambda classes: [name for name in classes.split(",") if name],
            ),
            "hazards": options.parse_pairs(hazard, "A hazard is written CLASS=number", float),
            "slides": slides,
            "patches": _parse_range(bag, int, "--bag"),
            "evidence": _parse_range(evidence, float, "--evidence"),
            "folds": folds,
            "parts": None if parts is None else options.parse_parts(parts),
            "examples_per_class": examples_per_class,
            "text_like": text_like or None,
        },
    )
    pool = _load_pool(patches, encoder, weights, patient_pattern, save_patches)
    with lock_folder(out), progress("composing slides") as advance:
        composed = compose_cohort(
            pool, chosen, out, seed=seed, replace_files=force, on_slide=advance
        )
    n_slides = len(composed.cohort.slides)
    if as_json:
        print_json({"cohort": str(out), "slides": n_slides, "assumptions": composed.notes})
        return
    for note in composed.notes:
        say(note)
    say(
        f"{out}: {n_slides} slides of width {composed.cohort.card.feature_dim}, with truth and "
        "splits."
    )
    if chosen.examples_per_class and not chosen.text_like:
        say(f"next: gcemil anchors from-examples {out} --examples {out}/examples.h5")


def _read_recipe(path: Path | None, options: dict[str, Any]) -> ComposeSettings:
    """The recipe of the file, overruled by the options that were given."""
    from gcemil.files import read_yaml
    from gcemil.simulation.compose import ComposeSettings

    values = {} if path is None else read_yaml(path)
    if not isinstance(values, dict):
        raise UsageError(
            f"{path} is not a recipe: it holds {type(values).__name__}, not settings by name."
        )
    given = {name: value for name, value in options.items() if value not in (None, {}, [])}
    if "labels" in given or "hazards" in given:
        values = {key: values[key] for key in values if key not in ("labels", "hazards")}
    if "background" not in values and "background" not in given:
        raise UsageError(
            "Say which classes of patches are background: --background NAME, or 'background' in a "
            "--recipe."
        )
    return ComposeSettings.from_values({**values, **given}, path or "The recipe")


def _load_pool(
    patches: Path,
    encoder: str,
    weights: Path | None,
    patient_pattern: str | None,
    save_patches: Path | None,
) -> PatchPool:
    from gcemil.simulation.patch_pool import read_pool

    if not patches.is_dir():
        if patient_pattern is not None or save_patches is not None:
            raise UsageError(
                f"{patches} is not a folder of images: leave --patient-pattern and --save-patches "
                "out."
            )
        return read_pool(patches)
    from gcemil.features.encoders import load_encoder
    from gcemil.features.image_pool import encode_pool
    from gcemil.features.loaders import WeightSource

    network = load_encoder(encoder, source=WeightSource(weights))
    with progress("encoding images") as advance:
        pool = encode_pool(patches, network, patient_pattern=patient_pattern, on_image=advance)
    if save_patches is not None:
        pool.write(save_patches)
    return pool


def _parse_range(
    text: str | None, kind: type[int] | type[float], option: str
) -> tuple[float, float] | None:
    if text is None:
        return None
    low, sign, high = text.partition("-")
    try:
        return kind(low), kind(high if sign else low)
    except ValueError as error:
        raise UsageError(f"{option} is written low-high, got '{text}'.") from error
