from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from chainrule.comparison.report import heat, render, render_curve
from chainrule.comparison.results import Analysis, Bucket, BudgetCurve, Excerpt, Results
from chainrule.comparison.tables import heat_table, leaderboard

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


class Page(HTMLParser):
    """What a browser would make of a page: its elements, its text, and what is in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.elements)


def changed(results: Results, **values: Any) -> Results:
    return results.model_copy(update=values)


def test_the_report_says_what_to_pick_and_shows_every_model(results: Results) -> None:
    page = Page(render(results))
    assert results.recommendation in page.text
    assert results.command in page.text
    for row in results.rows:
        assert page.text.count(row.name) >= 5
        assert f"{row.bits_per_byte:.3f}" in page.text
        assert row.summary in page.text
        assert row.sample in page.text


def test_a_family_that_failed_is_named_with_the_reason(results: Results) -> None:
    assert "width 130 is not divisible by heads 4" in Page(render(results)).text


def test_the_report_refers_to_nothing_outside_itself(results: Results, budget_curve: BudgetCurve) -> None:
    for text in (render(results), render_curve(budget_curve)):
        addresses = [
            value
            for _, attributes in Page(text).elements
            for name, value in attributes.items()
            if name in ("src", "href", "action", "data", "poster", "srcset")
        ]
        assert addresses == ["data:,"]
        assert not re.search(r"@import|url\((?!#)", text)


def test_text_of_the_user_is_never_markup(results: Results) -> None:
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
        protocol={ATTACK: ATTACK, "reading": {ATTACK: {"method": ATTACK}}},
        analysis=analysis.model_copy(update={"excerpts": [Excerpt(title=ATTACK, tokens=[ATTACK, "b"], bits=bits)]}),
    )
    page, plain = Page(render(hostile)), Page(render(results))
    assert page.count("script") == plain.count("script") == 2
    assert page.count("img") == 0
    assert not [attributes for _, attributes in page.elements if any(name.startswith("on") for name in attributes)]
    assert ATTACK in page.text


def test_names_of_models_are_never_markup(results: Results, budget_curve: BudgetCurve) -> None:
    row = results.rows[1].model_copy(update={"name": ATTACK, "parts": {ATTACK: 1.0}})
    bucket = Bucket(label=ATTACK, tokens=2000, bits_per_token={ATTACK: 1.0})
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


def test_only_the_script_of_the_page_may_run(results: Results) -> None:
    [policy] = [
        attributes["content"] for tag, attributes in Page(render(results)).elements if "http-equiv" in attributes
    ]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[^']{44}'$", policy)


def test_a_comparison_without_analysis_curves_or_speeds_is_still_a_page(results: Results) -> None:
    bare = [
        row.model_copy(update={"curve": [], "seconds": 0.0, "decode_tokens_per_second": 0.0}) for row in results.rows
    ]
    page = Page(render(changed(results, rows=bare, analysis=None)))
    assert not {"learning", "frontier", "where", "passages"} & {attributes.get("id") for _, attributes in page.elements}
    assert "gpt" in page.text


def test_a_comparison_of_one_model_is_still_a_page(results: Results) -> None:
    assert "How well gpt predicts this text" in Page(render(changed(results, rows=results.rows[1:2]))).text


def test_a_comparison_in_which_all_failed_says_so(results: Results) -> None:
    page = Page(render(changed(results, rows=[], best="", analysis=None)))
    assert "No model could be compared" in page.text
    assert "pixelcnn" in page.text


def test_every_drawing_and_table_has_a_name_for_those_who_do_not_see_it(results: Results) -> None:
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


def test_intervals_stand_on_one_scale(results: Results) -> None:
    standings = leaderboard(results.rows)
    assert all(0 < one.low < one.at < one.high < 100 for one in standings)
    assert [one.at for one in standings] == sorted(one.at for one in standings)
    assert standings[0].behind == 0


def test_a_column_is_compared_with_its_best_model(results: Results) -> None:
    bits = {row.name: 2.0 for row in results.rows} | {"gpt": 1.0, "ngram": 1.05}
    buckets = [
        Bucket(label="unseen", tokens=1500, bits_per_token=bits),
        Bucket(label="1–9", tokens=1500, bits_per_token={**bits, "ngram": 0.5}),
        Bucket(label="too few to tell", tokens=10, bits_per_token={**bits, "recurrent": 0.1}),
    ]
    table = heat_table("frequency", "", buckets, results.rows)
    cells = dict(table.rows)
    assert (cells["gpt"][0].level, cells["ngram"][0].level, cells["mixture"][0].level) == (0, 3, 6)
    assert cells["ngram"][0].more == pytest.approx(0.05)
    assert table.finding == "Among single families, the leader is gpt at unseen and ngram at 1–9."


def test_more_surprise_is_a_stronger_colour() -> None:
    assert [heat(bits) for bits in (0, 0.99, 1, 4, 30)] == [0, 0, 1, 3, 6]


def test_the_page_of_budgets_shows_every_figure_and_what_failed(budget_curve: BudgetCurve) -> None:
    page = Page(render_curve(budget_curve))
    assert budget_curve.recommendation in page.text
    for series in budget_curve.bits_per_byte.values():
        assert all(f"{bits:.3f}" in page.text for bits in series if bits is not None)
    assert "failed" in page.text
