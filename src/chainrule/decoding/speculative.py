"""Speculative decoding: guess some tokens, let the model read them all at once, and keep those that it says itself.

A network that writes one token reads all of its weights for it. Reading eight tokens at once takes it hardly twice as
long, so tokens that a cheap drafter has guessed are checked for less than they would cost to write (Stern et al. 2018;
Leviathan et al. 2023; Chen et al. 2023). One `extend` gives the model's prediction after each token of the block

    the last token, guess 1, …, guess k

and from each the model's own choice is made, exactly as it is made without guesses: by the same settings, and with the
noise that belongs to the row and the position (see `choose.Gumbels`). Guesses that equal the choices before the first
difference are right, and the choice at that place is one token more. So the text is, by construction, the one that
plain decoding writes, greedy or drawn, whatever the drafter: "drafter-invariant", as Daliri et al. 2024 call it. They
show that a drafter which draws by the same noise is right with a probability of at least (1 − d) / (1 + d), d being the
total variation between its distribution and the model's. Accepting a guess with min(1, p / q) and drawing from the
rest of p otherwise is right with 1 − d, the most there can be; but that text would depend on the drafter and on where
its guesses begin, hence on the clock that the length of blocks is found by, and no seed would give it twice.

"The same" is meant as for batches of other shapes: predictions of a block may differ from those of single steps in the
last digit, and where two tokens are level to that digit, another may be taken.

Shape letters: B rows, K tokens in a block, V vocabulary.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.decoding.drafts import Drafter, Pick, Text
from chainrule.decoding.reading import Reader, Track
from chainrule.types import State


class Block(NamedTuple):
    """What the model has read, and what it predicts."""

    logits: Tensor  # (B, K, V); [:, 0] are after the last token of each row, the rest after its guesses
    guesses: list[list[int]]  # at most K − 1 in each row


class Pace:
    """How many tokens to read at once: as many as have been the quickest way to write.

    If each guess is right with probability a, a block of K tokens writes 1 + a + … + a^(K−1) = (1 − a^K) / (1 − a) of
    them. What a block costs is measured, and so are the guesses. Of a width that was not measured lately it is thought
    that its further tokens cost half as much as those of narrower blocks did: hopeful, so that it is tried before it is
    judged, but a wide block is not tried where a narrow one was far from paying. Where nothing beats single tokens,
    drafting rests, for longer each time, and is then given another chance: texts change.
    """

    WIDTHS = (1, 4, 8, 12, 16)  # products with matrices are made for rows in fours
    RECENT = 3  # measurements of a width that count; the shortest is the truest, since nothing makes a step shorter
    LATELY = 64  # blocks after which a measurement is out of date
    FADING = 0.9  # of what was seen of guesses, with every block
    FIRST_REST, LONGEST_REST = 8, 256  # single tokens
    HOPE = 0.5  # what a further token of a wider block costs, against those of narrower ones

    def __init__(self) -> None:
        self._blocks = 0
        self._costs: dict[int, deque[tuple[int, float]]] = {
            width: deque(maxlen=self.RECENT) for width in self.WIDTHS
        }  # (which block it was, seconds)
        self._guessing: deque[float] = deque(maxlen=self.RECENT)  # seconds for a guess
        self._last = 1  # width of the block before
        self._right, self._judged = 1.6, 2.0  # guesses; hopeful at first
        self._rest, self._next_rest = 0, self.FIRST_REST

    def width(self) -> int:
        """Of the block that should be read next, its guesses and the token before them."""
        if self._rest:
            self._rest -= 1
            return 1 if self._rest else self.WIDTHS[1]
        if not self._measured(1):
            return 1
        best = max(self._known_and_next(), key=self._speed)
        if best > 1:
            self._next_rest = self.FIRST_REST
        else:
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, self.LONGEST_REST)
        return best

    def saw_guesses(self, count: int, seconds: float) -> None:
        """A drafter took so long for so many guesses of each row.

        Where it had first to read what was written without it, that counts only if it was quicker than ever.
        """
        if self._last > 1 or seconds / count < min(self._guessing, default=0.0):
            self._guessing.append(seconds / count)

    def saw_block(self, width: int, seconds: float) -> None:
        """A block of at most this width took so long, its guesses not counted."""
        self._blocks += 1
        self._last = width
        known = next((known for known in self.WIDTHS if known >= width), self.WIDTHS[-1])
        self._costs[known].append((self._blocks, seconds))

    def saw_choices(self, guessed: Sequence[int], right: Sequence[int]) -> None:
        """Of so many guesses in each row, so many were right; what comes after the first wrong one was not judged."""
        self._right = self.FADING * self._right + sum(right)
        self._judged = self.FADING * self._judged + sum(
            found + (found < count or not count) for count, found in zip(guessed, right, strict=True)
        )

    @property
    def accuracy(self) -> float:
        """How often a guess is right."""
        return min(0.999, self._right / self._judged)

    def _known_and_next(self) -> tuple[int, ...]:
        """Widths that were measured, and the next wider one: blocks grow step by step."""
        unknown = (place for place, width in enumerate(self.WIDTHS) if not self._costs[width])
        return self.WIDTHS[: 1 + next(unknown, len(self.WIDTHS))]

    def _speed(self, width: int) -> float:
        """Tokens in a second."""
        written = (1 - self.accuracy**width) / (1 - self.accuracy)
        return written / (self._cost(width) + (width - 1) * min(self._guessing, default=0.0) + 1e-9)

    def _cost(self, width: int) -> float:
        """Seconds, as measured or, where that was not done lately, as hoped for."""
        if measured := self._measured(width):
            return min(measured)
        narrower = [(known, min(found)) for known in self.WIDTHS if known < width and (found := self._measured(known))]
        if len(narrower) > 1:
            (less, cheaper), (more, dearer) = narrower[-2:]
            return dearer + self.HOPE * max(0.0, dearer - cheaper) * (width - more) / (more - less)
        if self._costs[width]:
            return self._costs[width][-1][1]
        return narrower[-1][1] if narrower else 0.0

    def _measured(self, width: int) -> list[float]:
        return [seconds for block, seconds in self._costs[width] if self._blocks - block < self.LATELY]


class Steady(Pace):
    """Blocks of one width, whatever they cost."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def width(self) -> int:
        return self._width


