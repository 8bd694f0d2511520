from __future__ import annotations

import re
from typing import Any

import pytest

from chainrule.comparison.report import heat, heat_table, leaderboard, render, render_curve
from chainrule.comparison.results import Analysis, BudgetCurve, ComparisonResults, Excerpt, TokenBucket
from tests.reports.html import ATTACK, Page


def changed(results: ComparisonResults, **values: Any) -> ComparisonResults:
    return results.model_copy(update=values)


def test_the_report_has_the_recommendation_and_every_model(results: ComparisonResults) -> None:
    page = Page(render(results))
    assert results.recommendation in page.text
    assert results.command in page.text
    for row in results.rows:
        assert page.text.count(row.name) >= 5
        assert f"{row.bits_per_byte:.3f}" in page.text
        assert row.summary in page.text
        assert row.sample in page.text


def test_a_failed_family_is_listed_with_the_reason(results: ComparisonResults) -> None:
    assert "width 130 is not divisible by heads 4" in Page(render(results)).text


def test_the_report_is_self_contained(results: ComparisonResults, budget_curve: BudgetCurve) -> None:
    for text in (render(results), render_curve(budget_curve)):
        assert Page(text).addresses == ["data:,"]
        assert not re.search(r"@import|url\((?!#)", text)


def test_user_text_is_escaped(results: ComparisonResults) -> None:
    analysis = results.analysis
    assert analysis is not None
    bits = {row.name: [1.0, 2.0] for row in results.rows}
    hostile = changed(
        results,
        data=ATTACK,
        tokenizer=ATTACK,
        command=ATTACK,
        recommendation=ATTACK,
        machine=ATTACK,
        budget=ATTACK,
        rows=[row.model_copy(update={"sample": ATTACK, "summary": ATTACK, "run": ATTACK}) for row in results.rows],
        failures=[failure.model_copy(update={"name": ATTACK, "reason": ATTACK}) for failure in results.failures],
        protocol={ATTACK: ATTACK, "scoring": {ATTACK: {"method": ATTACK}}},
        analysis=analysis.model_copy(update={"excerpts": [Excerpt(title=ATTACK, tokens=[ATTACK, "b"], bits=bits)]}),
    )
    page, plain = Page(render(hostile)), Page(render(results))
    assert page.count("script") == plain.count("script") == 2
    assert page.count("img") == 0
    assert not [attributes for _, attributes in page.elements if any(name.startswith("on") for name in attributes)]
    assert ATTACK in page.text


def test_model_names_are_escaped(results: ComparisonResults, budget_curve: BudgetCurve) -> None:
    row = results.rows[1].model_copy(update={"name": ATTACK, "parts": {ATTACK: 1.0}})
    bucket = TokenBucket(label=ATTACK, tokens=2000, bits_per_token={ATTACK: 1.0})
    analysis = Analysis(
        by_position=[bucket],
        by_frequency=[bucket],
        excerpts=[Excerpt(title="", tokens=["a"], bits={ATTACK: [1.0]})],
    )
    page = Page(render(changed(results, rows=[row], best=ATTACK, analysis=analysis)))
    curve = BudgetCurve(
        data="", command="", minutes=[1], bits_per_byte={ATTACK: [2.0]}, leaders=[ATTACK], recommendation=""
    )
    for hostile, scripts in ((page, 2), (Page(render_curve(curve)), 1)):
        assert hostile.count("script") == scripts
        assert hostile.count("img") == 0


def test_the_content_security_policy_allows_only_the_script_of_the_page(results: ComparisonResults) -> None:
    [policy] = [
        attributes["content"] for tag, attributes in Page(render(results)).elements if "http-equiv" in attributes
    ]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[^']{44}'$", policy)


def test_sections_without_data_are_left_out(results: ComparisonResults) -> None:
    bare = [
        row.model_copy(update={"curve": [], "seconds": 0.0, "decode_tokens_per_second": 0.0}) for row in results.rows
    ]
    page = Page(render(changed(results, rows=bare, analysis=None)))
    assert not {"learning", "speed", "where", "excerpts"} & {attributes.get("id") for _, attributes in page.elements}
    assert "gpt" in page.text


def test_a_comparison_of_one_model_has_a_report(results: ComparisonResults) -> None:
    assert "How well gpt predicts this text" in Page(render(changed(results, rows=results.rows[1:2]))).text


def test_a_comparison_in_which_all_families_failed_has_a_report(results: ComparisonResults) -> None:
    page = Page(render(changed(results, rows=[], best="", analysis=None)))
    assert "No model could be compared" in page.text
    assert "pixelcnn" in page.text


def test_every_chart_and_table_has_an_accessible_name(results: ComparisonResults) -> None:
    page = Page(render(results))
    charts = [
        attributes for tag, attributes in page.elements if tag == "svg" and "chart" in (attributes["class"] or "")
    ]
    assert len(charts) == 6
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for chart in charts:
        names = (chart["aria-labelledby"] or "").split()
        assert names
        assert set(names) <= ids
    assert page.count("caption") == page.count("table") == 3


def test_intervals_share_one_scale(results: ComparisonResults) -> None:
    entries = leaderboard(results.rows)
    assert all(0 < one.low < one.at < one.high < 100 for one in entries)
    assert [one.at for one in entries] == sorted(one.at for one in entries)
    assert entries[0].behind == 0


def test_a_heat_table_compares_each_cell_with_the_best_of_its_column(results: ComparisonResults) -> None:
    bits = {row.name: 2.0 for row in results.rows} | {"gpt": 1.0, "ngram": 1.05}
    buckets = [
        TokenBucket(label="unseen", tokens=1500, bits_per_token=bits),
        TokenBucket(label="1–9", tokens=1500, bits_per_token={**bits, "ngram": 0.5}),
        TokenBucket(label="too few to tell", tokens=10, bits_per_token={**bits, "recurrent": 0.1}),
    ]
    table = heat_table("frequency", "", buckets, results.rows)
    cells = dict(table.rows)
    assert (cells["gpt"][0].level, cells["ngram"][0].level, cells["mixture"][0].level) == (0, 3, 6)
    assert cells["ngram"][0].excess == pytest.approx(0.05)
    assert table.finding == "Best single family: gpt at unseen, ngram at 1–9."


def test_higher_surprisal_is_a_stronger_colour() -> None:
    assert [heat(bits) for bits in (0, 0.99, 1, 4, 30)] == [0, 0, 1, 3, 6]


def test_the_budget_report_has_every_value_and_marks_failures(budget_curve: BudgetCurve) -> None:
    page = Page(render_curve(budget_curve))
    assert budget_curve.recommendation in page.text
    for series in budget_curve.bits_per_byte.values():
        assert all(f"{bits:.3f}" in page.text for bits in series if bits is not None)
    assert "failed" in page.text
