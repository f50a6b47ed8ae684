import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from builders import PATCH, grid_coords, write_slide
from builders.reports import toy_evidence
from gcemil.bags import store
from gcemil.config import PAPER, EvidenceSettings
from gcemil.exports.overlay import draw_evidence, read_own_thumbnail
from gcemil.findings import Row
from gcemil.records import AdapterFigures, Representations
from gcemil.report.claim import RuleSlides
from gcemil.report.context import save_figure
from gcemil.report.publication.survival import draw_risk_groups, split_at_median
from gcemil.report.sections import controls, examples, grid, mechanism, performance
from gcemil.report.sections.representations import draw_representations, embed_slides
from gcemil.report.sections.slides import draw_map
from gcemil.report.sections.snr import draw_slides_by_rule
from gcemil.report.slide_view import SlideView, outline_truth, read_patch_pixels
from gcemil.report.style import EVIDENCE_COLOR, GROUPS

VIOLET_RGB, GREY = (165, 15, 240), (222, 222, 222)
# How eyes without one kind of cone see linear light (Machado et al. 2009, severity 1).
EYES = {
    "normal": np.eye(3),
    "deuteranope": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    ),
    "protanope": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "tritanope": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


def lab(color: str, eye: np.ndarray) -> np.ndarray:
    """CIELAB of a colour as an eye sees it."""
    srgb = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    linear = eye @ np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]]
    )
    xyz = to_xyz @ np.clip(linear, 0, 1) / np.array([0.9505, 1.0, 1.0888])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eye", EYES)
def test_any_two_colours_stay_apart_for_every_eye(eye):
    # Red marks a failure on the page, beside evidence.
    pairs = [*itertools.combinations(GROUPS, 2), ("#b3261e", EVIDENCE_COLOR)]
    for one, other in pairs:
        assert np.linalg.norm(lab(one, EYES[eye]) - lab(other, EYES[eye])) > 18


def test_a_curve_falls_at_events_and_ticks_mark_censored_cases():
    cases = pd.DataFrame(
        {"fold": 0, "time": [1.0, 2.0, 3.0, 4.0, 9.0], "event": [True, False, True, True, True],
         "risk": [2.0, 2.0, 2.0, 2.0, 1.0]}
    )  # fmt: skip
    cases = pd.concat([cases, cases.assign(fold=1, risk=0.0)])
    high, low = split_at_median(cases[cases.fold == 0])
    assert (len(high), len(low)) == (0, 5), "the median itself is not above the median"
    figure = draw_risk_groups({"All": cases[(cases.fold == 0) & (cases.risk == 2)]})
    curve, ticks = figure.axes[0].lines
    assert curve.get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert curve.get_ydata() == pytest.approx([1, 0.75, 0.75, 0.375, 0])
    assert ticks.get_xydata() == pytest.approx(np.array([[2, 0.75]]))
    assert "not defined" in texts(figure), "one group alone has no log-rank test"


def test_every_fold_is_split_at_its_own_median():
    cases = pd.DataFrame({"fold": [0, 0, 0, 1, 1, 1], "risk": [1.0, 2.0, 3.0, 100.0, 200.0, 300.0]})
    assert split_at_median(cases)[0].risk.tolist() == [3.0, 300.0]


def test_the_outline_runs_inside_the_true_patches_with_a_halo_outside():
    canvas = np.full((20, 20, 3), 100, dtype=np.uint8)
    frame = view_of(toy_evidence(n_patches=4, width=2)).fit(largest=20)
    drawn = outline_truth(canvas, frame, np.array([True, False, False, False]))
    assert drawn[0, 0].tolist() == drawn[9, 5].tolist() == [0, 0, 0]
    assert drawn[10, 5].tolist() == [255, 255, 255]
    assert drawn[5, 5].tolist() == drawn[15, 15].tolist() == [100, 100, 100]


def test_fifty_thousand_patches_have_a_pixel_each_and_a_small_file():
    side = 224
    view = view_of(toy_evidence(n_patches=side * side, width=side))
    assert view.fit(largest=280).side == 1
    assert len(draw_map(view).data) < 60_000


