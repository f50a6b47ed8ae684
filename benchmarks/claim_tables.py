"""How the claims are shown: lists, tables of docs/results.md, and the verdicts of the first two claims."""

from __future__ import annotations

from typing import Any

Figures = dict[str, float]


def listing(name: str, found: dict[str, Any]) -> str:
    lines = [f"{name}: {found['runs']} runs"]
    for figure, row in found["rows"].items():
        lines.append(f"  {figure:<40}" + "  ".join(f"{key} {value:.3f}" for key, value in row.items()))
    return "\n".join(lines)


def cohort_table(cohorts: dict[str, Figures]) -> str:
    names = list(next(iter(cohorts.values())))
    lines = ["| cohort | " + " | ".join(name.replace("_", " ") for name in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    lines += [
        f"| {cohort} | " + " | ".join(f"{figures[name]:.3f}" for name in names) + " |"
        for cohort, figures in cohorts.items()
    ]
    return "\n".join(lines) + "\n"


LINES = (
    ("Task metric: plain host", "host"),
    ("plain host, twice the epochs", "host_long"),
    ("wrapped, all patches ungated", "full"),
    ("wrapped, gated (soft)", "soft"),
    ("wrapped, evidence alone (discrete)", "discrete"),
    ("Keep-only drop", "keep_only_drop"),
    ("C-D gap", "cd_gap"),
    ("Evidence fraction", "evidence_fraction"),
    ("Precision: evidence", "precision_evidence"),
    ("attention of the plain host", "precision_attention"),
    ("the same, smoothed", "precision_attention_smoothed"),
    ("best rival", "precision_best_rival"),
    ("oracle", "precision_oracle"),
    ("Average precision: evidence", "average_precision_evidence"),
    ("attention of the plain host", "average_precision_attention"),
    ("best rival", "average_precision_best_rival"),
    ("Complement degradation beyond random: evidence", "degradation_evidence"),
    ("attention of the plain host", "degradation_attention"),
    ("oracle", "degradation_oracle"),
    ("Adaptive size: evidence fraction", "adaptive_fraction"),
    ("precision: evidence", "adaptive_precision_evidence"),
    ("attention of the plain host", "adaptive_precision_attention"),
    ("oracle", "adaptive_precision_oracle"),
    ("complement degradation beyond random: evidence", "adaptive_degradation_evidence"),
    ("attention of the plain host", "adaptive_degradation_attention"),
    ("Jaccard across seeds: evidence", "jaccard_evidence"),
    ("attention of the plain host", "jaccard_attention"),
)
RATIOS = (
    ("precision, evidence / attention", "precision: evidence / attention"),
    ("precision, evidence / oracle", "precision: evidence / oracle"),
    ("precision, evidence / best rival", "precision: evidence / best rival"),
    ("average precision, evidence / attention", "average_precision: evidence / attention"),
    ("degradation, evidence / attention", "degradation: evidence / attention"),
)


def markdown(host: str, n_runs: int, rows: dict[str, Figures]) -> str:
    """The figures of one host, and the ratios the claims are about."""
    lines = [f"| {host}, {n_runs} runs | mean | sd |", "|---|---|---|"]
    lines += [
        f"| {label} | {rows[name]['mean']:.3f} | {rows[name]['sd']:.3f} |"
        for label, name in LINES
        if name in rows
    ]
    lines += ["", "| ratio of means | | runs better |", "|---|---|---|"]
    for label, name in RATIOS:
        better = f"{rows[name]['better']:.0%}" if "better" in rows[name] else ""
        lines.append(f"| {label} | {rows[name]['ratio']:.2f} | {better} |")
    return "\n".join(lines) + "\n"


def one_line_each(report: dict[str, Any]) -> str:
    """One line per host or arm, with the verdicts of the first two claims."""
    lines = [
        "| | runs | plain host | soft | evidence alone | keep-only drop | C-D gap | fraction "
        "| precision: evidence / attention | average precision: evidence / attention | precision / oracle "
        "| precision / best rival | holds together | in the right place |",
        "|---" * 14 + "|",
    ]
    for name, found in report.items():
        rows = found["rows"]
        cells = [f"{rows[figure]['mean']:.3f}" for figure in FIRST_CLAIM]
        for metric in ("precision", "average_precision"):
            pair = [rows[f"{metric}_{who}"]["mean"] for who in ("evidence", "attention")]
            ratio = rows[f"{metric}: evidence / attention"]["ratio"]
            cells.append(f"{pair[0]:.3f} / {pair[1]:.3f} = {ratio:.2f}")
        cells += [
            f"{rows[f'precision: evidence / {other}']['ratio']:.2f}" for other in ("oracle", "best rival")
        ]
        verdicts = ["yes" if holds(rows) else "no" for holds in (is_faithful, is_in_place)]
        lines.append("| " + " | ".join([name, str(found["runs"]), *cells, *verdicts]) + " |")
    return "\n".join(lines)


FIRST_CLAIM = ("host", "soft", "discrete", "keep_only_drop", "cd_gap", "evidence_fraction")


def is_faithful(rows: dict[str, Figures]) -> bool:
    """Evidence alone predicts as the bag does, gates and set agree, the size is the budget, and the task loses nothing."""
    host, soft, discrete, drop, gap, fraction = (rows[name]["mean"] for name in FIRST_CLAIM)
    return bool(
        drop <= 0.01
        and gap <= 0.01
        and abs(fraction - 0.05) <= 0.01
        and soft >= host
        and discrete >= 0.99 * soft
    )


def is_in_place(rows: dict[str, Figures]) -> bool:
    """Well above attention, above every rival, three quarters of what the truth would reach."""
    return (
        rows["precision: evidence / attention"]["ratio"] >= 1.3
        and rows["average_precision: evidence / attention"]["ratio"] >= 1.3
        and rows["precision: evidence / best rival"]["ratio"] > 1
        and rows["average_precision_evidence"]["mean"] > rows["average_precision_best_rival"]["mean"]
        and rows["precision: evidence / oracle"]["ratio"] >= 0.75
    )
