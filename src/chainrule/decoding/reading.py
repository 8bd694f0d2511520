"""How a decoder reads what has been written so far: rows of different lengths, and texts beyond the context.

No padding enters a model here. Rows of equal length are read together and their states are merged, so a row's state
is the one that it has alone, and a batch of prompts gives what each prompt gives by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chainrule.models.base import AutoregressiveModel
from chainrule.types import Sequences, State, Step, merge, select

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
