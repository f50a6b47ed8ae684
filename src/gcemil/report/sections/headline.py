"""Does the evidence hold? Counted slide by slide, with the controls beside it.

  a slide holds     its evidence is sufficient, necessary and recoverable (Definitions 1 to 3 of the paper)
  interval          95 % of Wilson for a share of n slides: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)

Attention, random and oracle subsets of the same size have no gates, so beside them stands what both have: sufficient and
necessary together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gcemil.report.html import EMPTY, bar, element, join_markup, paragraph
from gcemil.report.run_data import Record
from gcemil.report.sections.context import Context
from gcemil.report.style import readable_name

Z95 = 1.959963984540054
FEW = 30
CONTROLS = ("attention", "random", "oracle")
WORDS = {
    "sufficient": (
        "Sufficient",
        "Kept alone, it gives the same prediction: the output moves by at most {limit:g}.",
    ),
    "necessary": ("Necessary", "Taken away, the prediction moves: the output changes by at least {limit:g}."),
    "recoverable": (
        "Recoverable",
        "Gates and recovered patches say the same: their outputs differ by at most {limit:g}.",
    ),
}
LIMITS = {"sufficient": "sufficiency", "necessary": "necessity", "recoverable": "recoverability"}


@dataclass(frozen=True)
class Count:
    """So many of so many."""

    held: int
    of: int

    @property
    def share(self) -> float:
        """NaN without observations."""
        return self.held / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share."""
        return wilson_interval(self.held, self.of)

    @property
    def words(self) -> str:
        """The count as a reader sees it."""
        return f"{self.held} of {self.of}"


def wilson_interval(held: int, of: int) -> tuple[float, float]:
    """95 % interval of a share; everything is possible without observations."""
    if of == 0:
        return 0.0, 1.0
    share, square = held / of, Z95**2
    centre = share + square / (2 * of)
    half = Z95 * math.sqrt(share * (1 - share) / of + square / (4 * of**2))
    return max(0.0, (centre - half) / (1 + square / of)), min(1.0, (centre + half) / (1 + square / of))


def count_slides(records: Sequence[Record], *criteria: str) -> Count:
    """Slides in which all these criteria hold, of those where all can be asked."""
    asked = [record for record in records if all(record.get(name) is not None for name in criteria)]
    return Count(sum(all(record[name] for name in criteria) for record in asked), len(asked))


def render_lead(context: Context) -> Markup:
    """Title, facts and the answer."""
    run = context.run
    card = run.card
    cohort = run.cohort.name if card is None else card.name
    folds = f"{len(run.folds)} fold{'s' if len(run.folds) > 1 else ''}"
    arm = f"{run.host} + GCE" if run.is_wrapped else f"{run.host}, no wrapper"
    facts = " · ".join(
        [
            cohort,
            arm,
            folds,
            f"{context.count_units(len(run.bags))} tested",
            f"seed {run.settings.get('seed')}",
        ]
    )
    return join_markup(
        [
            paragraph("Evidence report", kind="eyebrow"),
            element("h1", run.folder.name or str(run.folder)),
            paragraph(facts, kind="facts"),
            element("h2", "Does the evidence hold?"),
            _render_answer(context),
            *[paragraph(text, kind="caution") for text in list_cautions(context)],
        ]
    )


def _render_answer(context: Context) -> Markup:
    """The count, the three criteria, and the controls."""
    run = context.run
    by_rule = group_judged_slides(context)
    own = by_rule.get(run.rule, [])
    if not own:
        return join_markup([paragraph("Not measured yet.", kind="answer"), context.render_missing("snr")])
    finding = run.finding("snr")
    settings = {} if finding is None else finding.settings
    cards = [
        _render_criterion(name, by_rule, run.rule, settings.get(f"{LIMITS[name]}_tolerance", math.nan))
        for name in WORDS
        if count_slides(own, name).of
    ]
    return join_markup(
        [
            _render_sentence(context, by_rule),
            element("div", *cards, class_="criteria"),
            _render_comparison(context, by_rule),
        ]
    )


def group_judged_slides(context: Context) -> dict[str, list[Record]]:
    """The slides of the S/N/R diagnostic by rule, under the run's own network."""
    found: dict[str, list[Record]] = {}
    for record in context.run.slides("snr"):
        if record["network"] == "wrapped":
            found.setdefault(record["rule"], []).append(record)
    return found


