"""The page in a browser: every view on real models, served by uvicorn."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright").expect

from chainrule.serving.app import WEB, create_app  # noqa: E402
from chainrule.serving.registry import Registry  # noqa: E402
from tests.browser import CONTRAST  # noqa: E402
from tests.serving.conftest import running  # noqa: E402
from tests.serving.served import add_record, start_training  # noqa: E402

Visit = Callable[..., Any]
VIEWS = ("read", "write", "attend", "search", "draw", "label", "compare")
WAIT = 20_000  # ms

NAMELESS = """
() => [...document.querySelectorAll("button, a, input, select, textarea, [tabindex='0'], iframe, canvas, [role=img]")]
  .filter((one) => one.checkVisibility() && !one.closest("[aria-hidden=true]") && !one.closest(".thumb canvas"))
  .filter((one) => !(one.getAttribute("aria-label") || one.title || one.textContent.trim()
    || [...(one.labels ?? [])].some((label) => label.textContent.trim())))
  .map((one) => one.outerHTML.slice(0, 160))
"""
"""Controls and pictures that a screen reader could not name."""

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def address(registry: Registry) -> Iterator[str]:
    """The address of a running server."""
    with running(create_app(registry)) as opened:
        yield opened.url


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    """Open a view; at the end nothing may have been requested from elsewhere, and no error logged."""
    contexts: list[Any] = []
    requests: list[str] = []
    complaints: list[str] = []

    def open_view(
        view: str, *, screen: int = 1200, scheme: str = "light", locale: str = "en-US", **values: object
    ) -> Any:
        context = browser.new_context(
            color_scheme=scheme, locale=locale, viewport={"width": screen, "height": 900}, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/#{view}?{urlencode(values)}")
        page.wait_for_selector("main h1")
        return page

    yield open_view
    for context in contexts:
        context.close()
    assert [url for url in requests if not url.startswith((address, "data:", "about:"))] == []
    assert complaints == []


def colours(page: Any, which: str) -> list[str]:
    """The colour classes of the tokens of a panel."""
    return page.eval_on_selector_all(
        f"{which} [data-index]", "all => all.map((one) => /heat-\\d/.exec(one.className)[0])"
    )


def set_slider(page: Any, name: str, value: float) -> None:
    page.eval_on_selector(
        f"input[data-name={name}]",
        "(one, value) => { one.value = value; one.dispatchEvent(new Event('input', { bubbles: true })); }",
        str(value),
    )


# The views


def test_the_slider_of_the_mixture_goes_from_the_colours_of_one_model_to_those_of_the_other(
    visit: Visit, address: str
) -> None:
    page = visit("read", model="ngram", **{"with": "gpt"}, text="the bird sat on the fire zq")
    page.wait_for_selector(".mixture [data-index]")
    panels = [".columns figure:nth-child(1)", ".columns figure:nth-child(2)"]
    assert colours(page, panels[0]) != colours(page, panels[1])
    body = {"models": ["ngram", "gpt"], "text": "the bird sat on the fire zq"}
    segments = httpx.post(f"{address}/api/inspect/read", json=body).json()["segments"]
    bits = [-math.log2(0.7 * 2 ** -one["bits"][0] + 0.3 * 2 ** -one["bits"][1]) for one in segments]
    set_slider(page, "weight", 0.3)
    shown = float(page.inner_text(".mixture .bpb").split()[0])
    assert shown == pytest.approx(sum(bits) / len(body["text"]), abs=1e-3)
    set_slider(page, "weight", 0)
    assert colours(page, ".mixture") == colours(page, panels[0])
    set_slider(page, "weight", 1)
    assert colours(page, ".mixture") == colours(page, panels[1])
    assert "weight=1" in page.url


def test_a_token_shows_what_was_expected_by_pointer_and_by_keys(visit: Visit) -> None:
    page = visit("read", model="ngram", text="the cat sat")
    page.wait_for_selector(".reading [data-index]")
    page.hover(".reading [data-index='4']")
    assert "“c”" in page.inner_text(".details h2")
    assert page.locator(".details .bars li").count() > 3
    page.focus(".reading [data-index='0']")
    page.keyboard.press("ArrowRight")
    assert "“h”" in page.inner_text(".details h2")
    assert page.evaluate("document.activeElement.dataset.index") == "1"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("“t”")


def test_models_with_different_tokens_say_how_they_are_mixed(visit: Visit) -> None:
    page = visit("read", model="pieces", **{"with": "gpt"}, text="the bird")
    page.wait_for_selector(".mixture [data-index]")
    assert "different tokens" in page.inner_text(".mixture")
    assert page.inner_text(".mixture .text") == "the bird"


def test_text_is_shown_as_text_and_never_as_markup(visit: Visit) -> None:
    page = visit("read", model="ngram", text="the <img src=x onerror=alert(1)>")
    page.wait_for_selector(".reading [data-index]")
    assert page.locator(".reading img").count() == 0


def test_sampling_controls_cut_the_branches_and_a_branch_continues_the_text(visit: Visit) -> None:
    page = visit("write", model="gpt", text="the ", temperature=1)
    page.wait_for_selector(".branch")
    assert page.locator(".branch.cut").count() < 12
    set_slider(page, "top_k", 2)
    expect(page.locator(".branch:not(.cut)")).to_have_count(2)
    assert page.inner_text(".kept").startswith("2 of ")
    first = page.locator(".branch:not(.cut)").first
    token = first.locator(".bar-text").inner_text()
    first.click()
    assert page.input_value("textarea") == "the " + token.replace("␣", " ")


def test_the_model_continues_and_the_continuation_can_be_accepted(visit: Visit) -> None:
    page = visit("write", model="gpt", text="the ", temperature=0.8)
    expect(page.locator(".ghost")).to_have_text(re.compile(r".{20}", re.DOTALL))
    page.wait_for_selector(".view:not(.is-streaming)")
    ghost = page.text_content(".ghost")
    page.focus("textarea")
    page.keyboard.press("Control+Enter")
    assert page.input_value("textarea") == "the " + ghost


def test_attention_has_a_map_for_every_head_and_rows_that_can_be_chosen(visit: Visit) -> None:
    page = visit("attend", model="gpt", text="the cat")
    page.wait_for_selector(".heads button")
    assert page.locator(".heads button").count() == 5
    page.locator(".heads button").nth(2).click()
    assert page.inner_text(".map figcaption") == "layer 1, head 2"
    page.locator(".map [data-index='5']").click()
    assert page.inner_text(".details h2") == "Predicting “a”"
    page.select_option("select", "shout")
    page.fill("textarea >> nth=0", "one two")
    expect(page.locator(".attended")).to_contain_text("one two")


def test_a_beam_search_is_shown_step_by_step(visit: Visit) -> None:
    page = visit("search", model="gpt", text="the ", width=3, length=5)
    page.wait_for_selector(".tree .node.best")
    assert page.locator(".tree .node").count() == 15
    set_slider(page, "step", 2)
    assert page.locator(".tree .node.later").count() == 9
    assert page.inner_text(".columns h2 >> nth=0") == "Beam after step 2 of 5"
    assert page.locator(".columns > div:nth-child(1) tbody tr").count() == 3


def test_drafts_are_marked_as_accepted_and_rejected(visit: Visit) -> None:
    page = visit("search", mode="drafts", model="gpt", draft="ngram", text="the ")
    page.wait_for_selector(".passes li")
    assert page.locator(".passes .accepted").count() > 0
    assert page.locator(".passes .own").count() > 0
    assert re.search(r"\d+ of \d+ draft tokens", page.inner_text(".metrics"))


def test_an_image_that_is_half_erased_is_completed_and_labelled(visit: Visit) -> None:
    page = visit("draw", model="bars")
    page.wait_for_selector(".gallery .thumb >> nth=8")
    page.wait_for_selector(".guesses .bars")
    page.get_by_role("button", name="Erase the lower half").click()
    page.focus(".board")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")  # one pixel more is unknown
    page.get_by_role("button", name="Complete it").click()
    expect(page.locator(".status")).to_have_text("Done.")
    page.wait_for_selector(".guesses .bars")


PIXEL = """
(board, [x, y]) => {
  const copy = new OffscreenCanvas(board.width, board.height).getContext("2d");
  copy.drawImage(board, 0, 0);
  return [...copy.getImageData(x * board.width, y * board.height, 1, 1).data];
}
"""
"""The colour of a canvas at a place, in parts of its width and height."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_erased_pixels_and_the_cursor_can_be_told_from_dark_ones(visit: Visit, scheme: str) -> None:
    page = visit("draw", scheme=scheme, model="bars")
    page.wait_for_selector(".gallery .thumb >> nth=8")
    page.get_by_role("button", name="Blank").click()
    dark = page.eval_on_selector(".board", PIXEL, [0.02, 0.98])
    assert dark == page.eval_on_selector(".board", PIXEL, [0.003, 0.003]) == [0, 0, 0, 255]
    page.get_by_role("button", name="Erase the lower half").click()
    assert page.eval_on_selector(".board", PIXEL, [0.02, 0.98]) != dark
    assert page.locator(".guesses .bars").count() == 0  # of the image before
    page.focus(".board")
    assert page.eval_on_selector(".board", PIXEL, [0.003, 0.003]) != dark


