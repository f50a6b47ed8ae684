"""How well an anchor of k examples finds its concept, by the space it lives in: average precision on slides with truth.

    python benchmarks/example_anchors.py COHORT [--fold 0] [--repeats 3] [--slides 60] [--json FILE]

COHORT has truth with concepts: a composed one (examples from examples.h5) or a simulated one (examples from the truth of training slides).
For each test slide with evidence the patches are ranked by the largest cosine to the anchors of its true concepts; nothing is trained.
Spaces: raw features; the mean of training patches taken off; whitened without and with a ridge, as training takes it.

    python benchmarks/example_anchors.py COHORT --table examples.csv --concepts "gland formation" necrosis

writes every patch of these concepts on the training slides of a simulated cohort, as a table for `gcemil anchors from-examples`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gcemil.bags import store
from gcemil.bags.cohort import BagSpec, Cohort
from gcemil.bags.folds import read_fold
from gcemil.diagnostics.truth import average_precision
from gcemil.evidence.alignment import RIDGE, whitening_fit
from gcemil.simulation.compose import EXAMPLES
from gcemil.simulation.patch_pool import read_pool
from gcemil.training.fold import reference_patches

COUNTS = (1, 3, 10, 30)
RANK = 128
Space = Callable[[Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slides", type=int, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--concepts", nargs="+", default=[])
    asked = parser.parse_args()
    cohort = Cohort.load(asked.cohort)
    fold = read_fold(cohort, asked.fold)
    by_slide = {spec.slide_ids[0]: spec for spec in cohort.bags}
    train = [by_slide[name] for name in fold.slides("train")]
    tested = [by_slide[name] for name in fold.slides("test")][: asked.slides]
    names = list(cohort.card.provenance["concepts"])
    if asked.table:
        write_table(asked.table, cohort, train, names, asked.concepts)
        return
    examples = example_features(cohort, train, names)
    bags = [bag for spec in tested if (bag := read_tested(cohort, spec, names)) is not None]
    reference = reference_patches(cohort, train, seed=0)
    found = {
        name: [score(space, bags, examples, k, asked.repeats) for k in COUNTS]
        for name, space in spaces(reference).items()
    }
    print(
        f"{len(bags)} slides with evidence, {asked.repeats} draws of examples; examples per concept: {COUNTS}"
    )
    for name, row in found.items():
        print(f"{name:24s}" + "".join(f"{value:8.3f}" for value in row))
    if asked.json:
        asked.json.write_text(json.dumps({"examples": COUNTS, "average_precision": found}, indent=2))


def write_table(
    path: Path, cohort: Cohort, train: list[BagSpec], names: list[str], concepts: list[str]
) -> None:
    """Slide, position and concept of every patch of these concepts."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["slide", "x", "y", "concept"])
        for spec in train:
            _, concept, _ = read_slide(cohort, spec)
            coords = cohort.read_bag(spec).coords
            shown = (names[number] for number in concept.tolist())
            table.writerows(
                [spec.slide_ids[0], *place, name]
                for place, name in zip(coords.tolist(), shown, strict=True)
                if name in concepts
            )


def spaces(reference: Tensor) -> dict[str, Space]:
    centre = reference.mean(dim=0)
    found: dict[str, Space] = {"raw": lambda rows: rows, "centred": lambda rows: rows - centre}
    for name, ridge in (("whitened, ridge 0.01", 0.01), (f"whitened, ridge {RIDGE:g}", RIDGE)):
        fit = whitening_fit(reference, rank=RANK, ridge=ridge)
        found[name] = lambda rows, fit=fit: rows @ fit.right.T + fit.bias
    return found


def example_features(cohort: Cohort, train: list[BagSpec], names: list[str]) -> dict[str, Tensor]:
    """Every example there is, by concept."""
    if (cohort.folder / EXAMPLES).is_file():
        pool = read_pool(cohort.folder / EXAMPLES)
        return {name: torch.from_numpy(pool.features[pool.rows_of(name)]).float() for name in pool.classes}
    parts: dict[str, list[Tensor]] = {}
    for spec in train:
        features, concept, _ = read_slide(cohort, spec)
        for number in concept.unique().tolist():
            parts.setdefault(names[number], []).append(features[concept == number])
    return {name: torch.cat(rows) for name, rows in parts.items()}


def read_slide(cohort: Cohort, spec: BagSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Features, concept and evidence of a slide."""
    path = cohort.truth_file(spec.slide_ids[0])
    columns = (torch.from_numpy(store.read(path, name).astype(np.int64)) for name in ("concept", "evidence"))
    features = torch.from_numpy(cohort.read_bag(spec).features.astype(np.float32))
    concept, evidence = columns
    return features, concept, evidence.bool()


def read_tested(cohort: Cohort, spec: BagSpec, names: list[str]) -> tuple[Tensor, list[str], Tensor] | None:
    """Features, true concepts and evidence; None for a slide without evidence."""
    features, concept, evidence = read_slide(cohort, spec)
    shown = [names[number] for number in concept[evidence].unique().tolist()]
    return (features, shown, evidence) if shown else None


def score(
    space: Space,
    bags: list[tuple[Tensor, list[str], Tensor]],
    examples: dict[str, Tensor],
    k: int,
    repeats: int,
) -> float:
    """Mean average precision over slides and draws."""
    figures = []
    for repeat in range(repeats):
        generator = np.random.default_rng([repeat, k])
        chosen = {
            name: space(rows[generator.permutation(len(rows))[:k]].mean(dim=0, keepdim=True))
            for name, rows in sorted(examples.items())
        }
        for features, shown, evidence in bags:
            anchors = torch.nn.functional.normalize(torch.cat([chosen[name] for name in shown]), dim=1)
            cosines = torch.nn.functional.normalize(space(features), dim=1) @ anchors.T
            figures.append(average_precision(cosines.amax(dim=1), evidence))
    return float(np.mean(figures))


if __name__ == "__main__":
    main()
