"""Speculative decoding: draft some tokens, verify them in one forward pass, and keep those the model itself chooses.

To generate one token, a network reads all of its weights. Reading eight tokens at once takes hardly twice as long, so
verifying the tokens of a cheap drafter costs less than generating them (Stern et al. 2018; Leviathan et al. 2023; Chen
et al. 2023). One `extend` gives the model's prediction after each token of the block

    the last token, draft token 1, …, draft token k

and from each prediction a token is chosen exactly as without a draft: with the same settings, and with the noise of the
row and position (see `sampling.Gumbels`). Draft tokens that equal the chosen tokens before the first difference are
accepted, and the choice at that position is one token more. So the text is, by construction, that of plain decoding,
greedy or sampled, with any drafter: "drafter-invariant" in the terms of Daliri et al. 2024. They show that the draft
tokens of a drafter that samples with the same noise are accepted with a probability of at least (1 − d) / (1 + d),
where d is the total variation distance between its distribution and the model's. Accepting with probability
min(1, p / q) and sampling from the residual otherwise accepts with 1 − d, which is optimal; but then the text would
depend on the drafter and on where its blocks begin, hence on the timings by which the block size is chosen, and a seed
would not reproduce it.

"The same" holds as for batches of different shapes: the logits of a block may differ from those of single steps in the
last digit, and where two tokens tie to that digit, the other may be chosen.

Shape letters: B rows, K tokens in a block, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.decoding.compiled import CompiledGeneration
from chainrule.decoding.drafts import Drafter, Prefix, TokenChooser
from chainrule.decoding.incremental import IncrementalReader, RewindableReader
from chainrule.kernels import step as kernels
from chainrule.kernels.step import Choices
from chainrule.types import State


class DraftBlock(NamedTuple):
    """The logits of a block, and its draft tokens."""

    logits: Tensor  # (B, K, V); [:, 0] follow the last token of each row, the others its draft tokens
    drafts: list[list[int]]  # at most K − 1 per row


class BlockSize:
    """The number of tokens per block with the highest measured throughput.

    If each draft token is accepted with probability a, a block of K tokens yields 1 + a + … + a^(K−1) =
    (1 − a^K) / (1 − a) tokens. The time of blocks and of drafting is measured, and so is the acceptance rate. For a
    size without a recent measurement, each further token is assumed to cost half as much as those of smaller blocks:
    optimistic, so that a size is tried before it is judged, but a large block is not tried where a small one was far
    from paying off. Where single tokens are fastest, drafting pauses, each time for longer, and is then tried again,
    since texts change.
    """

    SIZES = (1, 4, 8, 12, 16)  # matrix products are fastest for multiples of four rows
    RECENT = 3  # measurements kept per size; the minimum counts, since noise only lengthens a step
    MAX_AGE = 64  # blocks after which a measurement is outdated
    DECAY = 0.9  # of the acceptance counts, per block
    FIRST_PAUSE, LONGEST_PAUSE = 16, 256  # single tokens
    LONGER_PAUSE = 4  # factor from one pause to the next
    TRIAL_SHARE = 0.02  # of the time of decoding, for trying drafts where they did not pay off
    TRIALS = 2  # blocks without a drafter that show what it could save
    OPTIMISM = 0.5  # assumed cost of a further token of a larger block, relative to those of smaller blocks

    def __init__(self) -> None:
        self._blocks = 0
        self._costs: dict[int, deque[tuple[int, float]]] = {
            size: deque(maxlen=self.RECENT) for size in self.SIZES
        }  # (index of the block, seconds)
        self._drafting: deque[float] = deque(maxlen=self.RECENT)  # seconds per draft token
        self._last = 1  # size of the previous block
        self._accepted, self._verified = 1.6, 2.0  # draft tokens; optimistic at first
        # Plain decoding is measured first, in a pause, where compiled steps choose many tokens per call.
        self._pause, self._next_pause = self.FIRST_PAUSE + 1, self.FIRST_PAUSE
        self.rejected: str | None = None  # why the drafter was not prepared
        self._off_since: int | None = None  # tokens before the current pauses
        self.tokens, self.drafted, self.accepted = 0, 0, 0  # in all: of each row, of all rows, of all rows

    def next(self) -> int:
        """Size of the next block: its draft tokens and the token before them."""
        if self._pause:
            self._pause -= 1
            return 1 if self._pause else self.SIZES[1]
        if self.trial() == 1 or not self._measured(1):
            return 1
        best = max(self._known_and_next(), key=self._throughput)
        if best > 1:
            self._next_pause, self._off_since = self.FIRST_PAUSE, None
        else:
            self._pause = max(self._next_pause, self._affordable_pause())
            self._next_pause = min(self.LONGER_PAUSE * self._next_pause, self.LONGEST_PAUSE)
            self._off_since = self.tokens if self._off_since is None else self._off_since
        return best

    def _affordable_pause(self) -> int:
        """Number of single tokens whose time is so long that trying drafts once takes little of it."""
        size = self.SIZES[1]
        trial = self._cost(size) + (size - 1) * min(self._drafting, default=0.0)
        return math.ceil(trial / (self.TRIAL_SHARE * self._cost(1) + 1e-9))

    @property
    def pause(self) -> int:
        """Number of single tokens before drafting is tried again."""
        return max(0, self._pause - 1)

    def record_pause(self, tokens: int, seconds: float) -> None:
        """Record single tokens that were generated in a pause."""
        self._pause -= tokens
        self._blocks += tokens
        self.tokens += tokens
        self._last = 1
        self._costs[1].append((self._blocks, seconds / tokens))

    def saving(self, tokens: int) -> float | None:
        """Seconds that drafts of the assumed acceptance rate save in so many tokens; None if not known yet."""
        if len(self._costs[self.SIZES[1]]) < self.TRIALS:
            return None
        best = max(map(self._throughput, self._known_and_next()))
        return tokens * (1 / self._throughput(1) - 1 / best)

    def trial(self) -> int:
        """Size of the next block whose draft tokens only serve to measure its time."""
        return 1 if len(self._costs[1]) < self.RECENT else self.SIZES[1]

    @property
    def summary(self) -> str | None:
        """Why drafting was switched off, for the user; None if it was not."""
        if self.rejected is not None:
            return f"no draft was prepared: {self.rejected}"
        if self._off_since is None or not self.drafted:
            return None
        share = f"{self.accepted / self.drafted:.0%} of {self.drafted:,} draft tokens were accepted"
        return f"{share}; drafting was switched off after {self._off_since:,} tokens, since plain decoding is faster"

    def record_drafting(self, count: int, seconds: float) -> None:
        """Record the time of drafting `count` tokens in each row.

        A call in which the drafter first had to read tokens generated without it counts only if it was faster than
        all others.
        """
        if self._last > 1 or seconds / count < min(self._drafting, default=0.0):
            self._drafting.append(seconds / count)

    def record_block(self, size: int, seconds: float) -> None:
        """Record the time of a block, without that of drafting."""
        self._blocks += 1
        self.tokens += 1
        self._last = size
        known = next((known for known in self.SIZES if known >= size), self.SIZES[-1])
        self._costs[known].append((self._blocks, seconds))

    def record_acceptance(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Record the draft tokens and the accepted ones of each row; those after the first rejection do not count."""
        self.drafted += sum(drafted)
        self.accepted += sum(accepted)
        self.tokens += min(accepted)
        self._accepted = self.DECAY * self._accepted + sum(accepted)
        self._verified = self.DECAY * self._verified + sum(
            found + (found < count or not count) for count, found in zip(drafted, accepted, strict=True)
        )

    @property
    def acceptance_rate(self) -> float:
        return min(0.999, self._accepted / self._verified)

    def _known_and_next(self) -> tuple[int, ...]:
        """The sizes with measurements and the next larger one: blocks grow step by step."""
        unknown = (index for index, size in enumerate(self.SIZES) if not self._costs[size])
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
        if self._costs[size]:
            return self._costs[size][-1][1]
        return smaller[-1][1] if smaller else 0.0

    def _measured(self, size: int) -> list[float]:
        return [seconds for block, seconds in self._costs[size] if self._blocks - block < self.MAX_AGE]


