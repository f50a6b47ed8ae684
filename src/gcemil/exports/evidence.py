"""Evidence as a value with its table, its pictures and its files.

Evidence         of a bag, as `gcemil.explain` returns it
SlideExport      a set of patches of one slide; the viewer writes sets that somebody edited
ExplainedSlide   the same with its certificate; `gcemil explain` writes all of its files
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int, Real

from gcemil.bags import store
from gcemil.bags.bag import Bag, grid_stride
from gcemil.bags.store import Bounds
from gcemil.errors import BagError, UsageError
from gcemil.exports.certificate import Judgement, shorten_verdict
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
from gcemil.exports.heatmap import HeatMap, draw_heatmap, write_heatmap
from gcemil.exports.overlay import (
    SlidePlace,
    Thumbnail,
    choose_thumbnail,
    draw_overlay,
    encode_image,
)
from gcemil.files import write_bytes, write_json
from gcemil.records import FurtherSet, SlideEvidence, write_evidence

if TYPE_CHECKING:
    from PIL import Image

CLASS_MAPS = "class"
"""Stands for a heat map of every class: how much each patch supports it."""
HEATMAPS = ("evidence_score", "gate", "attention_score", "marginal_gain", "fold_share", CLASS_MAPS)
"""Measurements that a heat map can show; a run without the wrapper has attention alone."""
FILE_NAMES = {
    "geojson": "evidence.geojson",
    "overlay": "overlay.png",
    "regions": "regions.geojson",
    "further": "further_sets.geojson",
}
Features = Iterator[dict[str, Any]]


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
    def measurements(self) -> dict[str, Real[np.ndarray, "n"]]:
        """The values of each patch, by their names in files and pages."""
        values: dict[str, Real[np.ndarray, "n"]] = {"attention_score": self.scores}
        if self.evidence is not None:
            values = name_measurements(self.evidence)
        if self.fold_share is not None:
            values["fold_share"] = self.fold_share
        if self.regions is not None:
            values["region"] = self.regions.number
        return values

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
        """The selected patches with their values; positions are corners in level-0 pixels."""
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
        selected: Bool[np.ndarray, "n"] | None = None,
        name: str = "",
    ) -> Features:
        """The patches as QuPath tiles; `bounds` is where the image that QuPath shows begins.

        Another set of the slide is given as `selected`; its `name` becomes part of the ids.
        """
        coords, patch_size = self._require_places()
        return describe_patches(
            self.slide_id,
            coords,
            self.selected if selected is None else selected,
            patch_size=patch_size,
            ranked_by=self.scores if self.evidence is None else self.evidence.gates,
            measurements=self.measurements,
            model=self.hashes["model"] + (f"\n{name}" if name else ""),
            selected_class=selected_class or self.patch_class,
            unselected_class=unselected_class,
            bounds=bounds,
        )

    def write_hdf5(self, path: Path) -> None:
        """The layout of fold_<k>/evidence; without the wrapper only what a plain host has."""
        if self.evidence is not None:
            write_evidence(path, self.evidence, self.hashes)
            return
        columns = {"scores": self.scores, "coords": self.coords, "fold_share": self.fold_share}
        datasets = {name: values for name, values in columns.items() if values is not None}
        attributes: dict[str, str | int | float | bool] = {
            "slide_id": self.slide_id,
            "rule": self.rule,
            "fraction": float(self.selected.mean()),
            **{f"{name}_hash": value for name, value in self.hashes.items()},
        }
        store.write(path, {"selected": self.selected.nonzero()[0], **datasets}, attributes)

    def write_json(self, path: Path) -> None:
        """The selected patches, the regions they form, and the sets beside them."""
        content = {**self.describe(), "patches": list(self.list_patches())}
        if self.regions is not None:
            content["regions"] = self.regions.list_regions()
        if self.further:
            content["further_sets"] = [
                {**vars(one), "patches": rows.tolist()} for one, rows in self.further
            ]
        write_json(path, content)

    def draw_overlay(
        self, verdict: str, *, is_evidence: bool = True, thumbnail: Thumbnail | None = None
    ) -> Image.Image:
        """Attention and patches side by side; patches that are not evidence are grey."""
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
                f"Slide '{self.slide_id}' has no coordinates, so its patches cannot be drawn in "
                "QuPath."
            )
        return self.coords, self.patch_size


@dataclass(frozen=True, eq=False, kw_only=True)
class ExplainedSlide(SlideExport):
    """One slide, kept and removed under the network of one fold."""

    judgement: Judgement
    certificate: dict[str, Any]
    """The content of certificate.json."""
    place: SlidePlace
    folder: Path
    """Where its files lie unless a caller names another folder."""
    measure_classes: Callable[[], dict[str, Real[np.ndarray, "n"]]] = dict
    """How much each patch supports each class, computed when a map shows it."""

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
        """Write every file, by its kind; without coordinates those that need none.

        `bounds` are by default those in the feature file, the thumbnail is the slide's own.
        """
        place = self.place if bounds is None else replace(self.place, bounds=bounds, size=None)
        under = choose_thumbnail(self.place, thumbnail, downsample)
        folder = folder or self.folder
        # All is drawn before the first file is written: what may fail has failed by then.
        drawn = {} if self.coords is None else self._draw(place, under, all_patches, heatmaps)
        files = {"hdf5": folder / "evidence.h5", "json": folder / "evidence.json"}
        self.write_hdf5(files["hdf5"])
        self.write_json(files["json"])
        for kind, content in drawn.items():
            files[kind] = folder / FILE_NAMES.get(kind, f"{kind}.ome.tif")
            if isinstance(content, bytes):
                write_bytes(files[kind], content)
            elif isinstance(content, HeatMap):
                write_heatmap(
                    files[kind], content, slide_id=self.slide_id, model=self.hashes["model"]
                )
            else:
                write_geojson(files[kind], content)
        # Last: a folder that has it is complete.
        files["certificate"] = write_json(folder / "certificate.json", self.certificate)
        return files

    def _draw(
        self,
        place: SlidePlace,
        thumbnail: Thumbnail | None,
        all_patches: bool,
        heatmaps: Sequence[str],
    ) -> dict[str, bytes | HeatMap | Features]:
        """The content of every file that needs coordinates, by its kind."""
        coords, patch_size = self._require_places()
        overlay = self.draw_overlay(
            self.judgement.short_text,
            is_evidence=self.judgement.is_evidence,
            thumbnail=thumbnail,
        )
        drawn: dict[str, bytes | HeatMap | Features] = {
            "geojson": self.list_tiles(
                bounds=place.bounds, unselected_class=UNSELECTED if all_patches else None
            ),
            "overlay": encode_image(overlay, "PNG", optimize=True),
        }
        values = self.measurements
        if self.regions is not None:
            drawn["regions"] = describe_regions(
                self.slide_id,
                self.regions,
                coords,
                patch_size=patch_size,
                measurements={name: column for name, column in values.items() if name != "region"},
                model=self.hashes["model"],
                region_class=self.patch_class,
                bounds=place.bounds,
            )
        if self.further:
            drawn["further"] = self._list_further(place.bounds)
        if CLASS_MAPS in heatmaps and (by_class := self.measure_classes()):
            maps = {
                "class_" + re.sub(r"[^\w.-]+", "_", one): column for one, column in by_class.items()
            }
            values |= maps
            heatmaps = [name for one in heatmaps for name in (maps if one == CLASS_MAPS else [one])]
        for name in heatmaps:
            if name not in values:
                known = ", ".join(one for one in HEATMAPS if one in values)
                raise UsageError(
                    f"Slide '{self.slide_id}' has no measurement '{name}' to map, only: {known}."
                )
            drawn[f"heatmap_{name}"] = draw_heatmap(
                name, coords, values[name], patch_size=patch_size, place=place
            )
        return drawn

    def _list_further(self, bounds: Bounds) -> Features:
        """The patches of the sets beside the evidence as QuPath tiles, a class for every set."""
        for (one, rows), color in zip(self.further, FURTHER_COLORS, strict=False):
            selected = np.zeros(len(self.selected), dtype=bool)
            selected[rows] = True
            own_class = PatchClass(one.name[0].upper() + one.name[1:], color)
            yield from self.list_tiles(
                bounds=bounds, selected_class=own_class, selected=selected, name=one.name
            )


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of one bag, and what keeping and removing it does to the prediction.

    Example:
        >>> import gcemil, torch
        >>> model = gcemil.wrap(lambda bag: bag.mean(dim=0)[:2], 2, patches=torch.randn(40, 8))
        >>> evidence = gcemil.explain(model, torch.randn(30, 8))
        >>> bool(evidence.selected[evidence.indices].all()), len(evidence.to_frame())
        (True, 30)
    """

    bag: Bag
    """The bag."""
    slides: tuple[SlideEvidence, ...]
    """One record per slide of the bag."""
    prediction: dict[str, float]
    """From all patches: probability by class, the log-risk, or the value."""
    kept: dict[str, float]
    """From the evidence alone."""
    removed: dict[str, float] | None
    """Without the evidence; None if it is the whole bag."""
    further: tuple[FurtherSet, ...] = ()
    """Further disjoint sets that keep the prediction, and one whose removal changes its class."""

    @cached_property
    def selected(self) -> Bool[np.ndarray, "n"]:
        """Which patches of the bag are evidence."""
        return np.concatenate([one.selected for one in self.slides])

    @property
    def indices(self) -> Int[np.ndarray, "k"]:
        """Rows of the evidence in the bag, sorted."""
        return np.flatnonzero(self.selected)

    @cached_property
    def scores(self) -> Float[np.ndarray, "n"]:
        """The evidence score of every patch."""
        return np.concatenate([one.evidence_scores for one in self.slides])

    @property
    def verdict(self) -> str:
        """The result of keeping and removing the evidence, not whether the model is right."""
        return self.slides[0].verdict

    def to_frame(self) -> pd.DataFrame:
        """Make a table of all patches.

        Returns:
            One row per patch: slide_id, x and y in level-0 pixels, selected, gate, scores, gain,
            and responses to the anchors.
        """
        frames = []
        for one in self.slides:
            places = np.full((len(one.selected), 2), np.nan) if one.coords is None else one.coords
            columns = {"x": places[:, 0], "y": places[:, 1], "selected": one.selected}
            frames.append(
                pd.DataFrame({"slide_id": one.slide_id, **columns, **name_measurements(one)})
            )
        return pd.concat(frames, ignore_index=True)

    def to_geojson(self, path: Path | str, slide_id: str | None = None) -> Path:
        """Write the selected patches of one slide as objects that QuPath imports.

        Args:
            path: The file.
            slide_id: A slide of the bag; None for a bag of one slide.

        Returns:
            The file.

        Raises:
            BagError: The slide has no coordinates.
            UsageError: The bag has several slides, or none of this name.

        Example:
            >>> import gcemil, pathlib, tempfile, torch
            >>> model = gcemil.wrap(lambda bag: bag.mean(dim=0)[:2], 2, patches=torch.randn(40, 8))
            >>> coords = 256 * torch.cartesian_prod(torch.arange(5), torch.arange(6))
            >>> evidence = gcemil.explain(model, (torch.randn(30, 8), coords))
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "evidence.geojson"
            >>> evidence.to_geojson(path).name
            'evidence.geojson'
        """
        return write_geojson(Path(path), self._export(slide_id).list_tiles(bounds=(0, 0)))

    def plot(self, slide_id: str | None = None, thumbnail: Thumbnail | None = None) -> Image.Image:
        """Draw attention and evidence of one slide side by side.

        Args:
            slide_id: A slide of the bag; None for a bag of one slide.
            thumbnail: A picture of the slide to draw on; None draws on white.

        Returns:
            The image, which a notebook shows.

        Raises:
            BagError: The slide has no coordinates.
            UsageError: The bag has several slides, or none of this name.

        Example:
            >>> import gcemil, torch
            >>> model = gcemil.wrap(lambda bag: bag.mean(dim=0)[:2], 2, patches=torch.randn(40, 8))
            >>> coords = 256 * torch.cartesian_prod(torch.arange(5), torch.arange(6))
            >>> gcemil.explain(model, (torch.randn(30, 8), coords)).plot().mode
            'RGB'
        """
        first = self.slides[0]
        holds = first.is_sufficient and first.is_necessary and not first.is_no_evidence
        return self._export(slide_id).draw_overlay(
            shorten_verdict(self.verdict, bool(holds)),
            is_evidence=not first.is_no_evidence,
            thumbnail=thumbnail,
        )

    def _export(self, slide_id: str | None) -> SlideExport:
        """One slide with coordinates as its files show it."""
        matches = [one for one in self.slides if slide_id in (None, one.slide_id)]
        if len(matches) != 1:
            names = ", ".join(one.slide_id for one in self.slides)
            raise UsageError(f"Name one slide of the bag: {names}.")
        (one,) = matches
        if one.coords is None:
            raise BagError(
                f"Slide '{one.slide_id}' has no coordinates. Explain (features, coords), or a Bag "
                "with coords."
            )
        return SlideExport(
            slide_id=one.slide_id,
            selected=one.selected,
            coords=one.coords,
            patch_size=round(self.bag.patch_size or grid_stride(one.coords) or 1),
            rule="recovered evidence",
            stop_reason=one.stop_reason,
            scores=one.scores,
            evidence=one,
            hashes={"model": "gcemil"},
        )
