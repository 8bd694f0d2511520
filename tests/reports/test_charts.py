from __future__ import annotations

import itertools
import re
from importlib import resources

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chainrule.families import single_families
from chainrule.reports import formatting
from chainrule.reports.charts import (
    FONT,
    SHAPES,
    WIDE,
    QualitySpeedPoint,
    SeriesStyle,
    family_hues,
    pareto,
    quality_speed_chart,
    series_styles,
)
from chainrule.reports.labels import Box, place_labels, spread
from chainrule.reports.scales import Scale, around, round_durations, round_numbers, round_powers

STYLE = SeriesStyle(1, SHAPES[1])


def test_a_scale_maps_its_ends_to_the_ends_of_the_axis() -> None:
    scale = Scale(low=1, high=100, start=0, end=200, log=True)
    assert (scale(1), scale(10), scale(100)) == (0, 100, 200)


@given(st.floats(0.01, 1e6), st.floats(1e-3, 1e6))
def test_round_numbers_are_few_and_within_the_range(low: float, width: float) -> None:
    numbers = round_numbers(low, low + width)
    assert 1 <= len(numbers) <= 6
    assert all(low - 1e-6 * abs(low) <= number <= (low + width) * (1 + 1e-6) for number in numbers)


@given(st.floats(1e-3, 1e6), st.floats(1.2, 1e9))
def test_round_powers_are_few(low: float, ratio: float) -> None:
    assert len(round_powers(low, low * ratio)) <= 6


@given(st.floats(1e-3, 1e6), st.floats(1.01, 1e9))
def test_a_logarithmic_axis_has_at_least_two_ticks(low: float, ratio: float) -> None:
    assert len(round_powers(low, low * ratio)) >= 2


@pytest.mark.parametrize("log", [False, True])
def test_durations_are_in_seconds_minutes_and_hours(log: bool) -> None:
    labels = [formatting.duration(seconds) for seconds in round_durations(1, 7300, log=log, most=20)]
    assert "1 h" in labels
    assert len(labels) == len(set(labels))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=5))
@example([5.0, 4.999999999999999])
def test_a_range_has_a_margin_even_if_all_values_are_equal(values: list[float]) -> None:
    low, high = around(values)
    assert low < min(values) <= max(values) < high


@given(st.lists(st.floats(0, 300), max_size=12))
def test_margin_labels_are_spread_apart_in_order(wanted: list[float]) -> None:
    positions = spread(wanted, gap=16, low=0, high=300)
    ordered = [positions[index] for index in sorted(range(len(wanted)), key=wanted.__getitem__)]
    assert all(after - before >= 16 - 1e-6 for before, after in itertools.pairwise(ordered))
    assert all(-1e-6 <= position <= 300 + 1e-6 for position in positions)


def test_margin_labels_with_enough_space_are_not_moved() -> None:
    assert spread([50.0, 10.0], gap=16, low=0, high=300) == [50.0, 10.0]


@settings(deadline=None)  # it may run on a busy machine
@given(st.lists(st.tuples(st.floats(100, 600), st.floats(60, 340)), min_size=2, max_size=9))
def test_labels_do_not_overlap(points: list[tuple[float, float]]) -> None:
    area = Box(0, 0, 800, 400)
    boxes = place_labels(["attentive_conv"] * len(points), points, area, font=FONT)
    assert all(box.inside(area) for box in boxes)
    assert sum(one.overlap(two) for one, two in itertools.combinations(boxes, 2)) == 0


def test_the_pareto_frontier() -> None:
    assert pareto([(10, 2.0), (100, 2.5), (50, 2.6), (100, 2.4), (5, 2.0)]) == [0, 3]


