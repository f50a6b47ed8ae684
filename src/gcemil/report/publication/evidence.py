"""The findings of diagnostics as figures, and the evidence of single slides on their tissue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from gcemil.bags.cohort import find_slide_file
from gcemil.errors import GcemilError, UsageError
from gcemil.exports.overlay import read_slide_place
from gcemil.findings import Finding
from gcemil.report import style
from gcemil.report.context import Context, Plate
from gcemil.report.run_data import RunData
from gcemil.report.sections.controls import KEEP_REMOVE, draw_budget_curves
from gcemil.report.sections.examples import LARGEST, choose_examples, draw_attention_and_evidence
from gcemil.report.sections.snr import draw_slides_by_rule
from gcemil.report.sections.tables import STABILITY, sort_rows
from gcemil.report.slide_view import SlideView, read_slide_view
from gcemil.rules import find_rule, order_rules
from gcemil.tables import Table


def describe_diagnostics(context: Context) -> Iterator[Plate | Table]:
    """What the diagnostics of the run hold: S/N/R, keep and removal curves, stability."""
    run = context.run
    if (snr := context.find("snr")) is not None:
        figure = draw_slides_by_rule(run.claim.rules if run.claim else (), snr.settings)
        caption = (
            "Change of the output when patches are kept, removed or gated. One dot is one "
            f"{run.bag_unit}, the bar the median, the dashed line the tolerance."
        )
        if figure is not None:
            yield Plate("snr", figure, caption)
    if (budget := context.find("budget")) is not None:
        figure = draw_budget_curves(budget, run.task_metric)
        if figure is not None:
            yield Plate("keep_remove", figure, KEEP_REMOVE)
    if (stability := context.find("stability")) is None or not stability.rows:
        return
    rows, spread = sort_rows(stability), context.describe_spread("stability")
    headings = {"perturbation": "What changed", "rule": "Patches chosen by"}
    names = [
        name
        for name in ("perturbation", "rule", "network", "k")
        if any(name in row.labels for row in rows)
    ]
    table = context.make_table(
        rows,
        STABILITY,
        labels={name: headings.get(name, name) for name in names},
        naming={"perturbation": str, "k": str},
        grouped=False,
        within=None,
        notes=[spread, *stability.notes],
    )
    yield replace(table, name="stability", title="Stability of the evidence", label="tab:stability")
    if (figure := draw_stability(stability)) is not None:
        yield Plate(
            "stability_overlap",
            figure,
            "Jaccard overlap of the chosen patches before and after a small change of the bag or "
            f"the seed; lines: {spread.removeprefix('± ')}",
        )


def draw_stability(finding: Finding) -> Figure | None:
    """The overlap of the chosen patches under every small change, by rule; None if not measured."""
    rows = [
        row
        for row in sort_rows(finding)
        if row.labels.get("network", "wrapped") == "wrapped"
        and row.values.get("jaccard") is not None
    ]
    if not rows:
        return None
    changes = list(dict.fromkeys(row.labels["perturbation"] for row in rows))
    rules = order_rules([row.labels["rule"] for row in rows])
    figure = style.new_figure(0.9 + (0.16 * len(rules) + 0.14) * len(changes), width=5)
    (axes,) = style.add_panels(figure, 1)
    places = dict(zip(changes, style.label_rows(axes, changes, width=24), strict=True))
    for row in rows:
        change, rule = row.labels["perturbation"], row.labels["rule"]
        value, spread = row.values["jaccard"] or 0.0, row.deviations.get("jaccard", 0.0)
        order, color = rules.index(rule), find_rule(rule).color
        place = places[change] + 0.35 - 0.7 * (order + 0.5) / len(rules)
        ends = [max(0.0, value - spread), min(1.0, value + spread)]
        axes.plot(ends, [place, place], linewidth=1, color=color)
        label = style.readable_name(rule) if change == changes[0] else None
        marker = style.MARKERS[order % len(style.MARKERS)]
        style.draw_dots(axes, value, place, color, marker=marker, label=label)
    title = "Overlap of the chosen patches (Jaccard)"
    style.draw_grid(axes, grid="x").set(title=title, xlim=(-0.02, 1.02))
    figure.legend(loc="outside lower left", ncols=3)
    return figure


def choose_slides(context: Context, names: Sequence[str]) -> list[SlideView]:
    """The named slides, or a typical one and the worst one; a plain host has no evidence."""
    run = context.run
    if not names:
        return list(choose_examples(run).values()) if run.is_wrapped else []
    views = []
    for slide_id in names:
        bag = next((bag for bag in run.bags if slide_id in bag.slide_ids), None)
        if bag is None:
            raise UsageError(
                f"Slide '{slide_id}' is not among the test slides of {run.folder}. "
                "Take an id of fold_<k>/predictions.csv."
            )
        view = read_slide_view(run, bag, slide_id)
        if view is None:
            raise UsageError(
                f"Slide '{slide_id}' cannot be drawn: the run has no evidence or no coordinates "
                f"of it. Make them with 'gcemil train {context.path} --again'."
            )
        views.append(view)
    return views


def describe_slide(context: Context, view: SlideView, dpi: int) -> Iterator[Plate | Table]:
    """Attention and evidence of a slide, on its tissue if there is some."""
    if view.mpp is None:
        what = f"Slide {view.slide_id} has no scale bar: its feature file has no level0_mpp."
        context.missing[what] = "gcemil encode SLIDES --out COHORT"
    truth = " The outline is the annotated truth." if view.has_truth else ""
    size = f"{int(view.evidence.selected.sum())} of {len(view.evidence.selected)} patches"
    largest = max(LARGEST, round(dpi * style.WIDTH / 2))
    yield Plate(
        f"evidence_{view.slide_id}",
        draw_attention_and_evidence(_sharpen(context.run, view, dpi), largest=largest),
        f"Slide {view.slide_id}: attention by rank, darker is higher, and the evidence ({size})."
        f"{truth}",
    )


def _sharpen(run: RunData, view: SlideView, dpi: int) -> SlideView:
    """The slide with tissue read at the resolution of the figure, if its file can be opened."""
    path = find_slide_file(run.cohort, view.slide_id)
    if path is None:
        return view
    try:
        place = read_slide_place(path, mpp=view.mpp, longest=round(dpi * style.WIDTH / 2))
    except GcemilError:
        # The thumbnail serves as well.
        return view
    return replace(view, thumbnail=place.thumbnail, mpp=view.mpp or place.mpp)
