"""Results in words, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Sequence

from chainrule.frontier.results import Failure, Results, Row, Speed
from chainrule.reports import figures


def quality(figure: float, measure: str) -> str:
    """Two digits after the point, as is the custom for BLEU and chrF; bits per byte have three."""
    return f"{figure:.3f}" if measure == "bits/byte" else f"{figure:.2f}"


def measured(results: Results, row: Row) -> str:
    """The quality of a way that is drawn."""
    return quality(row.quality[results.measure], results.measure)


def known(results: Results, batch: int) -> list[tuple[Row, Speed]]:
    """The ways whose quality and speed are both known."""
    found = ((row, row.speed(batch)) for row in results.rows if results.measure in row.quality)
    return [(row, speed) for row, speed in found if speed is not None]


def finding(results: Results, batch: int) -> str:
    """Which way is best at a batch size, and what the fastest one costs."""
    points = known(results, batch)
    if not points:
        return ""
    best, speed = max(points, key=lambda point: (results.merit(point[0]), point[1].items_per_second))
    sentence = f"At batch {batch}, {best.name} is best: {results.measure} {measured(results, best)}"
    sentence += f" at {figures.digits(speed.rate(results.rate))} {results.rate}/s"
    if speed.times is not None and speed.times > 1:
        sentence += f", {figures.digits(speed.times)} times as fast as {results.baseline}"
    quickest, top = max(points, key=lambda point: point[1].items_per_second)
    if quickest is not best:
        times = top.items_per_second / speed.items_per_second
        change = quality(results.merit(best) - results.merit(quickest), results.measure)
        cost = f"{change} {results.measure} {'less' if results.more_is_better else 'more'}"
        sentence += f"; {quickest.name} is {figures.digits(times)} times as fast as that, for {cost}"
    return sentence + "."


def verdict(row: Row, item: str) -> str:
    """Whether a way wrote what its twin did, token by token; nothing where it has none."""
    compared = sum(speed.compared for speed in row.speeds)
    if row.same_as is None or not compared:
        return ""
    different = sum(speed.different for speed in row.speeds)
    if different:
        return f"no, {different:,} {item}{'s differ' if different > 1 else ' differs'}"
    return f"yes, {compared:,} tokens"


def gathered(failures: Sequence[Failure]) -> list[tuple[str, str]]:
    """What failed for one reason together, and the reason."""
    places: dict[str, list[str]] = {}
    for failure in failures:
        where = "quality" if failure.batch is None else f"batch {failure.batch}"
        places.setdefault(failure.reason, []).append(f"{failure.name} ({where})")
    return [(", ".join(names), why) for why, names in places.items()]