class FixedBlockSize(BlockSize):
    """Blocks of one size, whatever they cost."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._pause = size, 0

    def next(self) -> int:
        return self._size

    def saving(self, tokens: int) -> float:
        return math.inf


class BlockReader:
    """Reads a batch token by token, or in blocks of draft tokens if there is a drafter.

    The model has read all of each row but its last token.
    """

    def __init__(self, reader: IncrementalReader, state: State, drafter: Drafter | None, block_size: BlockSize) -> None:
        self.reader = reader
        self.drafter = drafter
        self.block_size = block_size
        self._rows = RewindableReader(reader.model, state)
        self._size, self._began = 0, 0.0  # of the current block
        self._trial = False  # its draft tokens only serve to measure its time
        if drafter is not None:
            drafter.begin(reader.source)
            drafter.record = block_size

    def read(self, prefixes: Sequence[Prefix], max_drafts: int, choose: TokenChooser) -> DraftBlock:
        """Read the last token of each prefix, followed by at most `max_drafts` draft tokens."""
        drafts = self._draft(prefixes, max_drafts, choose)
        self._began, self._size = time.perf_counter(), 1 + max(map(len, drafts), default=0)
        device = self.reader.model.device
        if self._size > 1:
            block = torch.zeros(len(prefixes), self._size, dtype=torch.int64)
            for row, ((_, ids), draft) in enumerate(zip(prefixes, drafts, strict=True)):
                block[row, : 1 + len(draft)] = torch.tensor([ids[-1], *draft])
            self._rows.mark()
            return DraftBlock(self._rows.read(block.to(device)), drafts)
        last = torch.tensor([prefix.ids[-1] for prefix in prefixes], device=device)
        histories, owners = [prefix.ids for prefix in prefixes], [prefix.owner for prefix in prefixes]
        logits, self._rows.state = self.reader.advance(last, self._rows.state, histories, owners)
        return DraftBlock(logits, drafts)

    def room(self, prefixes: Sequence[Prefix]) -> float:
        """Number of tokens that can be read before the window of any row moves."""
        return min(self.reader.room(len(prefix.ids) - 1) for prefix in prefixes)

    def undrafted(self, prefixes: Sequence[Prefix]) -> float:
        """Number of tokens that compiled steps may read before drafting is tried again or a window moves."""
        room = min(self.room(prefixes), kernels.room(self.reader.model, self._rows.state))
        return room if self.drafter is None else min(room, self.block_size.pause)

    def generate(
        self,
        prefixes: Sequence[Prefix],
        compiled: CompiledGeneration,
        noise: npt.NDArray[np.float64],
        ended: npt.NDArray[np.bool_],
    ) -> Choices | None:
        """Read the last token of each prefix and choose the next tokens by compiled steps, where that is possible."""
        last = torch.tensor([prefix.ids[-1] for prefix in prefixes])
        began = time.perf_counter()
        found = compiled.read(last, self._rows.state, noise, ended)
        if found is None:
            return None
        choices, self._rows.state = found
        if self.drafter is not None:
            self.block_size.record_pause(choices.ids.shape[1], time.perf_counter() - began)
        return choices

    def accept(self, drafts: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        """Keep the accepted draft tokens of each row and rewind the others."""
        if self.drafter is None or not self._size:  # before the first block only the prompts have been read
            return
        if self._size > 1:
            if not self._trial:
                self.block_size.record_acceptance([len(row) for row in drafts], accepted)
            self._rows.rewind([self._size - 1 - count for count in accepted])
        self.block_size.record_block(self._size, time.perf_counter() - self._began)

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with a subset of the rows."""
        self._rows.keep(rows)

    def _draft(self, prefixes: Sequence[Prefix], max_drafts: int, choose: TokenChooser) -> list[list[int]]:
        """No draft tokens where they do not pay off or a window must move: then each row reads a single token."""
        none: list[list[int]] = [[] for _ in prefixes]
        if self.drafter is None:
            return none
        self._trial = not self.drafter.ready and not self._prepare(max_drafts)
        if self.drafter is None:
            return none
        size = self.block_size.trial() if self._trial else self.block_size.next()
        count = int(min(max_drafts, self.room(prefixes) - 1, size - 1))
        if count < 1:
            return none
        if self._trial:
            return [count * ids[-1:] for _, ids in prefixes]
        began = time.perf_counter()
        drafts = self.drafter.propose(prefixes, count, choose)
        self.block_size.record_drafting(count, time.perf_counter() - began)
        return drafts

    def _prepare(self, tokens: int) -> bool:
        """Prepare the drafter if it pays off in so many tokens, else decode without it; false if not known yet."""
        assert self.drafter is not None
        saving = self.block_size.saving(tokens)
        if saving is None:
            return False
        if not self.drafter.prepare(saving):
            accepted = f"{self.block_size.acceptance_rate:.0%} of draft tokens"
            self.block_size.rejected = (
                f"it would take longer than it saves in {tokens:,} tokens"
                if saving > 0
                else f"plain decoding is faster even if {accepted} are accepted"
            )
            if not self.drafter.ready:
                self.drafter = None
        return True
