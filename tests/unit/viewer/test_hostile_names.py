"""Names that would be markup stay names: in the report, in its figures, and in everything the viewer says."""

import json
from urllib.parse import quote

import pytest
from matplotlib.figure import Figure

from builders.geojson_rules import violations
from builders.hostile import (
    CLASSES,
    IMAGE,
    PROMPTS,
    PWNED,
    SCRIPT,
    SLIDE_NAMES,
    Document,
    make_hostile_run,
)
from builders.reports import judged_slide, run_folder, toy_evidence
from builders.viewer import bits, opened, running
from gcemil.report.run_report import write_report


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    return make_hostile_run(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def session(hostile_run):
    return opened(hostile_run)


@pytest.fixture(scope="module")
def report(hostile_run, tmp_path_factory):
    return write_report(hostile_run, tmp_path_factory.mktemp("report") / "report.html").read_text()


def toy_report(folder, slides, classes):
    """A run with findings, so that every table has lines."""
    run = run_folder(folder, classes=classes)
    run.fold(0, slides, target=classes[0], evidence=[toy_evidence(name) for name in slides])
    judged = [
        judged_slide(
            name, rule=rule, sufficient=number != 0, target=classes[0], predicted=classes[1]
        )
        for number, name in enumerate(slides)
        for rule in ("evidence", "random")
    ]
    run.snr(0, judged)
    return write_report(
        folder, folder.parent / f"{len(list(folder.parent.iterdir()))}.html"
    ).read_text()


def test_hostile_names_give_a_report_of_the_same_elements(tmp_path, monkeypatch):
    # Drawing takes most of the time and is looked at below.
    for method in ("savefig", "draw_without_rendering"):
        monkeypatch.setattr(Figure, method, lambda *_, **__: None)
    plain = Document.of(
        toy_report(tmp_path / "plain", [f"s{n}" for n in range(len(SLIDE_NAMES))], ("a", "b"))
    )
    hostile = Document.of(
        toy_report(tmp_path / f"<img src=x onerror={PWNED}>", list(SLIDE_NAMES), CLASSES)
    )
    assert plain.dangers() == []
    assert hostile.dangers() == []
    assert hostile.tags == plain.tags
    assert hostile.attribute_names == plain.attribute_names
    for name in (*SLIDE_NAMES, *CLASSES):
        assert name in hostile.text, name


def test_the_page_finds_its_checker_able_to_see_danger():
    for page in (
        SCRIPT,
        f'<p title="{IMAGE}',
        f"<p onclick={PWNED}>",
        "<a href='javascript:x'>x</a>",
        "<!--x-->",
    ):
        assert Document.of(page).dangers()


def test_the_viewer_says_hostile_names_as_data(session):
    with running(session) as server:
        slides = server.ask("GET", "/api/slides")
        assert json.loads(slides.body)["slides"] == list(session.specs)
        for name in session.specs:
            path = f"/api/slides/{quote(name, safe='')}"
            chosen = session.slide(name).chosen.numpy()
            about = server.ask("GET", path)
            judged = server.ask("POST", f"{path}/judge", bits(chosen, ~chosen))
            exported = server.ask("POST", f"{path}/evidence.geojson", bits(chosen))
            for answer in (slides, about, judged, exported):
                assert answer.headers["content-type"] == "application/json"
                assert answer.headers["x-content-type-options"] == "nosniff"
            assert json.loads(about.body)["slide_id"] == name
            assert json.loads(about.body)["prompts"] == list(PROMPTS)
            assert set(json.loads(judged.body)["predictions"]["full"]["values"]) == {
                f"prob_{one}" for one in CLASSES
            }
            assert server.ask("GET", f"{path}/tiles/0/0_0").headers["content-type"] == "image/png"
            assert violations(exported.body.decode()) == []
            measured = json.loads(exported.body)["features"][0]["properties"]["measurements"]
            assert {f"anchor: {prompt}" for prompt in PROMPTS} <= set(measured)
