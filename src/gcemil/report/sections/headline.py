"""What the run is and whether its evidence holds: lead, claim, settings and provenance.

Which rules are compared, how slides are counted and which sentence follows: report/claim.py.
"""

from __future__ import annotations

import math
from typing import Any

import yaml
from markupsafe import Markup

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.table import QUESTIONS
from gcemil.exports.certificate import CRITERIA, VerdictName
from gcemil.report.claim import Claim
from gcemil.report.context import Context
from gcemil.report.html import Section, render, render_section
from gcemil.report.run_data import RunData
from gcemil.runs.folder import Run

FEW = 30
SHOWN_BESIDE = ("attention", "random", "oracle")
"""Rules in every card, with the best rival."""
CARDS: dict[VerdictName, str] = {
    "sufficient": "Kept alone, it gives the same prediction: the output moves by at most {:g}.",
    "necessary": "Taken away, the prediction moves: the output changes by at least {:g}.",
    "recoverable": ("Gates and recovered patches agree: their outputs differ by at most {:g}."),
}


def render_lead(context: Context) -> Markup:
    """Title, facts and cautions."""
    run = context.run
    facts = [
        run.cohort_name,
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


def list_cautions(context: Context) -> list[str]:
    """Cautions about the numbers."""
    run, cautions = context.run, []
    details = [fold.details for fold in run.folds]
    if run.card is not None and "simulator" in run.card.provenance:
        cautions.append(
            "The cohort is simulated: its slides are not tissue, and its numbers show how the "
            "method behaves, not how it would perform in a clinic."
        )
    if any(str(detail.get("anchors")).startswith("prototypes") for detail in details):
        cautions.append(
            "The anchors are prototypes: centres of training patches, numbered and not named. They "
            "are clusters, not concepts, and evidence without concepts is less precise and less "
            "stable between trainings (docs/results.md)."
        )
    if len(run.bags) < FEW:
        tested = context.count_units(len(run.bags))
        cautions.append(f"Only {tested} were tested, so the intervals are wide.")
    if run.card is None:
        cautions.append(
            f"The cohort no longer lies where it was trained from ({run.cohort.name}): no truth "
            "outlines, thumbnails or patch sizes."
        )
    for fold in run.folds:
        if fold.outdated:
            cautions.append(
                f"Fold {fold.number} was trained again after {', '.join(fold.outdated)} had been "
                "measured: those figures are of another network. Measure again with "
                f"'{context.diagnose_command(fold.outdated[0])}'."
            )
    cautions += sorted({str(text) for detail in details for text in detail.get("caveats", [])})
    warnings = {str(text) for detail in details for text in detail.get("warnings", [])}
    return cautions + [f"Training warned: {text}" for text in sorted(warnings)]


def render_claim(context: Context) -> Section:
    """The result, counted."""
    claim = context.run.claim
    if claim is None:
        context.find("snr")
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
        note = "The run has no wrapper, so the most attended patches stand for evidence."
        sentences.insert(0, note)
    finding = context.run.finding("snr")
    settings = {} if finding is None else finding.settings
    beside = [
        rule
        for rule in claim.rules
        if rule is not claim.own and (rule.rule in SHOWN_BESIDE or rule is claim.rival)
    ]
    cards = [
        {
            "title": name.capitalize(),
            "count": claim.own.count(name),
            "meaning": meaning.format(settings.get(CRITERIA[name].tolerance, math.nan)),
            "rivals": [
                (rule.rule, rule.words, rule.count(name).share)
                for rule in beside
                if rule.count(name).of
            ],
        }
        for name, meaning in CARDS.items()
        if claim.own.count(name).of
    ]
    before = before[:1].upper() + before[1:]
    return {"before": before, "after": after, "sentences": sentences, "cards": cards}


def describe_false_evidence(context: Context) -> str | None:
    """Promised and reached rate of evidence without a lesion; None where it was not measured."""
    folds = [rates for fold in context.run.folds if (rates := fold.details.get("no_evidence"))]
    if not folds:
        return None
    tested = sum(rates["n_test"] for rates in folds)
    reached = sum(rates["reached_rate"] * rates["n_test"] for rates in folds) / tested
    promised = max(rates["promised_rate"] for rates in folds)
    return (
        f"Without a lesion (class {folds[0]['class']}): evidence is confirmed on {reached:.0%} of "
        f"{context.count_units(tested)} tested; the threshold, set on validation "
        f"{context.run.bag_unit}s, promises at most {promised:.0%}."
    )


def render_provenance(context: Context) -> Section:
    """What a second run would need, and what was and was not measured."""
    run, facts = context.run, _describe_identity(context.run)
    if (card := run.card) is not None:
        size = card.patch_size_level0
        words = "unknown" if size is None else f"{size} level-0 pixels"
        facts["Features"] = f"{card.encoder}, {card.feature_dim} dimensions, patches of {words}"
        facts["Classes"] = ", ".join(card.classes) or f"none: {card.task}"
    machine = run.environment
    versions = {name: machine.get(name) for name in ("gcemil", "python")}
    versions |= {name: version for name, version in machine.get("packages", {}).items() if version}
    facts["Versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    device = f"{machine.get('platform')}, {machine.get('device')}"
    facts["Machine"] = f"{device}, {machine.get('threads')} threads"
    folds = []
    for fold in run.folds:
        path = fold.files.checkpoint
        network = content_hash(path)[:16] if path.is_file() else "no checkpoint here"
        bags = sum(bag.fold == fold.number for bag in run.bags)
        best, anchors = fold.details.get("best_epoch"), fold.details.get("anchors")
        folds.append((fold.number, best, bags, anchors, network))
    settings = run.settings.model_dump(mode="json")
    return render_section(
        "provenance",
        "Settings and provenance",
        facts=facts,
        folds=folds,
        plain_host=None if context.against is None else _describe_identity(context.against),
        measured=_list_measured(context),
        settings=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
    )


def _describe_identity(run: RunData) -> dict[str, str]:
    fingerprint, settings = (
        value[:16] if value else "unknown"
        for value in (run.config.cohort_fingerprint, run.config.settings_hash)
    )
    return {
        "Run": run.folder.name,
        "Cohort": f"{run.cohort_name}, fingerprint {fingerprint}",
        "Host": run.settings.host.name + (" + GCE" if run.is_wrapped else ""),
        "Settings hash": settings,
        "Seed": str(run.settings.seed),
        "Commit": str(run.environment.get("commit") or "not a source checkout"),
    }


def _list_measured(context: Context) -> list[tuple[str, str, str, str]]:
    """Every diagnostic with its question, and its folds or the command that measures it."""
    rows = []
    for name, question in QUESTIONS.items():
        if name == "sweep" and not context.run.is_wrapped:
            continue
        finding = context.run.finding(name)
        if finding is None:
            rows.append((name, question, "", context.diagnose_command(name)))
            continue
        folds = [str(fold.number) for fold in context.run.folds if name in fold.findings]
        over = f"fold {', '.join(folds)}" if folds else "over folds"
        seed = finding.provenance.get("seed", finding.settings.get("seed"))
        rows.append((name, question, over if seed is None else f"{over}; seed {seed}", ""))
    return rows