def cohort_with_thumbnail(folder, size=(40, 20), **attributes):
    """A slide of 4000 x 2000 level-0 pixels with a red thumbnail."""
    path = write_slide(folder, "s0", np.zeros((2, 4), dtype=np.float32), grid_coords(2))
    known = {"level0_width": 4000, "level0_height": 2000, **attributes}
    store.write(path, {"features": np.zeros((2, 4), dtype=np.float32)}, known)
    (folder / "thumbnails").mkdir()
    Image.new("RGB", size, VIOLET_RGB).save(folder / "thumbnails" / "s0.jpg")
    return folder


def test_a_thumbnail_of_the_scanned_part_lies_where_the_part_lies(tmp_path):
    known = {"bounds_x": 1000, "bounds_y": 500, "bounds_width": 2000, "bounds_height": 1000}
    thumbnail = read_own_thumbnail(cohort_with_thumbnail(tmp_path, **known), "s0")
    assert thumbnail is not None
    assert (thumbnail.downsample, thumbnail.origin) == (50, (1000, 500))
    # The first patch lies beside the scanned part, the second inside it.
    coords = np.array([[900, 500], [1000, 500]])
    place = SlideView("s0", toy_evidence(n_patches=2), coords, 100, None, thumbnail).fit(largest=40)
    canvas = draw_evidence(place, np.array([False, False]), VIOLET_RGB)
    assert canvas[0, 0].min() > 200, "white but for the softness of resampling"
    assert np.abs(canvas[0, -1].astype(int) - VIOLET_RGB).max() < 16


def test_patches_are_cut_from_the_slide_file(tmp_path):
    pytest.importorskip("openslide")
    from builders.slides import write_slide as write_slide_file

    assert read_own_thumbnail(tmp_path, "s0") is None
    view = SlideView("s0", toy_evidence(n_patches=2), grid_coords(2, width=2), PATCH, None, None)
    assert read_patch_pixels(tmp_path, view, [0]) is None
    image = np.full((1024, 1024, 3), 255, dtype=np.uint8)
    image[:512, 512:] = (200, 30, 30)
    (tmp_path / "slides").mkdir()
    write_slide_file(tmp_path / "slides" / "s0.tif", image)
    pixels = read_patch_pixels(tmp_path, view, [1, 0])
    assert pixels is not None
    red, white = (one[48, 48].astype(int) for one in pixels)
    assert np.abs(red - (200, 30, 30)).max() < 12
    assert white.min() > 243


def texts(figure) -> str:
    """Every word a reader of the figure sees."""
    return "\n".join(
        found.get_text() for found in figure.findobj(lambda one: hasattr(one, "get_text"))
    )


EVIDENCE, ONE_PATCH = toy_evidence("slide $x$"), toy_evidence(n_patches=1, selected=(0,))


def view_of(evidence, truth=None):
    return SlideView(evidence.slide_id, evidence, evidence.coords, PATCH, truth, None)


def draw_anchors():
    slides = [replace(EVIDENCE, coverage=np.array([mean, 1.0])) for mean in (0.2, 0.4)]
    return mechanism.draw_anchor_coverage(slides, target=0.95)


def draw_gates():
    shares = {"gate_histogram": [0.9, 0.1], "evidence_fraction": 0.5}
    return mechanism.draw_gate_histograms(
        [{"epoch": 0, **shares}, {"epoch": 1, **shares}], threshold=0.5
    )


def draw_rules():
    slides = [{"full_kept_gap": 0.1}, {"full_kept_gap": 0.3}]
    rules = [RuleSlides(rule, "", slides) for rule in ("evidence", "random")]
    return draw_slides_by_rule(rules, {"sufficiency_tolerance": 0.05})


def draw_bars():
    precision = {"wrapped": 0.2, "plain": None}
    rows = [
        Row({"rule": "lrp", "network": network}, {"precision": value})
        for network, value in precision.items()
    ]
    return controls.draw_same_budget(rows, ["precision"], title="at 5 %")


