"""The HTML report of a frontier and its sentences."""

from __future__ import annotations

import re

from chainrule.frontier.report import render
from chainrule.frontier.results import FailedMeasurement, FrontierResults, failures_by_reason, finding, output_check
from tests.reports.html import ATTACK, Page


def test_every_method_is_in_the_table_and_in_both_charts(results: FrontierResults) -> None:
    text = render(results)
    page = Page(text)
    for row in results.rows:
        assert f"{row.quality['BLEU']:.2f}" in page.text
        assert text.count(f'data-tip="{row.name}: BLEU') == 2 * 2  # charts, each wide and narrow
    for sentence in results.findings:
        assert sentence in page.text
    assert results.command in page.text
    assert "2 threads" in page.text
    assert "base draft tiny (batch 1)" in page.text
    assert "yes, 8,448 tokens" in page.text
    assert page.addresses == ["data:,"]
    assert not re.search(r"@import|url\((?!#)", text)


def test_incomplete_measurements_are_in_the_table_but_not_in_the_charts(results: FrontierResults) -> None:
    first, second, *_ = results.rows
    rows = [first.model_copy(update={"quality": {}}), second.model_copy(update={"speeds": []})]
    page = Page(render(results.model_copy(update={"rows": rows})))
    assert page.count("desc") == 0
    assert "39.60" in page.text
    assert "21.0" in page.text


def test_user_text_is_escaped(results: FrontierResults) -> None:
    rows = [row.model_copy(update={"run": ATTACK, "name": ATTACK, "method": ATTACK}) for row in results.rows]
    failures = [FailedMeasurement(name=ATTACK, reason=ATTACK)]
    protocol = {ATTACK: ATTACK}
    changes = {"rows": rows, "failures": failures, "protocol": protocol, "command": ATTACK, "findings": [ATTACK]}
    page = Page(render(results.model_copy(update=changes)))
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert ATTACK in page.text


def test_a_finding_names_the_best_method_and_the_cost_of_the_fastest(
    results: FrontierResults, text_results: FrontierResults
) -> None:
    assert finding(results, 1) == (
        "At batch size 1, base beam 5 is best: BLEU 39.60 at 8.10 sentences/s; "
        "masked 1 pass is 19.8 times as fast, but 8.60 BLEU lower."
    )
    assert finding(text_results, 16) == (
        "At batch size 16, gpt greedy, draft ngram is best: bits/byte 1.912 at 3,900 tokens/s, "
        "1.34 times as fast as gpt greedy."
    )
    assert finding(results, 64) == ""


def test_the_headline_names_the_fastest_method_that_is_nearly_as_good_as_the_best(
    results: FrontierResults, text_results: FrontierResults
) -> None:
    headline = re.search(r"<h1[^>]*>(.*?)</h1>", render(results), re.S)
    assert headline is not None
    assert "masked 1 pass" not in headline[1]  # the fastest, but much worse
    assert "nearly as good as base beam 5" in headline[1]
    assert "as good as gpt greedy and" in render(text_results)
    few = results.model_copy(
        update={"rows": [row for row in results.rows if row.name in ("base beam 5", "masked 1 pass")]}
    )
    assert "nothing nearly as good is faster" in render(few)


def test_the_output_check_has_the_compared_tokens_and_the_differences(results: FrontierResults) -> None:
    [row] = [row for row in results.rows if row.method == "speculative"]
    assert output_check(row, "sentence") == "yes, 8,448 tokens"
    one, other = row.speeds
    different = row.model_copy(update={"speeds": [one.model_copy(update={"different": 1}), other]})
    assert output_check(different, "sentence") == "no, 1 sentence differs"
    assert output_check(results.rows[0], "sentence") == ""


def test_failures_are_grouped_by_reason() -> None:
    failures = [
        FailedMeasurement(name="one", reason="no draft", batch=1),
        FailedMeasurement(name="one", reason="no draft", batch=16),
        FailedMeasurement(name="two", reason="no scores"),
    ]
    assert failures_by_reason(failures) == [
        ("one (batch 1), one (batch 16)", "no draft"),
        ("two (quality)", "no scores"),
    ]
