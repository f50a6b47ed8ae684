"""Settings and provenance: what a second run would need, and what was and was not measured."""

from __future__ import annotations

import yaml

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.table import QUESTIONS
from gcemil.report.html import HtmlTable, Section, render_section
from gcemil.report.run_data import RunData
from gcemil.report.sections.context import Context

SHOWN_DIGITS = 16


def render_provenance(context: Context) -> Section:
    """Identity, folds, diagnostics and settings of the run."""
    run = context.run
    return render_section(
        "provenance",
        "Settings and provenance",
        facts=_describe_identity(run) | _describe_features(run) | _describe_machine(run),
        folds=_list_folds(run),
        plain_host=None if context.against is None else _describe_identity(context.against),
        measured=_list_measured(context),
        settings=yaml.safe_dump(run.settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
    )


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


def _list_folds(run: RunData) -> HtmlTable:
    """Every fold with its network."""
    rows = []
    for fold in run.folds:
        checkpoint, details = fold.files.checkpoint, fold.metrics["details"]
        printed = _shorten_hash(content_hash(checkpoint)) if checkpoint.is_file() else "no checkpoint here"
        bags = sum(bag.fold == fold.number for bag in run.bags)
        rows.append(
            (*map(str, (fold.number, details.get("best_epoch"), bags, details.get("anchors"))), printed)
        )
    headings = ("Fold", "Best epoch", "Test bags", "Anchors", "Fingerprint of the network")
    return HtmlTable.of_text(headings, rows, numeric={"Best epoch", "Test bags"})


def _list_measured(context: Context) -> list[tuple[str, str, str, str]]:
    """Every diagnostic with its question, and where it was measured or the command that measures it."""
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


def _shorten_hash(value: object) -> str:
    return str(value)[:SHOWN_DIGITS] if value else "unknown"
