"""Reports in a headless Chromium: no error, no request, no sideways scrolling; sorting by mouse and key; viewers inside; scripts off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import AXE, browser, opened
from hostile import TOKENS, sample, short

import interp
from interp.report.text import visible

pytestmark = pytest.mark.browser
NARROW = {"width": 400, "scheme": "dark"}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def index(toy: interp.Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    captures = [interp.capture(toy, "The team colour is red. So the players wear")]
    return sample(captures=captures).write(tmp_path_factory.mktemp("written") / "r").as_uri()


@pytest.mark.parametrize("look", [{}, NARROW], ids=["wide and light", "narrow and dark"])
def test_a_report_fits_and_its_table_sorts(chromium: Any, index: str, look: dict[str, Any]) -> None:
    with opened(chromium, index, **look) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.locator(".scroll th button").count() == 3
        table = tab.locator(".scroll > table").last
        table.get_by_role("button", name="weight").focus()
        tab.keyboard.press("Enter")
        assert table.locator("tbody tr").first.locator("td").first.inner_text() == "0"
        tab.keyboard.press("Enter")
        assert table.locator("th").last.get_attribute("aria-sort") == "ascending"
        assert table.locator("tbody tr").first.locator("td").first.inner_text() == str(len(TOKENS) - 1)
        assert tab.locator(".interp-viewer canvas").count() > 0
        if AXE.is_file():
            tab.evaluate(AXE.read_text(encoding="utf-8"))
            found = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            assert [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found] == []


def test_text_of_figures_stays_inside_them(chromium: Any, index: str) -> None:
    with opened(chromium, index) as tab:
        outside = tab.evaluate("""[...document.querySelectorAll("svg.drawn")].flatMap((svg) => {
          const frame = svg.getBoundingClientRect();
          return [...svg.querySelectorAll("text")].filter((text) => {
            const box = text.getBoundingClientRect();
            return box.left < frame.left - 3 || box.right > frame.right + 3 || box.top < frame.top - 3 || box.bottom > frame.bottom + 3;
          }).map((text) => text.textContent);
        })""")
        assert outside == []


def test_a_report_reads_with_scripts_off(chromium: Any, index: str) -> None:
    with opened(chromium, index, scripts=False) as tab:
        assert tab.locator("th button").count() == 0
        assert tab.locator(".scroll > table").last.locator("tbody tr").count() == len(TOKENS)
        assert tab.locator("svg.drawn").count() == 2
        assert "Half of it." in tab.locator("body").inner_text()
        shown = tab.locator(".scroll > table").last.locator("td:nth-child(2)").evaluate_all("all => all.map(x => x.textContent)")
        assert shown == [visible(token) for token in TOKENS]
        assert tab.locator("b[x]").count() == 0


def test_two_reports_in_one_page_both_work(chromium: Any, toy: interp.Model, tmp_path: Path) -> None:
    one, two = (
        short(answer=text, captures=[interp.capture(toy, text)])._repr_html_()
        for text in ("The team colour is red", "The team colour is blue")
    )
    (tmp_path / "both.html").write_text(f"<meta charset=utf-8>{one}{two}", encoding="utf-8")
    with opened(chromium, (tmp_path / "both.html").as_uri(), **NARROW) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.locator(".scroll th button").count() == 6
        assert tab.locator(".interp-viewer[data-ready]").count() == 2
        for part, last in ((0, "red"), (1, "blue")):
            assert last in tab.locator(".interp-viewer").nth(part).inner_text()
        tab.locator(".scroll th button").first.click()
        assert tab.locator("th[aria-sort]").count() == 1
