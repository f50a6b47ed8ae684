"""The patches of an open slide, encoded when they are first asked for, and a watch that says what took how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from gcemil.bags.bag import Bag, slide_bag
from gcemil.features.encoders import PatchEncoder
from gcemil.features.extract import EncodeSettings, encode_patches
from gcemil.slides.grid import PatchGrid
from gcemil.slides.reader import SlideReader
from gcemil.units import LevelZeroPx

Clock = Callable[[], float]


@dataclass(eq=False)
class PatchSource:
    """The patches of an open slide; their features are made when they are first asked for."""

    slide: SlideReader
    grid: PatchGrid
    encoder: PatchEncoder
    settings: EncodeSettings
    _features: Float[np.ndarray, "n d"] = field(init=False)
    _known: Bool[np.ndarray, "n"] = field(init=False)

    def __post_init__(self) -> None:
        self._features = np.zeros((len(self.grid), self.encoder.spec.dim), self.settings.dtype)
        self._known = np.zeros(len(self.grid), dtype=bool)

    @property
    def n_encoded(self) -> int:
        return int(self._known.sum())

    def encode(self, rows: Int[np.ndarray, "k"]) -> None:
        """Make the features of these patches that are not there yet."""
        missing = rows[~self._known[rows]]
        if len(missing):
            self._features[missing] = encode_patches(
                self.slide, self.grid, self.encoder, self.settings, rows=missing
            )
            self._known[missing] = True

    def bag(self, slide_id: str) -> Bag:
        """All patches; those never encoded have features of 0 and must be left out by whoever uses it."""
        return slide_bag(
            slide_id, self._features, self.grid.coords, LevelZeroPx(int(self.grid.patch_size_level0))
        )


@dataclass(eq=False)
class Stopwatch:
    """Seconds by part of the work."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = self.clock()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - before
