"""Settings and provenance: what a second run would need, and what was and was not measured."""

from __future__ import annotations

import yaml
from markupsafe import Markup

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.table import QUESTIONS
from gcemil.report.html import Section, render, render_element, render_rows
from gcemil.report.run_data import RunData
from gcemil.report.sections.context import Context

SHOWN_DIGITS = 16


def render_section(context: Context) -> Section:
    """Identity, folds, diagnostics and settings of the run."""
    run = context.run
    body = render(
        "provenance.html",
        facts=_describe_identity(run) | _describe_features(run) | _describe_machine(run),
        folds=_render_folds(run),
        plain_host=None if context.against is None else _describe_identity(context.against),
        measured=_render_measured(context),
        settings=yaml.safe_dump(run.settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
    )
    return Section("provenance", "Settings and provenance", body)


def _describe_features(run: RunData) -> dict[str, str]:
    """Encoder and classes, where the cohort is known."""
    if (card := run.card) is None:
        return {}
    size = "unknown" if card.patch_size_level0 is None else f"{card.patch_size_level0} level-0 pixels"
    return {
        "Features": f"{card.encoder}, {card.feature_dim} dimensions, patches of {size}",
        "Classes": ", ".join(card.classes) or "none: survival",
    }


def _describe_machine(run: RunData) -> dict[str, str]:
    """Versions and machine, as the run recorded them."""
    found = run.environment
    versions = {"gcemil": found.get("gcemil"), "python": found.get("python")}
    packages = {name: version for name, version in found.get("packages", {}).items() if version}
    return {
        "Versions": ", ".join(f"{name} {version}" for name, version in (versions | packages).items()),
        "Machine": f"{found.get('platform')}, {found.get('device')}, {found.get('threads')} threads",
    }


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
            rows.append((name, question, render_element("code", context.diagnose_command(name))))
            continue
        folds = [str(fold.number) for fold in context.run.folds if name in fold.findings]
        over = f"fold {', '.join(folds)}" if folds else "over folds"
        seed = finding.provenance.get("seed", finding.settings.get("seed"))
        rows.append((name, question, over if seed is None else f"{over}; seed {seed}"))
    return render_rows(("Diagnostic", "Question", "Measured"), rows, muted=missing)


def _shorten_hash(value: object) -> str:
    return str(value)[:SHOWN_DIGITS] if value else "unknown"
