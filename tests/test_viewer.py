"""The viewer in a real browser: what it shows is what numpy computes, by steps, keys, pointer, search and links."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from interp import attention
from interp.capturing import Capture
from interp.report import view
from interp.report.text import visible
from tests.browser import browser, opened, until

pytestmark = pytest.mark.browser
HOSTILE = (
    "</script><b x=\"'&", "<!--", "<|endoftext|>", '"', "$x$", "\n", "\t", "\x00", "\u202eabc", "\u200b", "e\u0301", "<0xF0><0x9F>",
    "\ud83e", "", " the", " the", "]]>", "`${1}`", "日本語",
)  # fmt: skip
VIEWER = "document.querySelector('.interp-viewer').interpViewer"


def made(layers=(0,), heads=3, n=7, d=4, seed=0, kv=None, tokens=None, spread=2.0, **other) -> Capture:
    """A capture of random q and k, or with `spread` wide scores; everything else follows."""
    source = torch.Generator().manual_seed(seed)
    kv = kv or heads
    q = torch.randn(len(layers), heads, n, d, generator=source) * spread
    k = torch.randn(len(layers), kv, n, d, generator=source)
    scores = attention.scores(q, k.repeat_interleave(heads // kv, 1))
    seen = attention.visible(n).expand(len(layers), n, n).clone()
    names = tokens or tuple(f" w{i}" for i in range(n))
    weights = attention.weights(scores, seen[:, None])
    scale = (d**-0.5,) * len(layers)
    return Capture(names, tuple(layers), torch.arange(n), q, k, None, scores, seen, weights, scale=scale, **other)


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture
def shown(chromium, tmp_path):
    def put(capture, hash="", **options):
        (tmp_path / "view.html").write_text(view(capture, "A test"), encoding="utf-8", newline="")
        return opened(chromium, (tmp_path / "view.html").as_uri() + hash, **options)

    return put


def heads_in(page, capture) -> tuple[np.ndarray, np.ndarray]:
    """Scores and weights of all heads as the page has them."""
    told = page.evaluate(
        f"""async () => {{ const v = {VIEWER}; const out = [];
        for (let r = 0; r < v.data.layers.length; r++) for (let h = 0; h < v.data.heads; h++) {{
          const made = await v.heads.get(r, h); out.push([[...(made.scores ?? [])], [...made.weights]]); }}
        return out; }}"""
    )
    shape = (len(capture.layers), capture.n_heads, capture.n_tokens, capture.n_tokens)
    scores = [one[0] for one in told]
    return np.array(scores).reshape(shape) if scores[0] else np.empty(0), np.array([one[1] for one in told]).reshape(shape)


def cell(page) -> dict[str, str]:
    rows = page.locator(".panel dl.cell > div").evaluate_all(
        "all => all.map(x => [x.children[0].textContent, x.children[1].textContent])"
    )
    return dict(rows)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"kv": 1, "layers": (2, 5)},
        {"n": 17, "d": 3, "spread": 3.0},
        {"n": 29, "d": 2, "heads": 2, "spread": 9.0},
    ],
    ids=["plain", "shared keys", "long: q and k alone", "large scores"],
)
def test_scores_and_weights_in_the_page_are_those_of_numpy(shown, change):
    capture = made(**change)
    with shown(capture) as page:
        scores, weights = heads_in(page, capture)
        kind = page.evaluate(f"{VIEWER}.data.kind")
    assert kind == ("qk" if change.get("n", 0) == 17 else kind)
    assert np.abs(scores - capture.scores.numpy()).max() < 0.01
    assert np.abs(weights - capture.weights.numpy()).max() < 0.001
    assert (weights[..., ~capture.visible[0].numpy()] == 0).all()


def test_learned_sinks_bias_and_soft_caps_are_kept(shown):
    plain = made(layers=(0, 1), heads=2)
    cap = 3.0
    scores = cap * torch.tanh(plain.scores / cap) + torch.linspace(-1, 1, 7)
    sinks = torch.tensor([[0.5, 2.0], [-1.0, 3.0]])
    weights = attention.weights(scores, plain.visible[:, None], sink=sinks[..., None].expand(2, 2, 7))
    capture = replace(plain, scores=scores, weights=weights, sinks=sinks, softcap=(cap, cap))
    with shown(capture) as page:
        got, shares = heads_in(page, capture)
        assert "learned sink" in cell(page)
        assert page.locator("[data-step=qk]").is_disabled()
    assert np.abs(got - scores.numpy()).max() < 0.01
    assert np.abs(shares - weights.numpy()).max() < 0.001
    assert shares.sum(-1).max() < 1


def test_capped_scores_are_made_from_q_and_k_too(shown):
    plain, cap = made(heads=2), 3.0
    scores = cap * torch.tanh(plain.scores / cap)
    capture = replace(plain, scores=scores, weights=attention.weights(scores, plain.visible[:, None]), softcap=(cap,))
    with shown(capture) as page:
        assert page.evaluate(f"{VIEWER}.data.kind") == "rest"
        got, shares = heads_in(page, capture)
    assert np.abs(got - scores.numpy()).max() < 0.01
    assert np.abs(shares - capture.weights.numpy()).max() < 0.001


def test_hover_compares_two_keys_of_a_row(shown):
    capture = made()
    with shown(capture, "#head=0.1&step=weight&query=5&key=2&pin=4") as page:
        box = page.locator(".grid canvas").bounding_box()
        x, y = page.evaluate(
            f"(() => {{ const v = {VIEWER}; return [v.margin.left + 3.5 * v.drawn, v.margin.top + 5.5 * v.drawn]; }})()"
        )
        page.mouse.move(box["x"] + x, box["y"] + y)
        until(page, f"{VIEWER}.hover?.key === 3 && {VIEWER}.hover?.query === 5")
        told = cell(page)
    row, weights = capture.scores[0, 1, 5], capture.weights[0, 1, 5]
    number = {
        name: float(text.replace("−", "-")) for name, text in told.items() if name in ("score", "weight", "eΔ", "weight ratio")
    }
    assert number["score"] == pytest.approx(float(row[3]), abs=0.01)
    assert number["weight"] == pytest.approx(float(weights[3]), abs=0.001)
    assert float(told["Δ of the scores"].replace("−", "-")) == pytest.approx(float(row[3] - row[4]), abs=0.01)
    assert number["eΔ"] == pytest.approx(float(torch.exp(row[3] - row[4])), rel=0.01)
    assert number["weight ratio"] == pytest.approx(float(weights[3] / weights[4]), rel=0.01)
    assert told["query (row)"].startswith(" w5")
    assert told["key (column)"].startswith(" w3")


def test_steps_keys_search_and_links(shown):
    capture = made(layers=(3, 9), heads=12)
    with shown(capture) as page:
        name = page.locator(".name")
        assert name.text_content() == "Head 3.0"
        page.locator(".search, input[type=search]").fill("9.9")
        until(page, "document.querySelector('.name').textContent === 'Head 9.9'")
        page.locator("input[type=search]").fill("4.1")
        assert "no head 4.1" in page.locator(".found").text_content()
        page.locator("input[type=search]").fill("")
        page.keyboard.press("Tab")
        for step in ("qk", "score", "mask", "exp", "weight"):
            page.locator(f"[data-step={step}]").click()
            assert page.locator(f"[data-step={step}]").get_attribute("aria-pressed") == "true"
            assert f"step={step}" in page.url
        page.keyboard.press("ArrowRight")
        until(page, "document.querySelector('.name').textContent === 'Head 9.10'")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        until(page, "document.querySelector('.name').textContent === 'Head 9.8'")
        grid = page.locator(".grid")
        grid.focus()
        for key in ("Home", "ArrowUp", "ArrowRight", "Enter", "ArrowRight", "3"):
            page.keyboard.press(key)
        assert "head=9.8&step=mask&query=5&key=2&pin=1" in page.url
        assert "query 5" in page.locator(".live").text_content()
        link = page.url.partition("#")[2]
    with shown(capture, f"#{link}") as page:
        assert page.locator(".name").text_content() == "Head 9.8"
        at = page.evaluate(f"{VIEWER}.at")
    assert at == {"row": 1, "head": 8, "step": "mask", "query": 5, "key": 2, "pin": 1}


def test_overview_sorts_heads_and_opens_them(shown):
    capture = made(layers=(3, 9), heads=4)
    with shown(capture) as page:
        until(page, "!!document.querySelector('.overview[data-painted=maps]')", 120)
        page.get_by_label("Head 9.2").click()
        until(page, "document.querySelector('.name').textContent === 'Head 9.2'")
        page.locator(".overview select").select_option("first_weight")
        page.locator(".overview input[type=checkbox]").check()
        ranked = page.locator(".ranked b").all_text_contents()
        values = [float(text) for text in page.locator(".ranked em").all_text_contents()]
    wanted = capture.weights[:, :, 3:, 0].mean(-1)
    assert values == sorted(values, reverse=True)
    for name, value in zip(ranked, values, strict=True):
        layer, head = map(int, name.split("."))
        assert value == pytest.approx(float(wanted[capture.layers.index(layer), head]), abs=0.0006)


def test_every_token_is_text_and_keeps_its_place(shown):
    capture = made(n=len(HOSTILE), heads=1, tokens=HOSTILE)
    with shown(capture) as page:
        texts = page.locator(".text bdi").evaluate_all("all => all.map(x => x.textContent)")
        page.locator(".panel summary").click()
        rows = page.locator(".panel tbody th").evaluate_all("all => all.map(x => x.textContent)")
        assert page.locator(".interp-viewer b[x]").count() == 0
        assert page.evaluate("document.scripts.length") == 2
    assert texts == [visible(token) for token in HOSTILE]
    assert rows == [f"{i} {visible(token)}" for i, token in enumerate(HOSTILE)]


def test_weights_alone_open_and_say_what_is_missing(shown):
    whole = made(layers=(1,))
    capture = Capture(whole.tokens, whole.layers, weights=whole.weights)
    with shown(capture) as page:
        _, weights = heads_in(page, capture)
        assert "weights only" in page.locator(".meta").text_content()
        assert page.locator(".steps button:enabled").count() == 1
        assert cell(page)["score"] == "not in this file"
    assert np.abs(weights - whole.weights.numpy()).max() < 0.001


def test_numbers_stand_there_with_scripts_off(shown):
    capture = made(layers=(3, 9))
    with shown(capture, scripts=False) as page:
        assert page.locator("tbody tr").count() == 6
        assert "9.2" in page.locator("tbody").text_content()


def test_paper_is_light(shown):
    colour, small = (
        f"{VIEWER}.colours.back",
        "document.querySelector('.maps canvas').getContext('2d').getImageData(27, 1, 1, 1).data[0]",
    )
    with shown(made(), scheme="dark") as page:
        until(page, "!!document.querySelector('.overview[data-painted=maps]')", 120)
        assert page.evaluate(colour) == "#1b1e23"
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(colour) == "#ffffff"
        assert page.evaluate(small) > 200
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(colour) == "#1b1e23"


def test_masked_is_not_zero(shown):
    capture = made()
    with shown(capture, "#head=0.0&step=weight&query=2&key=5") as page:
        assert cell(page)["weight"].startswith("masked")
        assert "masked" in page.locator(".against").text_content()


def test_same_capture_same_bytes_and_valid_data():
    capture = made(tokens=HOSTILE[:7])
    page = view(capture)
    assert page == view(capture)
    data = json.loads(page.partition('type="application/json">')[2].partition("</script>")[0])
    assert data["layers"] == [0]
    assert "unsafe" not in page.partition("<title>")[0]
