"""How far a reviewer and a rule agree, counted on the patches that were judged. No torch.

  judged        at least half of the patch lies under marks, or it holds a marked point
  positive      more of the judged patch lies under accept or missed than under reject; negative:
                less. A patch with as much of both is contradictory and not judged
  chosen        the rule took the patch
  precision     positive and chosen / judged and chosen
  recall        positive and chosen / positive
  kappa         Cohen's: (agreement - chance) / (1 - chance); none while reviewer or rule has one
                kind of patches only
  judged share  judged and chosen / chosen: the part of the rule's own patches that was judged

Over several slides the counts are added up. Intervals (95 %) are percentiles of a seeded bootstrap:
over two or more slides, else over the judged patches of the slide, which is narrower than the truth
because neighbours are alike. A figure that exists in fewer than half of the draws has no interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from gcemil.bags.annotations.shapes import Corners, covered_share, name_shapes
from gcemil.bags.store import Bounds
from gcemil.diagnostics.paired_tests import percentile_interval
from gcemil.errors import InputError, RunError
from gcemil.findings import Finding, Row, read_finding
from gcemil.rules import find_rule, order_rules
from gcemil.runs.folder import Run
from gcemil.slides.geojson import GeoObject, count_ignored
from gcemil.tables import NOT_MEASURED, Cell, Column, Line, Table

REVIEW = "review"
ACCEPT, REJECT, MISSED = "accept", "reject", "missed"
MARK_NAMES: dict[str, tuple[str, ...]] = {
    ACCEPT: ("accept", "accepted", "agree", "correct", "true positive", "tp"),
    REJECT: ("reject", "rejected", "disagree", "wrong", "false positive", "fp"),
    MISSED: ("missed", "miss", "false negative", "fn"),
}
"""What a class of QuPath may be called to be a mark; capitals make no difference."""
MIN_COVER = 0.5
"""Share of a patch under marks that makes it judged."""
POSITIVE, NEGATIVE, NOT_JUDGED = 1, -1, 0
FIGURES = ("precision", "recall", "kappa")

Verdicts = Int[np.ndarray, "n"]
"""POSITIVE, NEGATIVE or NOT_JUDGED for every patch of a slide."""
Chosen = Bool[np.ndarray, "n"]
Counts = Float[np.ndarray, "draws 4"]
"""In the order of the fields of Agreement."""


@dataclass(frozen=True)
class Agreement:
    """Judged patches by the reviewer and by the rule."""

    accepted_evidence: int = 0
    rejected_evidence: int = 0
    accepted_others: int = 0
    """Positive for the reviewer, and not chosen."""
    rejected_others: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(*(one + two for one, two in zip(self.counts, other.counts, strict=True)))

    @property
    def counts(self) -> tuple[int, ...]:
        """The four counts."""
        return astuple(self)

    @property
    def n_marks(self) -> int:
        """Judged patches in all."""
        return sum(self.counts)

    @property
    def agreement(self) -> float | None:
        """Share of judged patches on which both agree; None without any."""
        agreed = self.accepted_evidence + self.rejected_others
        return agreed / self.n_marks if self.n_marks else None

    @property
    def figures(self) -> dict[str, float | None]:
        """Precision, recall and kappa; None where one does not exist."""
        values = _agreement_figures(np.array([self.counts], dtype=np.float64))
        return {n: float(one[0]) if np.isfinite(one[0]) else None for n, one in values.items()}

    def to_json(self) -> dict[str, Any]:
        """Counts and agreement as plain values."""
        values = {"n_marks": self.n_marks, "agreement": self.agreement}
        return {**asdict(self), **values, "kappa": self.figures["kappa"]}


def count_agreement(verdicts: Verdicts, chosen: Chosen) -> Agreement:
    """The judged patches of one slide against what a rule chose."""
    positive, negative = verdicts == POSITIVE, verdicts == NEGATIVE
    parts = (positive & chosen, negative & chosen, positive & ~chosen, negative & ~chosen)
    return Agreement(*(int(part.sum()) for part in parts))


def _agreement_figures(counts: Counts) -> dict[str, Float[np.ndarray, "draws"]]:
    """The three figures of every draw; NaN where one does not exist."""
    both, chosen_only, positive_only, neither = counts.T
    total = both + chosen_only + positive_only + neither
    with np.errstate(divide="ignore", invalid="ignore"):
        positive, chosen = (both + positive_only) / total, (both + chosen_only) / total
        chance = positive * chosen + (1 - positive) * (1 - chosen)
        kappa = ((both + neither) / total - chance) / (1 - chance)
        one_sided = (positive % 1 == 0) | (chosen % 1 == 0)
        return {
            "precision": both / (both + chosen_only),
            "recall": both / (both + positive_only),
            "kappa": np.where(one_sided, np.nan, kappa),
        }


def judge_patches(
    objects: Sequence[GeoObject],
    coords: Corners,
    patch_size: int,
    *,
    where: object,
    origin: Bounds = (0, 0),
) -> tuple[Verdicts, list[str]]:
    """The verdict of GeoJSON marks on every patch, and what was left out of them."""
    marks: dict[str | None, list[GeoObject]] = {}
    for one in objects:
        marks.setdefault(mark_of(one.class_name), []).append(one)
    others = marks.pop(None, [])
    if unnamed := sum(not one.class_name for one in others):
        raise InputError(
            f"{where}: {unnamed} of {len(objects)} objects have no class. Set the class accept, "
            "reject or missed in QuPath and export again, or remove them."
        )
    if not marks:
        raise InputError(
            f"{where} holds no mark: none of its {len(objects)} objects has the class accept, "
            "reject or missed."
        )

    def cover(*names: str) -> Float[np.ndarray, "n"]:
        """Share of every patch under these marks; all of it where it holds a point."""
        chosen = [one for one in objects if mark_of(one.class_name) in names]
        return covered_share(coords, patch_size, name_shapes(chosen, origin))

    judged = cover(*MARK_NAMES) >= MIN_COVER
    difference = np.sign(cover(ACCEPT, MISSED) - cover(REJECT))
    verdicts = np.where(judged, difference, NOT_JUDGED).astype(np.int64)
    kinds = count_ignored([one for own in marks.values() for one in own])
    notes = [
        *(
            f"{count} objects of class '{name}' are not marks"
            for name, count in Counter(one.class_name for one in others).items()
        ),
        *(f"{count} marks of kind '{kind}' mark no patch" for kind, count in kinds.items()),
    ]
    if contradictory := int((judged & (verdicts == NOT_JUDGED)).sum()):
        notes.append(
            f"{contradictory} patches marked as much to accept as to reject, and not judged"
        )
    return verdicts, notes


def mark_of(class_name: str) -> str | None:
    """Which mark a class of QuPath is; None for any other class."""
    plain = " ".join(class_name.casefold().split())
    return next((mark for mark, names in MARK_NAMES.items() if plain in names), None)


@dataclass(frozen=True)
class RuleReview:
    """A reviewer's marks on one slide against the patches that one rule chose."""

    slide_id: str
    fold: int
    rule: str
    network: str
    agreement: Agreement
    n_chosen: int


