"""gcemil anchors: prompts become anchors, pairs become a bridge."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from gcemil.cli import options
from gcemil.cli.console import print_json, print_records, print_table, say
from gcemil.errors import InputError, UsageError
from gcemil.resources import shipped_names

FAMILIES = " ".join(shipped_names("anchors"))

app = typer.Typer(help="Make anchors from examples, from text or from a review.")


@app.command("list")
def list_families(
    family: str | None = typer.Argument(None, help=f"One of {FAMILIES}; all by default."),
    as_json: options.Json = False,
) -> None:
    """List the prompts of every disease family, by concept.

    Example: gcemil anchors list breast
    """
    from gcemil.families import GENERIC_FAMILY, ORGAN_FAMILIES, load_family

    families = [
        load_family(name) for name in ([family] if family else (*ORGAN_FAMILIES, GENERIC_FAMILY))
    ]
    if as_json:
        print_json([one.model_dump(mode="json") for one in families])
        return
    for one in families:
        datasets = ", ".join(one.datasets) or "no dataset of its own"
        title = f"{one.family}: {one.source} ({datasets})"
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
        None, help="A text file of templates, {} for the prompt."
    ),
    weights: options.Weights = None,
    trust_remote_code: options.TrustRemoteCode = False,
) -> None:
    """Embed the prompts of a disease family as anchors, with their provenance.

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
        f"{path}: {count} anchors of width {width}, {len(chosen)} templates, hash "
        f"{embedded.hash[:12]}."
    )
    if not text_encoder.sees_images:
        say(
            f"'{encoder}' was not trained on images: its texts and your patches share no space. "
            "Without pairs, training uses prototypes."
        )


@app.command("from-examples")
def from_examples(
    cohort: Path = typer.Argument(help="The cohort, with the features you train on."),
    examples: Path = typer.Option(
        ...,
        help="A table (slide, x, y, concept); <slide>.geojson or .xml, or a folder of them; a "
        "folder <concept>/<slide>.png of masks; or an HDF5 file of features and labels.",
    ),
    features: Path | None = typer.Option(
        None, help="A folder whose features/ holds example slides outside the cohort."
    ),
    k: int = typer.Option(10, min=1, help="Examples per concept that a fold takes."),
    min_overlap: float = typer.Option(0.5, help="Annotated share that makes an example."),
    downsample: float | None = typer.Option(None, help="Level-0 pixels per pixel of a mask."),
    mask_value: list[str] = typer.Option(
        [], help="Masks of several concepts: the value of one as concept=value; may be repeated."
    ),
    seed: int = options.seed("which examples are taken where there are more"),
    as_json: options.Json = False,
) -> None:
    """Make anchors of patches that you name: they need no text encoder and no pairs.

    A fold uses the examples of its own training slides and of slides outside the cohort, never
    those of slides that it validates or tests on.

    Example: gcemil anchors from-examples cohorts/mine --examples examples.csv
    """
    from gcemil.bags.cohort import Cohort
    from gcemil.features.example_anchors import ExampleRequest, summarise, write_example_anchors

    values = options.parse_pairs(mask_value, "A mask value is written concept=whole number", int)
    request = ExampleRequest(examples, features, k, seed, min_overlap, downsample, values)
    report = write_example_anchors(Cohort.load(cohort), request)
    if as_json:
        _print_report(report)
        return
    for line in summarise(report):
        say(line)
    say(
        f"{cohort}: training takes {k} examples per concept as anchors. next: gcemil train "
        f"{cohort} --out RUN"
    )


