"""What every section works with: the run, the run it is compared with, and the folder its figures go into."""

from __future__ import annotations

import io
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from gcemil.files import write_bytes
from gcemil.report.html import EMPTY, Section, command, element, join_markup, paragraph, picture
from gcemil.report.run_data import RunData
from gcemil.report.style import encode_png, encode_svg, fix_layout, readable_name

QUESTIONS = {
    "snr": "Is the evidence sufficient, necessary and recoverable?",
    "budget": "Which rule finds the best patches, all having the same number?",
    "posthoc": "Do explanations made after training do as well?",
    "subsets": "How many disjoint subsets would be evidence enough?",
    "regions": "Which connected regions are enough, which are needed?",
    "stability": "Does the evidence stay when bag or seed change a little?",
    "localisation": "Does it lie on the annotated lesions?",
    "failures": "Which slides fail, and how?",
    "cost": "What does the evidence cost, and what does it save?",
    "guarantee": "Which evidence size keeps the prediction, with which promise?",
    "adaptive": "How few patches does a slide need, and which rule picks them best?",
    "bounds": "How near is repair to the best coverage, and what is promised of it?",
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
    missing: dict[str, str] = field(default_factory=dict)
    """What the page cannot show and the command that would add it; listed once, at its end."""
    unmeasured: list[str] = field(default_factory=list)
    """Diagnostics that were not made."""

    @property
    def unit(self) -> str:
        """What a bag is."""
        return self.run.bag_unit

    def count_units(self, count: int) -> str:
        """So many slides or cases, in words."""
        return f"{count} {self.unit}{'' if count == 1 else 's'}"

    def name_network(self, key: str) -> str:
        """Whose prediction; a run without the wrapper has its host alone."""
        is_plain = key == "wrapped" and (not self.run.is_wrapped or self.run.is_same_network)
        return "host" if is_plain else readable_name(key)

    def diagnose_command(self, name: str) -> str:
        """The command that makes a diagnostic."""
        against = self.against.folder if self.against is not None else None
        if "significance" in name.split(",") and against is None:
            return f"gcemil diagnose {quote_path(self.run.folder)} --against HOST_RUN --only {name}"
        rival = "" if against is None else f" --against {quote_path(against)}"
        return f"gcemil diagnose {quote_path(self.run.folder)}{rival} --only {name}"

    def list_unmeasured(self, name: str) -> Markup:
        """Note a diagnostic that was not made for the list at the end; nothing in its place."""
        if name not in self.unmeasured:
            self.unmeasured.append(name)
        return EMPTY

    def list_missing(self, what: str, remedy: str) -> Markup:
        """Note what cannot be shown for the list at the end; nothing in its place."""
        self.missing[what] = remedy
        return EMPTY

    def render_missing(self) -> Section | None:
        """Everything that the page does not show, in one place; None where it shows all."""
        lines = [element("li", QUESTIONS[name]) for name in self.unmeasured]
        parts = [element("ul", *lines)] if lines else []
        if lines:
            names = ",".join(self.unmeasured)
            parts.append(paragraph("Measure all of these with ", command(self.diagnose_command(names))))
        others = [
            element("li", join_markup([what, " Add it with ", command(remedy)]))
            for what, remedy in self.missing.items()
        ]
        if others:
            parts.append(element("ul", *others))
        return Section("missing", "Not measured", join_markup(parts)) if parts else None


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
