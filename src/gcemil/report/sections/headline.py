"""Does the evidence hold? Counted slide by slide, beside the best rival, attention and the controls.

Which rules are compared, how slides are counted and what sentence follows: report/claim.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from gcemil.exports.certificate import CRITERIA, VerdictName
from gcemil.report.claim import ORACLE_MEANING, Claim, RuleSlides, describe_networks, group_rules, make_claim
from gcemil.report.html import HtmlTable, render
from gcemil.report.run_data import Record
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
    facts = [
        run.cohort.name if run.card is None else run.card.name,
        f"{run.host} + GCE" if run.is_wrapped else f"{run.host}, no wrapper",
        f"{len(run.folds)} fold{'s' if len(run.folds) > 1 else ''}",
        f"{context.count_units(len(run.bags))} tested",
        f"seed {run.settings.seed}",
    ]
    claim = make_claim(run.slides("snr"), rule=run.rule, is_same_network=run.is_same_network)
    if claim is None:
        context.list_unmeasured("snr")
    return render(
        "lead.html",
        title=run.folder.name or str(run.folder),
        facts=facts,
        warning=run.model_warning,
        no_evidence=describe_false_evidence(context),
        claim=claim,
        command=context.diagnose_command("snr"),
        cautions=list_cautions(context),
        **({} if claim is None else _describe_answer(context, claim)),
    )


def _describe_answer(context: Context, claim: Claim) -> dict[str, Any]:
    """The sentence that follows from the counts, the three criteria, and every rule in a table."""
    rules = list_rules(context)
    # The count is bold; the rival has the same size, since it is half of the answer.
    first, *sentences = claim.sentences(context.unit)
    before, _, after = first.partition(claim.own.both.words)
    if not context.run.is_wrapped:
        sentences.insert(0, "The run has no wrapper, so the most attended patches stand for evidence.")
    remarks = [describe_networks(claim) if context.run.is_wrapped else None]
    remarks.append(ORACLE_MEANING if any(one.rule == "oracle" for one in rules) else None)
    return {
        "before": before[:1].upper() + before[1:],
        "after": after,
        "sentences": sentences,
        "cards": list(_describe_criteria(context, claim, rules)),
        "rules": _list_rules(rules),
        "remarks": [text for text in remarks if text],
    }


def describe_false_evidence(context: Context) -> str | None:
    """Promised and reached rate of evidence on slides without a lesion; None where it was not measured."""
    folds = [one for fold in context.run.folds if (one := fold.metrics["details"].get("no_evidence"))]
    if not folds:
        return None
    tested = sum(one["n_test"] for one in folds)
    reached = sum(one["reached_rate"] * one["n_test"] for one in folds) / tested
    promised = max(one["promised_rate"] for one in folds)
    return (
        f"Without a lesion (class {folds[0]['class']}): evidence is confirmed on {reached:.0%} of "
        f"{context.count_units(tested)} tested; the threshold, set on validation {context.unit}s, promises at most {promised:.0%}."
    )


def list_rules(context: Context) -> list[RuleSlides]:
    """Every rule that was judged, by network."""
    return group_rules(context.run.slides("snr"), is_same_network=context.run.is_same_network)


def _describe_criteria(context: Context, claim: Claim, rules: Sequence[RuleSlides]) -> Iterator[Record]:
    """Per criterion the count, what it means, and the rules beside it."""
    finding = context.run.finding("snr")
    settings = {} if finding is None else finding.settings
    best = claim.rival and (claim.rival.rule, claim.rival.network)
    beside = [
        one
        for one in rules
        if one is not claim.own and (one.rule in SHOWN_BESIDE or (one.rule, one.network) == best)
    ]
    for name, (title, meaning) in WORDS.items():
        if (count := claim.own.count(name)).of:
            limit = float(settings.get(CRITERIA[name].tolerance, math.nan))
            rivals = [(one.rule, one.words, one.count(name).share) for one in beside if one.count(name).of]
            yield {"title": title, "count": count, "meaning": meaning.format(limit=limit), "rivals": rivals}


def _list_rules(rules: Sequence[RuleSlides]) -> HtmlTable:
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
    caption = "The same number of patches, chosen by every rule"
    return HtmlTable.of_text(COLUMNS, rows, numeric=COLUMNS[1:], caption=caption)


def list_cautions(context: Context) -> list[str]:
    """What a reader must know before believing a number."""
    run, found = context.run, []
    details = [fold.metrics["details"] for fold in run.folds]
    if run.card is not None and "simulator" in run.card.provenance:
        found.append(
            "The cohort is simulated: its slides are not tissue, and its numbers say how the method behaves, not how a clinic would fare."
        )
    if any(str(one.get("anchors")).startswith("prototypes") for one in details):
        found.append(
            "The anchors are prototypes: centres of training patches, numbered and not named. They are clusters, not concepts, and "
            "evidence without concepts is less precise and less stable between trainings (docs/results.md)."
        )
    if len(run.bags) < FEW:
        found.append(f"Only {context.count_units(len(run.bags))} were tested, so the intervals are wide.")
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
    found += sorted({str(text) for one in details for text in one.get("caveats", [])})
    found += sorted({f"Training warned: {text}" for one in details for text in one.get("warnings", [])})
    return found
