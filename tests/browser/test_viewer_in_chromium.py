"""The viewer in a real Chromium, as a person uses it."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders.browser import NEEDS_CHROMIUM, PATIENCE_MS, launched
from builders.geojson_rules import violations
from builders.viewer import running
from gcemil.viewer.bench import region_numbers
from gcemil.viewer.overview import describe_run
from gcemil.viewer.session import ViewerSession

pytestmark = NEEDS_CHROMIUM


def class_probability(logits, index):
    return float(torch.softmax(logits.double(), dim=0)[index])


@dataclass
class Visit:
    """A page that is open, and everything it complained about."""

    page: Any
    session: ViewerSession
    address: str
    complaints: list[str]

    def settle(self) -> None:
        # The policy of the page forbids eval, so nothing may wait by a script of its own.
        self.page.wait_for_selector("body[data-state=ready]")

    def press(self, button: str) -> None:
        self.page.click(f"#{button}")
        self.settle()

    @property
    def slide_id(self) -> str:
        """The slide that is shown."""
        return self.page.get_attribute("body", "data-slide")

    def output(self) -> float:
        return float(self.page.get_attribute("#live-output", "data-output"))

    def lasso(self, *corners: tuple[float, float]) -> None:
        """Draw through these places, given as shares of the stage."""
        box = self.page.locator("#overlay").bounding_box()
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
        mouse = self.page.mouse
        mouse.move(*places[0])
        mouse.down()
        for place in places[1:]:
            mouse.move(*place, steps=4)
        mouse.up()
        self.settle()

    def downloaded(self, button: str) -> str:
        with self.page.expect_download() as download:
            self.page.click(f"#{button}")
        return Path(download.value.path()).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def served(classification_runs, tmp_path_factory):
    """A copy of a run, because reviews are written into it."""
    run = tmp_path_factory.mktemp("viewed") / "run"
    shutil.copytree(classification_runs.gce, run)
    session = ViewerSession(run)
    with running(session) as server:
        yield session, server


def told(said) -> str:
    """What the console says, and of which address."""
    return f"{said.text} ({said.location['url']})"


@pytest.fixture
def visit(browser, served):
    session, server = served
    context = browser.new_context(viewport={"width": 1280, "height": 720}, accept_downloads=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console",
        lambda said: complaints.append(told(said)) if said.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda asked: complaints.append(f"failed: {asked.url}"))
    page.goto(server.new_address())
    opened = Visit(page, session, f"http://127.0.0.1:{server.port}", complaints)
    opened.settle()
    page.wait_for_selector("body[data-tiles]")
    yield opened
    context.close()


def drawn(visit: Visit) -> int:
    """How many pixels of the overlay are not empty."""
    visit.page.evaluate(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    return visit.page.evaluate(
        """() => { const c = document.getElementById("overlay");
        const copy = Object.assign(document.createElement("canvas"), { width: c.width, height: c.height });
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(c, 0, 0);
        const d = context.getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n; }"""
    )


def test_layers_toggle(visit):
    page = visit.page
    for name in ("S", "evidence", "truth"):
        page.uncheck(f"#sets input[value={name}]")
    with_attention = drawn(visit)
    page.check("#heat input[value=none]")
    assert drawn(visit) == 0
    page.check("#sets input[value=evidence]")
    outlines = drawn(visit)
    assert 0 < outlines < with_attention
    page.check("#heat input[value=gate]")
    page.check("#sets input[value=truth]")
    page.check("#sets input[value=subsets]")
    page.wait_for_selector("#message:has-text('disjoint set')")
    assert drawn(visit) > outlines
    assert page.get_attribute("body", "data-layers").startswith("gate")
    assert visit.complaints == []


def test_colours_go_by_rank_and_a_threshold_selects_the_highest(visit):
    page, slide = visit.page, visit.session.slide(visit.slide_id)
    page.check("#heat input[value=attention]")
    assert page.inner_text("#low") == "lowest"
    page.fill("#threshold", "900")
    assert page.inner_text("#threshold-value") == "highest 10%"
    page.click("#mark-above")
    visit.settle()
    evidence = json.loads(visit.downloaded("export-json"))
    scores = slide.full.scores.numpy()[slide.rows]
    ranks = (scores[:, None] >= scores[None, :]).mean(axis=1)
    assert {patch["index"] for patch in evidence["patches"]} == set(
        np.flatnonzero(ranks >= 0.9).tolist()
    )
    page.check("#heat input[value=class_1]")
    assert page.inner_text("#legend").startswith(
        f"supports {visit.session.fold.cohort.card.classes[1]}, low to high by rank"
    )
    assert visit.complaints == []


def test_legend_and_numbers_of_a_patch_lie_beside_the_slide(visit):
    page = visit.page
    stage = page.locator("#stage").bounding_box()
    page.mouse.move(stage["x"] + stage["width"] / 2, stage["y"] + stage["height"] / 2)
    for name in ("legend", "hover"):
        box = page.locator(f"#{name}").bounding_box()
        beside = box["x"] + box["width"] <= stage["x"] or box["y"] >= stage["y"] + stage["height"]
        assert beside, (name, box, stage)


def test_a_slide_is_found_by_its_label_and_opened(visit):
    page = visit.page
    row = next(one for one in describe_run(visit.session)["rows"] if one["slide"] != visit.slide_id)
    page.keyboard.press("/")
    page.fill("#find", f"{row['slide'].upper()} {row['label']}")
    assert page.inner_text("#found").startswith("1 of ")
    assert row["verdict"] in page.inner_text("#slides tbody")
    page.click("#slides tbody button")
    page.wait_for_selector(f"body[data-slide='{row['slide']}'][data-state=ready]")
    assert not page.is_visible("#slides-panel")
    assert f"label {row['label']}" in page.inner_text("#facts")
    page.keyboard.press("/")
    page.fill("#find", "no such slide")
    assert page.inner_text("#found").startswith("0 of ")
    page.keyboard.press("Escape")
    assert visit.complaints == []


def test_on_a_telephone_nothing_is_wider_than_the_page(visit):
    page = visit.page
    page.set_viewport_size({"width": 390, "height": 844})
    boxes = {
        name: page.locator(f"#{name}").bounding_box()
        for name in ("stage", "bench", "layers", "tools", "legend")
    }
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes.values()), boxes
    assert boxes["stage"]["width"] > 380
    assert boxes["stage"]["y"] < boxes["bench"]["y"] < boxes["layers"]["y"]
    page.click("#browse")
    panel = page.locator("#slides-panel").bounding_box()
    assert panel["x"] >= 0
    assert panel["x"] + panel["width"] <= 390


def test_a_lasso_that_is_removed_gives_the_value_of_the_python_interface(visit):
    before = visit.output()
    visit.page.click("#lasso")
    visit.lasso((0.05, 0.1), (0.5, 0.1), (0.5, 0.95), (0.05, 0.95), (0.05, 0.1))
    evidence = json.loads(visit.downloaded("export-json"))
    patches = [patch["index"] for patch in evidence["patches"]]
    slide = visit.session.slide(evidence["slide_id"])
    assert 0 < len(patches) < len(slide.coords)
    assert visit.output() == before
    visit.press("remove")
    chosen = torch.zeros(len(slide.bench), dtype=torch.bool)
    chosen[patches] = True
    predicted = int(slide.full.logits.argmax())
    removed = class_probability(slide.bench.view.interventions.removed(chosen).logits, predicted)
    assert visit.output() == pytest.approx(removed, abs=1e-6)
    assert visit.page.text_content("#live-output") == f"{removed:.3f}"
    visit.press("undo")
    assert visit.output() == before
    visit.press("keep")
    kept = class_probability(slide.bench.view.interventions.kept(chosen).logits, predicted)
    assert visit.output() == pytest.approx(kept, abs=1e-6)
    assert visit.page.locator("#verdicts li").count() == 3
    assert visit.complaints == []


def find_region(session) -> tuple[str, torch.Tensor]:
    """A slide with a region of several patches that is not all of its evidence, and the patches of that region."""
    for name in session.specs:
        slide = session.slide(name)
        regions = torch.zeros(len(slide.bench), dtype=torch.long)
        regions[slide.chosen] = torch.tensor(region_numbers(slide))
        members = regions == int(torch.bincount(regions[slide.chosen]).argmax())
        if 1 < int(members.sum()) < int(slide.chosen.sum()):
            return name, members
    raise AssertionError("No slide has such a region.")


def test_a_click_takes_a_whole_region_and_removes_it_as_one(visit):
    page = visit.page
    name, members = find_region(visit.session)
    page.select_option("#slide", name)
    page.wait_for_selector(f"body[data-slide='{name}'][data-state=ready]")
    slide = visit.session.slide(name)
    page.select_option("#unit", "region")
    place = page.evaluate(
        """(i) => { const now = view(); const { corners, size } = page.slide.map;
        const box = document.getElementById("overlay").getBoundingClientRect();
        return [box.left + now.x(corners[2 * i] + size / 2), box.top + now.y(corners[2 * i + 1] + size / 2)]; }""",
        int(members.int().argmax()),
    )
    page.mouse.click(*place)
    page.wait_for_selector(
        f"#s-size:has-text('{int(members.sum())} of {len(slide.bench)} patches')"
    )
    visit.press("remove")
    removed = slide.bench.view.interventions.removed(members).logits
    expected = class_probability(removed, int(slide.full.logits.argmax()))
    assert visit.output() == pytest.approx(expected, abs=1e-6)
    assert visit.complaints == []


def test_the_exported_geojson_is_one_that_qupath_reads(visit):
    text = visit.downloaded("export-geojson")
    assert violations(text) == []
    slide = visit.session.slide(visit.slide_id)
    assert len(json.loads(text)["features"]) == int(slide.evidence.selected.sum())


def test_the_bench_works_from_the_keyboard_without_moving_the_page(visit):
    page = visit.page
    before = page.evaluate(
        "[...document.querySelectorAll('button')].map((b) => b.getBoundingClientRect().top)"
    )
    page.focus("#stage")
    page.keyboard.press("r")
    visit.settle()
    slide = visit.session.slide(visit.slide_id)
    removed = slide.bench.view.interventions.removed(slide.chosen)
    expected = class_probability(removed.logits, int(slide.full.logits.argmax()))
    assert visit.output() == pytest.approx(expected, abs=1e-6)
    page.keyboard.press("u")
    visit.settle()
    after = page.evaluate(
        "[...document.querySelectorAll('button')].map((b) => b.getBoundingClientRect().top)"
    )
    assert after == before
    assert page.evaluate(
        "document.documentElement.scrollWidth <= 1280 && document.documentElement.scrollHeight <= 720"
    )
    page.keyboard.press("]")
    names = list(visit.session.specs)
    after = names[names.index(slide.slide_id) + 1 :][:1] or [slide.slide_id]
    page.wait_for_selector(f"body[data-slide='{after[0]}'][data-state=ready]")
    assert visit.complaints == []


def test_marks_of_qupath_are_imported_from_a_file(visit, tmp_path):
    name = visit.slide_id
    slide = visit.session.slide(name)
    patch = int(slide.evidence.indices[0])
    left, top = (slide.coords[patch] + slide.patch_size // 2).tolist()
    mark = {
        "type": "Feature",
        "geometry": {"type": "Point", "coordinates": [left, top]},
        "properties": {"classification": {"name": "reject"}},
    }
    (tmp_path / "marks.geojson").write_text(json.dumps(mark))
    visit.page.set_input_files("#marks-file", tmp_path / "marks.geojson")
    visit.page.wait_for_selector("#message:has-text('Imported 1 mark from marks.geojson')")
    saved = json.loads((visit.session.folder / "reviews" / f"{name}.json").read_text())
    assert saved["marks"] == [{"patch": patch, "mark": "reject", "in_evidence": True}]
    visit.page.click("#unmark")
    visit.page.wait_for_selector("#agreement:has-text('No patch')")


def test_another_page_cannot_use_the_session(browser, served):
    _, server = served
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.new_address())
    page.wait_for_selector("body[data-state=ready]")
    page.route(
        "http://evil.example/",
        lambda route: route.fulfill(content_type="text/html", body="<p>evil</p>"),
    )
    page.goto("http://evil.example/")
    here = f"http://127.0.0.1:{server.port}"
    tried = """async ([here, slide]) => {
      const ask = async (path, options) => {
        try { const a = await fetch(here + path, options); return a.type === "opaque" ? "opaque" : `read ${a.status}`; }
        catch { return "blocked"; }
      };
      const slides = "/api/slides";
      const found = [await ask(slides), await ask(slides, { credentials: "include" }),
        await ask(`${slides}/${slide}/review`, { method: "PUT", credentials: "include", body: "{}" }),
        await ask(`${slides}/${slide}/judge`, { method: "POST", mode: "no-cors", credentials: "include", body: "x" })];
      const frame = Object.assign(document.createElement("iframe"), { src: here + "/" });
      document.body.append(frame);
      await new Promise((done) => { frame.onload = done; });
      let inside = "unreachable";
      try { inside = frame.contentDocument.body.id; } catch { /* another origin, or nothing */ }
      return [...found, inside, await new Promise((done) => {
        const script = Object.assign(document.createElement("script"), { src: here + "/static/viewer.js" });
        script.onload = () => done("loaded"); script.onerror = () => done("blocked");
        document.body.append(script);
      })];
    }"""
    name = next(iter(served[0].specs))
    review = served[0].folder / "reviews" / f"{name}.json"
    before = review.read_bytes() if review.exists() else None
    found = page.evaluate(tried, [here, name])
    assert not any(one.startswith("read") for one in found[:4])
    assert found[5] == "blocked"
    assert (review.read_bytes() if review.exists() else None) == before
    context.close()