def review_rows(
    reviews: Sequence[RuleReview], *, seed: int, resamples: int
) -> tuple[tuple[Row, ...], tuple[dict[str, Any], ...]]:
    """A row for every rule over all slides, and an entry for every slide and rule."""
    groups: dict[tuple[str, str], list[RuleReview]] = {}
    for one in reviews:
        groups.setdefault((one.rule, one.network), []).append(one)
    ranks = order_rules([rule for rule, _ in groups])
    rows, slides = [], []
    for key in sorted(groups, key=lambda key: (ranks.index(key[0]), key[1] != "wrapped")):
        labels = dict(zip(("rule", "network"), key, strict=True))
        # Every rule has the same draws, so that their intervals can be compared.
        draws = np.random.default_rng(seed)
        rows.append(Row(labels, _review_figures(groups[key], draws, resamples)))
        for one in groups[key]:
            draws = np.random.default_rng([seed, *one.slide_id.encode()])
            slides.append(
                {
                    "slide_id": one.slide_id,
                    "fold": one.fold,
                    **labels,
                    "n_chosen": one.n_chosen,
                    **asdict(one.agreement),
                    **_review_figures([one], draws, resamples),
                }
            )
    return tuple(rows), tuple(slides)


def _review_figures(
    reviews: Sequence[RuleReview], generator: np.random.Generator, resamples: int
) -> dict[str, float | None]:
    """The figures of a rule on these slides by metric name, with their intervals."""
    total = sum((one.agreement for one in reviews), Agreement())
    counts = np.array([one.agreement.counts for one in reviews], dtype=np.float64)
    drawn: np.ndarray = counts
    if len(reviews) > 1:
        drawn = counts[generator.integers(len(counts), size=(resamples, len(counts)))].sum(axis=1)
    elif total.n_marks:
        drawn = generator.multinomial(total.n_marks, counts[0] / total.n_marks, size=resamples)
    figures: dict[str, float | None] = {}
    for name, values in _agreement_figures(drawn.astype(np.float64)).items():
        there = values[np.isfinite(values)]
        is_known = len(there) and 2 * len(there) >= len(values)
        low, high = percentile_interval(there) if is_known else (None, None)
        figures[f"review_{name}"] = total.figures[name]
        figures |= {f"review_{name}_low": low, f"review_{name}_high": high}
    n_chosen = sum(one.n_chosen for one in reviews)
    seen = total.accepted_evidence + total.rejected_evidence
    judged_share = seen / n_chosen if n_chosen else None
    return {**figures, "judged_patches": float(total.n_marks), "judged_share": judged_share}


