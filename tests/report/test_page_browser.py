"""The pages in a real browser: no console errors, tables sort and filter, fits a phone.

    pip install playwright && apt-get install chromium-headless-shell

RLHF_JAX_CHROMIUM names another browser of that family.
"""

import os
import shutil

import pytest
from made_up_runs import PROMPTS, online_lines, write_run

from rlhf_jax.report.__main__ import main

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = os.environ.get("RLHF_JAX_CHROMIUM") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the PATH")
    with playwright.sync_playwright() as running:
        # a sandbox of its own cannot be had by root
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    runs = []
    for high in (0.2, 0.28):
        lines = online_lines(80, seed=int(100 * high), gain=high)
        runs.append(
            str(write_run(folder / f"a_run_with_quite_a_long_name_{high}", lines, high=high))
        )
    assert main([runs[0], "--out", str(folder / "run.html")]) == 0
    assert main(["compare", *runs, "--out", str(folder / "compare.html")]) == 0
    return folder


@pytest.fixture
def opened(browser, pages):
    """Open a page at a size, without a network; what it complains of fails the test."""
    complaints, contexts = [], []

    def open_page(name, size):
        contexts.append(browser.new_context(viewport=size, offline=True))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "data:")) or complaints.append(request.url)
            ),
        )
        page.goto((pages / name).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def shown(page, column):
    rows = page.locator("#sample-table tbody tr:visible")
    return [row.locator("td").nth(column).inner_text() for row in rows.all()]


def test_samples_sort_by_any_column_both_ways(opened):
    page = opened("run.html", DESKTOP)
    head = page.locator("#sample-table thead th")
    head.nth(4).locator("button").click()
    scores = [float(text) for text in shown(page, 4)]
    assert scores == sorted(scores) and len(scores) == 25
    assert head.nth(4).get_attribute("aria-sort") == "ascending"
    head.nth(4).locator("button").press("Enter")
    scores = [float(text) for text in shown(page, 4)]
    assert scores == sorted(scores, reverse=True) and scores[0] == 10.0
    head.nth(0).locator("button").click()
    assert head.nth(4).get_attribute("aria-sort") is None
    steps = [int(text) for text in shown(page, 0)]
    assert steps == sorted(steps) and steps[0] == 0  # as numbers: 0, 20, 40, not as texts
    page.get_by_label("Sort by").select_option("exact")
    page.get_by_label("downwards").check()
    assert shown(page, 4)[0] == "10"


def test_what_has_no_score_comes_last_either_way(opened):
    page = opened("run.html", DESKTOP)
    page.get_by_role("button", name="Show more").click()
    for _ in range(2):
        page.locator("#sample-table thead th").nth(4).locator("button").click()
        assert shown(page, 4)[-5:] == ["–"] * 5


def test_samples_are_found_by_text_kind_and_prompt(opened):
    page = opened("run.html", DESKTOP)
    output = page.locator(".tools output")
    assert output.inner_text() == "25 of 60 shown, 60 in all"
    page.get_by_role("button", name="Show more").click()
    assert output.inner_text() == "60 of 60 shown, 60 in all"
    page.get_by_label("Find").fill("ANSWER 3 of step 40")
    assert shown(page, 0) == ["40"] and output.inner_text() == "1 of 1 shown, 60 in all"
    page.get_by_label("Find").fill("")
    page.get_by_label("From", exact=True).select_option("held-out")
    assert set(shown(page, 1)) == {"held-out"} and len(shown(page, 1)) == 20
    page.get_by_label("Prompt", exact=True).select_option(PROMPTS[0])
    assert set(shown(page, 2)) == {PROMPTS[0]} and len(shown(page, 2)) == 10
    assert not page.get_by_role("button", name="Show more").is_visible()


def test_other_tables_sort_too(opened):
    page = opened("run.html", DESKTOP)
    page.get_by_text("All 18 metrics").click()
    table = page.locator("table.numbers").first
    table.get_by_role("button", name="greatest").click()
    table.get_by_role("button", name="greatest").click()
    assert table.locator("tbody th").first.inner_text() == "tokens_drawn"
    page = opened("compare.html", DESKTOP)
    page.locator("#outcome-table").get_by_role("button", name="mean").click()
    assert page.locator("#outcome-table tbody th").all_inner_texts() == ["high=0.2", "high=0.28"]


@pytest.mark.parametrize("name", ["run.html", "compare.html"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_is_as_wide_as_the_screen(opened, name, size):
    page = opened(name, size)
    for summary in page.locator("summary").all():
        summary.click()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= size["width"]
    pictures = page.locator("figure svg:visible")
    assert pictures.count() >= 9
    assert all(box["width"] >= 250 for box in (p.bounding_box() for p in pictures.all()))


def test_a_phone_shows_a_sample_as_a_card(opened):
    page = opened("run.html", PHONE)
    cell = page.locator("#sample-table tbody tr").first.locator("td").nth(3)
    assert cell.bounding_box()["width"] > 250
    page.get_by_label("Sort by").select_option("exact")
    scores = [float(text) for text in shown(page, 4)]
    assert scores == sorted(scores)