POINTS = [
    QualitySpeedPoint("one", "slow and good", STYLE, speed=10, quality=40.0, tip=""),
    QualitySpeedPoint("two", "dominated", STYLE, speed=9, quality=35.0, tip=""),
    QualitySpeedPoint("two", "fast and poor", STYLE, speed=80, quality=30.0, tip=""),
]


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_frontier_goes_through_the_pareto_optimal_points(higher_is_better: bool) -> None:
    points = POINTS if higher_is_better else [point._replace(quality=-point.quality) for point in POINTS]
    chart = quality_speed_chart(
        points, WIDE, quality="merit", speed="items per second", higher_is_better=higher_is_better
    )
    good, dominated, fast = chart.marks
    line = [tuple(map(float, corner.split())) for corner in chart.frontier.removeprefix("M").split("L")]
    assert {(good.x, good.y), (fast.x, fast.y)} <= set(line)
    assert line[0] == (chart.area.left, good.y)
    assert line[-1] == (fast.x, chart.area.bottom if higher_is_better else chart.area.top)
    assert (dominated.y > good.y) == higher_is_better  # y grows downwards
    assert [label.text for label in chart.labels] == [point.text for point in points]
    assert ("higher" if higher_is_better else "lower") in chart.y_title


def test_a_family_has_the_same_colour_in_every_report_and_an_unknown_one_has_a_free_colour() -> None:
    some = series_styles({name: name for name in ("gpt", "novelty", "ngram")})
    assert some["gpt"] == series_styles({"gpt": "gpt"})["gpt"]
    assert len({styles.hue for styles in some.values()}) == 3


def test_two_runs_of_one_family_have_different_colours() -> None:
    one, two = series_styles({"small": "gpt", "large": "gpt"}).values()
    assert one == series_styles({"gpt": "gpt"})["gpt"]
    assert one != two


def test_more_runs_than_colours_are_allowed() -> None:
    assert len(series_styles({str(number): "gpt" for number in range(12)})) == 12


def _colours(theme: int) -> dict[int, np.ndarray]:
    """Colour number -> linear RGB; theme 0 is light, 1 dark."""
    style = (resources.files("chainrule.reports") / "page" / "page.css").read_text(encoding="utf-8")
    found = re.findall(r"--hue-(\d): light-dark\((#\w{6}), (#\w{6})\);", style)
    fractions = {
        int(hue): np.array([int(pair[theme][at : at + 2], 16) / 255 for at in (1, 3, 5)]) for hue, *pair in found
    }
    return {hue: np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for hue, c in fractions.items()}


def _oklab(linear: np.ndarray) -> np.ndarray:
    """Perceived lightness and colour (Ottosson, 2020)."""
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
    axes = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    return axes @ np.cbrt(cones @ np.clip(linear, 0, 1))


VISION = {  # simulated colour vision (Machado, Oliveira and Fernandes, 2009)
    "full": np.eye(3),
    "without green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "without red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_colours_are_distinguishable_with_any_colour_vision(theme: int, vision: str) -> None:
    seen = {hue: _oklab(VISION[vision] @ colour) for hue, colour in _colours(theme).items()}
    assert set(seen) == set(range(len(SHAPES)))
    closest = min(np.linalg.norm(one - two) for one, two in itertools.combinations(seen.values(), 2))
    assert closest > 0.1


@pytest.mark.parametrize("task", ["language", "translation"])
def test_every_family_has_a_colour_of_its_own_within_its_task(task: str) -> None:
    names = [name for name, family in single_families().items() if family.task == task]
    assert all(0 < family_hues()[name] < len(SHAPES) for name in names)
    assert len(set(series_styles({name: name for name in names}).values())) == len(names)


def test_numbers_have_three_significant_digits() -> None:
    assert [formatting.count(number) for number in (7, 1234, 154_321, 1_234_567)] == ["7", "1,234", "154 k", "1.23 M"]
    assert formatting.memory(612_300_000) == "612 MB"
    assert [formatting.duration(seconds) for seconds in (0.0123, 1.94, 72, 5400)] == [
        "0.012 s",
        "1.9 s",
        "1.2 min",
        "1.5 h",
    ]
    assert [formatting.perplexity(number) for number in (4.0563, 91.84, 1234, 3.2e7)] == [
        "4.06",
        "91.8",
        "1,234",
        "3.2e+07",
    ]
