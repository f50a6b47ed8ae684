"""Examples of concepts, kept in a cohort as anchors_examples.h5: patches named by a person.

  features  (n, d)  the patches as the cohort's encoder embeds them
  concepts  (n,)    what each shows
  slides    (n,)    the slide it lies on; empty for a patch without a slide
  attributes        k, the examples per concept that training takes; seed; encoder; source

Which examples a fold may use is decided fold by fold: those of its own training slides and those of
slides outside the cohort, never those of a slide that the fold validates or tests on. It then takes
k per concept, one slide after the other, so that no concept comes from one slide alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int, Shaped
from numpy.typing import NDArray

from gcemil.bags import store
from gcemil.errors import CohortError, StoreError

EXAMPLES_FILE = "anchors_examples.h5"
EXAMPLES = "examples"
"""The value in cohort.yaml if examples are its anchors."""
_ATTRIBUTES = ("k", "seed", "encoder", "source")

Names = Shaped[np.ndarray, "_"]


@dataclass(frozen=True, eq=False)
class ExampleSet:
    """Named patches, how many of them are wanted per concept, and where they came from."""

    features: NDArray[Any]
    concepts: Names
    slides: Names
    k: int
    seed: int
    encoder: str
    source: str

    @property
    def names(self) -> tuple[str, ...]:
        """The concepts, in the order of the alphabet."""
        return tuple(np.unique(self.concepts).tolist())


def choose_for_fold(
    examples: ExampleSet, held_out: Collection[str]
) -> tuple[dict[str, Int[np.ndarray, "_"]], int]:
    """Up to k rows per concept on none of the held-out slides, and how many examples lie on these.

    A concept without any is refused.
    """
    allowed = ~np.isin(examples.slides, list(held_out))
    n_held_out = int((~allowed).sum())
    generator = np.random.default_rng(examples.seed)
    rows = {}
    for name in examples.names:
        candidates = generator.permutation(np.flatnonzero(examples.concepts == name))
        candidates = candidates[allowed[candidates]]
        if not len(candidates):
            raise CohortError(
                f"The fold has no example of '{name}' on its training slides or outside the cohort "
                f"({n_held_out} examples lie "
                "on slides it validates or tests on, which would leak). Name patches on more "
                "slides with "
                "'gcemil anchors from-examples'."
            )
        # One example of every slide before a second one of any; patches without a slide stand for
        # themselves.
        slides = pd.Series(examples.slides[candidates])
        turn = slides.groupby(slides).cumcount().where(slides != "", 0).to_numpy()
        rows[name] = np.sort(candidates[np.argsort(turn, kind="stable")[: examples.k]])
    return rows, n_held_out


def write_examples(path: Path, examples: ExampleSet) -> None:
    """Write examples that `read_examples` reads."""
    datasets = {
        "features": examples.features,
        "concepts": np.char.encode(examples.concepts, "utf-8"),
        # HDF5 has no text of length 0.
        "slides": np.char.encode(np.where(examples.slides == "", " ", examples.slides), "utf-8"),
    }
    store.write(path, datasets, {name: getattr(examples, name) for name in _ATTRIBUTES})


def read_examples(path: Path, feature_dim: int) -> ExampleSet:
    """The examples of a cohort with features of this width."""
    if not path.is_file():
        raise CohortError(
            f"{path} does not exist. Name some patches with 'gcemil anchors from-examples', or use "
            "prototypes."
        )
    features = store.read(path, "features")
    concepts, slides = (
        np.array([text.strip() for text in store.read_texts(path, name)], dtype=np.str_)
        for name in ("concepts", "slides")
    )
    attributes = store.attributes(path)
    k, seed = attributes.get("k"), attributes.get("seed")
    problem = ""
    if features.ndim != 2 or features.dtype.kind != "f" or features.shape[1] != feature_dim:
        shape = f"{features.dtype} of shape {features.shape}"
        problem = f"'features' is {shape}; the cohort has width {feature_dim}"
    elif not np.isfinite(features).all():
        problem = "it holds NaN or infinite features"
    elif not 0 < len(concepts) == len(slides) == len(features) or (concepts == "").any():
        counts = f"{len(concepts)} concepts and {len(slides)} slides for {len(features)} patches"
        problem = f"{counts}, or one without a name"
    elif not isinstance(k, int) or not isinstance(seed, int) or k < 1 or seed < 0:
        problem = f"it does not say how many examples to take (k {k}, seed {seed})"
    if problem:
        raise StoreError(f"{path}: {problem}. Write it again with 'gcemil anchors from-examples'.")
    encoder, source = (str(attributes.get(name, "unknown")) for name in ("encoder", "source"))
    return ExampleSet(features, concepts, slides, int(k or 1), int(seed or 0), encoder, source)
