"""The evidence of one bag as a value with its table, its picture and its file for QuPath."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from gcemil.bags.bag import Bag, grid_stride
from gcemil.errors import BagError, UsageError
from gcemil.exports.certificate import shorten_verdict
from gcemil.exports.geojson import name_measurements, write_geojson
from gcemil.exports.overlay import Thumbnail
from gcemil.exports.slide_export import SlideExport
from gcemil.records import FurtherSet, SlideEvidence

if TYPE_CHECKING:
    from PIL import Image


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
    slides: tuple[SlideEvidence, ...]
    """One record per slide of the bag."""
    prediction: dict[str, float]
    """From all patches: probability by class, the log-risk, or the value."""
    kept: dict[str, float]
    """From the evidence alone."""
    removed: dict[str, float] | None
    """Without the evidence; None if it is the whole bag."""
    further: tuple[FurtherSet, ...] = ()
    """Disjoint sets that carry the prediction as well, and the set whose removal turns it into another class."""

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
        """What keeping and removing the evidence showed, in words; whether the model is right is another question."""
        return self.slides[0].verdict

    def to_frame(self) -> pd.DataFrame:
        """One row per patch: slide, x, y, selected, gate, scores, marginal gain and the response to every anchor."""
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
        """
        export, first = self._export(slide_id), self.slides[0]
        verdict = shorten_verdict(
            self.verdict,
            bool(first.is_sufficient and first.is_necessary and not first.is_no_evidence),
        )
        return export.draw_overlay(
            verdict, is_evidence=not first.is_no_evidence, thumbnail=thumbnail
        )

    def _export(self, slide_id: str | None) -> SlideExport:
        """One slide with coordinates as its files show it."""
        found = [one for one in self.slides if slide_id in (None, one.slide_id)]
        if len(found) != 1:
            raise UsageError(
                f"Name one slide of the bag: {', '.join(one.slide_id for one in self.slides)}."
            )
        (one,) = found
        if one.coords is None:
            raise BagError(
                f"Slide '{one.slide_id}' has no coordinates. Explain (features, coords), or a Bag with coords."
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
