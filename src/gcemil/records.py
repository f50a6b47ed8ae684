"""Results of a fold as frozen values, and their HDF5 files. No torch.

evidence/<slide>.h5      selected, gates, scores, evidence_scores, responses, marginal_gain,
                         coverage, anchor_weights; coords if there are any; fold_share, the share of
                         the folds that chose a patch, for a new slide
representations.h5       full, soft, discrete (bags, d); attributes bag_ids, parts, groups as JSON
                         lists in the same order
epochs/epoch_<n>.h5      the same after each epoch, full and soft, if training kept them
adapter.h5               cosine of patches before and after the feature adapter, whether each is
                         evidence, singular values of U V^T
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import BaseModel

from gcemil.bags import store
from gcemil.errors import RunError
from gcemil.files import parse_json, validate_as

MODE_WORDS = {
    "full": "host, all patches",
    "head": "evidence head alone",
    "gce": "host and evidence",
    "soft": "gated",
    "discrete": "evidence alone",
    "opinion": "second opinion",
}
"""How a bag is predicted, with the words for it."""
MODES = tuple(MODE_WORDS)
REMEDY = "Make it again with 'gcemil train RUN --again'."
OPTIONAL = ("coords", "anchor_weights", "fold_share")
"""Columns that an evidence file may lack."""


@dataclass(frozen=True, eq=False)
class SlideEvidence:
    """The evidence of one slide, per patch in the order of its feature file."""

    slide_id: str
    selected: Bool[np.ndarray, "n"]
    coords: Int[np.ndarray, "n 2"] | None
    gates: Float[np.ndarray, "n"]
    scores: Float[np.ndarray, "n"]
    """The host's raw patch scores on the ungated bag."""
    evidence_scores: Float[np.ndarray, "n"]
    """The selector's scores, from which the gates are made."""
    responses: Float[np.ndarray, "n m"]
    marginal_gain: Float[np.ndarray, "n"]
    """What each patch adds to the coverage of the evidence, or takes from it if it is removed."""
    coverage: Float[np.ndarray, "m"]
    stop_reason: str
    prompts: tuple[str, ...]
    ranking: str = "gce"
    """gce: the evidence of host and head together; host: what a given host rests on."""
    is_sufficient: bool | None = None
    """Whether the patches alone, of all slides of a case, keep the prediction. None: not judged."""
    is_necessary: bool | None = None
    """Whether the prediction moves without them."""
    is_confirmed: bool | None = None
    """Whether the evidence exceeds what slides without a lesion show. None: no such class."""
    anchor_weights: Float[np.ndarray, "m"] | None = None
    """How much each anchor matters to the predicted class, or to the risk. None: not written."""
    fold_share: Float[np.ndarray, "n"] | None = None
    """The share of the folds that chose each patch; None for the evidence of one fold."""
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def indices(self) -> Int[np.ndarray, "k"]:
        """The selected patches, sorted."""
        return np.flatnonzero(self.selected)

    @property
    def is_no_evidence(self) -> bool:
        """Whether the prediction stays without the patches, so that they mark nothing."""
        return self.is_necessary is False or self.is_confirmed is False

    @property
    def verdict(self) -> str:
        """What keeping and removing the patches showed, in words."""
        return describe_verdict(self.is_sufficient, self.is_necessary, self.is_confirmed)

    @property
    def fraction(self) -> float:
        """The share of the slide that is evidence."""
        return float(self.selected.mean())

    def accumulate_coverage(self, order: Int[np.ndarray, "k"]) -> Float[np.ndarray, "k m"]:
        """Noisy-OR coverage (Eq. 4) of every anchor by the first 1, 2, ... patches of an order."""
        return 1 - np.cumprod(1 - self.responses[order].astype(float), axis=0)


NOT_CERTIFIED = "not certified: the model has not learned"
"""In place of a verdict on a model at chance, or one that has not fitted its training slides."""


def certify(verdict: str, model_warning: str | None) -> str:
    """What keeping and removing showed, unless the model itself has not learned."""
    return verdict if model_warning is None else NOT_CERTIFIED


