"""How a frontier is measured, with ways whose work is counted instead of done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chainrule.errors import ConfigError, DecodingError, RunError
from chainrule.frontier.explore import explore
from chainrule.frontier.measure import TURNS, items_a_turn, spaced, take_turn
from chainrule.frontier.results import Clocked, Measurements, Results
from chainrule.frontier.summary import summarise
from chainrule.frontier.task import Output, Quality, Task, Way
from chainrule.runs import TextRun


class Counting(Way):
    """Writes the numbers of its items, and remembers what it was asked for."""

    def __init__(self, label: str, *, twin: str | None = None, said: str = "", merit: float = 1.0) -> None:
        super().__init__("run", "gpt", label, twin=twin)
        self.said, self.merit = said, merit
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.assessed = 0

    def write(self, items: Sequence[int], batch: int) -> list[Output]:
        self.asked.append((tuple(items), batch))
        return [Output(f"{self.said}{item}", 3) for item in items]

    def assess(self) -> Quality:
        self.assessed += 1
        return Quality(figures={"merit": self.merit})


class Failing(Counting):
    """Fails from some call on."""

    def __init__(self, label: str, error: BaseException, *, after: int) -> None:
        super().__init__(label)
        self.error, self.after = error, after

    def write(self, items: Sequence[int], batch: int) -> list[Output]:
        if len(self.asked) >= self.after:
            raise self.error
        return super().write(items, batch)


class Numbers(Task):
    """Items that are nothing but their numbers."""

    item, rate = "item", "items"
    measure, more_is_better = "merit", True
    items = 10

    def __init__(self, run: TextRun, ways: Sequence[Way]) -> None:
        self.runs, self.ways = [run], ways

    def facts(self) -> dict[str, Any]:
        return {}

    def identity(self) -> dict[str, Any]:
        return {"choice of ways": [way.name for way in self.ways]}


def test_every_turn_is_the_same_items_for_all_ways_after_a_warm_up(opened: TextRun, tmp_path: Path) -> None:
    ways = [Counting("plain"), Counting("other")]
    results = explore(Numbers(opened, ways), out=tmp_path / "out", batches=[4], seconds=1e-9)
    for way in ways:
        assert len(way.asked) == 2 + TURNS
        assert {(len(items), batch) for items, batch in way.asked} == {(4, 4)}
    assert ways[0].asked == ways[1].asked
    assert results.complete
    assert [row.speeds[0].turns for row in results.rows] == [TURNS, TURNS]


def test_the_same_is_the_same_and_what_differs_is_counted() -> None:
    ways = [Counting("plain"), Counting("same", twin="plain"), Counting("other", twin="plain", said="not ")]
    done, _ = take_turn(ways, [1, 2, 3], 2)
    assert [(one.compared, one.different) for one in done.values()] == [(0, 0), (9, 0), (9, 3)]


def test_a_point_that_fails_says_why_and_the_others_go_on(opened: TextRun, tmp_path: Path) -> None:
    ways = [
        Counting("plain"),
        Failing("never", DecodingError("no draft\nand more"), after=0),
        Failing("twice", RuntimeError("no memory"), after=4),
    ]
    results = explore(Numbers(opened, ways), out=tmp_path / "out", batches=[1, 5], seconds=1e-9)
    assert [(one.name, one.batch, one.reason) for one in results.failures] == [
        ("run never", 1, "no draft"),
        ("run twice", 1, "no memory"),
        ("run never", 5, "no draft"),
        ("run twice", 5, "no memory"),
    ]
    assert [len(row.speeds) for row in results.rows] == [2, 0, 0]
    assert results.complete


def test_what_is_measured_is_kept_and_the_same_words_go_on(opened: TextRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stopped = [Counting("plain"), Failing("other", KeyboardInterrupt(), after=4)]  # in the third turn
    with pytest.raises(KeyboardInterrupt):
        explore(Numbers(opened, stopped), out=out, batches=[2], seconds=1e-9)
    halfway = Results.model_validate_json((out / "results.json").read_text())
    assert not halfway.complete
    assert [row.speeds[0].turns for row in halfway.rows] == [2, 2]
    assert "not finished" in (out / "report.html").read_text()

    ways = [Counting("plain"), Counting("other")]
    results = explore(Numbers(opened, ways), out=out, batches=[2], seconds=1e-9)
    assert results.complete
    assert [way.assessed for way in ways] == [0, 0]
    assert [len(way.asked) for way in ways] == [2 + TURNS - 2] * 2  # a warm-up, and the turns that were missing
    first = [turn["run plain"].seconds for turn in kept(out).turns[2]]
    again = [Counting("plain"), Counting("other")]
    assert explore(Numbers(opened, again), out=out, batches=[2], seconds=1e-9).complete
    assert not any(way.asked or way.assessed for way in again)
    assert [turn["run plain"].seconds for turn in kept(out).turns[2]] == first


def kept(out: Path) -> Measurements:
    return Measurements.model_validate_json((out / "measurements.json").read_text())


def test_a_missing_quality_is_tried_again(opened: TextRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Counting) -> Quality:
        raise DecodingError("not yet")

    with monkeypatch.context() as patch:
        patch.setattr(Counting, "assess", refuse)
        results = explore(Numbers(opened, [Counting("plain")]), out=tmp_path / "out", batches=[1], seconds=1e-9)
    assert [(one.batch, one.reason) for one in results.failures] == [(None, "not yet")]
    assert results.rows[0].speeds
    results = explore(Numbers(opened, [Counting("plain")]), out=tmp_path / "out", batches=[1], seconds=1e-9)
    assert results.failures == []
    assert results.rows[0].quality == {"merit": 1.0}


def test_another_question_does_not_go_on_from_here(opened: TextRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    explore(Numbers(opened, [Counting("plain")]), out=out, batches=[1], seconds=1e-9)
    for ways, words, message in (
        ([Counting("other")], {"batches": [1], "seconds": 1e-9}, "another choice of ways"),
        ([Counting("plain")], {"batches": [2], "seconds": 1e-9}, "another choice of batches"),
        ([Counting("plain")], {"batches": [1], "seconds": 2.0}, "another number of seconds"),
    ):
        with pytest.raises(RunError, match=message):
            explore(Numbers(opened, ways), out=out, **words)
    (out / "measurements.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        explore(Numbers(opened, [Counting("plain")]), out=out, batches=[1], seconds=1e-9)


def test_a_folder_with_something_else_in_it_is_left_alone(opened: TextRun, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="is not a frontier"):
        explore(Numbers(opened, [Counting("plain")]), out=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_no_batch_and_no_time_are_refused(opened: TextRun, tmp_path: Path) -> None:
    task = Numbers(opened, [Counting("plain")])
    with pytest.raises(ConfigError, match="at least 1 item"):
        explore(task, out=tmp_path / "out", batches=[0])
    with pytest.raises(ConfigError, match="0 seconds"):
        explore(task, out=tmp_path / "out", seconds=0)


def test_speeds_are_medians_and_ratios_are_taken_within_a_turn(opened: TextRun) -> None:
    turns = [
        {"run plain": Clocked(seconds=slow, tokens=30), "run other": Clocked(seconds=fast, tokens=60)}
        for slow, fast in ((1.0, 0.5), (2.0, 1.0), (1.1, 0.1), (1.2, 0.6), (9.0, 4.5))  # the machine was busy at times
    ]
    measured = Measurements(asked={}, counts={4: 10}, turns={4: turns}, quality={})
    ways = [Counting("plain"), Counting("other")]
    plain, other = (row.speeds[0] for row in summarise(Numbers(opened, ways), measured, [4], "").rows)
    assert plain.items_per_second == pytest.approx(10 / 1.2)
    assert plain.interval == pytest.approx((5.0, 10 / 1.1))
    assert other.tokens_per_second == pytest.approx(60 / 0.6)
    assert (plain.times, other.times) == pytest.approx((1.0, 2.0))


def test_items_are_as_many_as_the_time_allows_in_whole_batches() -> None:
    # Two ways take 0.1 s and 0.3 s for a batch of 8; with 4 s each, that is 1.6 s for both in a turn: 4 batches.
    assert items_a_turn([0.1, 0.3], 1000, 8, 4.0) == 32
    assert items_a_turn([0.1, 0.3], 1000, 8, 1e-6) == 8
    assert items_a_turn([0.1, 0.3], 20, 8, 4.0) == 20


def test_items_of_a_turn_come_from_all_over_the_task() -> None:
    assert spaced(100, 4) == [0, 25, 50, 75]
    assert spaced(3, 16) == [0, 1, 2]


def test_results_are_plain_values(opened: TextRun, tmp_path: Path) -> None:
    explore(Numbers(opened, [Counting("plain"), Counting("other", merit=2.0)]), out=tmp_path / "out", seconds=1e-9)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["baseline"] == "run plain"
    assert found["batches"] == [1, 16]
    assert [row["quality"]["merit"] for row in found["rows"]] == [1.0, 2.0]
    assert len(found["findings"]) == 2
    assert "run other is best: merit 2.00" in found["findings"][0]
