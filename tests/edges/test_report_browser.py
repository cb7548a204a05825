"""The report in a real browser: it opens from a file, makes no network requests, shows the loss, and a click explains
it (J7). Readable at a thousand nodes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.core.model.objects import NODE, Node
from reconciler.core.model.vocabulary import SCHEDULABLE_LABEL
from reconciler.debugging.report.build import build
from reconciler.debugging.report.page import page
from tests.core.world import NS, R, World
from tests.edges.test_report import HOSTILE, journal_of, refused, story

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1500,2200",
)  # fmt: skip

if not os.environ.get("CI"):
    pytest.importorskip("selenium", reason="no browser test without selenium: pip install 'gpu-binder[test]'")
    if not (BROWSER and DRIVER):
        pytest.skip("no browser: apt-get install chromium chromium-driver", allow_module_level=True)

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

PATIENCE_SECONDS = 30
"""A slow machine may take its time; a page that never gets ready fails."""


class Browser:
    """One page in one browser, with user actions."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, text: str, path: Path) -> None:
        path.write_text(text, encoding="utf-8")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(path.as_uri())
        self.until("return document.documentElement.dataset.ready === 'yes'")

    def until(self, script: str) -> Any:
        return WebDriverWait(self.driver, PATIENCE_SECONDS).until(lambda driver: driver.execute_script(script))

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    @property
    def panel(self) -> str:
        found: str = self.driver.find_element(By.ID, "panel").text
        return found

    @property
    def errors(self) -> list[Any]:
        return [line for line in self.driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]

    @property
    def requests(self) -> list[str]:
        """Every address asked for since the page was opened."""
        lines = [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]
        sent = [line["params"]["request"]["url"] for line in lines if line["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]

    def incidents(self, kind: int) -> list[Any]:
        """Marks of the strip, by its traces: refused, lost, returned."""
        traces = self.driver.find_elements(By.CSS_SELECTOR, "#events .scatterlayer .trace")
        found: list[Any] = traces[kind].find_elements(By.CSS_SELECTOR, ".point")
        return found

    def click(self, element: Any) -> None:
        """As a hand does it: the chart sees the pointer come before it is pressed."""
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.driver).move_to_element(element).pause(0.3).click().perform()

    def bars(self) -> list[Any]:
        found: list[Any] = self.driver.find_elements(By.CSS_SELECTOR, "#holders .barlayer .point path")
        return found

    def choose(self, text: str) -> None:
        box = self.driver.find_element(By.ID, "filter")
        box.clear()
        box.send_keys(text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.binary_location = BROWSER or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER or "chromedriver"))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def test_j7_the_page_opens_from_a_file_without_errors_or_requests(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    browser.open(page(build(journal_of(story())), "journal.db"), path)
    assert browser.driver.title.startswith("GPU units, ")
    assert browser.requests == [path.as_uri()]
    assert browser.errors == []
    assert [len(browser.incidents(kind)) for kind in range(3)] == [2, 1, 1]
    assert len(browser.bars()) == 4
    legend = browser.run("return document.querySelector('#units .legend').textContent")
    assert all(word in legend for word in ("placed", "raw use", "free", "served"))
    assert "6 served, 2 placed, 0 raw, 4 free" in browser.run(
        "return document.getElementById('units-note').textContent"
    )


def rows_of(browser: Browser) -> list[list[str]]:
    found: list[list[str]] = browser.run(
        "return [...document.querySelectorAll('#marks tbody tr')].map((row) => "
        "[...row.cells].map((cell) => cell.textContent))"
    )
    return found


def figures_of(browser: Browser) -> dict[str, int]:
    lines = browser.run("return [...document.querySelectorAll('#figures li')].map((item) => item.textContent.trim())")
    found = (line.split(maxsplit=1) for line in lines)
    return {what: int(number.replace(",", "")) for number, what in found}


def assert_figures_are_the_rows(browser: Browser) -> dict[str, int]:
    rows, figures = rows_of(browser), figures_of(browser)
    for kind in ("refused", "lost", "returned"):
        assert figures[kind] == sum(row[2].lower() == kind for row in rows), kind
    for reason in figures.keys() - {"node", "nodes", "refused", "lost", "returned"}:
        assert figures[reason] == sum(row[5].startswith(reason) for row in rows), reason
    return figures


def test_j7_the_table_shows_the_entry_the_sentence_and_the_numbers(browser: Browser, tmp_path: Path) -> None:
    data = build(journal_of(story()))
    browser.open(page(data, "journal.db"), tmp_path / "page.html")
    rows = {(row[2], row[3]): row for row in rows_of(browser)}
    for incident in data.incidents:
        row = rows[(incident.kind.capitalize(), incident.subject)]
        assert row[0] == str(incident.seq)
        assert incident.message and incident.message in row[5] and incident.reason in row[5]
        assert row[6:] == [str(incident.asked[R]), str(incident.missing or "")]


def test_j7_the_figures_are_the_rows_below_in_every_filter_and_window(browser: Browser, tmp_path: Path) -> None:
    world = story()
    world.tenant("b")
    world.order("many", ns="tenant-b", count=9)
    world.later(60)
    data = build(journal_of(world))
    browser.open(page(data, "journal.db"), tmp_path / "page.html")
    whole = assert_figures_are_the_rows(browser)
    assert (whole["nodes"], whole["refused"], whole["lost"], whole["returned"]) == (2, 3, 1, 1)
    browser.choose("tenant-b")
    browser.until("return document.querySelectorAll('#marks tbody tr').length === 1")
    assert assert_figures_are_the_rows(browser)["refused"] == 1
    browser.choose("d1")
    browser.until("return document.querySelectorAll('#marks tbody tr').length === 2")
    assert assert_figures_are_the_rows(browser)["node"] == 1
    browser.choose("waits")
    browser.until("return document.querySelectorAll('#marks tbody tr').length === 1")
    browser.choose(" ")
    browser.until("return document.querySelectorAll('#marks tbody tr').length === 5")
    lost = next(incident.at for incident in data.incidents if incident.kind == "lost")
    browser.run(f"Plotly.relayout('units', {{'xaxis.range[0]': {lost - 5_000}, 'xaxis.range[1]': {lost + 5_000}}})")
    browser.until("return document.querySelectorAll('#marks tbody tr').length === 1")
    figures = assert_figures_are_the_rows(browser)
    assert (figures["refused"], figures["lost"], figures["returned"]) == (0, 1, 0)
    browser.driver.find_element(By.ID, "all-time").click()
    browser.until("return document.querySelectorAll('#marks tbody tr').length === 5")
    assert assert_figures_are_the_rows(browser) == whole


def test_r9_free_units_are_drawn_below_the_served_line(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(build(journal_of(story())), "journal.db"), tmp_path / "page.html")
    traces = browser.run("return document.getElementById('units').data.map((trace) => [trace.name, trace.y])")
    drawn = dict(traces)
    below = [drawn[name] for name in ("placed", "raw use", "free", "not usable now")]
    assert [sum(parts) for parts in zip(*below, strict=True)] == drawn["served"]
    assert max(drawn["in use, not served"]) == 1


OVERLAPS = """
  const boxes = (selector) => [...document.querySelectorAll(selector)]
    .map((item) => [item.textContent, item.getBoundingClientRect()]).filter(([, box]) => box.width && box.height);
  const meet = ([, a], [, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const found = [];
  for (const id of ['events', 'units', 'nodes', 'holders']) {
    const ticks = boxes(`#${id} .xtick text, #${id} .ytick text`);
    const others = boxes(`#${id} .xtitle, #${id} .ytitle, #${id} .legend`);
    for (const other of others) for (const tick of ticks) if (meet(other, tick)) found.push([id, other[0], tick[0]]);
    const whole = document.getElementById(id).getBoundingClientRect();
    for (const [text, box] of [...ticks, ...others]) {
      if (box.left < whole.left - 1 || box.right > whole.right + 1 || box.bottom > whole.bottom + 1) {
        found.push([id, text, 'outside']);
      }
    }
  }
  return [found, boxes('.ytitle').length];
"""


@pytest.mark.parametrize("width", [1500, 700])
@pytest.mark.parametrize("nodes", ["two", "thousand"])
def test_j7_axis_titles_and_legends_are_clear_of_the_tick_labels(
    browser: Browser, tmp_path: Path, request: pytest.FixtureRequest, nodes: str, width: int
) -> None:
    text = request.getfixturevalue("thousand") if nodes == "thousand" else page(build(journal_of(story())), "j.db")
    browser.driver.set_window_size(width, 2200)
    try:
        browser.open(text, tmp_path / "page.html")
        overlaps, titles = browser.run(OVERLAPS)
    finally:
        browser.driver.set_window_size(1500, 2200)
    assert overlaps == []
    assert titles == (2 if nodes == "thousand" else 1)


def test_p4_a_click_on_the_loss_explains_it(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(build(journal_of(story())), "journal.db"), tmp_path / "page.html")
    browser.click(browser.incidents(1)[0])
    browser.until("return document.getElementById('panel').textContent.includes('Lose')")
    assert f"Lose {NS}/d1 on n1" in browser.panel
    assert f"node n1 serves 1 {R} and 2 are placed there" in browser.panel
    assert "Every node (1)" in browser.panel
    assert browser.errors == []


def test_j7_a_click_on_a_refusal_or_a_bar_shows_every_node_and_every_budget(browser: Browser, tmp_path: Path) -> None:
    world = story()
    world.quotas("a", {R: 7})
    refused(world, "6 units were asked for", ("a10", 6), name="large")
    browser.open(page(build(journal_of(world)), "journal.db"), tmp_path / "page.html")
    browser.click(browser.incidents(0)[2])
    browser.until("return document.getElementById('panel').textContent.includes('large')")
    for words in ("NoFreeUnits", "Every node (2)", "n1", "n2", "Budgets, nearest tenant first", "tenant-root", "7"):
        assert words in browser.panel, words
    browser.click(browser.bars()[0])
    browser.until("return document.getElementById('panel').textContent.includes('Bind')")
    assert f"Bind {NS}/vm on n1" in browser.panel and "chosen" in browser.panel
    line = browser.driver.find_elements(By.CSS_SELECTOR, "#marks tbody button")[-1]
    line.click()
    assert f"RefuseOrder {NS}/waits" in browser.panel


def test_j7_the_filter_finds_nodes_by_what_they_hold(browser: Browser, tmp_path: Path) -> None:
    world = story()
    world.tenant("b")
    world.node("n3", 1)
    world.order("other", ns="tenant-b")
    world.start("machine", "other", ns="tenant-b")
    browser.open(page(build(journal_of(world)), "journal.db"), tmp_path / "page.html")
    browser.choose("TENANT-B")
    browser.until("return document.getElementById('nodes-note').textContent.startsWith('1 node of 3')")
    assert browser.run("return document.getElementById('holders-note').textContent").startswith("nodes 1 to 1 of 1")
    assert browser.run("return document.querySelectorAll('#marks tbody tr').length") == 0
    assert browser.errors == []


def test_j7_a_click_on_a_row_shows_that_nodes_holders(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(build(journal_of(story())), "journal.db"), tmp_path / "page.html")
    rows = browser.driver.find_element(By.CSS_SELECTOR, "#nodes .nsewdrag")
    browser.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", rows)
    upper = -rows.size["height"] // 4
    ActionChains(browser.driver).move_to_element_with_offset(rows, 40, upper).pause(0.3).click().perform()
    browser.until("return document.getElementById('nodes-note').textContent.startsWith('1 node of 2')")
    assert browser.run("return document.getElementById('filter').value") == "n1"
    assert browser.run("return document.querySelector('#holders .ytick text').textContent") == "n1 (2)"


def test_j7_hostile_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    world = World().ready((HOSTILE, 1))
    world.order("d1")
    world.start(HOSTILE, "d1")
    refused(world, HOSTILE, ("a10", 2), name=HOSTILE)
    world.later(60)
    browser.open(page(build(journal_of(world)), HOSTILE), tmp_path / "page.html")
    assert HOSTILE in browser.driver.find_element(By.TAG_NAME, "header").text
    browser.driver.find_element(By.CSS_SELECTOR, "#marks tbody button").click()
    assert HOSTILE in browser.panel
    browser.click(browser.bars()[0])
    browser.until("return document.getElementById('panel').textContent.includes('Bind')")
    assert HOSTILE in browser.panel
    assert browser.run("return document.querySelector('#holders .ytick text').textContent").startswith(HOSTILE[:20])
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelectorAll('img, a[href]').length") == 0
    assert browser.errors == []
    assert len(browser.requests) == 1


@pytest.fixture(scope="module")
def thousand() -> str:
    """A thousand nodes of eight units, a third in use, one lost and one silent."""
    world = World()
    for index in range(1000):
        world.node(f"gpu-{index:04}", 8)
    world.gpu_class()
    world.kubevirt()
    world.tenant("a")
    world.sync()
    for index in range(60):
        world.at += 30_000
        world.order(f"d{index}", count=8)
        world.start(f"vm{index}", f"d{index}", units=8)
    lost = world.device("d7").placement
    assert lost is not None
    world.change(NODE, "", lost.node, allocatable={R: 0})
    world.later(61)
    silent = world.objects[(NODE.name, "", "gpu-0999")]
    assert isinstance(silent, Node) and SCHEDULABLE_LABEL in silent.labels
    world.put(NODE, msgspec.structs.replace(silent, ready=False))
    world.later(60)
    refused(world, "9 units were asked for", ("a10", 9), name="large")
    world.later(600)
    return page(build(journal_of(world)), "journal.db")


def test_j7_a_thousand_nodes_open_with_the_aggregate_first(browser: Browser, tmp_path: Path, thousand: str) -> None:
    assert len(thousand) < 8_000_000
    browser.open(thousand, tmp_path / "page.html")
    note = browser.run("return document.getElementById('nodes-note').textContent")
    assert note.startswith("1,000 nodes of 1,000")
    assert "7984 served, 472 placed" in browser.run("return document.getElementById('units-note').textContent")
    assert "1 node silent" in browser.run("return document.getElementById('units-note').textContent")
    assert 0 < len(browser.bars()) < 50
    first = browser.run(
        "return document.querySelector('#holders .ytick:last-child text, #holders .ytick text').textContent"
    )
    assert first.startswith("gpu-")
    browser.click(browser.incidents(1)[0])
    browser.until("return document.getElementById('panel').textContent.includes('Lose')")
    assert f"Lose {NS}/d7" in browser.panel
    browser.click(browser.incidents(0)[0])
    browser.until("return document.getElementById('panel').textContent.includes('large')")
    assert "Every node (1,000)" in browser.panel
    names = browser.run(
        "return [...document.querySelectorAll('#panel tbody td:first-child')].map((cell) => cell.textContent).join(' ')"
    )
    assert all(f"gpu-{index:04}" in names for index in range(1000))
    browser.choose("gpu-0999")
    browser.until("return document.getElementById('nodes-note').textContent.startsWith('1 node of 1,000')")
    assert browser.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_j7_the_page_follows_the_readers_colour_scheme(browser: Browser, tmp_path: Path, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        browser.open(page(build(journal_of(story())), "journal.db"), tmp_path / "page.html")
        back, ink = browser.run(
            "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
        )
        tick = browser.run("return getComputedStyle(document.querySelector('#units .xtick text')).fill")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert (brightness(back) > brightness(ink)) == (scheme == "light")
    assert tick == ink


def brightness(colour: str) -> int:
    return sum(int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])


def test_j7_everything_on_the_page_can_be_reached_by_keyboard_and_has_a_name(browser: Browser, tmp_path: Path) -> None:
    browser.open(page(build(journal_of(story())), "journal.db"), tmp_path / "page.html")
    unnamed = browser.run(
        """return [...document.querySelectorAll('select, input, button')].filter(
             (item) => !item.textContent.trim() && !item.closest('label')).length"""
    )
    assert unnamed == 0
    assert browser.run("return document.documentElement.lang") == "en"
    assert (
        browser.run("return document.querySelectorAll('figure[aria-labelledby], section[aria-labelledby]').length") == 4
    )
    assert browser.run("return document.getElementById('panel').getAttribute('aria-live')") == "polite"
    assert browser.run("return document.querySelectorAll('#marks tbody button').length") == 4