class Continuation:
    """How a batch reads on: token by token, or in blocks where somebody guesses.

    The model has read all of each row but its last token.
    """

    def __init__(self, reader: Reader, state: State, drafter: Drafter | None, pace: Pace) -> None:
        self.reader = reader
        self.drafter = drafter
        self.pace = pace
        self._track = Track(reader.model, state)
        self._width, self._began = 0, 0.0  # of the block that has yet to be settled
        if drafter is not None:
            drafter.begin(reader.source)

    def read(self, texts: Sequence[Text], most: int, pick: Pick) -> Block:
        """Read the last token of each text, and guesses after it; no row has use for more than `most` guesses."""
        guesses = self._guesses(texts, most, pick)
        self._began, self._width = time.perf_counter(), 1 + max(map(len, guesses), default=0)
        device = self.reader.model.device
        if self._width > 1:
            block = torch.zeros(len(texts), self._width, dtype=torch.int64)
            for row, ((_, ids), guessed) in enumerate(zip(texts, guesses, strict=True)):
                block[row, : 1 + len(guessed)] = torch.tensor([ids[-1], *guessed])
            self._track.mark()
            return Block(self._track.read(block.to(device)), guesses)
        last = torch.tensor([text.ids[-1] for text in texts], device=device)
        histories, owners = [text.ids for text in texts], [text.owner for text in texts]
        logits, self._track.state = self.reader.advance(last, self._track.state, histories, owners)
        return Block(logits, guesses)

    def settle(self, guesses: Sequence[Sequence[int]], right: Sequence[int]) -> None:
        """So many guesses of each row were right: forget the others."""
        if self.drafter is None or not self._width:  # what was read before the first block was the prompts
            return
        if self._width > 1:
            self.pace.saw_choices([len(row) for row in guesses], right)
            self._track.take_back([self._width - 1 - count for count in right])
        self.pace.saw_block(self._width, time.perf_counter() - self._began)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self._track.keep(rows)

    def _guesses(self, texts: Sequence[Text], most: int, pick: Pick) -> list[list[int]]:
        """None where they do not pay, or where a window must move: then every row reads a single token."""
        nothing: list[list[int]] = [[] for _ in texts]
        if self.drafter is None:
            return nothing
        room = min(self.reader.room(len(text.ids) - 1) for text in texts)
        count = int(min(most, room - 1, self.pace.width() - 1))
        if count < 1:
            return nothing
        began = time.perf_counter()
        guesses = self.drafter.propose(texts, count, pick)
        self.pace.saw_guesses(count, time.perf_counter() - began)
        return guesses
