"""Figures and tables of how good a model is, by its task."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gcemil.report.publication.classes import describe_classes
from gcemil.report.publication.survival import describe_survival
from gcemil.report.publication.values import describe_values
from gcemil.report.sample import Plate, Sample
from gcemil.report.sections.context import Context
from gcemil.tables import Table

_DESCRIBE: dict[str, Callable[[Context, Sample], Iterator[Plate | Table]]] = {
    "classification": describe_classes,
    "regression": describe_values,
    "survival": describe_survival,
}


def describe_performance(context: Context, sample: Sample) -> Iterator[Plate | Table]:
    """What the predictions of the run are worth."""
    return _DESCRIBE[context.run.task](context, sample)
