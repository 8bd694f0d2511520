"""The number of tokens per block of speculative decoding, and when a draft is worth trying, by measured times."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class _Block(NamedTuple):
    """A block of draft tokens whose gain is known when the next step begins."""

    left: float  # tokens before it
    seconds: float
    least: int  # tokens by which every row has advanced
    plain: float  # seconds per token without drafts


class BlockSize:
    """The number of tokens per block with the highest measured throughput, within a limit on what drafts may cost.

    If each draft token is accepted with probability a, a block of K tokens yields 1 + a + … + a^(K−1) =
    (1 − a^K) / (1 − a) tokens. The time of blocks and of drafting is measured, and so is the acceptance rate. For a
    size without a recent measurement, each further token is assumed to cost half as much as those of smaller blocks:
    optimistic, so that a size is tried before it is judged, but a large block is not tried where a small one was far
    from paying off.

    A text begins without drafts, by which the time of a token is known. All that drafts cost beyond the time of the
    same tokens without them is added up, and it may come to `LOSS` of the time of the text: a draft is tried only
    where the tokens so far and those left take so long that the trial is `TRIAL` of it, so a short text of a fast
    model is decoded without any. Where single tokens are faster or the limit is reached, drafting pauses, each time
    for longer, and is then tried again, since texts change. What was measured serves the next batch, too.
    """

    SIZES = (1, 4, 8, 12, 16)  # matrix products are fastest for multiples of four rows
    RECENT = 3  # measurements kept per size; the minimum counts, since noise only lengthens a step
    MAX_AGE, MAX_SINGLE_AGE = 64, 256  # blocks after which a measurement is outdated, and one of single tokens
    DECAY = 0.9  # of the acceptance counts, per block
    FIRST_PAUSE, LONGEST_PAUSE = 16, 256  # single tokens
    LONGER_PAUSE = 4  # factor from one pause to the next
    LOSS, TRIAL = 0.02, 0.01  # of the time without drafts: what they may cost in all, and a single trial
    HORIZON = 1024  # of the tokens left, those that count: a long text does not spend its limit at the start
    WORTHWHILE = 0.5  # of the time of the tokens left, that a trial takes at most
    MARGIN = 1.05  # by which blocks must be faster than single tokens, which are even faster in longer calls
    OPTIMISM = 0.5  # assumed cost of a further token of a larger block, relative to those of smaller blocks
    FIRST_TRIAL = 2e-3  # assumed seconds besides reading the block: the drafter reads the text
    SHORT_CALL, SHORTEST_CALL = 5e-4, 4  # seconds and single tokens between drafts, at least: a call has an overhead
    LONGEST_SEARCH = 32  # single tokens where nothing was proposed

    def __init__(self) -> None:
        self._rows = 1
        self._blocks = 0
        self._costs: dict[int, dict[int, deque[tuple[int, float]]]] = {}  # by rows and size: (index of block, seconds)
        self._drafting: deque[float] = deque(maxlen=self.RECENT)  # seconds per draft token
        self._first: tuple[int, float] | None = None  # the last drafts after a pause: tokens and seconds
        self._accepted, self._verified = 1.6, 2.0  # draft tokens; optimistic at first
        self._is_on = False  # drafts seem to pay off, or are tried
        self._after_pause = True
        self._pause, self._next_pause = 0.0, self.FIRST_PAUSE
        self._search = 0  # single tokens after the last drafts that were empty
        self._open: _Block | None = None
        self._lost, self._lost_before = 0.0, 0.0  # seconds, in all and before drafting was switched on
        self._trials = 0  # blocks that only measured the time
        self.rejected: str | None = None  # why the drafter was not prepared
        self._off_since: int | None = None  # tokens before the current pauses
        self.tokens, self.drafted, self.accepted = 0, 0, 0  # in all: of each row, of all rows, of all rows

    def begin(self, rows: int, single: float | None = None) -> None:
        """Start another batch, in which a single token takes so many seconds if that is known."""
        if self._open is not None:
            self._settle(self._open.left - self._open.least)
        self.keep(rows)
        if single is not None and rows not in self._costs:
            self._record(1, single)
        self._pause = 0.0 if self._pause == math.inf else self._pause
        self._after_pause = True

    def keep(self, rows: int) -> None:
        """Continue with so many rows; their blocks have times of their own."""
        self._rows = rows

    def next(self, left: float) -> int:
        """Size of the next block, its draft tokens and the token before them, given the number of tokens left."""
        self._settle(left)
        if self._pause >= 1:
            return 1
        self._pause = 0.0
        if self._costs and not self._is_on:
            self._pause = self._tokens_before_trial(left)
        if not self._pause and not self._measured(1):
            self._pause = self.FIRST_PAUSE
        if self._pause:
            return 1
        if not self._is_on:
            self._is_on, self._lost_before = True, self._lost
            return self.SIZES[1]
        best = max(self._known_and_next(), key=self._throughput)
        if self._pays(best) and self._lost <= self.LOSS * self._plain_seconds(left):
            if self._lost < self._lost_before:
                self._next_pause, self._off_since = self.FIRST_PAUSE, None
            return best
        self._switch_off()
        return 1

    @property
    def pause(self) -> float:
        """Number of single tokens before the next drafts."""
        return max(1.0, self._pause)

    def saving(self, tokens: int) -> float | None:
        """Seconds that drafts of the assumed acceptance rate save in so many tokens; None if not known yet."""
        if not self._measured(self.SIZES[1]):
            return None
        best = max(map(self._throughput, self._known_and_next()))
        return tokens * (1 / self._throughput(1) - 1 / best)

    @property
    def summary(self) -> str | None:
        """Why drafts were not tried or switched off, for the user; None if they were not."""
        rate = f"{self.acceptance_rate:.0%} of draft tokens"
        if self.rejected is not None:
            return f"no draft was prepared: {self.rejected}"
        if self._trials and not self.drafted:
            return f"no draft was prepared: plain decoding is faster even if {rate} are accepted"
        if not self._is_on and not self.drafted and self._off_since is None:
            return f"no draft was tried: that takes longer than drafts can save in {self.tokens:,} tokens"
        if self._off_since is None or not self.drafted:
            return None
        share = f"{self.accepted / self.drafted:.0%} of {self.drafted:,} draft tokens were accepted"
        return f"{share}; drafting was switched off after {self._off_since:,} tokens, since plain decoding is faster"

    def record_single(self, tokens: int, seconds: float) -> None:
        """Record tokens that were generated without drafts, each at a time."""
        self._pause -= tokens
        self._blocks += tokens
        self.tokens += tokens
        self._after_pause = True
        self._record(1, seconds / tokens)

    def record_drafting(self, count: int, seconds: float) -> None:
        """Record the time of drafting `count` tokens in each row.

        After a pause the drafter first reads the tokens generated without it; that time is kept apart.
        """
        if self._after_pause:
            self._first = count, seconds
        if not self._after_pause or seconds / count < min(self._drafting, default=0.0):
            self._drafting.append(seconds / count)
        self._after_pause = False

    def record_nothing(self, seconds: float) -> None:
        """Record the time of drafts that were all empty; single tokens follow, more each time."""
        self._lost += seconds
        self._search = min(max(self._short_call(), 2 * self._search), self.LONGEST_SEARCH)
        self._pause = float(self._search)

    def record_block(
        self, size: int, seconds: float, *, left: float, accepted: Sequence[int] = (0,), drafting: float = 0.0
    ) -> None:
        """Record the time of a block, without that of drafting, which is given, too."""
        self._blocks += 1
        self._search = 0
        counted = min(seconds, size * self._cost(1) + self.FIRST_TRIAL)  # more is an interruption
        self._open = _Block(left, counted + drafting, 1 + min(accepted), self._cost(1) / self.MARGIN)
        self._record(next((known for known in self.SIZES if known >= size), self.SIZES[-1]), seconds)

    def record_trial(self) -> None:
        """Record that the draft tokens of the last block only served to measure its time."""
        self._trials += 1

    def record_acceptance(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Record the draft tokens and the accepted ones of each row; those after the first rejection do not count."""
        self.drafted += sum(drafted)
        self.accepted += sum(accepted)
        self._accepted = self.DECAY * self._accepted + sum(accepted)
        self._verified = self.DECAY * self._verified + sum(
            found + (found < count or not count) for count, found in zip(drafted, accepted, strict=True)
        )

    @property
    def acceptance_rate(self) -> float:
        return min(0.999, self._accepted / self._verified)

    def _settle(self, left: float) -> None:
        """Add what the last block has cost beyond the time of its tokens without drafts."""
        if self._open is None:
            return
        before, seconds, least, plain = self._open
        gained = before - left if before < math.inf else least
        self._lost += seconds - plain * gained
        self.tokens += int(gained)
        self._open = None

    def _switch_off(self) -> None:
        self._is_on = False
        affordable = math.ceil(self._trial_seconds() / (self.LOSS * self._cost(1) + 1e-12))
        self._pause = max(self._next_pause, affordable)
        self._next_pause = min(self.LONGER_PAUSE * self._next_pause, self.LONGEST_PAUSE)
        self._off_since = self.tokens if self._off_since is None else self._off_since

    def _short_call(self) -> int:
        """Number of single tokens, so many that the overhead of a call matters little."""
        return min(max(self.SHORTEST_CALL, math.ceil(self.SHORT_CALL / (self._cost(1) + 1e-9))), self.LONGEST_SEARCH)

    def _plain_seconds(self, left: float) -> float:
        """The time of the tokens so far and of those left, without drafts."""
        return self._cost(1) * (self.tokens + min(left, self.HORIZON))

    def _tokens_before_trial(self, left: float) -> float:
        """Number of single tokens before a draft may be tried; infinite if the text ends before."""
        trial = self._trial_seconds()
        if trial > self.WORTHWHILE * self._cost(1) * left:
            return math.inf
        tokens = (trial + max(0.0, self._lost)) / (self.TRIAL * self._cost(1) + 1e-12)
        missing = max(0, math.ceil(tokens - self.tokens - min(left, self.HORIZON)))
        return missing if missing <= max(0.0, left - self.HORIZON) else math.inf

    def _trial_seconds(self) -> float:
        """What a trial costs, beyond the token that it generates without any draft token accepted."""
        size = self.SIZES[1]
        if self._last_cost(size) is None:
            # One row reads the weights once for all tokens; with many rows a block costs what its tokens cost.
            block = min(size, 2 + self._rows / 8) * self._cost(1)
            return block - self._cost(1) + self.FIRST_TRIAL
        drafting = self.FIRST_TRIAL
        if self._first is not None:
            count, seconds = self._first
            per_token = min(self._drafting, default=0.0)
            drafting = (size - 1) * per_token + max(0.0, seconds - count * per_token)
        return max(0.0, self._cost(size) - self._cost(1)) + drafting

    def _pays(self, size: int) -> bool:
        return size > 1 and self._throughput(size) > self.MARGIN * self._throughput(1)

    def _known_and_next(self) -> tuple[int, ...]:
        """The sizes with measurements and the next larger one: blocks grow step by step."""
        unknown = (index for index, size in enumerate(self.SIZES) if self._last_cost(size) is None)
        return self.SIZES[: 1 + next(unknown, len(self.SIZES))]

    def _throughput(self, size: int) -> float:
        """Expected tokens per second."""
        tokens = (1 - self.acceptance_rate**size) / (1 - self.acceptance_rate)
        return tokens / (self._cost(size) + (size - 1) * min(self._drafting, default=0.0) + 1e-9)

    def _cost(self, size: int) -> float:
        """Seconds per block: measured, or extrapolated where there is no recent measurement."""
        if measured := self._measured(size):
            return min(measured)
        smaller = [(known, min(found)) for known in self.SIZES if known < size and (found := self._measured(known))]
        if len(smaller) > 1:
            (less, cheaper), (more, dearer) = smaller[-2:]
            return dearer + self.OPTIMISM * max(0.0, dearer - cheaper) * (size - more) / (more - less)
        if (last := self._last_cost(size)) is not None:
            return last
        return smaller[-1][1] if smaller else 0.0

    def _last_cost(self, size: int) -> float | None:
        """The last measurement, or from that of the next larger number of rows, in proportion to its single tokens."""
        if found := self._costs.get(self._rows, {}).get(size):
            return found[-1][1]
        for rows in sorted(self._costs, key=lambda rows: (rows < self._rows, abs(rows - self._rows))):
            known = self._costs[rows]
            if size in known and 1 in known:
                own = self._costs.get(self._rows, {}).get(1, known[1])
                return known[size][-1][1] * own[-1][1] / known[1][-1][1]
        return None

    def _record(self, size: int, seconds: float) -> None:
        sizes = self._costs.setdefault(self._rows, {})
        sizes.setdefault(size, deque(maxlen=self.RECENT)).append((self._blocks, seconds))

    def _measured(self, size: int) -> list[float]:
        known = self._costs.get(self._rows, {}).get(size, ())
        age = self.MAX_AGE if size > 1 else self.MAX_SINGLE_AGE
        return [seconds for block, seconds in known if self._blocks - block < age]


class FixedBlockSize(BlockSize):
    """Blocks of one size, whatever they cost."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def next(self, left: float) -> int:
        return self._size

    def record_nothing(self, seconds: float) -> None:
        """Drafts are tried again at the next token."""

    def saving(self, tokens: int) -> float:
        return math.inf
