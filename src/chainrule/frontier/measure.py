"""The clock: all ways in turns, on the same items, so that a busy moment of the machine disturbs neighbours alike."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from chainrule.errors import ChainruleError
from chainrule.frontier.results import Clocked
from chainrule.frontier.task import Output, Way

TURNS = 5
FAILING = (ChainruleError, MemoryError, RuntimeError)  # the last is how torch says that there is no more memory


class Timed(NamedTuple):
    """What some ways did one after the other."""

    done: dict[str, Clocked]  # by name
    failed: dict[str, str]  # why


def take_turn(ways: Sequence[Way], items: Sequence[int], batch: int) -> Timed:
    """Each way does all of the items once, timed; those that must write the same are held against each other."""
    found = Timed({}, {})
    written: dict[str, list[Output]] = {}
    for way in ways:
        began = time.perf_counter()
        try:
            outputs = written[way.name] = way.write(items, batch)
        except FAILING as error:
            found.failed[way.name] = reason(error)
            continue
        seconds = time.perf_counter() - began
        tokens = sum(output.tokens for output in outputs)
        found.done[way.name] = Clocked(seconds=seconds, tokens=tokens)
    for way in ways:
        if way.name in written and way.twin_name in written:
            ours, theirs = written[way.name], written[way.twin_name]
            different = sum(one.content != other.content for one, other in zip(ours, theirs, strict=True))
            known = found.done[way.name]
            found.done[way.name] = known.model_copy(update={"compared": known.tokens, "different": different})
    return found


def warm_up(ways: Sequence[Way], items: int, batch: int) -> Timed:
    """A batch by each way that nobody times, then one that tells roughly how long it takes."""
    few = spaced(items, batch)
    first = take_turn(ways, few, batch)
    second = take_turn([way for way in ways if way.name in first.done], few, batch)
    return Timed(second.done, first.failed | second.failed)


def items_a_turn(seconds: Collection[float], items: int, batch: int, budget: float) -> int:
    """How many of the items all ways should do in a turn, in whole batches.

    With so many, a way is at work for `budget` seconds in all turns, the quick ones for less and the slow ones for
    more, where `seconds` are what each took for one batch.
    """
    batches = round(budget * len(seconds) / max(sum(seconds), 1e-9) / TURNS)
    return min(max(1, batches) * batch, items)


def spaced(items: int, count: int) -> list[int]:
    """So many of the items, from all over them."""
    count = min(count, items)
    return [index * items // count for index in range(count)]


def reason(error: BaseException) -> str:
    """Why something failed, in one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
