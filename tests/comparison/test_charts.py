from __future__ import annotations

import itertools
import re
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.comparison import figures
from chainrule.comparison.charts import (
    FONT,
    LOOKS,
    NARROW,
    WIDE,
    Frame,
    budget_lines,
    frontier,
    learning_curves,
    looks,
    pareto,
)
from chainrule.comparison.labels import Box, place, spread, text_box
from chainrule.comparison.results import BudgetCurve, Results
from chainrule.comparison.scales import Scale, around, round_durations, round_numbers, round_powers

FRAMES = pytest.mark.parametrize("frame", [WIDE, NARROW], ids=["wide", "narrow"])


def test_a_scale_puts_its_ends_at_the_ends() -> None:
    scale = Scale(low=1, high=100, start=0, end=200, log=True)
    assert (scale(1), scale(10), scale(100)) == (0, 100, 200)


@given(st.floats(0.01, 1e6), st.floats(1e-3, 1e6))
def test_round_numbers_lie_between_the_ends_and_are_few(low: float, width: float) -> None:
    numbers = round_numbers(low, low + width)
    assert 1 <= len(numbers) <= 6
    assert all(low - 1e-6 * abs(low) <= number <= (low + width) * (1 + 1e-6) for number in numbers)


@given(st.floats(1e-3, 1e6), st.floats(1.2, 1e9))
def test_round_powers_are_few(low: float, ratio: float) -> None:
    assert len(round_powers(low, low * ratio)) <= 6


@pytest.mark.parametrize("log", [False, True])
def test_times_are_counted_in_seconds_minutes_and_hours(log: bool) -> None:
    labels = [figures.duration(seconds) for seconds in round_durations(1, 7300, log=log, most=20)]
    assert "1 h" in labels
    assert len(labels) == len(set(labels))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=5))
def test_values_have_room_around_them_even_if_they_are_all_the_same(values: list[float]) -> None:
    low, high = around(values)
    assert low < min(values) <= max(values) < high


@given(st.lists(st.floats(0, 300), max_size=12))
def test_names_in_the_margin_keep_apart_and_in_order(wanted: list[float]) -> None:
    places = spread(wanted, gap=16, low=0, high=300)
    ordered = [places[index] for index in sorted(range(len(wanted)), key=wanted.__getitem__)]
    assert all(after - before >= 16 - 1e-6 for before, after in itertools.pairwise(ordered))
    assert all(-1e-6 <= place <= 300 + 1e-6 for place in places)


def test_names_that_have_room_stay_where_they_want_to_be() -> None:
    assert spread([50.0, 10.0], gap=16, low=0, high=300) == [50.0, 10.0]


@given(st.lists(st.tuples(st.floats(100, 600), st.floats(60, 340)), min_size=2, max_size=9))
def test_names_beside_marks_do_not_cover_each_other(points: list[tuple[float, float]]) -> None:
    area = Box(0, 0, 800, 400)
    boxes = place(["attentive_conv"] * len(points), points, area, font=FONT)
    assert all(box.inside(area) for box in boxes)
    assert sum(one.overlap(two) for one, two in itertools.combinations(boxes, 2)) == 0


@FRAMES
def test_the_frontier_names_every_model_without_overlap(results: Results, frame: Frame) -> None:
    chart = frontier(results.rows, looks(row.name for row in results.rows), frame)
    boxes = [text_box(label.name, label.x, label.y, font=FONT) for label in chart.labels]
    assert len(boxes) == len(results.rows)
    assert sum(one.overlap(two) for one, two in itertools.combinations(boxes, 2)) == 0
    assert all(box.inside(chart.area) for box in boxes)


def test_the_frontier_holds_what_no_model_beats_in_both() -> None:
    assert pareto([(10, 2.0), (100, 2.5), (50, 2.6), (100, 2.4), (5, 2.0)]) == [0, 3]


@FRAMES
@pytest.mark.parametrize("log", [False, True])
def test_learning_curves_draw_every_model_and_end_at_its_score(results: Results, frame: Frame, log: bool) -> None:
    chart = learning_curves(results.rows, looks(row.name for row in results.rows), frame, log=log)
    assert {line.name for line in chart.lines} == {row.name for row in results.rows}
    assert {line.name for line in chart.lines if line.level} == {"mixture", "ngram"}
    assert {mark.name for mark in chart.marks} == {row.name for row in results.rows} - {"mixture"}
    heights = {mark.name: mark.y for mark in chart.marks}
    assert heights["gpt"] > heights["recurrent"] > heights["finite_memory"]  # fewer bits stand lower
    assert len(chart.x_ticks) >= 2


@FRAMES
def test_the_budget_band_names_the_leader_of_each_stretch(budget_curve: BudgetCurve, frame: Frame) -> None:
    chart = budget_lines(budget_curve, looks(budget_curve.bits_per_byte), frame)
    assert [band.name for band in chart.bands] == ["ngram", "recurrent", "gpt"]
    assert (chart.bands[0].left, chart.bands[-1].right) == (chart.area.left, chart.area.right)
    assert all(one.right == two.left for one, two in itertools.pairwise(chart.bands))
    assert sum(mark.name == "self_regressive" for mark in chart.marks) == 5  # it failed at one budget


def test_a_family_looks_the_same_in_every_report_and_a_new_one_like_no_other() -> None:
    some = looks(["gpt", "novelty", "ngram"])
    assert some["gpt"] == looks(["gpt"])["gpt"]
    assert len({look.hue for look in some.values()}) == 3


def _colours(theme: int) -> dict[int, np.ndarray]:
    """Hue -> linear RGB; theme 0 is light, 1 dark."""
    style = (resources.files("chainrule.comparison") / "page" / "page.css").read_text(encoding="utf-8")
    found = re.findall(r"--hue-(\d): light-dark\((#\w{6}), (#\w{6})\);", style)
    shares = {int(hue): np.array([int(pair[theme][at : at + 2], 16) / 255 for at in (1, 3, 5)]) for hue, *pair in found}
    return {hue: np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for hue, c in shares.items()}


def _oklab(linear: np.ndarray) -> np.ndarray:
    """Perceived lightness and colour (Ottosson, 2020)."""
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
    axes = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return axes @ np.cbrt(cones @ np.clip(linear, 0, 1))


VISION = {  # what a person with this kind of colour vision sees (Machado, Oliveira and Fernandes, 2009)
    "full": np.eye(3),
    "without green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "without red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_the_colours_of_families_can_be_told_apart_by_everyone(theme: int, vision: str) -> None:
    seen = {hue: _oklab(VISION[vision] @ colour) for hue, colour in _colours(theme).items() if hue in LOOKS.values()}
    assert len(seen) == len(LOOKS)
    closest = min(np.linalg.norm(one - two) for one, two in itertools.combinations(seen.values(), 2))
    assert closest > 0.1


def test_numbers_have_three_digits_that_mean_something() -> None:
    assert [figures.count(number) for number in (7, 1234, 154_321, 1_234_567)] == ["7", "1,234", "154 k", "1.23 M"]
    assert figures.memory(612_300_000) == "612 MB"
    assert [figures.duration(seconds) for seconds in (0.0123, 1.94, 72, 5400)] == [
        "0.012 s",
        "1.9 s",
        "1.2 min",
        "1.5 h",
    ]
    assert [figures.perplexity(number) for number in (4.0563, 91.84, 3.2e7)] == ["4.06", "91.8", "3.2e+07"]
