"""A table of example patches from the truth of a simulated cohort, as a pathologist would name
them.

    python benchmarks/example_table.py COHORT --out examples.csv [--fold 0]
    gcemil anchors from-examples COHORT --examples examples.csv --k 10

Every concept that the anchor bank of the cohort names is looked up in truth/ of the training slides
of one fold.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import h5py
import pandas as pd

from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import read_fold
from gcemil.evidence.anchors import AnchorBank
from gcemil.families import ORGAN_FAMILIES, load_family


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fold", type=int, default=0)
    arguments = parser.parse_args()
    cohort = Cohort.load(arguments.cohort)
    concepts = cohort.card.provenance["concepts"]
    prompts = AnchorBank.from_file(cohort.folder / "anchors.h5").prompts
    # The simulator names concepts by the short keys of the families, prompts are their wordings.
    keys = {
        prompt.wording: prompt.concept.replace("_", " ")
        for family in ORGAN_FAMILIES
        for prompt in load_family(family).prompts
    }
    named = {keys[prompt] for prompt in prompts}
    tables = []
    for slide in read_fold(cohort, arguments.fold).slides("train"):
        with h5py.File(cohort.folder / "truth" / f"{slide}.h5") as truth:
            names = pd.Series(truth["concept"][:]).map(dict(enumerate(concepts)))
        with h5py.File(cohort.feature_file(slide)) as file:
            x, y = file["coords"][:].T
        patches = pd.DataFrame({"slide": slide, "x": x, "y": y, "concept": names})
        tables.append(patches[names.isin(named)])
    pd.concat(tables).to_csv(arguments.out, index=False)


if __name__ == "__main__":
    main()
