"""The page of a frontier: every way, every figure, and nothing but them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from chainrule.frontier.report import render
from chainrule.frontier.results import Failure, Results
from chainrule.frontier.words import finding, gathered, verdict

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


class Page(HTMLParser):
    """The elements and the text that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str | None] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_way_is_in_the_table_and_in_both_panels(results: Results) -> None:
    text = render(results)
    page = Page(text)
    for row in results.rows:
        assert f"{row.quality['BLEU']:.2f}" in page.text
        assert text.count(f'data-tip="{row.name}: BLEU') == 2 * 2  # panels, each wide and narrow
    for sentence in results.findings:
        assert sentence in page.text
    assert results.command in page.text
    assert "2 threads" in page.text
    assert "base draft tiny (batch 1)" in page.text
    assert "yes, 8,448 tokens" in page.text
    assert page.addresses == ["data:,"]
    assert not re.search(r"@import|url\((?!#)", text)


def test_quality_without_speed_and_speed_without_quality_are_shown_and_not_drawn(results: Results) -> None:
    first, second, *_ = results.rows
    rows = [first.model_copy(update={"quality": {}}), second.model_copy(update={"speeds": []})]
    page = Page(render(results.model_copy(update={"rows": rows})))
    assert "desc" not in page.tags
    assert "39.60" in page.text
    assert "21.0" in page.text


def test_what_a_user_has_named_is_never_markup(results: Results) -> None:
    rows = [row.model_copy(update={"run": ATTACK, "name": ATTACK, "way": ATTACK}) for row in results.rows]
    failures = [Failure(name=ATTACK, reason=ATTACK)]
    protocol = {ATTACK: ATTACK}
    changes = {"rows": rows, "failures": failures, "protocol": protocol, "command": ATTACK, "findings": [ATTACK]}
    page = Page(render(results.model_copy(update=changes)))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert ATTACK in page.text


def test_a_sentence_names_the_best_and_what_the_fastest_costs(results: Results, text_results: Results) -> None:
    assert finding(results, 1) == (
        "At batch 1, base beam 5 is best: BLEU 39.60 at 8.10 sentences/s; "
        "masked 1 pass is 19.8 times as fast as that, for 8.60 BLEU less."
    )
    assert finding(text_results, 16) == (
        "At batch 16, gpt greedy, draft ngram is best: bits/byte 1.912 at 3,900 tokens/s, "
        "1.34 times as fast as gpt greedy."
    )
    assert finding(results, 64) == ""


def test_the_headline_is_about_speed_that_costs_little(results: Results, text_results: Results) -> None:
    headline = re.search(r"<h1[^>]*>(.*?)</h1>", render(results), re.S)
    assert headline is not None
    assert "masked 1 pass" not in headline[1]  # the fastest, and much worse
    assert "nearly as good as base beam 5" in headline[1]
    assert "as good as gpt greedy and" in render(text_results)
    alone = results.model_copy(
        update={"rows": [row for row in results.rows if row.name in ("base beam 5", "masked 1 pass")]}
    )
    assert "nothing that is nearly as good is faster" in render(alone)


def test_a_verdict_says_how_much_was_compared_and_what_differed(results: Results) -> None:
    [row] = [row for row in results.rows if row.way == "speculative"]
    assert verdict(row, "sentence") == "yes, 8,448 tokens"
    one, other = row.speeds
    different = row.model_copy(update={"speeds": [one.model_copy(update={"different": 1}), other]})
    assert verdict(different, "sentence") == "no, 1 sentence differs"
    assert verdict(results.rows[0], "sentence") == ""


def test_points_that_failed_for_one_reason_are_told_together() -> None:
    failures = [
        Failure(name="one", reason="no draft", batch=1),
        Failure(name="one", reason="no draft", batch=16),
        Failure(name="two", reason="no scores"),
    ]
    assert gathered(failures) == [("one (batch 1), one (batch 16)", "no draft"), ("two (quality)", "no scores")]
