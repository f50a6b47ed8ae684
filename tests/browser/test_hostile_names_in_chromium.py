"""Names that would be markup, in a real Chromium whose policy is switched off: only escaping stands between."""

from __future__ import annotations

import pytest

from browser_builders import NEEDS_CHROMIUM, PATIENCE_MS, launched
from gcemil.report.run_report import write_report
from gcemil.viewer.session import ViewerSession
from hostile_builders import CLASSES, COHORT_NAME, IMAGE, PROMPTS, make_hostile_run
from viewer_builders import running

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    return make_hostile_run(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def browser():
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser):
    """A page on which a script of a name would run if there were one."""
    context = browser.new_context(bypass_csp=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.dialogs = []
    page.on("dialog", lambda dialog: (page.dialogs.append(dialog.message), dialog.dismiss()))
    yield page
    context.close()


def elements(page, selector):
    return page.locator(selector).count()


def test_the_trap_works(page):
    """A name that is taken for markup would be noticed."""
    page.set_content(f'<p title="{IMAGE}</p>')
    page.wait_for_function("document.title === 'pwned'")
    assert elements(page, "img") == 1


def test_a_report_runs_no_script_of_a_name(page, hostile_run, tmp_path):
    path = write_report(hostile_run, tmp_path / "report.html")
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    assert page.title() == f"Evidence report: {hostile_run.name}"
    assert page.dialogs == []
    assert elements(page, "script, iframe, object, embed, base, form, body > img, [onerror], [onload]") == 0
    assert elements(page, "img:not([src^='data:image/'])") == 0
    assert elements(page, "a:not([href^='#'])") == 0
    text = page.text_content("body")
    for name in (*CLASSES, COHORT_NAME, *PROMPTS):
        assert name in text, name


def test_the_viewer_runs_no_script_of_a_name(page, hostile_run):
    session = ViewerSession.open(hostile_run)
    with running(session) as server:
        page.goto(server.new_address())
        for name in session.specs:
            page.wait_for_selector("body[data-state=ready]")
            page.select_option("#slide", name)
            page.wait_for_function(
                "(name) => document.body.dataset.slide === name && document.body.dataset.state === 'ready'",
                arg=name,
            )
            for button in ("remove", "undo"):
                page.click(f"#{button}")
                page.wait_for_selector("body[data-state=ready]")
            page.check("#heat input[value=anchor_0]")
            box = page.locator("#overlay").bounding_box()
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert page.title() == "gcemil view"
        assert page.dialogs == []
        # Scripts, pictures and frames are those of the page itself, which holds five scripts and no picture.
        assert elements(page, "script") == elements(page, "script[src^='/static/']") == 5
        assert elements(page, "img, iframe, svg, object, [onerror], [onload], [onmouseover]") == 0
        assert elements(page, "a") == 0
        heats = page.locator("#heat label").all_text_contents()
        for prompt in PROMPTS:
            assert f"concept: {prompt}" in heats
        options = page.locator("#slide option").all()
        assert [one.get_attribute("value") for one in options] == list(session.specs)
        heading = page.locator("#predictions thead").text_content()
        assert all(one in heading for one in CLASSES)
    session.close()