def test_labels_tags_and_answers_are_shown_over_the_text(visit: Visit) -> None:
    page = visit("label", model="classifier", text="a b c")
    page.wait_for_selector(".result .bars li")
    assert page.locator(".result .bars li").count() == 3
    page.select_option("select", "tagger")
    page.fill("textarea", "ab cd a")
    page.wait_for_selector(".tags li >> nth=2")
    page.select_option("select", "reader")
    page.fill("textarea >> nth=0", "b")
    page.fill("textarea >> nth=1", "a b c d")
    page.wait_for_selector("mark.span")
    page.select_option("select", "bar-labels")
    page.wait_for_selector(".board")
    page.click(".board")
    page.wait_for_selector(".result .bars li")


def test_a_running_training_is_followed(visit: Visit, served: Path) -> None:
    training = start_training(served, "live")
    time.sleep(1.1)  # folders are looked through once a second
    page = visit("compare", training="live")
    page.wait_for_selector(".curve")
    assert page.inner_text(".live-value").startswith("1.05 bits/byte")
    add_record(training, 8)
    expect(page.locator(".live-value")).to_contain_text("0.525 bits/byte")


def test_a_run_that_appears_is_offered_at_the_next_view(visit: Visit, served: Path) -> None:
    page = visit("label", model="classifier", text="a b")
    shutil.copytree(served / "ngram", served / "later")
    try:
        time.sleep(1.1)  # folders are looked through once a second
        page.get_by_role("link", name="Read").click()
        expect(page.locator("option[value=later]").first).to_be_attached()
    finally:
        shutil.rmtree(served / "later")