def describe_verdict(
    is_sufficient: bool | None, is_necessary: bool | None, is_confirmed: bool | None = None
) -> str:
    """What keeping and removing patches showed, in words; None: not measured."""
    if is_sufficient is None or is_necessary is None:
        return "not checked"
    if not is_necessary:
        return "no evidence: without these patches the prediction stays as it is"
    if is_confirmed is False:
        return "no evidence of a lesion: slides without one show as much"
    return "sufficient and necessary" if is_sufficient else "necessary, not sufficient alone"


@dataclass(frozen=True)
class RegionVerdict:
    """One connected region of evidence, kept alone and removed; None where it was not judged."""

    number: int
    """From 1, the region of largest score mass first; of a case, over all its slides."""
    slide_id: str
    n_patches: int
    mass: float
    """Sum over the region of the softmax of the scores over the bag."""
    kept: float | None = None
    """Phi of the region alone."""
    removed: float | None = None
    """Phi of the bag without it; None also where nothing would be left."""
    sufficient: bool | None = None
    necessary: bool | None = None


@dataclass(frozen=True)
class FurtherSet:
    """A set of patches beside the evidence, kept alone and removed."""

    name: str
    """alternative 2 | alternative 3 | removal turns it into CLASS."""
    patches: tuple[int, ...]
    """Rows of the bag, sorted."""
    kept: float
    """Phi of the set alone."""
    removed: float | None
    """Phi of the bag without it; None if nothing is left."""
    kept_class: str | None = None
    """The class predicted from the set alone; None for a risk."""
    removed_class: str | None = None
    sufficient: bool | None = None
    """By Definition 1, which also limits how far Phi may rise unless a class was given."""
    necessary: bool | None = None

    @property
    def sentence(self) -> str:
        """The set in one line."""
        words = {True: "", False: "not ", None: "not known to be "}
        without = "" if self.removed is None else f", Phi without it {self.removed:.3f}"
        classes = [one for one in (self.kept_class, self.removed_class) if one is not None]
        shown = f" ({' and '.join(classes)} predicted)" if classes else ""
        return (
            f"{self.name}: {len(self.patches)} patches, Phi alone "
            f"{self.kept:.3f}{without}{shown}; {words[self.sufficient]}sufficient, "
            f"{words[self.necessary]}necessary"
        )


# Their files


class _EvidenceFacts(BaseModel):
    """The attributes of an evidence file."""

    slide_id: str
    stop_reason: str
    prompts: list[str]
    ranking: str = "mixture"
    is_sufficient: bool | None = None
    is_necessary: bool | None = None
    is_confirmed: bool | None = None
    model_hash: str | None = None
    features_hash: str | None = None


def read_evidence(path: Path) -> SlideEvidence:
    """An evidence file; its columns must be about the same patches and anchors."""
    attributes = store.attributes(path)
    prompts = parse_json(str(attributes.get("prompts")), path)
    facts = validate_as(
        {**attributes, "prompts": prompts}, _EvidenceFacts, path, error=RunError, remedy=REMEDY
    )
    gates = _read_numbers(path, "gates", (None,))
    n_patches, n_anchors = len(gates), len(facts.prompts)
    rows = _read_numbers(path, "selected", (None,))
    if rows.dtype.kind not in "iu" or not ((rows >= 0) & (rows < n_patches)).all():
        raise RunError(
            f"{path}: 'selected' names patches beyond the {n_patches} of the slide. {REMEDY}"
        )
    selected = np.zeros(n_patches, dtype=bool)
    selected[rows] = True
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("scores", "evidence_scores", "marginal_gain", "fold_share"), (n_patches,)),
        **dict.fromkeys(("coverage", "anchor_weights"), (n_anchors,)),
        "coords": (n_patches, 2),
        "responses": (n_patches, n_anchors),
    }
    arrays: dict[str, Any] = {
        name: _read_numbers(path, name, shape)
        for name, shape in shapes.items()
        if name not in OPTIONAL or store.has(path, name)
    }
    hashes = {"model": facts.model_hash, "features": facts.features_hash}
    return SlideEvidence(
        selected=selected,
        gates=gates,
        **{"coords": None, **arrays},
        **facts.model_dump(exclude={"prompts", "model_hash", "features_hash"}),
        prompts=tuple(facts.prompts),
        hashes={name: value for name, value in hashes.items() if value is not None},
    )


