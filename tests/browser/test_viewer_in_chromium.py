"""The viewer in a real Chromium, as a person uses it."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gcemil.interventions import class_probability
from gcemil.viewer.app import listening, viewer_server
from gcemil.viewer.session import ViewerSession
from geojson_rules import violations

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKEN = "the-token-of-the-browser-test"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS = 60_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: run make browser")


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
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served(classification_runs, tmp_path_factory):
    """A copy of a run, because reviews are written into it."""
    run = tmp_path_factory.mktemp("viewed") / "run"
    shutil.copytree(classification_runs.gce, run)
    session = ViewerSession.open(run)
    with listening(0) as listener:
        port = listener.getsockname()[1]
        server = viewer_server(session, token=TOKEN, port=port)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield session, f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join(timeout=30)
    session.close()


@pytest.fixture
def visit(browser, served):
    session, address = served
    context = browser.new_context(viewport={"width": 1280, "height": 720}, accept_downloads=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    complaints: list[str] = []
    page.on(
        "console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda asked: complaints.append(f"failed: {asked.url}"))
    page.goto(f"{address}/?token={TOKEN}")
    opened = Visit(page, session, address, complaints)
    opened.settle()
    page.wait_for_selector("body[data-tiles]")
    yield opened
    context.close()


def drawn(visit: Visit) -> int:
    """How many pixels of the overlay are not empty."""
    visit.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return visit.page.evaluate(
        """() => { const c = document.getElementById("overlay");
        const copy = Object.assign(document.createElement("canvas"), { width: c.width, height: c.height });
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(c, 0, 0);
        const d = context.getImageData(0, 0, c.width, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n; }"""
    )


def test_the_page_loads_tiles_and_complains_of_nothing(visit):
    assert int(visit.page.evaluate("document.body.dataset.tiles")) > 0
    assert "token" not in visit.page.url
    assert visit.page.locator("#slide option").count() == len(visit.session.specs)
    assert visit.complaints == []


def test_layers_toggle(visit):
    page = visit.page
    for name in ("S", "evidence"):
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
    page.wait_for_selector("#message:has-text('by attention')")
    assert drawn(visit) > outlines
    assert page.get_attribute("body", "data-layers").startswith("gate")
    assert visit.complaints == []


def test_a_threshold_leaves_fewer_patches(visit):
    page = visit.page
    page.check("#heat input[value=attention]")
    everything = drawn(visit)
    page.fill("#threshold", "700")
    page.dispatch_event("#threshold", "input")
    assert drawn(visit) < everything


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
    removed = class_probability(slide.bench.wrapped.removed(chosen).logits, predicted)
    assert visit.output() == pytest.approx(removed, abs=1e-6)
    assert visit.page.text_content("#live-output") == f"{removed:.3f}"
    visit.press("undo")
    assert visit.output() == before
    visit.press("keep")
    kept = class_probability(slide.bench.wrapped.kept(chosen).logits, predicted)
    assert visit.output() == pytest.approx(kept, abs=1e-6)
    assert visit.page.locator("#verdicts li").count() == 3
    assert visit.complaints == []


def test_the_exported_geojson_is_one_that_qupath_reads(visit):
    text = visit.downloaded("export-geojson")
    assert violations(text) == []
    slide = visit.session.slide(next(iter(visit.session.specs)))
    assert len(json.loads(text)["features"]) == int(slide.evidence.selected.sum())


def test_the_bench_works_from_the_keyboard_without_moving_the_page(visit):
    page = visit.page
    before = page.evaluate(
        "[...document.querySelectorAll('button')].map((b) => b.getBoundingClientRect().top)"
    )
    page.focus("#stage")
    page.keyboard.press("r")
    visit.settle()
    slide = visit.session.slide(next(iter(visit.session.specs)))
    removed = slide.bench.wrapped.removed(slide.chosen)
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
    second = list(visit.session.specs)[1]
    page.wait_for_selector(f"body[data-slide='{second}'][data-state=ready]")
    assert visit.complaints == []


def test_hovering_shows_the_numbers_of_a_patch(visit):
    box = visit.page.locator("#overlay").bounding_box()
    shown = visit.page.locator("#hover")
    # Somewhere in the middle of the tissue there is a patch; the slide of the cohort decides where.
    for share in (0.5, 0.4, 0.6, 0.3, 0.7):
        visit.page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.5 * box["height"])
        if shown.is_visible():
            break
    text = shown.text_content()
    assert "patch" in text
    assert "attention score" in text
    assert "truth" in text


def test_a_review_is_saved_and_summed_up(visit):
    visit.page.click("#accept")
    visit.page.wait_for_selector("#agreement:has-text('Agreement 100%')")
    name = next(iter(visit.session.specs))
    saved = json.loads((visit.session.folder / "reviews" / f"{name}.json").read_text())
    assert {mark["mark"] for mark in saved["marks"]} == {"accept"}
    visit.page.click("#unmark")
    visit.page.wait_for_selector("#agreement:has-text('No patch')")


def test_without_the_token_and_outside_its_paths_chromium_gets_nothing(browser, visit):
    stranger = browser.new_context()
    page = stranger.new_page()
    assert page.goto(visit.address).status == 403
    assert page.goto(f"{visit.address}/api/slides").status == 403
    stranger.close()
    for path in ("/static/..%2fapp.py", "/api/slides/..%2f..%2fconfig.yaml", "/config.yaml"):
        assert visit.page.request.get(f"{visit.address}{path}").status == 404
