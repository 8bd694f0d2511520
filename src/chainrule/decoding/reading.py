"""How a decoder reads what has been written so far: rows of different lengths, and texts beyond the context.

No padding enters a model here. Rows of equal length are read together and their states are merged, so a row's state
is the one that it has alone, and a batch of prompts gives what each prompt gives by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import Rewindable
from chainrule.types import Sequences, State, Step, map_state, merge, select

PREFILL_LOGITS = 1 << 24
"""Predictions made at once while a prompt is read; a longer prompt is read in pieces, to bound the memory."""


def window(length: int, context: int | None) -> int:
    """How many tokens at the end of a text of this length a model with this context C has in view.

    All of them while they fit: a state holds at most C − 1 tokens, from which token C is predicted. Token C moves the
    window: the last C // 2 tokens are kept and it fills up again. Moving by half costs one re-reading in C / 2 steps
    where moving by one would cost one in each. It depends on the length alone, so going on from a text gives what
    would have been generated without the break.
    """
    if context is None or length < context:
        return length
    kept = context // 2
    return kept + (length - context) % (context - kept)


@dataclass(frozen=True)
class Reader:
    """A model, and the source that each row is conditioned on, if there is one.

    A row is a history (all its tokens, prompt and output) and an owner (its row in the source).
    """

    model: AutoregressiveModel
    source: Sequences | None = None

    def read(self, histories: Sequence[Sequence[int]], owners: Sequence[int]) -> Step:
        """Read each history from its start: logits (B, 1, V) after it, and the merged state."""
        views = [history[len(history) - window(len(history), self.model.context) :] for history in histories]
        groups: dict[int, list[int]] = {}  # length -> rows
        for row, view in enumerate(views):
            groups.setdefault(len(view), []).append(row)
        steps = [
            self._read_equal([views[row] for row in rows], [owners[row] for row in rows]) for rows in groups.values()
        ]
        return self._assemble(steps, [row for rows in groups.values() for row in rows])

    def advance(self, tokens: Tensor, state: State, histories: Sequence[Sequence[int]], owners: Sequence[int]) -> Step:
        """Read one more token (B,) in each row; the histories already end with it. Full windows move."""
        context = self.model.context
        if context is None:
            return self.model.step(tokens, state)
        moving = [
            row
            for row, history in enumerate(histories)
            if window(len(history), context) <= window(len(history) - 1, context)
        ]
        if not moving:
            return self.model.step(tokens, state)
        moved = self.read([histories[row] for row in moving], [owners[row] for row in moving])
        staying = sorted(set(range(len(histories))) - set(moving))
        if not staying:
            return moved
        rows = torch.tensor(staying, device=tokens.device)
        return self._assemble([self.model.step(tokens[rows], select(state, rows)), moved], staying + moving)

    def room(self, length: int) -> float:
        """How many tokens more a row that has read `length` tokens can read before its window moves."""
        context = self.model.context
        return math.inf if context is None else context - 1 - window(length, context)

    def _read_equal(self, views: Sequence[Sequence[int]], owners: Sequence[int]) -> Step:
        """Rows of one length, from the start."""
        step = self.model.start(self._source_of(owners), batch_size=len(views))
        if not views[0]:
            return step
        tokens = torch.tensor([list(view) for view in views], dtype=torch.int64, device=self.model.device)
        piece = max(1, PREFILL_LOGITS // (len(views) * self.model.vocabulary))
        for part in torch.split(tokens, piece, dim=1):
            step = self.model.extend(part, step.state)
        return Step(step.logits[:, -1:], step.state)

    def _source_of(self, owners: Sequence[int]) -> Sequences | None:
        """The sources of some rows, at the width of all: states of different groups can then be merged."""
        if self.source is None:
            return None
        rows = torch.tensor(owners, device=self.source.ids.device)
        return Sequences(self.source.ids[rows], self.source.lengths[rows])

    def _assemble(self, steps: Sequence[Step], order: Sequence[int]) -> Step:
        """One step from several; `order` names the row that each of theirs is, one after the other."""
        if len(steps) == 1:
            return steps[0]
        logits = torch.cat([step.logits for step in steps])
        places = torch.tensor(order, device=logits.device).argsort()
        return Step(logits[places], select(merge([step.state for step in steps]), places))


class Track:
    """A model that reads along with a batch of texts, and can take back what it has read last, row by row.

    A `Rewindable` model forgets in place. Of any other the state from before is kept, and what should stay is read
    once more, rows with equally much of it together.
    """

    def __init__(self, model: AutoregressiveModel, state: State) -> None:
        self.model = model
        self.state = state
        self._before = state
        self._since: list[Tensor] = []  # (B, K) each

    def mark(self) -> None:
        """What is read from here on can be taken back."""
        self._since = []
        if not isinstance(self.model, Rewindable):
            self._before = map_state(torch.clone, self.state)  # since `extend` may use up the other

    def read(self, tokens: Tensor) -> Tensor:
        """The predictions (B, K, V) after each of the tokens (B, K)."""
        logits, self.state = self.model.extend(tokens, self.state)
        self._since.append(tokens)
        return logits

    def take_back(self, counts: Sequence[int]) -> None:
        """Forget the last tokens of each row, so many of those that were read since the mark, which is used up."""
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
        groups: dict[int, list[int]] = {}  # how many are taken back -> rows
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
        """Go on with these rows only. Nothing that was read before can be taken back after that."""
        self.state = select(self.state, torch.tensor(rows, device=self.model.device))

    def _read_again(self, tokens: Tensor, state: State) -> State:
        return self.model.extend(tokens, state).state if tokens.shape[1] else state
