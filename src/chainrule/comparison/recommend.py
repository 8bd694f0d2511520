"""The comparison in one plain sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chainrule.comparison.analysis import paired_difference
from chainrule.comparison.results import Row

WORTHWHILE = 0.005  # a mixture that saves a smaller share of the bits than this is not worth its weight


def recommend(
    rows: Sequence[Row], nats: Mapping[str, npt.NDArray[np.floating[Any]]], text_bytes: int, *, unit: str = "byte"
) -> str:
    """Which model to pick, by how much it leads and what that costs. `rows` come best first."""

    def level(first: Row, second: Row) -> bool:
        """Whether the text is too short to tell the two apart."""
        low, high = paired_difference(nats[first.name], nats[second.name], text_bytes)
        return low <= 0 <= high

    families = [row for row in rows if row.kind == "family"]
    leader = families[0]
    equals = [row for row in families[1:] if level(leader, row)]
    pick = max([leader, *equals], key=lambda row: row.decode_tokens_per_second)
    best = rows[0]
    if best.kind == "mixture":
        saved = 1 - best.bits_per_byte / leader.bits_per_byte
        if saved >= WORTHWHILE and not level(best, leader):
            return (
                f"Pick the mixture of {_listed(list(best.parts))}: {best.bits_per_byte:.3f} bits/{unit}, "
                f"{saved:.1%} fewer than {leader.name}, the best single family; {_alone(pick, best)}."
            )
    others = [row for row in families if row not in (pick, *equals, leader)]
    sentence = f"Pick {pick.name}: {pick.bits_per_byte:.3f} bits/{unit}"
    if pick is not leader or equals:
        rivals = [row.name for row in [leader, *equals] if row is not pick]
        sentence += f", level with {_listed(rivals)} on this data"
        sentence += " and the fastest of them at writing" if len(rivals) > 0 else ""
    if others:
        fewer = 1 - pick.bits_per_byte / others[0].bits_per_byte
        sentence += f", {fewer:.1%} fewer than {others[0].name}, the next best"
    if best.kind == "mixture":
        sentence += "; mixing it with others saves too little to be worth it"
    return sentence + "."


def _alone(single: Row, mixture: Row) -> str:
    times = single.decode_tokens_per_second / mixture.decode_tokens_per_second
    cost = single.bits_per_byte / mixture.bits_per_byte - 1
    return f"where speed counts, {single.name} alone writes {times:.2g} times as fast for {cost:.1%} more bits"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
