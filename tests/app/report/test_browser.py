"""Reports in a real browser: nothing loaded, nothing broken, nothing cut off, usable by keyboard and screen reader."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from lapwing.app import report
from tests.app.report import runs

pytestmark = pytest.mark.browser

PAGES = {
    "classification": lambda: [runs.classifier()],
    "regression": lambda: [runs.wave()],
    "table": lambda: [runs.houses()],
    "long names": lambda: [runs.houses(name="a column whose name is so long that no axis has room for all of it")],
    "several": lambda: [runs.committee()],
    "comparison": lambda: [runs.classifier(), runs.classifier(seed=3, name="Again"), runs.wave(), runs.failed()],
}
WIDTHS = {"small phone": 360, "phone": 390, "desktop": 1280}
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
AXE = Path(os.environ.get("AXE_CORE", Path(sys.prefix) / "axe" / "node_modules" / "axe-core")) / "axe.min.js"
SERIOUS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
    .filter(found => ["serious", "critical"].includes(found.impact))
    .map(found => found.id + ": " + found.nodes.slice(0, 3).map(node => node.html.slice(0, 160)).join(" | "))"""
EMPTY_CHARTS = """() => [...document.querySelectorAll("svg.chart")].filter(chart => chart.checkVisibility()).filter(chart => {
    const marks = [...chart.querySelectorAll("g > polyline, g > path, g > rect, g > circle")];
    return !marks.some(mark => { const box = mark.getBBox(); return box.width + box.height > 2; });
}).map(chart => chart.getAttribute("aria-label"))"""
CUT_OFF = """() => [...document.querySelectorAll("svg.chart")].filter(chart => chart.checkVisibility()).flatMap(chart => {
    const frame = chart.getBoundingClientRect();
    return [...chart.querySelectorAll("text")].filter(text => {
        const box = text.getBoundingClientRect();
        return box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1 || box.top < frame.top - 1;
    }).map(text => chart.querySelector("title").textContent + ": " + text.textContent);
})"""


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.fail("browser tests need Playwright: run them by `make browser`")
    if chromium is None or not AXE.is_file():
        pytest.fail(f"browser tests need {'Chromium' if chromium is None else AXE}: run them by `make browser`")
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {**PAGES, "hostile": lambda: [runs.hostile()]}
    return {name: report.write(folder / f"{name}.html", make()) for name, make in made.items()}


