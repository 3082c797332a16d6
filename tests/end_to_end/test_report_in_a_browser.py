"""The page of a study in a real browser: curves are switched, hovered and zoomed, tables sorted, nothing is cut off or fetched.

The browser is Playwright's own Chromium (`playwright install chromium`) or one of the system's.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from chanest.studies import STUDIES
from vlista_core.study.page import write_page

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SYSTEM = ("chromium", "chromium-browser", "google-chrome")
SIZES = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = next((found for name in SYSTEM if (found := shutil.which(name))), None)
        try:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"no Chromium: try `playwright install chromium` ({str(error).splitlines()[0]})")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of two recorded studies: curves and marks; a table with shades."""
    written = {}
    for name in ("cdl_c_upa64x4", "bench_pilots"):
        folder = tmp_path_factory.mktemp("run") / name
        shutil.copytree(RESULTS / name, folder)
        written[name] = write_page(folder, STUDIES)
    return written


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page; the test fails where a page that was opened in it complains or asks for anything but itself."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    said = list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else said.append(request.url))
    yield page
    page.close()
    assert said == []


def _open(page: Page, path: Path) -> None:
    page.goto(path.as_uri())
    page.wait_for_selector("#theme:not([hidden])")


@pytest.mark.parametrize("name", ["cdl_c_upa64x4", "bench_pilots"])
@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_nothing_is_wider_than_the_screen(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    _open(page, pages[name])
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    clipped = (
        "[...document.querySelectorAll('table.words td')].filter((cell) => cell.scrollWidth > cell.clientWidth).length"
    )
    assert page.evaluate(clipped) == 0
    ink = page.evaluate("getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")
    assert (min(ink) > 200) == (scheme == "dark")
    page.close()


def test_the_three_best_and_the_bounds_are_shown_and_a_click_hides_a_curve(page: Page, pages: dict[str, Path]) -> None:
    _open(page, pages["cdl_c_upa64x4"])
    figure = page.locator("figure.chart").first
    curves = figure.locator(".panel .series")
    names = curves.evaluate_all("(all) => all.map((each) => each.dataset.label)")
    assert names[:3] == ["gated-lmmse", "atom-lmmse", "gmm"]
    assert all(name.startswith(("genie", "oracle")) for name in names[3:])
    entry = figure.locator(".legend button", has_text="gmm")
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert curves.count() == len(names) - 1
    figure.get_by_role("button", name="All curves").click()
    assert curves.count() == figure.locator(".legend button").count() == 19
    figure.get_by_role("button", name="The best and the bounds").click()
    assert curves.count() == len(names)


def test_the_pointer_is_told_what_is_under_it(page: Page, pages: dict[str, Path]) -> None:
    _open(page, pages["cdl_c_upa64x4"])
    figure = page.locator("figure.chart").first
    figure.locator(".panel svg").hover(position={"x": 500, "y": 200})
    said = figure.locator(".tip").inner_text()
    assert said.startswith("SNR (dB) 10")
    assert "gated-lmmse: −12.05" in said


def test_a_drag_zooms_and_a_double_click_ends_it(page: Page, pages: dict[str, Path]) -> None:
    _open(page, pages["cdl_c_upa64x4"])
    panel = page.locator("figure.chart .panel").first
    panel.scroll_into_view_if_needed()

    def ticks() -> list[str]:
        return [text.replace("−", "-") for text in panel.locator("svg text[text-anchor=end]").all_text_contents()]

    whole = [float(tick) for tick in ticks()]
    box = panel.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 400, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 200, steps=4)
    page.mouse.up()
    near = [float(tick) for tick in ticks()]
    assert max(near) - min(near) < (max(whole) - min(whole)) / 2
    panel.dblclick(position={"x": 300, "y": 150})
    assert [float(tick) for tick in ticks()] == whole


def test_tables_sort_by_number_and_back(page: Page, pages: dict[str, Path]) -> None:
    _open(page, pages["cdl_c_upa64x4"])
    table = page.locator("table.sorts").first
    first = table.locator("tbody th")
    before = first.all_inner_texts()
    heading = table.get_by_role("button", name="20 dB")
    heading.click()
    assert table.locator("th[aria-sort=ascending]").inner_text() == "20 dB"
    levels = [float(text.replace("−", "-")) for text in table.locator("tbody tr td:nth-child(4)").all_inner_texts()]
    assert levels == sorted(levels)
    heading.click()
    assert first.all_inner_texts()[0] == "ls"
    heading.click()
    assert first.all_inner_texts() == before
    table.get_by_role("button", name="parameters").click()
    last = table.locator("tbody tr td:last-child").all_inner_texts()
    assert last[-4:] == ["–"] * 4


def test_shaded_columns_can_be_left_out(page: Page, pages: dict[str, Path]) -> None:
    _open(page, pages["bench_pilots"])
    shaded = page.locator("table.fields td.shaded:visible")
    before = shaded.count()
    page.locator(".legend button", has_text="vlista").last.click()
    assert 0 < shaded.count() < before


def test_the_scheme_can_be_chosen(page: Page, pages: dict[str, Path]) -> None:
    _open(page, pages["cdl_c_upa64x4"])
    page.emulate_media(color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light, switch = page.evaluate(paper), page.locator("#theme")
    switch.click()
    switch.click()
    assert switch.inner_text() == "Colours: dark"
    assert page.evaluate(paper) != light


def test_every_figure_and_table_can_be_read_aloud(page: Page, pages: dict[str, Path]) -> None:
    _open(page, pages["cdl_c_upa64x4"])
    assert page.locator("img:not([alt]), img[alt='']").count() == 0
    assert "gated-lmmse" in (page.locator(".panel svg").first.get_attribute("aria-label") or "")
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("tbody tr").count() == page.locator("tbody th[scope=row]").count()
    assert page.locator("thead th").count() == page.locator("thead th[scope=col]").count()


def test_without_scripts_the_pictures_stand_in(browser: Browser, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["cdl_c_upa64x4"].as_uri())
    assert page.locator("figure.chart img:visible").count() == 2
    context.close()
