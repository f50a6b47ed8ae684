"""Does the evidence hold? Counted slide by slide, beside the best rival, attention and the controls.

Which rules are compared, how slides are counted and what sentence follows: report/claim.py.
"""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from gcemil.exports.certificate import CRITERIA, VerdictName
from gcemil.report.claim import Claim
from gcemil.report.html import Section, render, render_section
from gcemil.report.sections.context import Context
from gcemil.runs.folder import Run

FEW = 30
SHOWN_BESIDE = ("attention", "random", "oracle")
"""Rules that stand in every card, with the best rival."""
WORDS: dict[VerdictName, tuple[str, str]] = {
    "sufficient": (
        "Sufficient",
        "Kept alone, it gives the same prediction: the output moves by at most {limit:g}.",
    ),
    "necessary": (
        "Necessary",
        "Taken away, the prediction moves: the output changes by at least {limit:g}.",
    ),
    "recoverable": (
        "Recoverable",
        "Gates and recovered patches say the same: their outputs differ by at most {limit:g}.",
    ),
}


def render_lead(context: Context) -> Markup:
    """Title, facts, and what a reader must know first."""
    run = context.run
    facts = [
        run.cohort.name if run.card is None else run.card.name,
        f"{run.settings.host.name}{' + GCE' if run.is_wrapped else ', no wrapper'}",
        f"{len(run.folds)} fold{'s' if len(run.folds) > 1 else ''}",
        f"{context.count_units(len(run.bags))} tested",
        f"seed {run.settings.seed}",
    ]
    return render(
        "lead.html",
        title=run.folder.name or str(run.folder),
        facts=facts,
        warning=Run(run.folder).model_warning,
        cautions=list_cautions(context),
    )


def render_claim(context: Context) -> Section:
    """The answer, counted."""
    claim = context.run.claim
    if claim is None:
        context.list_unmeasured("snr")
    return render_section(
        "claim",
        "Does the evidence hold?",
        no_evidence=describe_false_evidence(context),
        claim=claim,
        command=context.diagnose_command("snr"),
        **({} if claim is None else _describe_answer(context, claim)),
    )


def _describe_answer(context: Context, claim: Claim) -> dict[str, Any]:
    """The sentence that follows from the counts, and the three criteria beside other rules."""
    # The count is bold; the rival has the same size, since it is half of the answer.
    first, *sentences = claim.sentences(context.run.bag_unit)
    before, _, after = first.partition(claim.own.both.words)
    if not context.run.is_wrapped:
        sentences.insert(
            0, "The run has no wrapper, so the most attended patches stand for evidence."
        )
    finding = context.run.finding("snr")
    best = claim.rival and (claim.rival.rule, claim.rival.network)
    beside = [
        rule
        for rule in claim.rules
        if rule is not claim.own
        and (rule.rule in SHOWN_BESIDE or (rule.rule, rule.network) == best)
    ]
    cards = []
    for name, (title, meaning) in WORDS.items():
        if (count := claim.own.count(name)).of:
            limit = (
                float(finding.settings.get(CRITERIA[name].tolerance, math.nan))
                if finding
                else math.nan
            )
            rivals = [
                (rule.rule, rule.words, rule.count(name).share)
                for rule in beside
                if rule.count(name).of
            ]
            cards.append(
                {
                    "title": title,
                    "count": count,
                    "meaning": meaning.format(limit=limit),
                    "rivals": rivals,
                }
            )
    return {
        "before": before[:1].upper() + before[1:],
        "after": after,
        "sentences": sentences,
        "cards": cards,
    }


def describe_false_evidence(context: Context) -> str | None:
    """Promised and reached rate of evidence on slides without a lesion; None where it was not measured."""
    folds = [rates for fold in context.run.folds if (rates := fold.details.get("no_evidence"))]
    if not folds:
        return None
    tested = sum(rates["n_test"] for rates in folds)
    reached = sum(rates["reached_rate"] * rates["n_test"] for rates in folds) / tested
    promised = max(rates["promised_rate"] for rates in folds)
    return (
        f"Without a lesion (class {folds[0]['class']}): evidence is confirmed on {reached:.0%} of "
        f"{context.count_units(tested)} tested; the threshold, set on validation {context.run.bag_unit}s, promises at most {promised:.0%}."
    )


def list_cautions(context: Context) -> list[str]:
    """What a reader must know before believing a number."""
    run, cautions = context.run, []
    details = [fold.details for fold in run.folds]
    if run.card is not None and "simulator" in run.card.provenance:
        cautions.append(
            "The cohort is simulated: its slides are not tissue, and its numbers say how the method behaves, not how a clinic would fare."
        )
    if any(str(detail.get("anchors")).startswith("prototypes") for detail in details):
        cautions.append(
            "The anchors are prototypes: centres of training patches, numbered and not named. They are clusters, not concepts, and "
            "evidence without concepts is less precise and less stable between trainings (docs/results.md)."
        )
    if len(run.bags) < FEW:
        cautions.append(
            f"Only {context.count_units(len(run.bags))} were tested, so the intervals are wide."
        )
    if run.card is None:
        cautions.append(
            f"The cohort no longer lies where it was trained from ({run.cohort.name}): no truth outlines, thumbnails or patch sizes."
        )
    for fold in run.folds:
        if fold.outdated:
            cautions.append(
                f"Fold {fold.number} was trained again after {', '.join(fold.outdated)} had been measured: those figures are of "
                f"another network. Measure again with '{context.diagnose_command(fold.outdated[0])}'."
            )
    cautions += sorted({str(text) for detail in details for text in detail.get("caveats", [])})
    return cautions + sorted(
        {f"Training warned: {text}" for detail in details for text in detail.get("warnings", [])}
    )
