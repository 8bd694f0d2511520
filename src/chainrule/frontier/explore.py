"""From a task to its frontier: assess every way, time all of them in turns, and write down what is known after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from chainrule.errors import ConfigError
from chainrule.frontier.folder import FrontierFolder
from chainrule.frontier.measure import FAILING, TURNS, items_a_turn, reason, spaced, take_turn, warm_up
from chainrule.frontier.results import Failure, Results
from chainrule.frontier.summary import summarise
from chainrule.frontier.task import Task

BATCHES = (1, 16)
SECONDS = 10.0

Tell = Callable[[str, float], None]
"""Called with what is being done, and the share of everything that is."""


def explore(
    task: Task,
    *,
    out: str | Path,
    batches: Sequence[int] = BATCHES,
    seconds: float = SECONDS,
    command: str = "",
    tell: Tell | None = None,
) -> Results:
    """Quality and speed of every way of a task; the folder `out` holds them, and all that is done so far.

    Where it was stopped, calling it again with the same words goes on. `seconds` is for one way at one batch size.
    """
    if not batches or min(batches) < 1:
        raise ConfigError(f"batches hold at least 1 {task.item}, got {list(batches)}; for example 1,16")
    if seconds <= 0:
        raise ConfigError(f"a point cannot be measured in {seconds:g} seconds; give it at least 1")
    return _Exploration(task, FrontierFolder(Path(out)), list(batches), seconds, command, tell).run()


class _Exploration:
    def __init__(
        self,
        task: Task,
        folder: FrontierFolder,
        batches: list[int],
        seconds: float,
        command: str,
        tell: Tell | None,
    ) -> None:
        self.task, self.folder, self.batches, self.seconds, self.command = task, folder, batches, seconds, command
        self.tell = tell
        asked = {
            **task.identity(),
            "choice of batches": batches,
            "number of seconds": seconds,
            "number of threads": torch.get_num_threads(),
            "device": str(task.runs[0].model.device),
        }
        self.measured = folder.begin(asked).hopeful()

    def run(self) -> Results:
        for place, way in enumerate(self.task.ways):
            if way.name not in self.measured.quality:
                self._say(f"quality of {way.name}", place)
                self._assess(place)
        for place, batch in enumerate(self.batches):
            self._time(batch, len(self.task.ways) * (1 + place * TURNS))
        return self._keep()

    def _assess(self, place: int) -> None:
        way = self.task.ways[place]
        try:
            quality = way.assess()
        except FAILING as error:
            self._fail({way.name: reason(error)}, None)
        else:
            self.measured = self.measured.with_quality(way.name, quality)
        self._keep()

    def _time(self, batch: int, before: int) -> None:
        """Take the turns at a batch size that have not been taken yet."""
        ways = [way for way in self.task.ways if not self.measured.failed(way.name, batch)]
        taken = len(self.measured.turns.get(batch, []))
        if taken >= TURNS or not ways:
            return
        self._say(f"batch {batch}, warming up", before + taken * len(self.task.ways))
        warm = warm_up(ways, self.task.items, batch)
        self._fail(warm.failed, batch)
        ways = [way for way in ways if way.name in warm.done]
        if ways and batch not in self.measured.counts:
            costs = [one.seconds for one in warm.done.values()]
            count = items_a_turn(costs, self.task.items, batch, self.seconds)
            self.measured = self.measured.with_count(batch, count)
        while ways and taken < TURNS:
            self._say(f"batch {batch}, turn {taken + 1} of {TURNS}", before + taken * len(self.task.ways))
            turn = take_turn(ways, spaced(self.task.items, self.measured.counts[batch]), batch)
            self._fail(turn.failed, batch)
            ways = [way for way in ways if way.name in turn.done]
            self.measured = self.measured.with_turn(batch, turn.done)
            taken += 1
            self._keep()

    def _fail(self, reasons: Mapping[str, str], batch: int | None) -> None:
        for name, why in reasons.items():
            self.measured = self.measured.with_failure(Failure(name=name, batch=batch, reason=why))

    def _keep(self) -> Results:
        results = summarise(self.task, self.measured, self.batches, self.command)
        self.folder.keep(self.measured, results)
        return results

    def _say(self, what: str, done: int) -> None:
        if self.tell is not None:
            self.tell(what, done / (len(self.task.ways) * (1 + len(self.batches) * TURNS)))
