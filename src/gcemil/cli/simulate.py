"""gcemil simulate: a cohort whose evidence is known."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from gcemil.cli.options import seed_option
from gcemil.resources import shipped_names

PROFILES = " ".join(shipped_names("simulator"))


class Size(StrEnum):
    """Names of simulation.profile.SIZES."""

    tiny = "tiny"
    default = "default"
    wide = "wide"
    full = "full"


def simulate(
    profile: str = typer.Argument(help=f"One of: {PROFILES}."),
    out: Path = typer.Option(..., help="The cohort folder to write."),
    size: Size = typer.Option(Size.default, help="Rung of the size ladder; see docs/simulator.md."),
    slides: int | None = typer.Option(None, min=5, help="Number of slides, in place of the size's."),
    dim: int | None = typer.Option(None, min=8, help="Feature width, in place of the size's."),
    dial: list[str] = typer.Option([], help="A dial of the simulator as name=value; may be repeated."),
    seed: int = seed_option("each seed is a new cohort"),
    pixels: bool = typer.Option(
        False, "--pixels", help="Draw H&E-like slides with pixel truth in place of features."
    ),
    force: bool = typer.Option(False, "--force", help="Write into a folder that holds something else."),
) -> None:
    """Simulate a cohort with known evidence: features, labels, anchors, pairs, and the truth per patch.

    A simulation that was stopped goes on when the same command is given again.

    Example: gcemil simulate bracs --slides 60 --out cohorts/bracs
    """
    from gcemil.cli.console import progress, say
    from gcemil.errors import UsageError
    from gcemil.files import locked_folder, parse_yaml
    from gcemil.simulation.profile import load_profile, resolve_dials
    from gcemil.simulation.simulate import simulate as simulate_cohort

    overrides = {}
    for text in dial:
        name, _, value = text.partition("=")
        if not value:
            raise UsageError(f"A dial is written name=value, got '{text}'.")
        overrides[name] = parse_yaml(value, f"The value of dial '{name}'")
    # Before the lock, which makes the folder: what is refused leaves nothing behind.
    resolve_dials(load_profile(profile).dials, overrides)
    if pixels:
        with locked_folder(out):
            _simulate_pixels(profile, out, size.value, seed, slides, dim, overrides, force)
        return
    with locked_folder(out), progress("simulating slides") as advance:
        cohort = simulate_cohort(
            profile,
            out,
            size=size.value,
            seed=seed,
            slides=slides,
            dim=dim,
            dials=overrides,
            replace_files=force,
            on_slide=advance,
        )
    say(f"{out}: {len(cohort.slides)} slides, {len(cohort.bags)} bags, width {cohort.card.feature_dim}.")


def _simulate_pixels(
    profile: str,
    out: Path,
    size: str,
    seed: int,
    slides: int | None,
    dim: int | None,
    dials: dict[str, object],
    force: bool,
) -> None:
    """Slides as pixels; features come later, from an encoder."""
    from gcemil.cli.console import progress, say
    from gcemil.errors import UsageError
    from gcemil.simulation.pixels import simulate_pixels

    if dim is not None:
        raise UsageError("--dim has no meaning with --pixels: the encoder decides the feature width.")
    with progress("drawing slides") as advance:
        cohort = simulate_pixels(
            profile,
            out,
            size=size,
            seed=seed,
            slides=slides,
            dials=dials,
            replace_files=force,
            on_slide=advance,
        )
    say(f"{out}: {len(cohort.slides)} slides drawn, with masks and annotations.")
    say(f"next: gcemil patch {out / 'slides'} --out {out}")
