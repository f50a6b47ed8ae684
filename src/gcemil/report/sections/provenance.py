"""Settings and provenance: what a second run would need, and what was and was not measured."""

from __future__ import annotations

import yaml

from gcemil.bags.fingerprint import content_hash
from gcemil.diagnostics.table import QUESTIONS
from gcemil.report.html import Section, render_section
from gcemil.report.run_data import FoldData, RunData
from gcemil.report.sections.context import Context


def render_provenance(context: Context) -> Section:
    """Identity, folds, diagnostics and settings of the run."""
    run, facts = context.run, _describe_identity(context.run)
    if (card := run.card) is not None:
        size = (
            "unknown"
            if card.patch_size_level0 is None
            else f"{card.patch_size_level0} level-0 pixels"
        )
        facts["Features"] = f"{card.encoder}, {card.feature_dim} dimensions, patches of {size}"
        facts["Classes"] = ", ".join(card.classes) or f"none: {card.task}"
    machine = run.environment
    versions = {name: machine.get(name) for name in ("gcemil", "python")}
    versions |= {name: version for name, version in machine.get("packages", {}).items() if version}
    facts["Versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    facts["Machine"] = (
        f"{machine.get('platform')}, {machine.get('device')}, {machine.get('threads')} threads"
    )
    return render_section(
        "provenance",
        "Settings and provenance",
        facts=facts,
        folds=[_describe_fold(run, fold) for fold in run.folds],
        plain_host=None if context.against is None else _describe_identity(context.against),
        measured=_list_measured(context),
        settings=yaml.safe_dump(
            run.settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True
        ),
    )


def _describe_identity(run: RunData) -> dict[str, str]:
    """What tells this run from every other."""
    cohort = run.cohort.name if run.card is None else run.card.name
    return {
        "Run": run.folder.name,
        "Cohort": f"{cohort}, fingerprint {_shorten_hash(run.config.cohort_fingerprint)}",
        "Host": run.settings.host.name + (" + GCE" if run.is_wrapped else ""),
        "Settings hash": _shorten_hash(run.config.settings_hash),
        "Seed": str(run.settings.seed),
        "Commit": str(run.environment.get("commit") or "not a source checkout"),
    }


def _describe_fold(run: RunData, fold: FoldData) -> tuple[object, ...]:
    """Number, best epoch, test bags, anchors and fingerprint."""
    checkpoint = fold.files.checkpoint
    fingerprint = (
        _shorten_hash(content_hash(checkpoint)) if checkpoint.is_file() else "no checkpoint here"
    )
    bags = sum(bag.fold == fold.number for bag in run.bags)
    return (
        fold.number,
        fold.details.get("best_epoch"),
        bags,
        fold.details.get("anchors"),
        fingerprint,
    )


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
    return str(value)[:16] if value else "unknown"
