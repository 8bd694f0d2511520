"""Connectionist temporal classification: all the ways in which slots can spell a target, summed.

Each slot says a token or keeps silent. What a path of slots spells is what remains when a token that adjacent slots
repeat is said once and silence is dropped. A token that stands twice in a row in the target is spelt with a silent slot
between. With e_u(·) the log-probabilities of slot u, independent of those of the other slots,

    P(y) = Σ over the paths π that spell y of  Π_u exp e_u(π_u)

is a distribution over all sequences. It is summed in one pass over the slots, over the states of a lattice

    silence, y_1, silence, y_2, …, y_T, silence

where a slot stays in a state, goes on to the next, or passes over a silence between two different tokens (Graves et
al., 2006). The same pass with a maximum in place of the sum finds the likeliest path.

Shape letters: B rows, U slots, T target tokens, L = 2T + 1 states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import nlargest
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.types import Sequences, length_mask

NEVER = -1e9  # stands for −∞, whose gradient would not be a number

Count = TypeVar("Count", int, Tensor)


class Ratio(NamedTuple):
    """Slots for each source token, as a fraction: slot u is one of token ⌊u · tokens / slots⌋."""

    over: int
    under: int

    @classmethod
    def of(cls, slots: float) -> Self:
        """To the nearest fraction of hundredths and less."""
        return cls(*Fraction(slots).limit_denominator(100).as_integer_ratio())

    @property
    def most(self) -> int:
        """The most slots that a token has."""
        return self.slots(1)

    def slots(self, tokens: Count) -> Count:
        """How many slots so many tokens have: the next whole number."""
        return -(-tokens * self.over // self.under)

    def origins(self, tokens: int, device: torch.device) -> Tensor:
        """(U,): for each slot, where it is found if every token had `most` of them."""
        slot = torch.arange(self.slots(tokens), device=device)
        token = slot * self.under // self.over
        return token * self.most + slot - self.slots(token)


@dataclass(slots=True)
class Lattice:
    """The states that spell the target of each row, and how likely each slot is to be in them."""

    emissions: Tensor  # (B, U, L) nats
    slots: Tensor  # (B,) how many a row has
    target: Sequences  # (B, T)
    passing: Tensor  # (B, L) bool: whether the state may follow the one two before it

    @classmethod
    def of(cls, spoken: Tensor, silent: Tensor, slots: Tensor, target: Sequences) -> Self:
        """From the log-probabilities that a slot says each token of its row's target, (B, U, T), or nothing, (B, U)."""
        silence = silent[..., None].expand_as(spoken)
        emissions = torch.cat([torch.stack([silence, spoken], -1).flatten(2), silent[..., None]], -1)
        changes = target.ids[:, 1:] != target.ids[:, :-1]  # (B, T − 1)
        passing = torch.zeros(len(slots), emissions.shape[2], dtype=torch.bool, device=slots.device)
        passing[:, 3::2] = changes
        return cls(emissions, slots, target, passing)

    @property
    def possible(self) -> Tensor:
        """(B,) whether a row has enough slots: one for each token, and one between two that are equal."""
        again = self.target.mask[:, 1:] & ~self.passing[:, 3::2]
        return self.target.lengths + again.sum(1) <= self.slots

    def log_prob(self) -> Tensor:
        """(B,) nats; where a row has too few slots, a number that says so and has no gradient."""
        reached = self._first()
        for slot in range(1, self.emissions.shape[1]):
            summed = self._ways(reached).logsumexp(0) + self.emissions[:, slot]
            reached = torch.where((slot < self.slots)[:, None], summed, reached)
        total = torch.logaddexp(*self._ends(reached))
        return torch.where(self.possible, total, NEVER)

    @torch.no_grad()
    def best(self, silence: int) -> Tensor:
        """(B, U): what each slot says on the likeliest path, `silence` for nothing; past a row's slots anything."""
        reached = self._first()
        steps = []  # (B, L) each: how many states before this one the slot before was
        for slot in range(1, self.emissions.shape[1]):
            likeliest, step = self._ways(reached).max(0)
            here = (slot < self.slots)[:, None]
            reached = torch.where(here, likeliest + self.emissions[:, slot], reached)
            steps.append(torch.where(here, step, 0))
        in_silence, in_token = self._ends(reached)
        state = 2 * self.target.lengths - (in_token > in_silence).long()
        path = [state]
        for step in reversed(steps):
            state = state - step.gather(1, state[:, None])[:, 0]
            path.append(state)
        states = torch.stack(path[::-1], 1)  # (B, U)
        said = self.target.ids.gather(1, (states // 2).clamp(max=self.target.ids.shape[1] - 1))
        return torch.where(states % 2 == 1, said, silence)

    def _first(self) -> Tensor:
        """The first slot is silent or says the first token."""
        states = torch.arange(self.emissions.shape[2], device=self.emissions.device)
        return torch.where(states < 2, self.emissions[:, 0], NEVER)

    def _ways(self, reached: Tensor) -> Tensor:
        """(3, B, L): the ways into each state, from itself, from the one before it, and over a silence."""
        before = F.pad(reached, (2, 0), value=NEVER)
        return torch.stack([reached, before[:, 1:-1], torch.where(self.passing, before[:, :-2], NEVER)])

    def _ends(self, reached: Tensor) -> tuple[Tensor, Tensor]:
        """Nats of having spelt all: silent after the last token, or just saying it. Of nothing at all, only silent."""
        last = 2 * self.target.lengths[:, None]
        in_silence, in_token = (reached.gather(1, state)[:, 0] for state in (last, (last - 1).clamp(min=0)))
        return in_silence, torch.where(self.target.lengths > 0, in_token, NEVER)


def spelt(path: Tensor, slots: Tensor, silence: int) -> list[list[int]]:
    """What paths (B, U) spell: repetitions said once, silence dropped."""
    new = F.pad(path[:, 1:] != path[:, :-1], (1, 0), value=True)
    real = length_mask(slots, path.shape[1])
    said = new & real & (path != silence)
    return [row[kept].tolist() for row, kept in zip(path, said, strict=True)]


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
