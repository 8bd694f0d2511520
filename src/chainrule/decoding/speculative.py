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
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.decoding.block_size import BlockSize
from chainrule.decoding.compiled import CompiledGeneration
from chainrule.decoding.drafts import Drafter, Prefix, TokenChooser
from chainrule.decoding.incremental import IncrementalReader, RewindableReader
from chainrule.kernels import step as kernels
from chainrule.kernels.step import Choices
from chainrule.types import State

Drafts: TypeAlias = list[list[int]]
"""The draft tokens of each row, none in some or in all."""


class DraftBlock(NamedTuple):
    """The logits of a block, and its draft tokens."""

    logits: Tensor  # (B, K, V); [:, 0] follow the last token of each row, the others its draft tokens
    drafts: Drafts  # at most K − 1 per row


class BlockReader:
    """Reads a batch token by token, or in blocks of draft tokens if there is a drafter.

    The model has read all of each row but its last token.
    """

    def __init__(self, reader: IncrementalReader, state: State, drafter: Drafter | None, block_size: BlockSize) -> None:
        self.reader = reader
        self.drafter = drafter
        self.block_size = block_size
        self._rows = RewindableReader(reader.model, state)
        self._has_begun = False  # the drafter; it begins with the first drafts
        self._singles = math.inf  # number of tokens that may be generated before the next drafts
        self._left, self._began = 0, 0.0  # of the current step
        self._drafting: float | None = None  # seconds of drafting in the current step
        self._trial = False  # its draft tokens only serve to measure its time
        if drafter is not None:
            drafter.record = block_size

    def draft(self, prefixes: Sequence[Prefix], left: int, chooser: Callable[[], TokenChooser]) -> Drafts:
        """Draft tokens of each row for the next step, with `left` tokens to generate at most; possibly none.

        There are none where they do not pay off or a window must move.
        """
        none: Drafts = [[] for _ in prefixes]
        if self.drafter is None:
            return none
        self._left, self._began, self._drafting, self._trial = left, time.perf_counter(), None, False
        size = self.block_size.next(left)
        self._singles = self.block_size.pause if size == 1 else 1
        count = int(min(left - 1, self.room(prefixes) - 1, size - 1))
        if count < 1 or not self._is_ready(left):
            return none
        if self._trial:
            return [count * ids[-1:] for _, ids in prefixes]
        drafts = self.drafter.propose(prefixes, count, chooser())
        seconds = time.perf_counter() - self._began
        if any(drafts):
            self._drafting = seconds
            self.block_size.record_drafting(count, seconds)
        else:
            self.block_size.record_nothing(seconds)
            self._singles = self.block_size.pause
            self._began += seconds
        return drafts

    def read(self, prefixes: Sequence[Prefix], drafts: Drafts) -> DraftBlock:
        """Read the last token of each prefix, followed by its draft tokens."""
        size, device = 1 + max(map(len, drafts)), self.reader.model.device
        if size > 1:
            block = torch.zeros(len(prefixes), size, dtype=torch.int64)
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
        return min(self.room(prefixes), kernels.room(self.reader.model, self._rows.state), self._singles)

    def generate(
        self,
        prefixes: Sequence[Prefix],
        compiled: CompiledGeneration,
        noise: npt.NDArray[np.float64],
        ended: npt.NDArray[np.bool_],
    ) -> Choices | None:
        """Read the last token of each prefix and choose the next tokens by compiled steps, where that is possible."""
        last = torch.tensor([prefix.ids[-1] for prefix in prefixes])
        found = compiled.read(last, self._rows.state, noise, ended)
        if found is None:
            return None
        choices, self._rows.state = found
        return choices

    def accept(self, drafts: Drafts, accepted: Sequence[int]) -> None:
        """Keep the accepted draft tokens of each row and rewind the others."""
        size = 1 + max(map(len, drafts))
        if size > 1:
            self._rows.rewind([size - 1 - count for count in accepted])

    def record(self, drafts: Drafts, chosen: Sequence[int]) -> None:
        """Record the time of a step since `draft` began, in which so many tokens were chosen in each row."""
        if self.drafter is None:
            return
        seconds = time.perf_counter() - self._began
        size = 1 + max(map(len, drafts))
        if size == 1:
            self.block_size.record_single(max(chosen), seconds)
            return
        accepted, drafting = [count - 1 for count in chosen], self._drafting or 0.0
        if self._trial:
            self.block_size.record_trial()
        else:
            self.block_size.record_acceptance([len(row) for row in drafts], accepted)
        self.block_size.record_block(size, seconds - drafting, left=self._left, accepted=accepted, drafting=drafting)

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with a subset of the rows."""
        self._rows.keep(rows)
        self.block_size.keep(len(rows))

    def _is_ready(self, left: int) -> bool:
        """Whether draft tokens can be proposed, or the time of a block is measured by others first (`_trial`).

        A drafter that takes longer to prepare than it saves is left out.
        """
        assert self.drafter is not None
        if not self._has_begun:
            self.drafter.begin(self.reader.source)
            self._has_begun = True
        if self.drafter.ready:
            return True
        saving = self.block_size.saving(left)
        if saving is None:
            self._trial = True
            return True
        is_prepared = self.drafter.prepare(saving)
        self._began = time.perf_counter()  # its preparation is no part of the step
        if not is_prepared:
            self.block_size.rejected = f"it would take longer than it saves in {left:,} tokens"
            if not self.drafter.ready:
                self.drafter, self._singles = None, math.inf
                return False
        return True