def draw_curves():
    figures = {"evidence_sufficiency": 0.8, "complement_degradation": 0.1, "task_metric": 0.9}
    labels = {"rule": "evidence", "network": "wrapped"}
    rows = [Row({**labels, "budget": budget}, figures) for budget in ("0.1", "0.2")]
    return controls.draw_keep_and_remove(rows, metric="macro_f1")


def draw_hosts():
    gains = {"host": "abmil", "cohort": ["x", "y"], "before": [0.5, 0.0], "after": [0.6, 0.6]}
    return grid.draw_relative_performance(pd.DataFrame(gains), label="F1")


def draw_moves():
    cosines, selected = np.array([0.9, 0.99]), np.array([True, False])
    return mechanism.draw_adapter(AdapterFigures(cosines, selected, np.array([0.2, 0.1])))


def draw_plane():
    slides = Representations({}, ("s0", "s1"), ("test", "val"), ("a", "b"))
    return draw_representations({"Host": np.zeros((2, 2))}, slides)


PIXELS = [np.zeros((4, 4, 3), dtype=np.uint8)] * 2
FIGURES = {
    "maps": (
        lambda: examples.draw_attention_and_evidence(view_of(EVIDENCE, truth=EVIDENCE.selected)),
        "2 of 8 patches",
    ),
    "whole bag": (
        lambda: examples.draw_attention_and_evidence(view_of(ONE_PATCH)),
        "1 of 1 patches",
    ),
    "subsets": (
        lambda: examples.draw_disjoint_subsets(view_of(EVIDENCE), {"by x": np.arange(8) % 3}),
        "by x: 2 sufficient",
    ),
    "sheet": (lambda: examples.draw_contact_sheet(EVIDENCE), "B  necrosis"),
    "sheet of pixels": (lambda: examples.draw_contact_sheet(EVIDENCE, PIXELS), "patch 1"),
    "anchors": (draw_anchors, "0.30"),
    "gates": (draw_gates, "50.0% open"),
    "mechanism": (lambda: mechanism.draw_mechanism(EVIDENCE, threshold=0.95), "Repair: 2 added"),
    "mechanism of a whole bag": (
        lambda: mechanism.draw_mechanism(ONE_PATCH, threshold=0.5),
        "Threshold: 1 open",
    ),
    "slides by rule": (draw_rules, "≤ 0.05"),
    "budget": (draw_bars, "LRP"),
    "curves": (draw_curves, "all patches"),
    "folds": (
        lambda: performance.draw_fold_pairs({"auc": {"full": {0: 0.5, 1: 0.7}, "gce": {0: 0.9}}}),
        "0.600",
    ),
    "hosts": (draw_hosts, "abmil"),
    "adapter": (draw_moves, "median 0.945"),
    "representations": (draw_plane, "Host"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_its_fact_in_words_and_becomes_png_and_svg(name, tmp_path):
    make, words = FIGURES[name]
    figure = make()
    assert words in texts(figure)
    picture = save_figure(tmp_path, name, figure, name, "")
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.svg").read_bytes() == picture.data
    assert b"dc:date" not in picture.data


def test_two_groups_stay_two_groups_in_the_plane():
    draws = np.random.default_rng(0)
    groups = np.repeat([0.0, 30.0], 12)
    points = embed_slides((draws.normal(size=(24, 5)) + groups[:, None]).astype(np.float32), seed=0)
    within = max(np.ptp(points[:12], axis=0).max(), np.ptp(points[12:], axis=0).max())
    assert np.linalg.norm(points[:12].mean(axis=0) - points[12:].mean(axis=0)) > within


def test_the_method_is_drawn_from_the_parts_that_a_run_has():
    ours = dict(mechanism.describe_method(EvidenceSettings(), "abmil"))
    paper = dict(mechanism.describe_method(PAPER, "dsmil"))
    assert ours["selector"] == "attention + contribution + concepts + likeness"
    assert ours["recovery"] == "threshold"
    assert paper["selector"] == "adapted features (MLP)"
    assert paper["gate"] == "consecutive, centre 0"
    assert paper["recovery"] == "threshold, repair, until sufficient"
