"""What every section works with: the run, the run it is compared with, and the album its figures go into."""

from __future__ import annotations

import io
import shlex
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from gcemil.files import write_bytes
from gcemil.report.html import Markup, command, element, joined, picture
from gcemil.report.run_data import RunData
from gcemil.report.style import png_bytes, readable_name, settled, svg_bytes

QUESTIONS = {
    "snr": "Is the evidence sufficient, necessary and recoverable?",
    "budget": "Which rule finds the best patches, all having the same number?",
    "posthoc": "Do explanations made after training do as well?",
    "subsets": "How many disjoint subsets would be evidence enough?",
    "stability": "Does the evidence stay when bag or seed change a little?",
    "localisation": "Does it lie on the annotated lesions?",
    "failures": "Which slides fail, and how?",
    "cost": "What does the evidence cost, and what does it save?",
    "guarantee": "Which evidence size keeps the prediction, with which promise?",
    "adaptive": "How few patches does a slide need, and which rule picks them best?",
    "sweep": "How do threshold and coverage target move the result?",
    "significance": "Is the run better than the plain host, and how surely?",
}
"""Every diagnostic and what it answers, in the words of `gcemil diagnose`."""
LARGEST_SVG = 400_000
"""Bytes above which a page shows a JPEG instead: tissue is large as PNG. The files are complete either way."""


@dataclass(frozen=True, eq=False)
class Album:
    """Where figures are kept as files."""

    folder: Path

    def figure(self, name: str, figure: Figure, *, alt: str, caption: str) -> Markup:
        """The figure on the page, and beside the run as PNG and SVG."""
        ready = settled(figure)
        vector, pixels = svg_bytes(ready), png_bytes(ready)
        write_bytes(self.folder / f"{name}.svg", vector)
        write_bytes(self.folder / f"{name}.png", pixels)
        shown = (
            picture(vector, alt, mime="image/svg+xml")
            if len(vector) <= LARGEST_SVG
            else picture(small_jpeg(pixels), alt, mime="image/jpeg")
        )
        return element("figure", shown, element("figcaption", caption))


@dataclass(frozen=True, eq=False)
class Context:
    """One run to report, beside the plain host where there is one."""

    run: RunData
    against: RunData | None
    album: Album
    seed: int = 0

    @property
    def unit(self) -> str:
        """What a bag is."""
        return self.run.bag_unit

    def units(self, count: int) -> str:
        return f"{count} {self.unit}{'' if count == 1 else 's'}"

    def network(self, key: str) -> str:
        """Whose prediction; a run without the wrapper has its host alone."""
        return "host" if key == "wrapped" and not self.run.is_wrapped else readable_name(key)

    def diagnose(self, name: str) -> str:
        """The command that makes a diagnostic."""
        against = self.against.folder if self.against is not None else None
        if name == "significance" and against is None:
            return f"gcemil diagnose {quoted(self.run.folder)} --against HOST_RUN --only {name}"
        rival = "" if against is None else f" --against {quoted(against)}"
        return f"gcemil diagnose {quoted(self.run.folder)}{rival} --only {name}"

    def missing(self, name: str) -> Markup:
        """What is not known, and the command that would tell."""
        return absent(f"Not measured: {QUESTIONS[name]}", self.diagnose(name))


def small_jpeg(png: bytes) -> bytes:
    """A figure for the screen."""
    with Image.open(io.BytesIO(png)) as image:
        shown = image.convert("RGB")
    buffer = io.BytesIO()
    shown.save(buffer, format="JPEG", quality=82, optimize=True)
    return buffer.getvalue()


def absent(what: str, remedy: str) -> Markup:
    """A place on the page that says what would be there and how to get it."""
    return element("div", joined([what, " Add it with ", command(remedy)]), class_="missing")


def quoted(path: Path) -> str:
    return shlex.quote(str(path))