def test_a_report_is_shown_in_a_sandbox(visit: Visit) -> None:
    page = visit("compare", report="comparison")
    page.wait_for_selector("iframe")
    assert page.get_attribute("iframe", "sandbox") == "allow-scripts"
    assert page.frame_locator("iframe").locator("h1").inner_text() == "The best model"


# The page as a whole


READY = {
    "read": ".reading [data-index]",
    "write": ".branch",
    "attend": ".heads button",
    "search": ".tree .node.best",
    "draw": ".gallery .thumb >> nth=8",
    "label": ".bars li",
    "compare": ".entries button",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_legible_named_and_fits_a_phone(visit: Visit, scheme: str) -> None:
    page = visit("read", screen=360, scheme=scheme, model="ngram", text="the cat")
    for view in VIEWS:
        page.locator("nav a").nth(VIEWS.index(view)).click()
        page.wait_for_selector(f".view-{view}")
        if view in ("write", "search"):  # the model knows the letters of its text only
            page.fill("textarea", "the ")
        page.wait_for_selector(READY[view])
        page.wait_for_timeout(50)
        assert page.evaluate(OVERFLOW) <= 0, view
        assert page.evaluate(NAMELESS) == [], view
        contrast, where = page.evaluate(CONTRAST)
        assert contrast >= 4.5, (view, where)
        assert page.get_attribute("nav a[aria-current]", "href").startswith(f"#{view}")


def test_the_page_speaks_chinese_and_english(visit: Visit) -> None:
    page = visit("search", locale="zh-CN", model="gpt", text="the ")
    assert page.inner_text("main h1") == "搜索"
    page.click("#language")
    assert page.inner_text("main h1") == "Search"
    assert page.get_attribute("html", "lang") == "en"
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "light"


def test_both_languages_have_the_same_strings() -> None:
    keys = {
        name: re.findall(
            r"(\w+): \"", re.sub(r"\"(?:[^\"\\]|\\.)*\"", '""', (WEB / "strings" / name).read_text("utf-8"))
        )
        for name in ("en.js", "zh.js")
    }
    assert keys["en.js"] == keys["zh.js"]
    assert len(keys["en.js"]) > 100
    used = set()
    for file in WEB.rglob("*.js"):
        used |= set(re.findall(r"\bt\(\"(\w+)\"", file.read_text("utf-8")))
    assert used <= set(keys["en.js"])


def test_every_control_is_reached_by_the_tabulator(visit: Visit) -> None:
    page = visit("write", model="gpt", text="the ", temperature=1)
    page.wait_for_selector(".branch")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 60)"))
    every = page.eval_on_selector_all(
        "main button:not(:disabled), main select, main textarea, main input",
        "all => all.map((one) => one.outerHTML.slice(0, 60))",
    )
    assert set(every) <= reached


