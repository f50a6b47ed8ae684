"""gcemil anchors: prompts become anchors, pairs become a bridge."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gcemil.cli.console import print_json, print_table, say
from gcemil.cli.options import (
    JSON,
    TRUST_HOST,
    TRUST_REMOTE_CODE,
    WEIGHTS,
    one_target,
    parse_pairs,
    seed_option,
)
from gcemil.errors import InputError, UsageError
from gcemil.resources import shipped_names

if TYPE_CHECKING:
    from gcemil.features.pairs import Fit

FAMILIES = " ".join(shipped_names("anchors"))

app = typer.Typer(help="Make anchors from examples, from text or from a review.")


@app.command("list")
def list_families(
    family: str | None = typer.Argument(None, help=f"One of {FAMILIES}; all by default."),
    as_json: bool = JSON,
) -> None:
    """List the prompts of every disease family: the concept that tables show, and the wording that is embedded.

    Example: gcemil anchors list breast
    """
    from gcemil.families import GENERIC_FAMILY, ORGAN_FAMILIES, load_family

    found = [
        load_family(name) for name in ([family] if family else (*ORGAN_FAMILIES, GENERIC_FAMILY))
    ]
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    for one in found:
        title = f"{one.family}: {one.source} ({', '.join(one.datasets) or 'no dataset of its own'})"
        print_table(title, ("concept", "wording"), [(p.concept, p.wording) for p in one.prompts])


@app.command("embed")
def embed(
    prompts: str = typer.Argument(help=f"A family ({FAMILIES}), or your own YAML file."),
    out: Path = typer.Option(
        ..., help="A cohort folder, which gets anchors.h5, or the .h5 file to write."
    ),
    encoder: str = typer.Option(
        "minilm", help="minilm (offline), plip, quiltnet, or titan, conch, musk (gated)."
    ),
    templates: Path | None = typer.Option(
        None, help="A text file with one template per line, {} where the prompt goes."
    ),
    weights: Path | None = WEIGHTS,
    trust_remote_code: bool = TRUST_REMOTE_CODE,
) -> None:
    """Embed the prompts of a disease family once, with their provenance, for training to use as frozen anchors.

    Example: gcemil anchors embed breast --out cohorts/mine
    """
    from gcemil.families import load_family, read_family
    from gcemil.features.loaders import WeightSource
    from gcemil.features.text_encoders import (
        TEMPLATES,
        embed_prompts,
        load_text_encoder,
        read_templates,
        write_anchor_file,
    )

    is_file = prompts.endswith((".yaml", ".yml"))
    family = read_family(Path(prompts)) if is_file else load_family(prompts)
    chosen = TEMPLATES if templates is None else read_templates(templates)
    text_encoder = load_text_encoder(encoder, source=WeightSource(weights, trust_remote_code))
    path = out if out.suffix == ".h5" else out / "anchors.h5"
    embedded = embed_prompts(family, text_encoder, templates=chosen)
    write_anchor_file(path, embedded)
    count, width = embedded.embeddings.shape
    say(
        f"{path}: {count} anchors of width {width}, {len(chosen)} templates, hash {embedded.hash[:12]}."
    )
    if not text_encoder.sees_images:
        say(
            f"'{encoder}' never saw an image: its words and your patches share no space. Without pairs, training uses prototypes."
        )


@app.command("from-examples")
def from_examples(
    cohort: Path = typer.Argument(help="The cohort, with the features you train on."),
    examples: Path = typer.Option(
        ...,
        help="A table (slide, x, y, concept); <slide>.geojson or .xml, or a folder of them; a folder <concept>/<slide>.png of masks; "
        "or an HDF5 file of features and labels.",
    ),
    features: Path | None = typer.Option(
        None, help="A folder whose features/ holds example slides that are not in the cohort."
    ),
    k: int = typer.Option(10, min=1, help="Examples per concept that a fold takes."),
    min_overlap: float = typer.Option(
        0.5, help="Share of a patch inside a region that makes it an example."
    ),
    downsample: float | None = typer.Option(None, help="Level-0 pixels per pixel of a mask."),
    mask_value: list[str] = typer.Option(
        [],
        help="Masks <slide>.png that hold several concepts: the value of one as concept=value; may be repeated.",
    ),
    seed: int = seed_option("which examples are taken where there are more"),
    as_json: bool = JSON,
) -> None:
    """Make anchors of patches that you name: no text encoder, no pairs, and they ground the evidence as prompts do.

    A fold uses the examples of its own training slides and of slides outside the cohort, never those of slides it validates
    or tests on.

    Example: gcemil anchors from-examples cohorts/mine --examples examples.csv
    """
    from gcemil.bags.cohort import Cohort
    from gcemil.features.example_anchors import ExampleRequest, summarise, write_example_anchors

    values = parse_pairs(mask_value, "A mask value is written concept=whole number", int)
    request = ExampleRequest(examples, features, k, seed, min_overlap, downsample, values)
    report = write_example_anchors(Cohort.load(cohort), request)
    if as_json:
        print_json(
            {"folds": report.per_fold, "concepts": report.examples.names, "notes": report.notes}
        )
        return
    for line in summarise(report):
        say(line)
    say(
        f"{cohort}: training takes {k} examples per concept as anchors. next: gcemil train {cohort} --out RUN"
    )


@app.command("from-review")
def from_review(
    run: Path = typer.Argument(help="The run whose evidence was reviewed.", callback=one_target),
    marks: list[Path] = typer.Argument(
        None,
        help="<slide>.geojson with regions accept, reject or missed, folders of them, or reviews that the viewer saved. By default "
        "the reviews that the viewer saved in the run.",
    ),
    out: Path | None = typer.Option(
        None,
        help="A new folder for the cohort with the marked patches as anchors; features are linked.",
    ),
    after: Path | None = typer.Option(
        None,
        help="The run that was trained with these anchors: compare its evidence with that of RUN.",
    ),
    k: int = typer.Option(10, min=1, help="Examples per concept that a fold takes."),
    seed: int = seed_option("which patches are taken where there are more, and the bootstrap"),
    trust_host: list[str] = TRUST_HOST,
    as_json: bool = JSON,
) -> None:
    """Make anchors of the patches that a reviewer accepted and rejected, and fit the evidence again around the same model.

    A fold takes the marks on its own training slides only, so mark slides of several folds. With --after, the evidence of both
    runs is compared on test slides without a mark.

    Example: gcemil anchors from-review runs/mine reviews/ --out cohorts/reviewed
    """
    from gcemil.diagnostics.review_anchors import compare_evidence, write_review_anchors
    from gcemil.features.example_anchors import summarise
    from gcemil.runs.folder import Run

    sources = marks or []
    if after is not None and out is None:
        found, n_slides = compare_evidence(run, after, sources, seed=seed)
        if as_json:
            names = ("metric", "before", "after", "interval")
            print_json(
                {"slides": n_slides, "rows": [dict(zip(names, one, strict=True)) for one in found]}
            )
            return
        _print_comparison(
            found, f"{run} before, {after} after: {n_slides} test slides without a mark"
        )
        return
    if out is None or after is not None:
        raise UsageError(
            "Say what to do with the marks: --out FOLDER writes anchors, --after RUN compares evidence. Give one of them."
        )
    report = write_review_anchors(run, sources, out, k=k, seed=seed)
    if as_json:
        print_json(
            {"folds": report.per_fold, "concepts": report.examples.names, "notes": report.notes}
        )
        return
    for line in summarise(report):
        say(line)
    folds = ",".join(map(str, report.per_fold))
    keeps = f" --host-from {run}" if Run(run).card.settings.host_is_unchanged else ""
    say(
        f"next: gcemil train {out} --config {run} --set evidence.anchors=examples{keeps} --folds {folds} --out NEW_RUN; "
        f"then: gcemil anchors from-review {run} MARKS --after NEW_RUN"
    )


def _print_comparison(
    found: list[tuple[str, float, float, tuple[float, float] | None]], title: str
) -> None:
    """Means before and after, and the interval of the difference over the slides."""
    from gcemil.metrics import METRICS

    rows = [
        (
            f"{METRICS[name].label} {METRICS[name].arrow}".strip(),
            f"{before:.3f}",
            f"{after:.3f}",
            "-"
            if interval is None
            else f"{after - before:+.3f} [{interval[0]:+.3f}, {interval[1]:+.3f}]",
        )
        for name, before, after, interval in found
    ]
    print_table(title, ("evidence", "before", "after", "difference, 95 % interval"), rows)


@app.command("pairs")
def pairs(
    cohort: Path = typer.Argument(help="The cohort, with the features you train on."),
    aligned: Path = typer.Argument(
        help="A folder with the same slides encoded by the image side of the text encoder."
    ),
    n_pairs: int = typer.Option(4000, min=10, help="Patches to pair, spread over all slides."),
    seed: int = seed_option("which patches are drawn"),
) -> None:
    """Pair the features of two encoders patch by patch, for the bridge.

    Example: gcemil anchors pairs cohorts/mine cohorts/mine_conch
    """
    from gcemil.features.pairs import write_pairs

    path, count = write_pairs(cohort, aligned, n_pairs=n_pairs, seed=seed)
    say(f"{path}: {count} pairs.")
    say(f"next: gcemil anchors fit-bridge {cohort}")


@app.command("fit-bridge")
def fit_bridge(
    cohort: Path = typer.Argument(help="A cohort folder with anchors.h5 and anchor_pairs.h5."),
    rank: int = typer.Option(128, min=1, help="Rank of the bridge, as in training."),
    ridge: float = typer.Option(0.01, help="Strength of the ridge, as in training."),
    seed: int = seed_option("how pairs are dealt into folds"),
    as_json: bool = JSON,
) -> None:
    """Fit the bridge on pairs and judge it on pairs it has not seen; training fits the same bridge by itself.

    Exits with 1 when text and feature spaces are not aligned.

    Example: gcemil anchors fit-bridge cohorts/mine
    """
    import json

    from gcemil.bags import store
    from gcemil.bags.cohort import read_card
    from gcemil.features.pairs import judge_bridge
    from gcemil.files import write_text

    read_card(cohort)
    bank = _require_file(
        cohort / "anchors.h5", f"Make it with 'gcemil anchors embed FAMILY --out {cohort}'."
    )
    anchors, prompts = store.read_anchors(bank)
    pairs_file = _require_file(
        cohort / "anchor_pairs.h5",
        "Without pairs no bridge can be fitted and training uses prototypes. "
        f"Make it with 'gcemil anchors pairs {cohort} OTHER'.",
    )
    features, anchor_space = store.read_pairs(pairs_file)
    sees_images = store.attributes(bank).get("text_encoder_sees_images")
    report = judge_bridge(
        features,
        anchor_space,
        anchors,
        make_bridge_fit(rank, ridge),
        text_sees_images=None if sees_images is None else bool(sees_images),
        seed=seed,
    )
    content = {
        **asdict(report),
        "aligned": report.aligned,
        "warnings": report.warnings,
        "prompts": prompts,
    }
    write_text(cohort / "bridge_report.json", json.dumps(content, indent=2))
    if as_json:
        print_json(content)
    else:
        rows = [
            ("held-out pairs", report.n_pairs),
            ("cosine (a constant answer)", f"{report.cosine:.3f} ({report.constant_cosine:.3f})"),
            ("centred cosine", f"{report.centred_cosine:.3f}"),
            ("response correlation, mean", f"{report.mean_response_correlation:.3f}"),
            *zip(prompts, (f"{value:.3f}" for value in report.response_correlation), strict=True),
        ]
        print_table(f"{cohort}: the bridge on pairs it has not seen", ("what", "value"), rows)
        for line in report.warnings:
            say(f"warning: {line}")
    raise typer.Exit(0 if report.aligned else 1)


def make_bridge_fit(rank: int, ridge: float) -> Fit:
    """The bridge of training, as a map from arrays to arrays."""
    import torch

    from gcemil.evidence.bridge import FrozenBridge

    def fit(features, anchor_space):  # type: ignore[no-untyped-def]
        bridge = FrozenBridge(features.shape[1], anchor_space.shape[1], rank=rank)
        bridge.fit(torch.from_numpy(features), torch.from_numpy(anchor_space), ridge=ridge)
        return lambda rows: bridge(torch.from_numpy(rows)).numpy()

    return fit


def _require_file(path: Path, how: str) -> Path:
    """A file of a cohort that a command needs; `how` says how it is made."""
    if not path.is_file():
        raise InputError(f"{path} does not exist. {how}")
    return path
