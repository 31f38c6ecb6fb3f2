"""Whole pages: several viewers in one, a report's policy, accessibility, sizes and times, long texts, real models and recordings."""

from __future__ import annotations

import json

import numpy as np
import pytest

import interp
from interp.report import Report, view
from interp.report.viewer import embed
from tests.browser import AXE, SCREENSHOTS, browser, opened, until
from tests.test_viewer import VIEWER, heads_in, made

pytestmark = pytest.mark.browser
MARY = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


def written(folder, html: str) -> str:
    (folder / "view.html").write_text(html, encoding="utf-8", newline="")
    return (folder / "view.html").as_uri()


def switches(page, count: int = 12, pause: int = 0, jump: bool = False) -> list[float]:
    """Milliseconds that turning to the next head takes, drawing included, once the small maps are painted; `pause` between turns.

    `jump`: to heads that were not made ahead, as by a search.
    """
    page.wait_for_selector(".overview[data-painted=maps]", timeout=120_000)
    return page.evaluate(
        f"""async () => {{ const v = {VIEWER}; const times = [];
        for (let i = 0; i < {count}; i++) {{
          if ({str(jump).lower()}) v.heads.kept.clear();
          await v.turn(1); times.push(v.took); await new Promise((done) => setTimeout(done, {pause})); }}
        return times.sort((a, b) => a - b); }}"""
    )


def tell(name: str, size: int, times: list[float]) -> None:
    print(f"{name}: {size / 1e6:.2f} MB, head switch {times[len(times) // 2]:.0f} ms (median), {times[-1]:.0f} ms (slowest)")


def test_144_heads_of_64_tokens(chromium, tmp_path):
    capture = made(layers=tuple(range(12)), heads=12, n=64, d=64, spread=3.0)
    html = view(capture)
    assert len(html.encode()) < 2_000_000
    with opened(chromium, written(tmp_path, html)) as page:
        tell("144 heads × 64 tokens", len(html.encode()), switches(page))


def test_512_tokens_open_and_scroll(chromium, tmp_path):
    capture = made(layers=(0, 1), heads=2, n=512, d=32)
    html = view(capture)
    with opened(chromium, written(tmp_path, html)) as page:
        tell("4 heads × 512 tokens", len(html.encode()), switches(page, 5, pause=200))
        tell("4 heads × 512 tokens, jumping", len(html.encode()), switches(page, 5, pause=200, jump=True))
        page.locator(".grid").evaluate("grid => { grid.scrollTop = 99999; grid.scrollLeft = 99999; }")
        page.wait_for_timeout(50)
        canvas = page.locator(".grid canvas")
        box = canvas.bounding_box()
        canvas.click(position={"x": box["width"] - 12, "y": box["height"] - 12})
        until(page, f"{VIEWER}.at.key > 0")
        at = page.evaluate(f"{VIEWER}.at")
        width = page.locator(".grid canvas").evaluate("canvas => canvas.width")
    assert at["query"] > 500
    assert at["key"] > 500
    assert width < 3000


def test_heads_beyond_the_limit_stay_out_with_a_notice(chromium, tmp_path, monkeypatch):
    monkeypatch.setattr("interp.report.viewer_data.MOST", 5_000)
    capture = made(layers=(4, 7, 8), heads=2, n=40, d=8)
    with opened(chromium, written(tmp_path, view(capture)), width=1000) as page:
        notice = page.locator(".notice").text_content()
        page.locator("input[type=search]").fill("8.1")
        assert "not in this page" in page.locator(".found").text_content()
        assert page.get_by_label("Head 8.1").is_disabled()
    assert "of 6 heads" in notice
    assert "--layers" in notice


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_accessible_and_no_wider_than_the_screen(chromium, tmp_path, width, scheme):
    if not AXE.is_file():
        pytest.skip("axe-core is not in .venv/node; scripts/browser.sh fetches it where npm is")
    capture = made(layers=(0, 1), heads=12, n=9)
    SCREENSHOTS.mkdir(exist_ok=True)
    with opened(chromium, written(tmp_path, view(capture, "Nine tokens")), width=width, scheme=scheme) as page:
        until(page, "!!document.querySelector('.overview[data-painted=maps]')", 120)
        page.locator(".panel summary").click()
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        page.screenshot(path=SCREENSHOTS / f"viewer-{width}-{scheme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found] == []


def test_two_viewers_in_a_report_and_in_a_notebook_do_not_clash(chromium, tmp_path):
    one, two = made(layers=(0,), heads=2, seed=1), made(layers=(5,), heads=3, seed=2)
    report = Report("two", "toy", "Do two viewers clash?", "No.", captures=[one, two])
    for html in (
        report.html(),
        f"<!doctype html><meta charset=utf-8><title>n</title>{embed(one)}{embed(two)}<style></style>{embed(one)}",
    ):
        with opened(chromium, written(tmp_path, html), width=1200) as page:
            roots = page.locator(".interp-viewer")
            names = [roots.nth(i).locator(".name").text_content() for i in range(2)]
            roots.nth(1).get_by_label("Next head").click()
            until(page, "document.querySelectorAll('.interp-viewer')[1].querySelector('.name').textContent === 'Head 5.1'")
            assert roots.nth(0).locator(".name").text_content() == "Head 0.0"
            assert "view=" in page.url
            ids = page.evaluate("[...document.querySelectorAll('[id]')].map(x => x.id)")
        assert names == ["Head 0.0", "Head 5.0"]
        assert len(ids) == len(set(ids))
    assert one._repr_html_() == embed(one)


def test_mary_and_john_in_smollm2(chromium, tmp_path, smollm2):
    capture = interp.capture(smollm2, MARY, bos="none")
    html = view(capture)
    assert capture.n_tokens == 14
    assert len(html.encode()) < 1_500_000
    with opened(chromium, written(tmp_path, html + ""), width=1400) as page:
        times = switches(page)
        scores, weights = heads_in(page, capture)
    tell("270 heads × 14 tokens", len(html.encode()), times)
    assert np.abs(scores - capture.scores.numpy()).max() < 0.01
    assert np.abs(weights - capture.weights.numpy()).max() < 0.001


def test_the_toy_and_a_recording_open(chromium, tmp_path, toy, shared):
    captures = [
        interp.capture(toy, "The team colour is red . So the"),
        interp.read(shared / "data/gpt2_explainer_0.safetensors"),
        interp.read(shared / "data/gpt2_bertviz_john_smith_qk.safetensors"),
    ]
    for capture in captures:
        with opened(chromium, written(tmp_path, view(capture)) + "#head=0.0&step=mask&query=3") as page:
            page.get_by_label("Next head").click()
            _, weights = heads_in(page, capture)
            assert "step=mask" in page.url
        assert np.abs(weights - capture.weights.numpy()).max() < 0.001


def test_data_and_policy_hold_nothing_that_can_run():
    html = view(made(), "</title><script>alert(1)</script>")
    assert "<script>alert" not in html
    assert json.loads(html.partition('type="application/json">')[2].partition("</script>")[0])["heads"] == 3
