"""How a frontier is measured, with decoding methods that record their calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chainrule.errors import ConfigError, DecodingError, RunError
from chainrule.frontier.measure import evenly_spaced, items_per_round, measure_frontier, run_round
from chainrule.frontier.results import ROUNDS, FrontierResults, Measurements, Timing, summarise
from chainrule.frontier.workload import DecodedItem, DecodingMethod, Quality, Workload
from chainrule.tasks.text import TextRun


class RecordingMethod(DecodingMethod):
    """Outputs the indices of its items, and records its calls."""

    def __init__(self, label: str, *, reference: str | None = None, prefix: str = "", merit: float = 1.0) -> None:
        super().__init__("run", "gpt", label, reference=reference)
        self.prefix, self.merit = prefix, merit
        self.calls: list[tuple[tuple[int, ...], int]] = []
        self.assessed = 0

    def decode(self, items: Sequence[int], batch: int) -> list[DecodedItem]:
        self.calls.append((tuple(items), batch))
        return [DecodedItem(f"{self.prefix}{item}", 3) for item in items]

    def measure_quality(self) -> Quality:
        self.assessed += 1
        return Quality(metrics={"merit": self.merit})


class FailingMethod(RecordingMethod):
    """Fails after a number of calls."""

    def __init__(self, label: str, error: BaseException, *, after: int) -> None:
        super().__init__(label)
        self.error, self.after = error, after

    def decode(self, items: Sequence[int], batch: int) -> list[DecodedItem]:
        if len(self.calls) >= self.after:
            raise self.error
        return super().decode(items, batch)


class NumberedItems(Workload):
    """A workload whose items are their indices."""

    item, throughput = "item", "items"
    metric, higher_is_better = "merit", True
    size = 10

    def __init__(self, run: TextRun, methods: Sequence[DecodingMethod]) -> None:
        self.runs, self.methods = [run], methods

    def protocol(self) -> dict[str, Any]:
        return {}

    def identity(self) -> dict[str, Any]:
        return {"choice of decoding methods": [method.name for method in self.methods]}


def test_all_methods_decode_the_same_items_in_every_round_after_a_warm_up(opened: TextRun, tmp_path: Path) -> None:
    methods = [RecordingMethod("plain"), RecordingMethod("other")]
    results = measure_frontier(NumberedItems(opened, methods), out=tmp_path / "out", batches=[4], seconds=1e-9)
    for method in methods:
        assert len(method.calls) == 2 + ROUNDS
        assert {(len(items), batch) for items, batch in method.calls} == {(4, 4)}
    assert methods[0].calls == methods[1].calls
    assert results.complete
    assert [row.speeds[0].rounds for row in results.rows] == [ROUNDS, ROUNDS]


def test_outputs_that_differ_from_the_reference_are_counted() -> None:
    methods = [
        RecordingMethod("plain"),
        RecordingMethod("same", reference="plain"),
        RecordingMethod("other", reference="plain", prefix="not "),
    ]
    done, _ = run_round(methods, [1, 2, 3], 2)
    assert [(one.compared, one.different) for one in done.values()] == [(0, 0), (9, 0), (9, 3)]


def test_a_failed_measurement_is_recorded_and_the_others_continue(opened: TextRun, tmp_path: Path) -> None:
    methods = [
        RecordingMethod("plain"),
        FailingMethod("never", DecodingError("no draft\nand more"), after=0),
        FailingMethod("twice", RuntimeError("no memory"), after=4),
    ]
    results = measure_frontier(NumberedItems(opened, methods), out=tmp_path / "out", batches=[1, 5], seconds=1e-9)
    assert [(one.name, one.batch, one.reason) for one in results.failures] == [
        ("run never", 1, "no draft"),
        ("run twice", 1, "no memory"),
        ("run never", 5, "no draft"),
        ("run twice", 5, "no memory"),
    ]
    assert [len(row.speeds) for row in results.rows] == [2, 0, 0]
    assert results.complete


def test_an_interrupted_measurement_resumes(opened: TextRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stopped = [RecordingMethod("plain"), FailingMethod("other", KeyboardInterrupt(), after=4)]  # in the third round
    with pytest.raises(KeyboardInterrupt):
        measure_frontier(NumberedItems(opened, stopped), out=out, batches=[2], seconds=1e-9)
    halfway = FrontierResults.model_validate_json((out / "results.json").read_text())
    assert not halfway.complete
    assert [row.speeds[0].rounds for row in halfway.rows] == [2, 2]
    assert "not finished" in (out / "report.html").read_text()

    methods = [RecordingMethod("plain"), RecordingMethod("other")]
    results = measure_frontier(NumberedItems(opened, methods), out=out, batches=[2], seconds=1e-9)
    assert results.complete
    assert [method.assessed for method in methods] == [0, 0]
    assert [len(method.calls) for method in methods] == [2 + ROUNDS - 2] * 2  # a warm-up, and the missing rounds
    first = [timings["run plain"].seconds for timings in kept(out).rounds[2]]
    again = [RecordingMethod("plain"), RecordingMethod("other")]
    assert measure_frontier(NumberedItems(opened, again), out=out, batches=[2], seconds=1e-9).complete
    assert not any(method.calls or method.assessed for method in again)
    assert [timings["run plain"].seconds for timings in kept(out).rounds[2]] == first


def kept(out: Path) -> Measurements:
    return Measurements.model_validate_json((out / "measurements.json").read_text())


def test_a_failed_quality_measurement_is_tried_again(
    opened: TextRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: RecordingMethod) -> Quality:
        raise DecodingError("not yet")

    with monkeypatch.context() as patch:
        patch.setattr(RecordingMethod, "measure_quality", refuse)
        results = measure_frontier(
            NumberedItems(opened, [RecordingMethod("plain")]), out=tmp_path / "out", batches=[1], seconds=1e-9
        )
    assert [(one.batch, one.reason) for one in results.failures] == [(None, "not yet")]
    assert results.rows[0].speeds
    results = measure_frontier(
        NumberedItems(opened, [RecordingMethod("plain")]), out=tmp_path / "out", batches=[1], seconds=1e-9
    )
    assert results.failures == []
    assert results.rows[0].quality == {"merit": 1.0}


def test_a_measurement_with_other_options_does_not_resume(opened: TextRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    measure_frontier(NumberedItems(opened, [RecordingMethod("plain")]), out=out, batches=[1], seconds=1e-9)
    for methods, options, message in (
        ([RecordingMethod("other")], {"batches": [1], "seconds": 1e-9}, "another choice of decoding methods"),
        ([RecordingMethod("plain")], {"batches": [2], "seconds": 1e-9}, "another choice of batches"),
        ([RecordingMethod("plain")], {"batches": [1], "seconds": 2.0}, "another number of seconds"),
    ):
        with pytest.raises(RunError, match=message):
            measure_frontier(NumberedItems(opened, methods), out=out, **options)
    (out / "measurements.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        measure_frontier(NumberedItems(opened, [RecordingMethod("plain")]), out=out, batches=[1], seconds=1e-9)


def test_a_folder_with_other_files_is_refused(opened: TextRun, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="is not a frontier"):
        measure_frontier(NumberedItems(opened, [RecordingMethod("plain")]), out=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_invalid_batch_sizes_and_times_are_refused(opened: TextRun, tmp_path: Path) -> None:
    workload = NumberedItems(opened, [RecordingMethod("plain")])
    with pytest.raises(ConfigError, match="at least 1 item"):
        measure_frontier(workload, out=tmp_path / "out", batches=[0])
    with pytest.raises(ConfigError, match="--seconds must be positive"):
        measure_frontier(workload, out=tmp_path / "out", seconds=0)


def test_speeds_are_medians_and_speed_ups_are_ratios_within_a_round(opened: TextRun) -> None:
    rounds = [
        {"run plain": Timing(seconds=slow, tokens=30), "run other": Timing(seconds=fast, tokens=60)}
        for slow, fast in ((1.0, 0.5), (2.0, 1.0), (1.1, 0.1), (1.2, 0.6), (9.0, 4.5))  # a busy machine in some rounds
    ]
    measured = Measurements(request={}, items_per_round={4: 10}, rounds={4: rounds}, quality={})
    methods = [RecordingMethod("plain"), RecordingMethod("other")]
    plain, other = (row.speeds[0] for row in summarise(NumberedItems(opened, methods), measured, [4], "").rows)
    assert plain.items_per_second == pytest.approx(10 / 1.2)
    assert plain.interval == pytest.approx((5.0, 10 / 1.1))
    assert other.tokens_per_second == pytest.approx(60 / 0.6)
    assert (plain.speedup, other.speedup) == pytest.approx((1.0, 2.0))


def test_the_number_of_items_follows_from_the_time_in_whole_batches() -> None:
    # Two methods take 0.1 s and 0.3 s for a batch of 8; with 4 s each, that is 1.6 s for both in a round: 4 batches.
    assert items_per_round([0.1, 0.3], 1000, 8, 4.0) == 32
    assert items_per_round([0.1, 0.3], 1000, 8, 1e-6) == 8
    assert items_per_round([0.1, 0.3], 20, 8, 4.0) == 20


def test_the_items_of_a_round_are_evenly_spaced() -> None:
    assert evenly_spaced(100, 4) == [0, 25, 50, 75]
    assert evenly_spaced(3, 16) == [0, 1, 2]


def test_results_json_has_plain_values(opened: TextRun, tmp_path: Path) -> None:
    measure_frontier(
        NumberedItems(opened, [RecordingMethod("plain"), RecordingMethod("other", merit=2.0)]),
        out=tmp_path / "out",
        seconds=1e-9,
    )
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["baseline"] == "run plain"
    assert found["batches"] == [1, 16]
    assert [row["quality"]["merit"] for row in found["rows"]] == [1.0, 2.0]
    assert len(found["findings"]) == 2
    assert "run other is best: merit 2.00" in found["findings"][0]