def _render_sentence(context: Context, by_rule: dict[str, list[Record]]) -> Markup:
    """The answer in one sentence."""
    own = by_rule[context.run.rule]
    fraction = sum(record["evidence_fraction"] for record in own) / len(own)
    size = f" It is {100 * fraction:.1f} % of the patches."
    if not context.run.is_wrapped:
        both = count_slides(own, "sufficient", "necessary")
        text = (
            f" test {context.unit}s. The run has no wrapper, so the most attended patches stand for evidence."
        )
        return paragraph(
            "Attention is sufficient and necessary in ", element("b", both.words), text, size, kind="answer"
        )
    held = count_slides(own, "sufficient", "necessary", "recoverable")
    low, high = held.interval
    interval = f" ({100 * held.share:.0f} %, 95 % interval {100 * low:.0f} to {100 * high:.0f} %)."
    return paragraph(
        "The evidence is sufficient, necessary and recoverable in ", element("b", held.words),
        f" test {context.unit}s", interval, size, kind="answer",
    )  # fmt: skip


def _render_criterion(name: str, by_rule: dict[str, list[Record]], rule: str, limit: float) -> Markup:
    """One criterion: the share, its interval, what it means, and the controls."""
    own = count_slides(by_rule[rule], name)
    low, high = own.interval
    title, meaning = WORDS[name]
    rivals = []
    for other in CONTROLS:
        count = count_slides(by_rule.get(other, []), name)
        if count.of and other != rule:
            share = f"{100 * count.share:.0f} %"
            rivals += [
                element("span", readable_name(other)),
                bar(count.share, kind=other, words=share),
                element("span", share),
            ]
    return element(
        "div",
        element("h3", title),
        element(
            "div",
            f"{100 * own.share:.0f} %",
            element("small", f"{own.words}; {100 * low:.0f} to {100 * high:.0f} %"),
            class_="big",
        ),
        bar(own.share, kind=rule, words=f"{own.words}"),
        paragraph(meaning.format(limit=limit)),
        element("div", *rivals, class_="rivals") if rivals else EMPTY,
        class_="criterion",
    )


def _render_comparison(context: Context, by_rule: dict[str, list[Record]]) -> Markup:
    """What subsets of the same size do by the two criteria that everybody can be asked."""
    own = count_slides(by_rule[context.run.rule], "sufficient", "necessary")
    others = [
        f"{readable_name(rule)} {count.words}"
        for rule in CONTROLS
        if rule != context.run.rule
        and (count := count_slides(by_rule.get(rule, []), "sufficient", "necessary")).of
    ]
    text = f"Sufficient and necessary together, same number of patches: {readable_name(context.run.rule)} {own.words}"
    return paragraph("; ".join([text, *others]) + ".", kind="note")


def list_cautions(context: Context) -> list[str]:
    """What a reader must know before believing a number."""
    run, found = context.run, []
    card_ = run.card
    if card_ is not None and "simulator" in card_.provenance:
        found.append(
            "The cohort is simulated: its slides are not tissue, and its numbers say how the method behaves, not how a clinic would fare."
        )
    anchors = {str(fold.metrics["details"].get("anchors")) for fold in run.folds}
    if any(name.startswith("prototypes") for name in anchors):
        found.append(
            "The anchors are prototypes: centres of training patches, numbered and not named. They are clusters, not concepts, and "
            "evidence without concepts is less precise and less stable between trainings (docs/results.md)."
        )
    if len(run.bags) < FEW:
        found.append(
            f"Only {context.count_units(len(run.bags))} were tested; the intervals are wide, and they mean it."
        )
    if run.card is None:
        found.append(
            f"The cohort no longer lies where it was trained from ({run.cohort.name}): no truth outlines, thumbnails or patch sizes."
        )
    for fold in run.folds:
        if fold.outdated:
            found.append(
                f"Fold {fold.number} was trained again after {', '.join(fold.outdated)} had been measured: those figures are of "
                f"another network. Measure again with '{context.diagnose_command(fold.outdated[0])}'."
            )
    found += sorted({str(text) for fold in run.folds for text in fold.metrics["details"].get("caveats", [])})
    found += sorted(
        {
            f"Training warned: {text}"
            for fold in run.folds
            for text in fold.metrics["details"].get("warnings", [])
        }
    )
    return found
