"""Valid inputs of every kind that gcemil reads, the files in them that may be damaged, and the commands that read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from openpyxl import Workbook
from PIL import Image

from builders import foreign as foreign
from builders import grid_coords, make_cohort
from builders import slides as slides
from builders.authors import small_checkpoint
from builders.commands import succeeded
from builders.results import toy_results
from gcemil.bags import store
from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import TrainSettings
from gcemil.families import read_family

TRAIN = (
    "train cohort --out {run} --folds 0 --epochs 1 --jobs 1 --set min_steps=1 --set evidence.n_prototypes=2 --set evidence.hidden=4 "
    "--set evidence.adapter_rank=2 --set evidence.bridge_rank=2"
)
IMPORT = "import features --labels labels.csv --out new --mpp 0.5"
SLIDE = "cohort/features/s000_0.h5"


@dataclass(frozen=True)
class Input:
    """A valid folder, patterns of the files that are damaged, and what reads them.

    A command runs in the folder; `{damaged}` stands for the damaged file.
    """

    build: Callable[[Path], object]
    files: tuple[str, ...]
    reads: tuple[str | Callable[[Path], object], ...]
    share: float = 1.0
    """How often it is drawn, relative to the others."""


def build_cohort(folder: Path, task: str = "classification") -> None:
    """Features, folds, truth, anchors and pairs of a few slides."""
    cohort = make_cohort(
        folder / "cohort", task=task, n_cases=12, n_patches=6, anchors="anchors.h5"
    )
    write_folds(cohort, make_folds(cohort, n_folds=3))
    evidence = (np.arange(6) % 3 == 0).astype(np.uint8)
    truth = {"evidence": evidence, "concept": evidence, "region": evidence.astype(np.uint16)}
    for row in cohort.slides[:3]:
        store.write(cohort.truth_file(row.slide_id), truth, {"microns_per_pixel": 0.5})
    random = np.random.default_rng(0)
    store.write_anchors(
        cohort.folder / "anchors.h5", random.normal(size=(3, 5)), ["glands", "necrosis", "stroma"]
    )
    pairs = {"features": random.normal(size=(20, 8)), "anchor_space": random.normal(size=(20, 5))}
    store.write(
        cohort.folder / "anchor_pairs.h5",
        {name: value.astype(np.float32) for name, value in pairs.items()},
    )


def build_run(folder: Path) -> None:
    """A trained and measured run, its exported fold, and marks of a reviewer."""
    build_cohort(folder)
    succeeded(
        *TRAIN.format(run=folder / "run").replace("cohort", str(folder / "cohort"), 1).split()
    )
    succeeded("diagnose", folder / "run", "--only", "snr", "--jobs", 1)
    succeeded("export", folder / "run", "--pretrained", folder / "model")
    torch.save(small_checkpoint("abmil", in_dim=8), folder / "weights.pt")
    tested = next((folder / "run" / "fold_0" / "evidence").glob("*.h5")).stem
    (folder / f"{tested}.geojson").write_text(json.dumps(qupath_objects("accept", "reject")))


def build_settings(folder: Path) -> None:
    (folder / "settings.yaml").write_text(TrainSettings().to_yaml())
    grid = {
        "name": "toy", "cohorts": {"lung": {"profile": "nsclc", "size": "tiny", "slides": 20, "dials": {"pairs": 64}}},
        "hosts": ["abmil", "dsmil"], "arms": ["host", "gce"], "folds": [0, 1], "seeds": [0, 1], "settings": {"epochs": 2},
        "variants": {"flat": {"evidence.smoothing": 0.0}}, "diagnostics": ["snr"], "resources": {"cpus": 1.0, "memory_gb": 2.0},
    }  # fmt: skip
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid))
    prompts = [
        {"concept": "glands", "wording": "glands of the breast"},
        {"concept": "necrosis", "wording": "necrosis"},
    ]
    family = {"family": "mine", "source": "a textbook", "datasets": ["bracs"], "prompts": prompts}
    (folder / "family.yaml").write_text(yaml.safe_dump(family))


def build_tool(folder: Path, tool: str) -> None:
    """Three slides as another tool leaves them, with labels and splits."""
    for number, slide in enumerate("ABC"):
        coords = foreign.grid(6 + number, 512)
        if tool == "clam":
            foreign.clam_features(folder / "features", slide, coords)
            foreign.clam_coords(folder / "patches", slide, coords, patch_size=256, downsample=2.0)
        elif tool == "trident":
            foreign.trident_features(folder / "features", slide, coords)
        elif tool == "stamp":
            foreign.stamp_features(folder / "features", slide, coords.astype(np.float32))
    if tool == "torchmil":
        foreign.torchmil_set(
            folder / "features",
            {name: (foreign.grid(6, 512), name == "A", [1, 0, 0, 1, 0, 0]) for name in "ABC"},
        )
    rows = ("p0,A,x", "p1,B,y", "p2,C,x")
    foreign.write_table(folder / "labels.csv", "case_id,slide_id,label", *rows)


def build_tables(folder: Path) -> None:
    """Label tables of several tools, and splits of them, beside features that fit."""
    build_tool(folder, "clam")
    tables = {
        "mcat.csv": (",case_id,slide_id,survival_months,censorship", "0,p0,A.svs,3.5,0", "1,p1,B.svs,9,1", "2,p2,C.svs,4,1"),
        "patho_bench.tsv": ("case_id\tslide_id\tgrade\tfold_0", "p0\tA\t1\ttrain", "p1\tB\t0\ttest", "p2\tC\t1\ttrain"),
        "stamp.csv": ("PATIENT,FILENAME,status", "p0,A.h5,dead", "p1,B.h5,alive", "p2,C.h5,dead"),
        "slideflow.csv": ("patient,slide,dataset,time,event", "p0,A,train,3,1", "p1,B,train,8,0", "p2,C,train,2,1"),
        "mhim.csv": ("ID,Split,Label", "A,train,0", "B,test,1", "C,train,1"),
    }  # fmt: skip
    for name, lines in tables.items():
        foreign.write_table(folder / "tables" / name, *lines)
    book = Workbook()
    for line in (
        ("case_id", "slide_id", "label"),
        ("p0", "A", 1.0),
        ("p1", "B", 2),
        ("p2", "C", None),
    ):
        book.active.append(line)
    book.save(folder / "tables" / "book.xlsx")
    foreign.write_table(folder / "splits" / "splits_0.csv", ",train,val,test", "0,A,B,C")
    foreign.stamp_splits(folder / "splits" / "splits.json", (["p0", "p1"], ["p2"]))


def qupath_objects(first: str, second: str) -> Any:
    """Objects of every kind that QuPath exports."""
    ring = [[0, 0], [900.5, 0], [900, 700], [0, 700], [0, 0]]
    geometries = (
        ("Polygon", [ring]),
        ("MultiPolygon", [[ring]]),
        ("Point", [600, 600]),
        ("LineString", ring),
    )
    features = [
        {
            "type": "Feature", "id": f"{name}{kind}", "geometry": {"type": kind, "coordinates": coordinates},
            "properties": {"objectType": "annotation", "classification": {"name": name, "color": [200, 0, 0]}},
        }
        for kind, coordinates in geometries for name in (first, second)
    ]  # fmt: skip
    return {"type": "FeatureCollection", "features": features}


def build_annotations(folder: Path) -> None:
    build_cohort(folder)
    (folder / "annotations").mkdir()
    vertices = "".join(
        f'\n<Coordinate Order="{k}" X="{x}" Y="{y}"/>'
        for k, (x, y) in enumerate(((10.5, 10), (1500, 20), (700, 900)))
    )
    (folder / "annotations" / "s001_0.xml").write_text(
        '<?xml version="1.0" encoding="utf-8"?>\n<ASAP_Annotations>\n<Annotations>\n<Annotation Name="a" Type="Polygon" PartOfGroup="Tumor">\n'
        f"<Coordinates>{vertices}\n</Coordinates>\n</Annotation>\n</Annotations>\n</ASAP_Annotations>\n"
    )
    mask = np.zeros((64, 96), np.uint8)
    mask[10:30, 10:50] = 255
    Image.fromarray(mask).save(folder / "annotations" / "s003_0_mask.png")
    for number in (5, 7, 9, 11):
        (folder / "annotations" / f"s{number:03d}_0.geojson").write_text(
            json.dumps(qupath_objects("Tumor", "Ignore*"))
        )
    (folder / "scores").mkdir()
    for number in range(12):
        np.save(folder / "scores" / f"s{number:03d}_0.npy", np.arange(6) / 6)
    (folder / "scores" / "s000_0.npy").unlink()
    store.write(
        folder / "scores" / "s000_0.h5", {"scores": np.arange(6) / 6, "coords": grid_coords(6)}
    )


def build_slide(folder: Path) -> None:
    slides.write_slide(
        folder / "slides" / "a.tif", slides.tissue_image(512, 768, (128, 128, 640, 384))
    )
    (folder / "masks").mkdir()
    Image.new("L", (96, 64), 255).save(folder / "masks" / "a.png")


def build_results(folder: Path) -> None:
    toy_results(folder / "results")


INSPECT = "inspect {damaged}"
TOOLS = ("clam", "trident", "stamp", "torchmil")
INPUTS: dict[str, Input] = {
    "cohort": Input(build_cohort, ("cohort/*.yaml", "cohort/*.csv", "cohort/splits/*", "cohort/features/*"), ("validate cohort", INSPECT, "split cohort --force"), share=3),
    "survival": Input(partial(build_cohort, task="survival"), ("cohort/*.yaml", "cohort/*.csv"), ("validate cohort",), share=2),
    "training data": Input(build_cohort, ("cohort/**/*.*",), (TRAIN.format(run="run"),)),
    "settings": Input(build_settings, ("settings.yaml",), ("config --config settings.yaml",), share=2),
    "grid": Input(build_settings, ("grid.yaml",), ("benchmark grid.yaml --out results --dry-run",), share=2),
    "family": Input(build_settings, ("family.yaml",), (lambda folder: read_family(folder / "family.yaml"),)),
    **{tool: Input(partial(build_tool, tool=tool), ("features/**/*.*", "patches/*"), (IMPORT, IMPORT.replace("new", "copy --copy"), INSPECT)) for tool in TOOLS},
    "label tables": Input(build_tables, ("tables/*",), ("import features --labels {damaged} --out new", INSPECT), share=4),
    "splits": Input(build_tables, ("splits/*",), (f"{IMPORT} --splits {{damaged}}", INSPECT), share=2),
    "annotations": Input(build_annotations, ("annotations/*",), ("annotate cohort annotations --negative-class benign --downsample 64 --force",), share=2),
    "scores": Input(build_annotations, ("scores/*",), ("audit cohort --model fuzz.model:mean --scores scores --part all --repeats 0 --out a.json",)),
    "slides": Input(build_slide, ("slides/*", "masks/*"), ("patch slides --out new --masks masks", INSPECT)),
    "networks": Input(build_run, ("run/fold_0/*.safetensors", "model/*.json", "model/*.safetensors"), (f"predict run {SLIDE} --out a", f"predict model {SLIDE} --out b")),
    "run": Input(build_run, ("run/**/*.json", "run/**/*.jsonl", "run/**/*.yaml", "run/**/*.csv", "run/**/*.h5"), ("report run", "evaluate run"), share=0.5),
    "marks": Input(build_run, ("*.geojson",), ("review run {damaged} --resamples 5",)),
    "weights": Input(build_run, ("weights.pt",), ("adopt weights.pt --host abmil --cohort cohort --folds 0 --out adopted",)),
    "results": Input(build_results, ("results/**/*.json", "results/**/*.jsonl", "results/**/*.yaml"), ("tables results",), share=2),
}  # fmt: skip