class Visit:
    """A page opened at some width, with what it complained about and asked for."""

    def __init__(self, browser, path, width=1280, **options):
        self.context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        self.page, self.complaints, self.requests = self.context.new_page(), [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    @property
    def fetched(self):
        return [url for url in self.requests if not url.startswith("data:") and not url.startswith("file:///")]

    def overflow(self):
        return self.page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", PAGES)
def test_reports_are_whole_at_every_width(browser, pages, kind, width, scheme):
    with Visit(browser, pages[kind], WIDTHS[width], color_scheme=scheme) as visit:
        shown = ["compare", *(f"run-{number}" for number in range(4))] if kind == "comparison" else [None]
        visit.page.evaluate(AXE.read_text())
        for one in shown:
            if one is not None:
                visit.page.select_option("#chooser", one)
            assert visit.overflow() <= 0
            assert visit.page.evaluate(EMPTY_CHARTS) == []
            assert visit.page.evaluate(CUT_OFF) == []
            assert visit.page.evaluate(SERIOUS) == []
        charts = visit.page.locator("svg.chart").count()
        assert (
            charts
            >= {"classification": 8, "regression": 6, "table": 7, "long names": 7, "several": 9, "comparison": 20}[kind]
        )
        assert visit.complaints == []
        assert visit.fetched == []
        assert len([url for url in visit.requests if url.startswith("file:")]) == 1


@pytest.mark.parametrize("kind", ["classification", "table", "several"])
@pytest.mark.parametrize("width", [1000, 1100, 1280])
def test_tables_are_not_cut_on_a_desktop(browser, pages, width, kind):
    cut = """() => [...document.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth)
        .map(box => box.getAttribute("aria-label"))"""
    with Visit(browser, pages[kind], width) as visit:
        assert visit.page.evaluate(cut) == []


def test_tables_are_sorted_by_a_click_on_their_head(browser, pages):
    with Visit(browser, pages["classification"]) as visit:
        table = visit.page.locator("table.sortable").filter(has_text="leverage").first
        head = table.locator("thead th").filter(has_text="leverage")
        read = lambda: [float(cell) for cell in table.locator("tbody tr td:nth-of-type(3)").all_inner_texts()]  # noqa: E731
        before = read()
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        assert read() == sorted(before) != before
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert read() == sorted(before, reverse=True)
        words = table.locator("thead th").filter(has_text="target")
        words.locator("button").click()
        names = table.locator("tbody tr td:nth-of-type(1)").all_inner_texts()
        assert names == sorted(names)
        assert head.get_attribute("aria-sort") is None


def test_values_are_shown_on_hover(browser, pages):
    with Visit(browser, pages["classification"]) as visit:
        mark = visit.page.locator("svg.chart .hit").last
        mark.scroll_into_view_if_needed()
        mark.hover()
        tip = visit.page.locator("#tip")
        assert tip.is_visible()
        assert tip.inner_text() == mark.get_attribute("data-tip")
        box = tip.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 1280
        visit.page.locator("h1").hover()
        assert not tip.is_visible()


def test_one_run_is_shown_at_a_time(browser, pages):
    with Visit(browser, pages["comparison"]) as visit:
        visible = lambda: [run.get_attribute("id") for run in visit.page.locator("article.run:visible").all()]  # noqa: E731
        assert visible() == ["compare"]
        visit.page.select_option("#chooser", "run-2")
        assert visible() == ["run-2"]
        visit.page.reload()
        assert visible() == ["run-2"]


def test_contents_lead_to_sections_of_the_run_that_is_shown(browser, pages):
    with Visit(browser, pages["table"], 390) as visit:
        visit.page.get_by_role("link", name="Which inputs matter?").click()
        heading = visit.page.get_by_role("heading", name="Which inputs matter?")
        assert 0 <= heading.bounding_box()["y"] < 100
    with Visit(browser, pages["comparison"]) as visit:
        visit.page.select_option("#chooser", "run-2")
        visit.page.locator("#run-2 nav a").filter(has_text="Where are the errors?").click()
        heading = visit.page.locator("#run-2 h2").filter(has_text="Where are the errors?")
        assert 0 <= heading.bounding_box()["y"] < 100
        visit.page.reload()
        assert heading.is_visible()
        assert visit.page.input_value("#chooser") == "run-2"


@pytest.mark.parametrize("kind", PAGES)
def test_letters_are_large_enough_on_a_phone(browser, pages, kind):
    small = """() => [...document.querySelectorAll("svg.chart text, p, td, th, li, figcaption")].filter(part => {
        if (!part.checkVisibility() || !part.textContent.trim()) return false;
        const chart = part.closest("svg.chart");
        const scale = chart ? chart.getBoundingClientRect().width / chart.viewBox.baseVal.width : 1;
        return parseFloat(getComputedStyle(part).fontSize) * scale < 9.5;
    }).map(part => part.textContent.slice(0, 40))"""
    with Visit(browser, pages[kind], 390) as visit:
        assert visit.page.evaluate(small) == []


def test_light_and_dark(browser, pages):
    with Visit(browser, pages["regression"], color_scheme="light") as visit:
        colour = lambda: visit.page.evaluate("() => getComputedStyle(document.body).backgroundColor")  # noqa: E731
        before = colour()
        visit.page.locator("#theme").click()
        assert colour() != before
        visit.page.locator("#theme").click()
        assert colour() == before


def test_without_scripts_and_in_print_everything_is_there(browser, pages):
    with Visit(browser, pages["comparison"], java_script_enabled=False) as visit:
        assert visit.page.locator("article.run:visible").count() == 5
    with Visit(browser, pages["comparison"]) as visit:
        visit.page.emulate_media(media="print")
        assert visit.page.locator("article.run:visible").count() == 5
        assert not visit.page.locator("#chooser").is_visible()
        assert len(visit.page.pdf(format="A4")) > 50_000


def test_hostile_strings_do_not_run(browser, pages):
    with Visit(browser, pages["hostile"], 360) as visit:
        assert visit.page.evaluate("() => window.hacked") is None
        assert visit.page.title().startswith(runs.HOSTILE)
        assert visit.complaints == []
        assert visit.overflow() <= 0
