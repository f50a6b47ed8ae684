"""A set of patches of one slide as files: evidence.h5 and .json, tiles and regions for QuPath, overlay, heat maps, certificate.

SlideExport      the patches with their numbers; the viewer writes sets that somebody edited
ExplainedSlide   the same with its certificate and where it lies; `gcemil explain` writes all of its files
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Real
from PIL import Image

from gcemil.bags import store
from gcemil.bags.store import Bounds
from gcemil.errors import UsageError
from gcemil.exports.certificate import Certificate, write_certificate
from gcemil.exports.geojson import (
    ATTENTION,
    EVIDENCE,
    FURTHER_COLORS,
    NO_EVIDENCE,
    UNSELECTED,
    PatchClass,
    SlideRegions,
    describe_patches,
    describe_regions,
    list_rows,
    name_measurements,
    write_geojson,
)
from gcemil.exports.heatmap import draw_heatmap, write_heatmap
from gcemil.exports.overlay import (
    SlidePlace,
    Thumbnail,
    choose_thumbnail,
    draw_overlay,
    write_overlay,
)
from gcemil.files import write_json
from gcemil.records import FurtherSet, SlideEvidence, write_evidence

CLASS_MAPS = "class"
"""Stands for a heat map of every class: how much each patch speaks for it."""
HEATMAPS = ("evidence_score", "gate", "attention_score", "marginal_gain", "fold_share", CLASS_MAPS)
"""Measurements that a heat map can show; a run without the wrapper has attention alone."""


@dataclass(frozen=True, eq=False)
class SlideExport:
    """A set of patches of one slide, with everything its files show."""

    slide_id: str
    selected: Bool[np.ndarray, "n"]
    coords: Int[np.ndarray, "n 2"] | None
    patch_size: int | None
    """In level-0 pixels; None only where there are no coordinates."""
    rule: str
    """How the patches were chosen."""
    stop_reason: str | None
    scores: Real[np.ndarray, "n"]
    """The host's raw scores."""
    evidence: SlideEvidence | None
    """None for a run without the wrapper, which has attention only."""
    hashes: dict[str, str]
    regions: SlideRegions | None = None
    """None where there are no coordinates, and for a set edited by hand."""
    further: tuple[tuple[FurtherSet, Int[np.ndarray, "_"]], ...] = ()
    """Sets beside the evidence, and the rows of the slide that are in them."""
    fold_share: Real[np.ndarray, "n"] | None = None
    """The share of the folds that chose each patch; None for a single fold."""

    @property
    def ranked_by(self) -> Real[np.ndarray, "n"]:
        """What orders the patches: gates, or attention where there are none."""
        return self.scores if self.evidence is None else self.evidence.gates

    @property
    def measurements(self) -> dict[str, Real[np.ndarray, "n"]]:
        """What is known of each patch, by the name a reader sees."""
        found = (
            {"attention_score": self.scores}
            if self.evidence is None
            else name_measurements(self.evidence)
        )
        if self.fold_share is not None:
            found = {**found, "fold_share": self.fold_share}
        return found if self.regions is None else {**found, "region": self.regions.number}

    @property
    def patch_class(self) -> PatchClass:
        """How QuPath names and colours the selected patches."""
        return ATTENTION if self.evidence is None else EVIDENCE

    def describe(self) -> dict[str, Any]:
        """The set as a whole, without its patches."""
        return {
            "slide_id": self.slide_id,
            "rule": self.rule,
            "n_patches": len(self.selected),
            "fraction": float(self.selected.mean()),
            "patch_size_level0": self.patch_size,
            "stop_reason": self.stop_reason,
            "hashes": self.hashes,
        }

    def list_patches(self) -> Iterator[dict[str, float | int | str]]:
        """The selected patches for scripts that do not read HDF5; positions are corners in level-0 pixels."""
        patches = np.flatnonzero(self.selected)
        columns = {"index": patches}
        if self.coords is not None:
            columns |= {"x": self.coords[patches, 0], "y": self.coords[patches, 1]}
        columns |= {name: values[patches] for name, values in self.measurements.items()}
        return list_rows(columns, len(patches))

    def list_tiles(
        self,
        *,
        bounds: Bounds,
        selected_class: PatchClass | None = None,
        unselected_class: PatchClass | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The patches as QuPath tiles; `bounds` is where the image that QuPath shows begins."""
        coords, patch_size = self._require_places()
        return describe_patches(
            self.slide_id,
            coords,
            self.selected,
            patch_size=patch_size,
            ranked_by=self.ranked_by,
            measurements=self.measurements,
            model=self.hashes["model"],
            selected_class=selected_class or self.patch_class,
            unselected_class=unselected_class,
            bounds=bounds,
        )

    def write_hdf5(self, path: Path) -> Path:
        """The layout of fold_<k>/evidence; without the wrapper only what a plain host has."""
        if self.evidence is not None:
            write_evidence(path, self.evidence, self.hashes)
            return path
        datasets = {"selected": self.selected.nonzero()[0], "scores": self.scores}
        if self.coords is not None:
            datasets["coords"] = self.coords
        if self.fold_share is not None:
            datasets["fold_share"] = self.fold_share
        attributes: dict[str, str | int | float | bool] = {
            "slide_id": self.slide_id,
            "rule": self.rule,
            "fraction": float(self.selected.mean()),
            **{f"{name}_hash": value for name, value in self.hashes.items()},
        }
        store.write(path, datasets, attributes)
        return path

    def write_json(self, path: Path) -> Path:
        """The selected patches, the regions they form, and the sets beside them."""
        listed = {**self.describe(), "patches": list(self.list_patches())}
        if self.regions is not None:
            listed["regions"] = self.regions.list_regions()
        if self.further:
            listed["further_sets"] = [
                {**vars(one), "patches": rows.tolist()} for one, rows in self.further
            ]
        return write_json(path, listed)

    def draw_overlay(
        self, verdict: str, *, is_evidence: bool = True, thumbnail: Thumbnail | None = None
    ) -> Image.Image:
        """Attention and patches side by side under the verdict; patches that are not evidence are grey."""
        coords, patch_size = self._require_places()
        return draw_overlay(
            f"{self.slide_id}: {verdict}",
            coords,
            self.scores,
            self.selected,
            patch_size=patch_size,
            patch_class=self.patch_class if is_evidence or self.evidence is None else NO_EVIDENCE,
            thumbnail=thumbnail,
            fold_share=self.fold_share,
        )

    def _require_places(self) -> tuple[Int[np.ndarray, "n 2"], int]:
        if self.coords is None or self.patch_size is None:
            raise UsageError(
                f"Slide '{self.slide_id}' has no coordinates, so its patches cannot be drawn in QuPath."
            )
        return self.coords, self.patch_size


@dataclass(frozen=True, eq=False, kw_only=True)
class ExplainedSlide(SlideExport):
    """One slide, kept and removed under the network of one fold."""

    certificate: Certificate
    place: SlidePlace
    folder: Path
    """Where its files lie unless a caller names another folder."""
    measure_classes: Callable[[], dict[str, Real[np.ndarray, "n"]]] = dict
    """How much each patch speaks for each class, computed when a map asks for it."""

    def list_further(self, bounds: Bounds) -> Iterator[dict[str, Any]]:
        """The patches of the sets beside the evidence as QuPath tiles, a class for every set."""
        coords, patch_size = self._require_places()
        for (one, rows), color in zip(self.further, FURTHER_COLORS, strict=False):
            selected = np.zeros(len(self.selected), dtype=bool)
            selected[rows] = True
            yield from describe_patches(
                self.slide_id,
                coords,
                selected,
                patch_size=patch_size,
                ranked_by=self.ranked_by,
                measurements=self.measurements,
                model=f"{self.hashes['model']}\n{one.name}",
                selected_class=PatchClass(one.name[0].upper() + one.name[1:], color),
                bounds=bounds,
            )

    def write_files(
        self,
        folder: Path | None = None,
        *,
        bounds: Bounds | None = None,
        thumbnail: Path | None = None,
        downsample: float | None = None,
        all_patches: bool = False,
        heatmaps: Sequence[str] = (),
    ) -> dict[str, Path]:
        """Every file of the explanation by its kind; what needs coordinates is left out where there are none.

        `bounds` are by default those in the feature file, the thumbnail is the slide's own.
        """
        place = self.place if bounds is None else replace(self.place, bounds=bounds, size=None)
        under = choose_thumbnail(self.place, thumbnail, downsample)
        folder = folder or self.folder
        # All is drawn before the first file is written: what may fail has failed by then.
        drawn = {} if self.coords is None else self._draw_files(place, under, all_patches, heatmaps)
        files = {
            "hdf5": self.write_hdf5(folder / "evidence.h5"),
            "json": self.write_json(folder / "evidence.json"),
            **{kind: write(folder / name) for kind, (name, write) in drawn.items()},
        }
        # Last: a folder that has it is complete.
        files["certificate"] = write_certificate(folder / "certificate.json", self.certificate)
        return files

    def _draw_files(
        self,
        place: SlidePlace,
        thumbnail: Thumbnail | None,
        all_patches: bool,
        heatmaps: Sequence[str],
    ) -> dict[str, tuple[str, Callable[[Path], Path]]]:
        """By its kind the name of every file that needs coordinates, and what writes it."""
        (coords, patch_size), model, known = (
            self._require_places(),
            self.hashes["model"],
            self.measurements,
        )
        tiles = self.list_tiles(
            bounds=place.bounds, unselected_class=UNSELECTED if all_patches else None
        )
        overlay = self.draw_overlay(
            self.certificate.short_verdict,
            is_evidence=self.certificate.is_evidence,
            thumbnail=thumbnail,
        )
        files: dict[str, tuple[str, Callable[[Path], Path]]] = {
            "geojson": ("evidence.geojson", partial(write_geojson, features=tiles)),
            "overlay": ("overlay.png", partial(write_overlay, image=overlay)),
        }
        if self.regions is not None:
            features = describe_regions(
                self.slide_id,
                self.regions,
                coords,
                patch_size=patch_size,
                measurements={name: values for name, values in known.items() if name != "region"},
                model=model,
                region_class=self.patch_class,
                bounds=place.bounds,
            )
            files["regions"] = ("regions.geojson", partial(write_geojson, features=features))
        if self.further:
            tiles = self.list_further(place.bounds)
            files["further"] = ("further_sets.geojson", partial(write_geojson, features=tiles))
        if CLASS_MAPS in heatmaps and (by_class := self.measure_classes()):
            maps = {
                "class_" + re.sub(r"[^\w.-]+", "_", one): values for one, values in by_class.items()
            }
            known = {**known, **maps}
            heatmaps = [name for one in heatmaps for name in (maps if one == CLASS_MAPS else [one])]
        for name in heatmaps:
            if name not in known:
                names = ", ".join(one for one in HEATMAPS if one in known)
                raise UsageError(
                    f"Slide '{self.slide_id}' has no measurement '{name}' to map, only: {names}."
                )
            drawn = draw_heatmap(name, coords, known[name], patch_size=patch_size, place=place)
            write = partial(write_heatmap, heatmap=drawn, slide_id=self.slide_id, model=model)
            files[f"heatmap_{name}"] = (f"heatmap_{name}.ome.tif", write)
        return files
