"""Reports in a headless Chromium: no error, no request, no sideways scrolling; sorting by mouse and key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reports import TOKENS, sample


@pytest.mark.browser
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """Dark and light, wide and narrow, without network: no error, no request, no sideways scrolling; tables sort by mouse and key."""
    browsers = pytest.importorskip("playwright.sync_api")
    chromium = next(
        filter(Path.exists, map(Path, ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"))), None
    )
    index = sample().write(tmp_path / "r")
    both = tmp_path / "both.html"
    both.write_text(f"<meta charset=utf-8>{sample()._repr_html_()}{sample(answer='Other.')._repr_html_()}", encoding="utf-8")
    with browsers.sync_playwright() as play:
        try:
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        except browsers.Error as missing:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no Chromium here: {str(missing).splitlines()[0]}")
        said: list[str] = []
        for scheme, width in (("light", 1400), ("dark", 400)):
            tab = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True).new_page()
            tab.on("console", lambda message: said.append(message.text))
            tab.on("pageerror", lambda error: said.append(str(error)))
            tab.on(
                "request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else None
            )
            for place, tables in ((index, 1), (both, 2)):
                tab.goto(place.as_uri())
                assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
                assert tab.locator("th button").count() == 3 * tables
            last = tab.locator("table").last
            last.get_by_role("button", name="weight").focus()
            tab.keyboard.press("Enter")
            tab.keyboard.press("Enter")
            assert last.locator("th").last.get_attribute("aria-sort") == "ascending"
            assert last.locator("tbody tr").first.locator("td").first.inner_text() == str(len(TOKENS) - 1)
        browser.close()
    assert said == []
