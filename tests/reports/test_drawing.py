from __future__ import annotations

import itertools
import re
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.families import single_families
from chainrule.reports import figures
from chainrule.reports.charts import FONT, LOOKS, SHAPES, WIDE, Look, Spot, against_speed, looks, pareto
from chainrule.reports.labels import Box, place, spread
from chainrule.reports.scales import Scale, around, round_durations, round_numbers, round_powers

LOOK = Look(1, SHAPES[1])


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


@given(st.floats(1e-3, 1e6), st.floats(1.01, 1e9))
def test_a_logarithmic_axis_has_two_numbers_at_least(low: float, ratio: float) -> None:
    assert len(round_powers(low, low * ratio)) >= 2


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


@settings(deadline=None)  # a busy machine is no mistake
@given(st.lists(st.tuples(st.floats(100, 600), st.floats(60, 340)), min_size=2, max_size=9))
def test_names_beside_marks_do_not_cover_each_other(points: list[tuple[float, float]]) -> None:
    area = Box(0, 0, 800, 400)
    boxes = place(["attentive_conv"] * len(points), points, area, font=FONT)
    assert all(box.inside(area) for box in boxes)
    assert sum(one.overlap(two) for one, two in itertools.combinations(boxes, 2)) == 0


def test_the_frontier_holds_what_no_other_beats_in_both() -> None:
    assert pareto([(10, 2.0), (100, 2.5), (50, 2.6), (100, 2.4), (5, 2.0)]) == [0, 3]


SPOTS = [
    Spot("one", "slow and good", LOOK, speed=10, quality=40.0, tip=""),
    Spot("two", "beaten", LOOK, speed=9, quality=35.0, tip=""),
    Spot("two", "fast and poor", LOOK, speed=80, quality=30.0, tip=""),
]


@pytest.mark.parametrize("more_is_better", [True, False])
def test_the_line_goes_through_what_is_not_beaten_and_leaves_the_rest_on_its_worse_side(more_is_better: bool) -> None:
    spots = SPOTS if more_is_better else [spot._replace(quality=-spot.quality) for spot in SPOTS]
    chart = against_speed(spots, WIDE, quality="merit", speed="deeds a second", more_is_better=more_is_better)
    good, beaten, fast = chart.marks
    line = [tuple(map(float, corner.split())) for corner in chart.frontier.removeprefix("M").split("L")]
    assert {(good.x, good.y), (fast.x, fast.y)} <= set(line)
    assert line[0] == (chart.area.left, good.y)
    assert line[-1] == (fast.x, chart.area.bottom if more_is_better else chart.area.top)
    assert (beaten.y > good.y) == more_is_better  # higher in the drawing is a smaller y
    assert [label.text for label in chart.labels] == [spot.text for spot in spots]
    assert ("higher" if more_is_better else "lower") in chart.y_title


def test_a_family_looks_the_same_in_every_report_and_a_new_one_like_no_other() -> None:
    some = looks({name: name for name in ("gpt", "novelty", "ngram")})
    assert some["gpt"] == looks({"gpt": "gpt"})["gpt"]
    assert len({look.hue for look in some.values()}) == 3


def test_two_runs_of_one_family_look_different() -> None:
    one, two = looks({"small": "gpt", "large": "gpt"}).values()
    assert one == looks({"gpt": "gpt"})["gpt"]
    assert one != two


def test_there_is_a_look_for_the_last_of_many_runs() -> None:
    assert len(looks({str(number): "gpt" for number in range(12)})) == 12


def _colours(theme: int) -> dict[int, np.ndarray]:
    """Hue -> linear RGB; theme 0 is light, 1 dark."""
    style = (resources.files("chainrule.reports") / "page" / "page.css").read_text(encoding="utf-8")
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
    seen = {hue: _oklab(VISION[vision] @ colour) for hue, colour in _colours(theme).items()}
    assert set(seen) == set(LOOKS.values())
    closest = min(np.linalg.norm(one - two) for one, two in itertools.combinations(seen.values(), 2))
    assert closest > 0.1


@pytest.mark.parametrize("task", ["language", "translation"])
def test_every_family_has_a_look_that_no_other_of_its_task_has(task: str) -> None:
    names = [name for name, family in single_families().items() if family.task == task]
    assert set(names) <= set(LOOKS)
    assert len(set(looks({name: name for name in names}).values())) == len(names)


def test_numbers_have_three_digits_that_mean_something() -> None:
    assert [figures.count(number) for number in (7, 1234, 154_321, 1_234_567)] == ["7", "1,234", "154 k", "1.23 M"]
    assert figures.memory(612_300_000) == "612 MB"
    assert [figures.duration(seconds) for seconds in (0.0123, 1.94, 72, 5400)] == [
        "0.012 s",
        "1.9 s",
        "1.2 min",
        "1.5 h",
    ]
    assert [figures.perplexity(number) for number in (4.0563, 91.84, 1234, 3.2e7)] == [
        "4.06",
        "91.8",
        "1,234",
        "3.2e+07",
    ]
