"""What slots spell best, in the eyes of a language model too: prefix search (Graves et al., 2006; Hannun et al., 2014).

Slots choose independently of each other (see `nn.ctc`), so the likeliest choice of each may be half of one sentence and
half of another. Here the targets that slots can spell are built from left to right, slot by slot, as prefixes. Of each
prefix y the search knows how likely the slots so far have spelt it, silent at last or just saying its last token, and
it keeps those that are best by

    log P(slots spell y) + w log P_L(y) + b |y|

where P_L is a language model, which knows what tokens follow each other. Paths that spell the same are one prefix, and
their probabilities are summed. A token is tried where a slot gives it a fair chance beside its favourite.

For one text at a time and in plain Python: most slots leave little choice, and following that is less work than to
dispatch tensor operations for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Any, NamedTuple

TINY = 1e-300  # no prefix that is kept has less, and its logarithm is a number


class Language(NamedTuple):
    """A language model that is asked for one token at a time."""

    beginning: Any  # what it remembers before the first token
    follow: Callable[[int, Any], tuple[float, Any]]  # a token and what is remembered, to its nats and what is then


class Slot(NamedTuple):
    """The choices of one slot that have a chance."""

    silence: float  # its probability
    tokens: dict[int, float]  # those that it may say, and their probabilities


class Weights(NamedTuple):
    """How much counts beside what the slots say."""

    language: float  # w
    bonus: float  # b


class Spelling(NamedTuple):
    """What slots spell."""

    ids: list[int]
    log_prob: float  # nats, of those ways to spell it that the search has followed
    score: float


class Prefix:
    """The beginning of a target."""

    __slots__ = ("before", "children", "memory", "merit", "score", "silent", "slot", "spoken", "token")

    def __init__(self, before: Prefix | None, token: int, memory: Any, merit: float) -> None:
        self.before = before
        self.token = token  # the last one
        self.memory = memory  # of the language model
        self.merit = merit  # w log P_L + b |y|
        self.children: dict[int, Prefix] = {}
        self.slot = -1  # the last one that has reached it
        self.silent = self.spoken = 0.0  # how likely the slots are to be here, silent or just saying the last token
        self.score = 0.0

    def ids(self) -> list[int]:
        found, prefix = [], self
        while prefix.before is not None:
            found.append(prefix.token)
            prefix = prefix.before
        return found[::-1]


def search(slots: Sequence[Slot], language: Language, weights: Weights, width: int) -> Spelling:
    """The best target, with `width` prefixes kept after every slot."""
    root = Prefix(None, -1, language.beginning, 0.0)
    root.silent = 1.0
    beam, scale = [root], 0.0  # nats taken out of all prefixes, so that they stay numbers
    for number, slot in enumerate(slots):
        beam = _after(beam, number, slot, language, weights)
        for prefix in beam:
            prefix.score = math.log(prefix.silent + prefix.spoken + TINY) + prefix.merit
        if len(beam) > width:
            beam = nlargest(width, beam, key=attrgetter("score"))
        most = max(prefix.silent + prefix.spoken for prefix in beam)
        scale += math.log(most)
        for prefix in beam:
            prefix.silent /= most
            prefix.spoken /= most
    best = max(beam, key=attrgetter("score"))
    nats = math.log(best.silent + best.spoken) + scale
    return Spelling(best.ids(), nats, nats + best.merit)


def _after(beam: Sequence[Prefix], number: int, slot: Slot, language: Language, weights: Weights) -> list[Prefix]:
    """Every prefix that the slot can lead to from those of the beam."""
    silence, tokens = slot
    ways = [(prefix, prefix.silent, prefix.spoken) for prefix in beam]
    for prefix in beam:
        prefix.silent = prefix.spoken = 0.0
        prefix.slot = number
    reached = list(beam)
    for prefix, silent, spoken in ways:
        total, last = silent + spoken, prefix.token
        prefix.silent += total * silence
        for token, chance in tokens.items():
            if token == last:
                prefix.spoken += spoken * chance  # said once more, it is the same token
                total_before = silent  # and only after a silence another one
            else:
                total_before = total
            if not total_before:
                continue
            child = prefix.children.get(token)
            if child is None:
                nats, memory = language.follow(token, prefix.memory)
                child = Prefix(prefix, token, memory, prefix.merit + weights.language * nats + weights.bonus)
                prefix.children[token] = child
            if child.slot != number:  # it was in no beam, or is no longer
                child.slot, child.silent, child.spoken = number, 0.0, 0.0
                reached.append(child)
            child.spoken += total_before * chance
    return reached