COLUMNS = (
    Column("precision", "Precision", "review_precision"),
    Column("recall", "Recall", "review_recall"),
    Column("kappa", "Kappa", "review_kappa"),
    Column("judged_patches", "Judged patches", "judged_patches"),
    Column("judged_share", "Own patches judged", "judged_share"),
)


def review_table(finding: Finding, name: str = "review") -> Table:
    """Every rule over all reviewed slides, figures with their intervals."""
    lines = [_line(row.labels, row.values) for row in finding.rows]
    title = "A reviewer's marks against what each rule chose"
    return _table(name, title, ("rule", "network"), lines, finding)


def review_slide_table(finding: Finding) -> Table:
    """The same slide by slide."""
    slides = sorted(finding.slides, key=lambda one: str(one["slide_id"]))
    lines = [_line(one, one, (str(one["slide_id"]),)) for one in slides]
    title = "The same, slide by slide"
    return _table("review_slides", title, ("slide", "rule", "network"), lines, finding)


def _table(
    name: str, title: str, labels: tuple[str, ...], lines: Sequence[Line], finding: Finding
) -> Table:
    notes = ("Brackets: 95 % bootstrap interval.", *finding.notes)
    return Table(name, title, f"tab:{name}", labels, COLUMNS, tuple(lines), notes=notes)


def _line(
    labels: Mapping[str, Any], values: Mapping[str, Any], slide: tuple[str, ...] = ()
) -> Line:
    """A rule over all slides, or on one slide."""
    rule, share = find_rule(str(labels["rule"])), values["judged_share"]
    cells = []
    for figure in FIGURES:
        value, low, high = (values[f"review_{figure}{end}"] for end in ("", "_low", "_high"))
        text = f"{value:.2f}" if value is not None else ""
        text += f" [{low:.2f}, {high:.2f}]" if low is not None else ""
        cells.append(NOT_MEASURED if value is None else Cell(text, value))
    cells.append(Cell(f"{values['judged_patches']:.0f}", values["judged_patches"]))
    cells.append(NOT_MEASURED if share is None else Cell(f"{100 * share:.0f} %", share))
    return Line(
        (*slide, rule.label, str(labels["network"])),
        "ours",
        tuple(cells),
        comparison=None if rule.is_control else "".join(slide),
        role="control" if rule.is_control else "own" if rule.is_ours else "",
    )


def review_tables(folder: Path) -> list[Table]:
    """Both tables of a run; of a results folder the first one of every reviewed run."""
    if Run(folder).is_begun:
        path = Run(folder).finding(REVIEW)
        if not path.is_file():
            raise RunError(
                f"{folder} was not reviewed. Review it with 'gcemil review {folder} MARKS'."
            )
        finding = read_finding(path)
        return [review_table(finding), review_slide_table(finding)]
    paths = sorted((folder / "runs").glob(f"**/diagnostics/{REVIEW}.json"))
    if not paths:
        raise RunError(
            f"No run in {folder} was reviewed. Review one with 'gcemil review RUN MARKS'."
        )
    return [
        review_table(
            read_finding(path), f"review {path.parent.parent.relative_to(folder / 'runs')}"
        )
        for path in paths
    ]
