"""A headless Chromium for the tests of pages: opens a page by its file address and notes every error and every request that leaves it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync", "--no-first-run"]
AXE = ROOT / ".venv/node/node_modules/axe-core/axe.min.js"
SCREENSHOTS = ROOT / "tests/screenshots"


def executable() -> str | None:
    """The browser that `make test` found, else one in the usual places; None = Playwright's own."""
    noted = ROOT / ".venv/.browser"
    named = noted.read_text().strip() if noted.is_file() else ""
    return os.environ.get("INTERP_BROWSER") or named or shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def browser() -> Iterator[Any]:
    """One Chromium for a module's tests; skips, with the reason, where none starts (CI fails instead)."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=executable(), args=FLAGS)
        except sync_api.Error as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no Chromium starts here ({str(error).splitlines()[0]}); run scripts/browser.sh")
        yield started
        started.close()


@contextmanager
def opened(browser: Any, address: str, width: int = 1400, scheme: str = "light", scripts: bool = True) -> Iterator[Any]:
    """A page, network off, viewer ready. Leaving the block asserts: no error, nothing on the console, no request beside the file."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=scripts, offline=True
    )
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on(
        "request", lambda request: request.url.startswith(("file:", "data:", "blob:")) or faults.append(f"left: {request.url}")
    )
    page.set_default_timeout(30_000)
    page.goto(address)
    if scripts:
        until(page, "document.querySelectorAll('.interp-viewer:not([data-ready])').length === 0")
    try:
        yield page
        assert faults == []
    finally:
        context.close()


def until(page: Any, expression: str, seconds: float = 30) -> None:
    """Waits for a JavaScript expression to hold. Playwright's own waiting uses eval in the page, which a strict policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"still not so after {seconds} s: {expression}"
        page.wait_for_timeout(30)
