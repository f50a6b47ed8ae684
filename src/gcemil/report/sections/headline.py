"""Does the evidence hold? Counted slide by slide, beside the best rival, attention and the controls.

Which rules are compared, how slides are counted and what sentence follows: report/claim.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from gcemil.exports.certificate import CRITERIA, VerdictName
from gcemil.report.claim import ORACLE_MEANING, Claim, RuleSlides, describe_networks, group_rules, make_claim
from gcemil.report.html import EMPTY, bar, command, element, join_markup, paragraph, render_rows
from gcemil.report.sections.context import Context

FEW = 30
SHOWN_BESIDE = ("attention", "random", "oracle")
"""Rules that stand in every card, with the best rival."""
WORDS: dict[VerdictName, tuple[str, str]] = {
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
COLUMNS = ("Patches chosen by", "Sufficient", "Necessary", "Both", "Recoverable", "C-D gap", "Size")


def render_lead(context: Context) -> Markup:
    """Title, facts and the answer."""
    run = context.run
    card = run.card
    cohort = run.cohort.name if card is None else card.name
    folds = f"{len(run.folds)} fold{'s' if len(run.folds) > 1 else ''}"
    arm = f"{run.host} + GCE" if run.is_wrapped else f"{run.host}, no wrapper"
    tested = f"{context.count_units(len(run.bags))} tested"
    facts = " · ".join([cohort, arm, folds, tested, f"seed {run.settings.seed}"])
    return join_markup(
        [
            paragraph("Evidence report", kind="eyebrow"),
            element("h1", run.folder.name or str(run.folder)),
            paragraph(facts, kind="facts"),
            *([] if run.model_warning is None else [paragraph(run.model_warning, kind="answer warning")]),
            *([] if (vote := run.vote) is None else [paragraph(vote)]),
            element("h2", "Does the evidence hold?"),
            _render_answer(context),
            *[paragraph(text, kind="caution") for text in list_cautions(context)],
        ]
    )


def _render_answer(context: Context) -> Markup:
    """The sentence that follows from the counts, the three criteria, and every rule in a table."""
    run, finding = context.run, context.run.finding("snr")
    claim = make_claim(run.slides("snr"), rule=run.rule, is_same_network=run.is_same_network)
    if claim is None:
        context.list_unmeasured("snr")
        return paragraph("Not measured yet. Measure it with ", command(context.diagnose_command("snr")))
    settings = {} if finding is None else finding.settings
    rules = list_rules(context)
    best = claim.rival and (claim.rival.rule, claim.rival.network)
    beside = [
        one
        for one in rules
        if one is not claim.own and (one.rule in SHOWN_BESIDE or (one.rule, one.network) == best)
    ]
    cards = [
        _render_criterion(name, claim.own, beside, float(settings.get(CRITERIA[name].tolerance, math.nan)))
        for name in WORDS
        if claim.own.count(name).of
    ]
    return join_markup(
        [
            *_render_sentences(context, claim),
            element("div", *cards, class_="criteria"),
            _render_rules(rules),
            *[paragraph(text, kind="note") for text in _list_notes(context, claim, rules)],
        ]
    )


def list_rules(context: Context) -> list[RuleSlides]:
    """Every rule that was judged, by network."""
    return group_rules(context.run.slides("snr"), is_same_network=context.run.is_same_network)


def _render_sentences(context: Context, claim: Claim) -> list[Markup]:
    """The count in bold; the rival in the same size, since it is half of the answer."""
    first, *rest = claim.sentences(context.unit)
    before, words, after = first.partition(claim.own.both.words)
    lead = paragraph(before[:1].upper() + before[1:], element("b", words), after, kind="answer")
    if not context.run.is_wrapped:
        rest.insert(0, "The run has no wrapper, so the most attended patches stand for evidence.")
    return [lead, *[paragraph(text, kind="rival") for text in rest]]


def _render_criterion(
    name: VerdictName, own: RuleSlides, beside: Sequence[RuleSlides], limit: float
) -> Markup:
    """One criterion: the share, its interval, what it means, and the rules beside it."""
    count = own.count(name)
    low, high = count.interval
    title, meaning = WORDS[name]
    rivals = []
    for other in beside:
        if (theirs := other.count(name)).of:
            share = f"{100 * theirs.share:.0f} %"
            rivals += [
                element("span", other.words),
                bar(theirs.share, kind=other.rule, words=share),
                element("span", share),
            ]
    return element(
        "div",
        element("h3", title),
        element(
            "div",
            f"{100 * count.share:.0f} %",
            element("small", f"{count.words}; {100 * low:.0f} to {100 * high:.0f} %"),
            class_="big",
        ),
        bar(count.share, kind=own.rule, words=f"{count.words}"),
        paragraph(meaning.format(limit=limit)),
        element("div", *rivals, class_="rivals") if rivals else EMPTY,
        class_="criterion",
    )


def _render_rules(rules: Sequence[RuleSlides]) -> Markup:
    """Every rule by the same criteria."""
    rows = [
        (
            one.words,
            one.count("sufficient").words,
            one.count("necessary").words,
            one.both.words,
            one.count("recoverable").words if one.count("recoverable").of else "",
            "" if (gap := one.mean("cd_gap")) is None else f"{gap:.3f}",
            f"{100 * (one.mean('evidence_fraction') or 0):.1f} %",
        )
        for one in rules
    ]
    return render_rows(
        COLUMNS, rows, numeric=COLUMNS[1:], caption="The same number of patches, chosen by every rule"
    )


def _list_notes(context: Context, claim: Claim, rules: Sequence[RuleSlides]) -> list[str]:
    """Whose rivals these are, and what the oracle is."""
    found = [describe_networks(claim)] if context.run.is_wrapped else []
    if any(one.rule == "oracle" for one in rules):
        found.append(ORACLE_MEANING)
    return [text for text in found if text]


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