def _read_numbers(path: Path, name: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """A dataset of this shape (None: any size) that holds real numbers, none of them NaN."""
    values = store.read(path, name)
    fits = values.ndim == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, values.shape, strict=True)
    )
    if not fits or values.dtype.kind not in "fiu" or np.isnan(values).any():
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise RunError(
            f"{path}: '{name}' is {values.dtype} of shape {values.shape}, not ({wanted}) numbers "
            f"that all exist. {REMEDY}"
        )
    return values


def write_evidence(path: Path, evidence: SlideEvidence, hashes: dict[str, str]) -> None:
    """Write the evidence of a slide; `hashes` identify network and features."""
    names = ("gates", "scores", "evidence_scores", "responses", "marginal_gain", "coverage")
    columns = {name: getattr(evidence, name) for name in (*names, *OPTIONAL)}
    datasets = {name: values for name, values in columns.items() if values is not None}
    verdicts = {
        name: getattr(evidence, name) for name in ("is_sufficient", "is_necessary", "is_confirmed")
    }
    attributes: dict[str, Any] = {
        "slide_id": evidence.slide_id,
        "stop_reason": evidence.stop_reason,
        "fraction": evidence.fraction,
        "ranking": evidence.ranking,
        **{name: int(verdict) for name, verdict in verdicts.items() if verdict is not None},
        "prompts": json.dumps(evidence.prompts),
        **{f"{name}_hash": value for name, value in hashes.items()},
    }
    store.write(path, {"selected": evidence.indices, **datasets}, attributes)


@dataclass(frozen=True, eq=False)
class Representations:
    """What the head of one fold's network sees of each bag."""

    by_mode: dict[str, Float[np.ndarray, "n d"]]
    bag_ids: tuple[str, ...]
    parts: tuple[str, ...]
    groups: tuple[str, ...]


def read_representations(path: Path) -> Representations:
    """Representations as `write_representations` wrote them."""
    attributes = store.attributes(path)
    remedy = "Remove it; 'gcemil report --representations' writes it again."
    bag_ids, parts, groups = (
        tuple(
            validate_as(
                parse_json(str(attributes.get(name)), path),
                list[str],
                path,
                error=RunError,
                remedy=remedy,
            )
        )
        for name in ("bag_ids", "parts", "groups")
    )
    if not len(bag_ids) == len(parts) == len(groups):
        raise RunError(
            f"{path}: {len(bag_ids)} bags, {len(parts)} parts and {len(groups)} groups. {remedy}"
        )
    modes = {
        mode: _read_numbers(path, mode, (len(bag_ids), None))
        for mode in MODES
        if store.has(path, mode)
    }
    return Representations(modes, bag_ids, parts, groups)


def write_representations(path: Path, representations: Representations) -> None:
    """The file this section reads."""
    store.write(
        path,
        representations.by_mode,
        {
            name: json.dumps(getattr(representations, name))
            for name in ("bag_ids", "parts", "groups")
        },
    )


@dataclass(frozen=True, eq=False)
class AdapterFigures:
    """How the low-rank adapter of a selector changes the patches of some bags."""

    cosines: Float[np.ndarray, "n"]
    """Cosine of each patch before and after, both normalised as the selector reads them."""
    selected: Bool[np.ndarray, "n"]
    strengths: Float[np.ndarray, "r"]
    """Singular values of U V^T, largest first; the identity beside it has 1."""


def read_adapter(path: Path) -> AdapterFigures:
    """Figures as `write_adapter` wrote them."""
    cosines = _read_numbers(path, "cosines", (None,))
    selected = _read_numbers(path, "selected", (len(cosines),)).astype(bool)
    return AdapterFigures(cosines, selected, _read_numbers(path, "strengths", (None,)))


def write_adapter(path: Path, figures: AdapterFigures) -> None:
    """adapter.h5 of a fold."""
    store.write(
        path,
        {
            "cosines": figures.cosines.astype(np.float32),
            "selected": figures.selected.astype(np.uint8),
            "strengths": figures.strengths.astype(np.float32),
        },
        {},
    )