@app.command("from-review")
def from_review(
    run: Path = options.run_argument("The run whose evidence was reviewed."),
    marks: list[Path] = typer.Argument(
        None,
        help="<slide>.geojson with regions accept, reject or missed, folders of them, or reviews "
        "that the viewer saved. By default the reviews that the viewer saved in the run.",
    ),
    out: Path | None = typer.Option(
        None,
        help="A new folder for the cohort with the marked patches as anchors; features are linked.",
    ),
    after: Path | None = typer.Option(
        None, help="The run trained with these anchors: compare its evidence with that of RUN."
    ),
    k: int = typer.Option(10, min=1, help="Examples per concept that a fold takes."),
    seed: int = options.seed("which patches are taken where there are more, and the bootstrap"),
    trust_host: options.TrustHost = None,
    as_json: options.Json = False,
) -> None:
    """Make anchors of the patches that a reviewer accepted and rejected.

    The evidence is then fitted again around the same model. A fold takes the marks on its own
    training slides only, so mark slides of several folds. With --after, the evidence of both runs
    is compared on test slides without a mark.

    Example: gcemil anchors from-review runs/mine reviews/ --out cohorts/reviewed
    """
    from gcemil.diagnostics.review import compare_evidence, write_review_anchors
    from gcemil.features.example_anchors import summarise
    from gcemil.runs.folder import Run

    sources = marks or []
    if (out is None) == (after is None):
        raise UsageError(
            "Say what to do with the marks: --out FOLDER writes anchors, --after RUN compares "
            "evidence. Give one of them."
        )
    if after is not None:
        metrics, n_slides = compare_evidence(run, after, sources, seed=seed)
        names = ("metric", "before", "after", "interval")
        rows = [dict(zip(names, one, strict=True)) for one in metrics]
        if as_json:
            print_json({"slides": n_slides, "rows": rows})
        else:
            title = f"{run} before, {after} after: {n_slides} test slides without a mark"
            _print_comparison(rows, title)
        return
    report = write_review_anchors(run, sources, Path(str(out)), k=k, seed=seed)
    if as_json:
        _print_report(report)
        return
    for line in summarise(report):
        say(line)
    folds = ",".join(map(str, report.per_fold))
    keeps = f" --host-from {run}" if Run(run).card.settings.host_is_unchanged else ""
    say(
        f"next: gcemil train {out} --config {run} --set evidence.anchors=examples{keeps} --folds "
        f"{folds} --out NEW_RUN; then: gcemil anchors from-review {run} MARKS --after NEW_RUN"
    )


def _print_report(report: Any) -> None:
    """The examples of every fold as JSON."""
    content = {"folds": report.per_fold, "concepts": report.examples.names}
    print_json(content | {"notes": report.notes})


def _print_comparison(rows: list[dict[str, Any]], title: str) -> None:
    """Means before and after, and the interval of the difference over the slides."""
    from gcemil.metrics import METRICS

    records = []
    for row in rows:
        metric, difference = METRICS[row["metric"]], "-"
        if row["interval"] is not None:
            low, high = row["interval"]
            difference = f"{row['after'] - row['before']:+.3f} [{low:+.3f}, {high:+.3f}]"
        records.append(
            {
                "evidence": f"{metric.label} {metric.arrow}".strip(),
                "before": f"{row['before']:.3f}",
                "after": f"{row['after']:.3f}",
                "difference, 95 % interval": difference,
            }
        )
    print_records(title, records)


@app.command("pairs")
def pairs(
    cohort: Path = typer.Argument(help="The cohort, with the features you train on."),
    aligned: Path = typer.Argument(
        help="A folder with the same slides encoded by the image side of the text encoder."
    ),
    n_pairs: int = typer.Option(4000, min=10, help="Patches to pair, spread over all slides."),
    seed: int = options.seed("which patches are drawn"),
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
    seed: int = options.seed("how pairs are dealt into folds"),
    as_json: options.Json = False,
) -> None:
    """Fit the bridge on pairs and judge it on pairs that it has not seen.

    Training fits the same bridge by itself. Exits with 1 if text and feature spaces are not
    aligned.

    Example: gcemil anchors fit-bridge cohorts/mine
    """
    from gcemil.bags import store
    from gcemil.bags.cohort import read_card
    from gcemil.features.pairs import judge_bridge
    from gcemil.files import write_json

    read_card(cohort)
    bank, pairs_file = cohort / "anchors.h5", cohort / "anchor_pairs.h5"
    if not bank.is_file():
        raise InputError(
            f"{bank} does not exist. Make it with 'gcemil anchors embed FAMILY --out {cohort}'."
        )
    if not pairs_file.is_file():
        raise InputError(
            f"{pairs_file} does not exist. Without pairs no bridge can be fitted and training "
            f"uses prototypes. Make it with 'gcemil anchors pairs {cohort} OTHER'."
        )
    anchors, prompts = store.read_anchors(bank)
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
    write_json(cohort / "bridge_report.json", content)
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


def make_bridge_fit(rank: int, ridge: float) -> Any:
    """The bridge of training, as a map from arrays to arrays."""
    import torch

    from gcemil.evidence.bridge import FrozenBridge

    def fit(features: Any, anchor_space: Any) -> Any:
        bridge = FrozenBridge(features.shape[1], anchor_space.shape[1], rank=rank)
        bridge.fit(torch.from_numpy(features), torch.from_numpy(anchor_space), ridge=ridge)
        return lambda rows: bridge(torch.from_numpy(rows)).numpy()

    return fit
