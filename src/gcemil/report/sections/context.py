"""What every section works with: the run, the run it is compared with, and the folder its figures go into."""

from __future__ import annotations

import io
import shlex
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from gcemil.files import write_bytes
from gcemil.report.html import command, element, join_markup, picture
from gcemil.report.run_data import RunData
from gcemil.report.style import encode_png, encode_svg, fix_layout, readable_name

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
class FigureFolder:
    """Where figures are kept as files."""

    folder: Path

    def save(self, name: str, figure: Figure, *, alt: str, caption: str) -> Markup:
        """Write the figure as PNG and SVG, and return it as a part of the page."""
        ready = fix_layout(figure)
        vector, pixels = encode_svg(ready), encode_png(ready)
        write_bytes(self.folder / f"{name}.svg", vector)
        write_bytes(self.folder / f"{name}.png", pixels)
        shown = (
            picture(vector, alt, mime="image/svg+xml")
            if len(vector) <= LARGEST_SVG
            else picture(_encode_small_jpeg(pixels), alt, mime="image/jpeg")
        )
        return element("figure", shown, element("figcaption", caption))


@dataclass(frozen=True, eq=False)
class Context:
    """One run to report, beside the plain host where there is one."""

    run: RunData
    against: RunData | None
    figures: FigureFolder
    seed: int = 0

    @property
    def unit(self) -> str:
        """What a bag is."""
        return self.run.bag_unit

    def count_units(self, count: int) -> str:
        """So many slides or cases, in words."""
        return f"{count} {self.unit}{'' if count == 1 else 's'}"

    def name_network(self, key: str) -> str:
        """Whose prediction; a run without the wrapper has its host alone."""
        return "host" if key == "wrapped" and not self.run.is_wrapped else readable_name(key)

    def diagnose_command(self, name: str) -> str:
        """The command that makes a diagnostic."""
        against = self.against.folder if self.against is not None else None
        if name == "significance" and against is None:
            return f"gcemil diagnose {quote_path(self.run.folder)} --against HOST_RUN --only {name}"
        rival = "" if against is None else f" --against {quote_path(against)}"
        return f"gcemil diagnose {quote_path(self.run.folder)}{rival} --only {name}"

    def render_missing(self, name: str) -> Markup:
        """What is not known, and the command that would tell."""
        return render_missing(f"Not measured: {QUESTIONS[name]}", self.diagnose_command(name))


def _encode_small_jpeg(png: bytes) -> bytes:
    """A figure for the screen."""
    with Image.open(io.BytesIO(png)) as image:
        shown = image.convert("RGB")
    buffer = io.BytesIO()
    shown.save(buffer, format="JPEG", quality=82, optimize=True)
    return buffer.getvalue()


def render_missing(what: str, remedy: str) -> Markup:
    """A place on the page that says what would be there and how to get it."""
    return element("div", join_markup([what, " Add it with ", command(remedy)]), class_="missing")


def quote_path(path: Path) -> str:
    """A path as a shell wants it."""
    return shlex.quote(str(path))
