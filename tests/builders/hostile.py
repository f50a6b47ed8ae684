"""Names that would be markup, scripts, paths or mathematics if anything took them for more than names."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

from gcemil.bags import store
from gcemil.bags.cohort import Cohort
from gcemil.bags.folds import make_folds, write_folds
from gcemil.config import EvidenceSettings, HostSettings, TrainSettings
from gcemil.simulation.simulate import simulate
from gcemil.training.run import train_run

PWNED = "document.title='pwned'"
SCRIPT = f"</script><script>{PWNED}</script>"
IMAGE = f'"><img src=x onerror="{PWNED}">'
SLIDE_NAMES = (
    # A slide id is a file name, so none of these has a slash.
    f"<script>{PWNED}<script>",
    f'"><img src=x onerror="{PWNED}">',
    "javascript:alert(1)",
    "%2e%2e%2f&amp;&lt;b&gt;",
    "' onmouseover='x",
    "$x_{$ 100% {0} #?",
)
CLASSES = (SCRIPT, IMAGE)
COHORT_NAME = f'<svg onload="{PWNED}">$\\frac$'
PROMPTS = (
    SCRIPT,
    IMAGE,
    f"</title><body onload={PWNED}>",
    f'<iframe src="javascript:parent.{PWNED}">',
    "javascript:alert(1)",
    "$\\frac{$ %s {{7*7}}",
    "&lt;script&gt; --> ]]> <!--",
    f"<a href='javascript:{PWNED}'>x</a>",
)
ALLOWED_TAGS = frozenset({
    "a", "b", "body", "br", "caption", "code", "dd", "details", "div", "dl", "dt", "em", "figcaption", "figure", "h1", "h2",
    "h3", "h4", "head", "hr", "html", "i", "img", "input", "label", "li", "main", "meta", "nav", "ol", "p", "pre", "section",
    "small", "span", "strong", "style", "summary", "table", "tbody", "td", "th", "thead", "title", "tr", "ul",
})  # fmt: skip
"""What a report is made of."""


def make_hostile_run(folder: Path) -> Path:
    """A wrapped run of one fold and two epochs, whose slides, cases, classes, prompts and cohort bear such names."""
    simulate("nsclc", folder / "cohort", size="tiny", slides=24, seed=0)
    rename(folder / "cohort")
    cohort = Cohort.load(folder / "cohort")
    write_folds(cohort, make_folds(cohort, seed=0))
    settings = TrainSettings(
        host=HostSettings(name="abmil"), evidence=EvidenceSettings(), epochs=2, seed=0
    )
    # The folder of a run has a name too.
    run = folder / f"<img src=x onerror={PWNED}>"
    train_run(folder / "cohort", run, settings, folds=[0], jobs=1)
    return run


def rename(cohort: Path) -> None:
    """Other names for everything in a simulated cohort."""
    card = yaml.safe_load((cohort / "cohort.yaml").read_text())
    labels = dict(zip(card["classes"], CLASSES, strict=True))
    card |= {"name": COHORT_NAME, "classes": list(CLASSES)}
    (cohort / "cohort.yaml").write_text(yaml.safe_dump(card, sort_keys=False, allow_unicode=True))
    with (cohort / "slides.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        name = f"{SLIDE_NAMES[number % len(SLIDE_NAMES)]} {number}"
        for kind in ("features", "truth"):
            (cohort / kind / f"{row['slide_id']}.h5").rename(cohort / kind / f"{name}.h5")
        row |= {"slide_id": name, "case_id": f"case {name}", "label": labels[row["label"]]}
    with (cohort / "slides.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    embeddings, _ = store.read_anchors(cohort / "anchors.h5")
    store.write_anchors(cohort / "anchors.h5", embeddings, list(PROMPTS))


@dataclass
class Document(HTMLParser):
    """What a browser would make of a page: elements, attributes and text."""

    tags: Counter[str] = field(default_factory=Counter)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.tags["<!-- -->"] += 1

    @classmethod
    def of(cls, html: str) -> Document:
        document = cls()
        document.feed(html)
        document.close()
        return document

    @property
    def attribute_names(self) -> Counter[tuple[str, str]]:
        return Counter((tag, name) for tag, name, _ in self.attributes)

    def dangers(self) -> list[str]:
        """Everything that names must never become."""
        found = [f"<{tag}>" for tag in self.tags if tag not in ALLOWED_TAGS]
        for tag, name, value in self.attributes:
            is_link = name in ("href", "action", "formaction", "xlink:href", "srcdoc")
            if (
                name.startswith("on")
                or (is_link and not value.startswith("#"))
                or (name == "src" and not value.startswith("data:image/"))
                or (
                    name == "style"
                    and any(
                        mark in value.lower() for mark in ("url(", "expression", "javascript", "<")
                    )
                )
            ):
                found.append(f"<{tag} {name}={value!r}>")
        return found
