"""A model with a limited context, made to read texts of any length by sliding windows.

Shape letters: B rows, K tokens in a chunk, C context, O overlap, W windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from pydantic import Field
from torch import Tensor

from chainrule.compose.composite import build_part, part_settings, state_size
from chainrule.config import ModelConfig
from chainrule.data.windows import SlidingWindow
from chainrule.errors import ConfigError
from chainrule.interface.base import AutoregressiveModel, readable
from chainrule.interface.capabilities import Composite
from chainrule.kernels import step as kernels
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable, Describable
from chainrule.types import Batch, Sequences, State, Step, merge, select


class SlidingConfig(ModelConfig):
    model: dict[str, Any] = Field(description="the windowed model: its family and that family's settings")
    overlap: int | None = Field(
        None, ge=0, description="tokens shared by consecutive windows; none: half of the context"
    )


class SlidingState(NamedTuple):
    inner: State
    tail: Tensor  # (B, O) the last tokens read; values before the start of a text are not used
    positions: Tensor  # (B,) number of tokens read so far


class Sliding(AutoregressiveModel, Composite, Compilable):
    """A model with a limited context in a sliding window: when the window is full, its last O tokens are read again.

    With context C, overlap O and stride S = C − O, after n tokens the inner model has read the last

        m(n) = n   if n < C,   else   O + (n − C) mod S

    of them from BOS (see `data.windows`). The history of a prediction depends only on its position, so this is one
    autoregressive distribution over texts of any length. It is the distribution that scoring by windows of C tokens
    with stride S measures, except that the last window of a scored text may begin earlier, since the end is known.
    """

    Config = SlidingConfig
    task = "text"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "no_gradient_reaches_the_future": "the model embeds windows shorter than the text, so no axis of its "
        "embeddings is the time of the text; the check by changed tokens applies"
    }
    config: SlidingConfig

    def __init__(self, config: SlidingConfig, model: AutoregressiveModel | None = None) -> None:
        super().__init__(config)
        self.model = model or build_part(config.model, config.vocabulary, where="model.model")
        limit = self.model.context
        if limit is None:
            raise ConfigError(
                f"{config.model['family']!r} has an unlimited context, so it needs no sliding window; use it as it is"
            )
        if config.overlap is None:
            self.window = SlidingWindow.half_overlapping(limit)
        elif config.overlap < limit:
            self.window = SlidingWindow(limit, limit - config.overlap)
        else:
            raise ConfigError(
                f"overlap {config.overlap} must be less than the context of {limit}; lower it to {limit // 2}"
            )

    @classmethod
    def of(cls, model: AutoregressiveModel, *, overlap: int | None = None) -> Self:
        """Put an existing model, which is held and not copied, behind a sliding window."""
        settings = part_settings(model)
        return cls(SlidingConfig(vocabulary=model.vocabulary, model=settings, overlap=overlap), model)

    @property
    def components(self) -> Sequence[AutoregressiveModel]:
        return (self.model,)

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        rows = batch_size if source is None else source.ids.shape[0]
        logits, inner = self.model.start(batch_size=rows)
        tail = torch.zeros(rows, self.window.overlap, dtype=torch.int64, device=self.device)
        return Step(logits, SlidingState(inner, tail, tail.new_zeros(rows)))

    def extend(self, tokens: Tensor, state: State) -> Step:
        if (compiled := kernels.extend(self, tokens, state)) is not None:
            return compiled
        inner, tail, positions = cast(SlidingState, state)
        visible = [self.window.visible(length) for length in positions.tolist()]
        if max(visible) + tokens.shape[1] < self.window.context:  # no window moves
            logits, inner = self.model.extend(tokens, inner)
            return Step(logits, SlidingState(inner, self._last(tail, tokens), positions + tokens.shape[1]))
        if len(set(visible)) == 1:
            return self._extend_together(tokens, cast(SlidingState, state), visible[0])
        return self._extend_by_groups(tokens, cast(SlidingState, state), visible)

    def logits(self, batch: Batch) -> Tensor:
        ids = readable(batch.target)
        first = Batch(Sequences.full(ids[:, : self.window.context]))
        if ids.shape[1] <= self.window.context:
            return self.model.logits(first)
        return torch.cat([self.model.logits(first), self._windows(ids[:, self.window.stride :])], dim=1)

    # In a compiled step, until a window moves

    @property
    def has_program(self) -> bool:
        return isinstance(self.model, Describable) and kernels.has_program(self.model)

    def describe_step(self, program: ProgramBuilder) -> None:
        assert isinstance(self.model, Describable)
        with program.part_of_model(0, program.result()):
            self.model.describe_step(program)
        tail = state_size(self.model)
        program.keep_token(tail, self.window.overlap, tail + 1)

    def make_room(self, state: State, count: int) -> State:
        assert isinstance(self.model, Describable)
        before = cast(SlidingState, state)
        inner = self.model.make_room(before.inner, count)
        return state if inner is before.inner else before._replace(inner=inner)

    def room(self, state: State) -> float:
        return min(map(self.window.room, cast(SlidingState, state).positions.tolist()))

    def _last(self, tail: Tensor, tokens: Tensor) -> Tensor:
        """The last O tokens after reading these."""
        return torch.cat([tail, tokens], dim=1)[:, tokens.shape[1] :]

    def _windows(self, ids: Tensor) -> Tensor:
        """Predict ids[:, O:], (B, O + K), by windows that each start at BOS; all windows of all rows are one batch."""
        rows, width = ids.shape
        windows = self.window.unfold(ids)  # (B, W, C)
        count, context, overlap = windows.shape[1], self.window.context, self.window.overlap
        batch = Batch(Sequences.full(windows.reshape(rows * count, context)))
        mask = torch.arange(context, device=ids.device) >= overlap
        logits = self.model.logits_at(batch, mask.expand(rows * count, -1))
        return logits.reshape(rows, count * self.window.stride, -1)[:, : width - overlap]

    def _extend_together(self, tokens: Tensor, state: SlidingState, visible: int) -> Step:
        """Rows whose windows move at the same positions: the current, the full and the last, unfilled ones."""
        inner, tail, positions = state
        found: list[Tensor] = []
        text = torch.cat([tail, tokens], dim=1)  # (B, O + K)
        rest = tokens.shape[1] - (self.window.context - 1 - visible)  # tokens that do not fit into the current window
        if rest < tokens.shape[1]:
            found.append(self.model.extend(tokens[:, : tokens.shape[1] - rest], inner).logits)
        # A window begins with the first of them, and with every S-th from there: it predicts after its first O tokens.
        opened = text.shape[1] - rest + 1 - self.window.overlap  # where the first of these windows begins in `text`
        full = (rest - 1) // self.window.stride
        if full:
            last = opened + full * self.window.stride
            found.append(self._windows(text[:, opened : last + self.window.overlap]))
            opened = last
        logits, inner = self.model.start(batch_size=len(tokens))
        if opened < text.shape[1]:
            again = text[:, opened:]
            read = self.model.extend(again, inner)
            logits, inner = torch.cat([logits, read.logits], dim=1), read.state
        found.append(logits[:, self.window.overlap :])
        return Step(torch.cat(found, dim=1), SlidingState(inner, self._last(tail, tokens), positions + tokens.shape[1]))

    def _extend_by_groups(self, tokens: Tensor, state: SlidingState, visible: Sequence[int]) -> Step:
        """Rows whose windows move at different positions, grouped by position."""
        steps, order = [], []
        for level in sorted(set(visible)):
            rows = torch.tensor([row for row, one in enumerate(visible) if one == level], device=tokens.device)
            steps.append(self.extend(tokens[rows], select(state, rows)))
            order.append(rows)
        indices = torch.cat(order).argsort()
        logits = torch.cat([step.logits for step in steps])[indices]
        return Step(logits, select(merge([step.state for step in steps]), indices))
