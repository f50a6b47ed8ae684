"""Settings and provenance: what a second run would need, and what was and was not measured."""

from __future__ import annotations

import yaml
from markupsafe import Markup

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.table import QUESTIONS
from gcemil.report.html import Section, collapse, command, element, join_markup, render_rows
from gcemil.report.run_data import RunData
from gcemil.report.sections.context import Context

SHOWN_DIGITS = 16


def render_section(context: Context) -> Section:
    """Identity, folds, diagnostics and settings of the run."""
    run = context.run
    parts = [_render_facts(context), _render_folds(run)]
    if context.against is not None:
        parts.append(element("h3", "The plain host"))
        parts.append(_render_definitions(_describe_identity(context.against)))
    parts += [
        element("h3", "What was measured"),
        _render_measured(context),
        collapse(
            "All settings",
            element(
                "pre",
                yaml.safe_dump(run.settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
            ),
        ),
    ]
    return Section("provenance", "Settings and provenance", join_markup(parts))


def _render_facts(context: Context) -> Markup:
    run = context.run
    lines = _describe_identity(run)
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
    return _render_definitions(lines)


def _describe_identity(run: RunData) -> dict[str, str]:
    """What tells this run from every other."""
    cohort = run.cohort.name if run.card is None else run.card.name
    return {
        "Run": run.folder.name,
        "Cohort": f"{cohort}, fingerprint {_shorten_hash(run.config.cohort_fingerprint)}",
        "Host": run.host + (" + GCE" if run.is_wrapped else ""),
        "Settings hash": _shorten_hash(run.config.settings_hash),
        "Seed": str(run.settings.seed),
        "Commit": str(run.environment.get("commit") or "not a source checkout"),
    }


def _render_definitions(lines: dict[str, str]) -> Markup:
    return element(
        "dl", *(part for name, value in lines.items() for part in (element("dt", name), element("dd", value)))
    )


def _render_folds(run: RunData) -> Markup:
    rows = []
    for fold in run.folds:
        checkpoint = fold.files.checkpoint
        fingerprint = (
            _shorten_hash(content_hash(checkpoint)) if checkpoint.is_file() else "no checkpoint here"
        )
        details = fold.metrics["details"]
        bags = sum(bag.fold == fold.number for bag in run.bags)
        rows.append(
            (
                str(fold.number),
                str(details.get("best_epoch")),
                str(bags),
                str(details.get("anchors")),
                fingerprint,
            )
        )
    headings = ("Fold", "Best epoch", "Test bags", "Anchors", "Fingerprint of the network")
    return render_rows(headings, rows, numeric={"Best epoch", "Test bags"})


def _render_measured(context: Context) -> Markup:
    """Every diagnostic with its question, and where it was measured or how to measure it."""
    rows: list[tuple[str, str, str]] = []
    missing = set()
    for name, question in QUESTIONS.items():
        if name == "sweep" and not context.run.is_wrapped:
            continue
        finding = context.run.finding(name)
        if finding is None:
            missing.add(len(rows))
            rows.append((name, question, command(context.diagnose_command(name))))
            continue
        folds = [str(fold.number) for fold in context.run.folds if name in fold.findings]
        over = f"fold {', '.join(folds)}" if folds else "over folds"
        seed = finding.provenance.get("seed", finding.settings.get("seed"))
        rows.append((name, question, over if seed is None else f"{over}; seed {seed}"))
    return render_rows(("Diagnostic", "Question", "Measured"), rows, muted=missing)


def _shorten_hash(value: object) -> str:
    return str(value)[:SHOWN_DIGITS] if value else "unknown"
