"""Settings and provenance: what a second run would need, and what was and was not measured."""

from __future__ import annotations

import yaml

from gcemil.bags.fingerprint import content_hash
from gcemil.report.html import Cell, Column, Line, Markup, Section, Table, command, element, joined, table
from gcemil.report.run_data import RunData
from gcemil.report.sections.context import QUESTIONS, Context
from gcemil.report.sections.snr import folded
from gcemil.runs.folder import FoldFolder

SHOWN_DIGITS = 16


def section(context: Context) -> Section:
    run = context.run
    parts = [facts(context), fold_table(run)]
    if context.against is not None:
        parts.append(element("h3", "The plain host"))
        parts.append(definitions(identity(context.against)))
    parts += [
        element("h3", "What was measured"),
        measured_table(context),
        folded(
            "All settings", element("pre", yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True))
        ),
    ]
    return Section("provenance", "Settings and provenance", joined(parts))


def facts(context: Context) -> Markup:
    run = context.run
    lines = identity(run)
    if (card := run.card) is not None:
        size = "unknown" if card.patch_size_level0 is None else f"{card.patch_size_level0} level-0 pixels"
        lines["Features"] = f"{card.encoder}, {card.feature_dim} dimensions, patches of {size}"
        lines["Classes"] = ", ".join(card.classes) or "none: survival"
    environment = run.environment
    packages = {name: version for name, version in environment.get("packages", {}).items() if version}
    lines["Versions"] = ", ".join(
        [f"gcemil {environment.get('gcemil')}", f"python {environment.get('python')}"]
        + [f"{name} {version}" for name, version in packages.items()]
    )
    lines["Machine"] = (
        f"{environment.get('platform')}, {environment.get('device')}, {environment.get('threads')} threads"
    )
    return definitions(lines)


def identity(run: RunData) -> dict[str, str]:
    """What tells this run from every other."""
    cohort = run.cohort.name if run.card is None else run.card.name
    return {
        "Run": run.folder.name,
        "Cohort": f"{cohort}, fingerprint {short(run.config.get('cohort_fingerprint'))}",
        "Host": run.host + (" + GCE" if run.is_wrapped else ""),
        "Settings hash": short(run.config.get("settings_hash")),
        "Seed": str(run.settings.get("seed")),
        "Commit": str(run.environment.get("commit") or "not a source checkout"),
    }


def definitions(lines: dict[str, str]) -> Markup:
    return element(
        "dl", *(part for name, value in lines.items() for part in (element("dt", name), element("dd", value)))
    )


def fold_table(run: RunData) -> Markup:
    lines = []
    for fold in run.folds:
        checkpoint = FoldFolder(fold.folder).checkpoint
        print_ = short(content_hash(checkpoint)) if checkpoint.is_file() else "no checkpoint here"
        details = fold.metrics["details"]
        cells = (
            Cell(str(fold.number)),
            Cell(str(details.get("best_epoch")), is_number=True),
            Cell(str(sum(bag.fold == fold.number for bag in run.bags)), is_number=True),
            Cell(str(details.get("anchors"))),
            Cell(print_),
        )
        lines.append(Line(cells))
    columns = (
        Column("Fold", is_number=False),
        Column("Best epoch"),
        Column("Test bags"),
        Column("Anchors", is_number=False),
        Column("Fingerprint of the network", is_number=False),
    )
    return table(Table(columns, tuple(lines)))


def measured_table(context: Context) -> Markup:
    lines = []
    for name, question in QUESTIONS.items():
        if name == "sweep" and not context.run.is_wrapped:
            continue
        finding = context.run.finding(name)
        if finding is None:
            lines.append(
                Line((Cell(name), Cell(question), Cell(command(context.diagnose(name)))), kind="control")
            )
            continue
        folds = [str(fold.number) for fold in context.run.folds if name in fold.findings]
        over = f"fold {', '.join(folds)}" if folds else "over folds"
        seed = finding.provenance.get("seed", finding.settings.get("seed"))
        lines.append(
            Line((Cell(name), Cell(question), Cell(over if seed is None else f"{over}; seed {seed}")))
        )
    columns = (
        Column("Diagnostic", is_number=False),
        Column("Question", is_number=False),
        Column("Measured", is_number=False),
    )
    return table(Table(columns, tuple(lines)))


def short(value: object) -> str:
    return str(value)[:SHOWN_DIGITS] if value else "unknown"
