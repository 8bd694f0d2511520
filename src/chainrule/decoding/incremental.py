"""Incremental decoding: rows of different lengths, texts beyond the context, and states that can be rewound.

No padding enters a model here. Rows of equal length are read together and their states are merged, so a row's state is
the same as by itself, and a batch of prompts gives what each prompt gives by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chainrule.data.windows import SlidingWindow
from chainrule.decoding.compiled import CompiledGeneration
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import Rewindable
from chainrule.types import Sequences, State, Step, map_state, merge, select

PREFILL_LOGITS = 1 << 24
"""Maximum number of logits computed at once while a prompt is read; longer prompts are read in pieces."""


@dataclass(frozen=True)
class IncrementalReader:
    """A model, and the sources that its rows are conditioned on, if any.

    A row is a history (all its tokens, prompt and output) and an owner (its row in the source). A history longer than
    the context C is read through a sliding window that keeps the last C // 2 tokens when it moves: moving by half costs
    one re-reading in C / 2 steps, where moving by one would cost one in each.
    """

    model: AutoregressiveModel
    source: Sequences | None = None

    @cached_property
    def window(self) -> SlidingWindow | None:
        context = self.model.context
        return None if context is None else SlidingWindow(context, context - context // 2)

    def read(self, histories: Sequence[Sequence[int]], owners: Sequence[int]) -> Step:
        """Read each history from its start: logits (B, 1, V) after it, and the merged state."""
        views = [history[len(history) - self._visible(len(history)) :] for history in histories]
        groups: dict[int, list[int]] = {}  # length -> rows
        for row, view in enumerate(views):
            groups.setdefault(len(view), []).append(row)
        steps = [
            self._read_equal([views[row] for row in rows], [owners[row] for row in rows]) for rows in groups.values()
        ]
        return self._assemble(steps, [row for rows in groups.values() for row in rows])

    def advance(self, tokens: Tensor, state: State, histories: Sequence[Sequence[int]], owners: Sequence[int]) -> Step:
        """Read one more token (B,) in each row; the histories already end with it. Full windows move."""
        if self.window is None:
            return self.model.step(tokens, state)
        moving = [row for row, history in enumerate(histories) if self.window.moves_at(len(history))]
        if not moving:
            return self.model.step(tokens, state)
        moved = self.read([histories[row] for row in moving], [owners[row] for row in moving])
        staying = sorted(set(range(len(histories))) - set(moving))
        if not staying:
            return moved
        rows = torch.tensor(staying, device=tokens.device)
        return self._assemble([self.model.step(tokens[rows], select(state, rows)), moved], staying + moving)

    def room(self, length: int) -> float:
        """Number of tokens that a row of `length` tokens can read before its window moves."""
        return math.inf if self.window is None else self.window.room(length)

    def _visible(self, length: int) -> int:
        return length if self.window is None else self.window.visible(length)

    def _read_equal(self, views: Sequence[Sequence[int]], owners: Sequence[int]) -> Step:
        """Read rows of one length from BOS."""
        step = self.model.start(self._source_of(owners), batch_size=len(views))
        if not views[0]:
            return step
        tokens = torch.tensor([list(view) for view in views], dtype=torch.int64, device=self.model.device)
        piece = max(1, PREFILL_LOGITS // (len(views) * self.model.vocabulary))
        for part in torch.split(tokens, piece, dim=1):
            step = self.model.extend(part, step.state)
        return Step(step.logits[:, -1:], step.state)

    def _source_of(self, owners: Sequence[int]) -> Sequences | None:
        """The sources of some rows, padded to the width of all so that states of different groups can be merged."""
        if self.source is None:
            return None
        rows = torch.tensor(owners, device=self.source.ids.device)
        return Sequences(self.source.ids[rows], self.source.lengths[rows])

    def _assemble(self, steps: Sequence[Step], order: Sequence[int]) -> Step:
        """Merge steps into one; `order` lists the row of the batch for each of their rows."""
        if len(steps) == 1:
            return steps[0]
        logits = torch.cat([step.logits for step in steps])
        indices = torch.tensor(order, device=logits.device).argsort()
        return Step(logits[indices], select(merge([step.state for step in steps]), indices))


class RewindableReader:
    """The state of a model over a batch, from which the last tokens can be removed row by row.

    A `Rewindable` model rewinds its state. For any other model the earlier state is kept, and the tokens that remain
    are read again, rows with the same number of them together.
    """

    def __init__(self, model: AutoregressiveModel, state: State) -> None:
        self.model = model
        self.state = state
        self._before = state
        self._since: list[Tensor] = []  # (B, K) each

    def mark(self) -> None:
        """Tokens that are read after this call can be rewound."""
        self._since = []
        if not isinstance(self.model, Rewindable):
            self._before = map_state(torch.clone, self.state)  # `extend` may modify the other in place

    def read(self, tokens: Tensor) -> Tensor:
        """Logits (B, K, V) after each of the tokens (B, K)."""
        logits, self.state = self.model.extend(tokens, self.state)
        self._since.append(tokens)
        return logits

    def generate(self, last: Tensor, compiled: CompiledGeneration, noise: npt.NDArray[np.float64]) -> Tensor | None:
        """Read the last tokens (B, 1) and choose the next, once for each position of the noise (B, S, V or 0)."""
        found = compiled.read(last[:, 0], self.state, noise)
        if found is None:
            return None
        choices, self.state = found
        chosen = torch.from_numpy(choices.ids)
        self._since += [last, chosen[:, :-1]]
        return chosen

    def rewind(self, counts: Sequence[int]) -> None:
        """Remove the last tokens of each row, at most as many as were read since the mark, which is then invalid."""
        if not any(counts):
            return
        device = self.model.device
        if isinstance(self.model, Rewindable):
            self.state = self.model.rewind(self.state, torch.tensor(counts, device=device))
            return
        tokens = torch.cat(self._since, dim=1)
        width = tokens.shape[1]
        if len(set(counts)) == 1:
            self.state = self._read_again(tokens[:, : width - counts[0]], self._before)
            return
        groups: dict[int, list[int]] = {}  # number of removed tokens -> rows
        for row, count in enumerate(counts):
            groups.setdefault(count, []).append(row)
        states = []
        for count, rows in groups.items():
            chosen = torch.tensor(rows, device=device)
            state = select(self._before if count else self.state, chosen)
            states.append(self._read_again(tokens[chosen, : width - count], state) if count else state)
        order = torch.tensor([row for rows in groups.values() for row in rows], device=device)
        self.state = select(merge(states), order.argsort())

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with a subset of the rows. Nothing that was read before can be rewound after this."""
        self.state = select(self.state, torch.tensor(rows, device=self.model.device))

    def _read_again(self, tokens: Tensor, state: State) -> State:
        return self.model.extend(tokens, state).state if tokens.shape[1] else state