def test_a_server_with_a_key_asks_for_it(registry: Registry, browser: Any) -> None:
    with running(create_app(registry, api_key="secret")) as opened:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.goto(f"{opened.url}/#compare?report=comparison")
        page.fill("#key", "secret")
        page.keyboard.press("Enter")
        with page.expect_download() as download:  # a frame cannot send the key
            page.get_by_role("button", name="Download the report").click()
        assert "Which model?" in Path(download.value.path()).read_text("utf-8")
        context.close()


def test_what_goes_wrong_is_said(visit: Visit, browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{address}/#search?{urlencode({'model': 'gpt', 'text': '日本'})}")
    page.wait_for_selector(".status.error", timeout=WAIT)
    assert "not in the vocabulary" in page.inner_text(".status.error")
    context.close()


def test_a_view_without_a_run_says_what_it_needs(browser: Any, served: Path) -> None:
    with running(create_app(Registry([served / "ngram"]))) as opened:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(WAIT)
        page.goto(f"{opened.url}/#attend")
        page.wait_for_selector("main .notice")
        assert "attention weights" in page.inner_text("main")
        disabled = page.eval_on_selector_all("nav [aria-disabled]", "all => all.map((one) => one.textContent)")
        assert disabled == ["Attend", "Draw", "Label", "Compare"]
        context.close()


def test_the_policy_of_the_page_forbids_inline_scripts(address: str) -> None:
    answer = httpx.get(address)
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert "<script>" not in answer.text


def test_no_file_of_the_page_puts_data_into_html() -> None:
    for file in WEB.rglob("*.js"):
        text = file.read_text("utf-8")
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        assert not re.search(r"https?://(?!www\.w3\.org)", text), file
