"""A model with a limited context, made to read texts of any length.

Shape letters: B rows, K tokens in a chunk, C context, O overlap, W windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from chainrule.compose.composite import build_part, part_settings
from chainrule.config import ModelConfig
from chainrule.errors import ConfigError
from chainrule.interface.base import AutoregressiveModel, readable
from chainrule.interface.capabilities import Composite
from chainrule.types import Batch, Sequences, State, Step, merge, select


class SlidingConfig(ModelConfig):
    model: dict[str, Any] = Field(description="the model that slides: its family and that family's settings")
    overlap: int | None = Field(None, ge=0, description="tokens read again when the context is full; none: half of it")


class SlidingState(NamedTuple):
    inner: State
    tail: Tensor  # (B, O) the last tokens read; what stands before the start of a text is never looked at
    positions: Tensor  # (B,) tokens read so far


class Sliding(AutoregressiveModel, Composite):
    """A model with a limited context that reads on: when the context is full, the last half of it is read again.

    With context C, overlap O and stride S = C − O, after n tokens the model within has read from BOS the last

        m(n) = n   if n < C,   else   O + (n − C) mod S

    of them. What a prediction sees depends on its position alone, so this is one autoregressive distribution, without
    a limit to its length. It is the one that scoring by windows of C tokens moved by S measures: the first window
    predicts C tokens, each later one S, from at least O tokens of history. (Only the very last window of a scored
    text may there reach further back, since it is known where the text ends.)
    """

    Config = SlidingConfig
    task = "language"
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
            raise ConfigError(f"a {config.model['family']} reads texts of any length; it need not slide")
        self.limit = limit
        self.stride = max(1, limit // 2) if config.overlap is None else limit - config.overlap
        if self.stride < 1:
            raise ConfigError(f"overlap {config.overlap} fills the context of {limit}; lower it to {limit // 2}")
        self.overlap = limit - self.stride

    @classmethod
    def of(cls, model: AutoregressiveModel, *, overlap: int | None = None) -> Self:
        """A sliding form of a model that is there already."""
        settings = part_settings(model)
        return cls(SlidingConfig(vocabulary=model.vocabulary, model=settings, overlap=overlap), model)

    @property
    def components(self) -> Sequence[AutoregressiveModel]:
        return (self.model,)

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        rows = batch_size if source is None else source.ids.shape[0]
        logits, inner = self.model.start(batch_size=rows)
        tail = torch.zeros(rows, self.overlap, dtype=torch.int64, device=self.device)
        return Step(logits, SlidingState(inner, tail, tail.new_zeros(rows)))

    def extend(self, tokens: Tensor, state: State) -> Step:
        inner, tail, positions = cast(SlidingState, state)
        filled = self._filled(positions)
        fullest, emptiest = int(filled.max()), int(filled.min())
        if fullest + tokens.shape[1] < self.limit:  # no row slides
            logits, inner = self.model.extend(tokens, inner)
            return Step(logits, SlidingState(inner, self._after(tail, tokens), positions + tokens.shape[1]))
        if fullest == emptiest:
            return self._extend_together(tokens, cast(SlidingState, state), fullest)
        return self._extend_by_groups(tokens, cast(SlidingState, state), filled)

    def logits(self, batch: Batch) -> Tensor:
        ids = readable(batch.target)
        first = Batch(Sequences.full(ids[:, : self.limit]))
        if ids.shape[1] <= self.limit:
            return self.model.logits(first)
        return torch.cat([self.model.logits(first), self._windows(ids[:, self.stride :])], dim=1)

    def _filled(self, positions: Tensor) -> Tensor:
        """m(n) above: how many tokens the inner state has read."""
        return positions.where(positions < self.limit, self.overlap + (positions - self.limit) % self.stride)

    def _after(self, tail: Tensor, tokens: Tensor) -> Tensor:
        """The last tokens, now that these have been read."""
        return torch.cat([tail, tokens], dim=1)[:, tokens.shape[1] :]

    def _windows(self, ids: Tensor) -> Tensor:
        """Predict ids[:, O:], (B, O + K), by windows that each read from BOS; all windows of all rows are one batch."""
        rows, width = ids.shape
        count = -(-(width - self.overlap) // self.stride)
        padded = F.pad(ids, (0, self.overlap + count * self.stride - width))
        windows = padded.unfold(1, self.limit, self.stride)  # (B, W, C)
        batch = Batch(Sequences.full(windows.reshape(rows * count, self.limit)))
        mask = torch.arange(self.limit, device=ids.device) >= self.overlap
        logits = self.model.logits_at(batch, mask.expand(rows * count, -1))
        return logits.reshape(rows, count * self.stride, -1)[:, : width - self.overlap]

    def _extend_together(self, tokens: Tensor, state: SlidingState, filled: int) -> Step:
        """Rows that slide at the same places: the window that is open, those that open and fill, the one left open."""
        inner, tail, positions = state
        found: list[Tensor] = []
        text = torch.cat([tail, tokens], dim=1)  # (B, O + K)
        rest = tokens.shape[1] - (self.limit - 1 - filled)  # tokens after those that the open window has room for
        if rest < tokens.shape[1]:
            found.append(self.model.extend(tokens[:, : tokens.shape[1] - rest], inner).logits)
        # A window opens at the first of the rest, and at every S-th from there: it predicts what comes after O tokens.
        opened = text.shape[1] - rest + 1 - self.overlap  # where in `text` the first of them begins
        full = (rest - 1) // self.stride
        if full:
            last = opened + full * self.stride
            found.append(self._windows(text[:, opened : last + self.overlap]))
            opened = last
        logits, inner = self.model.start(batch_size=len(tokens))
        if opened < text.shape[1]:
            again = text[:, opened:]
            read = self.model.extend(again, inner)
            logits, inner = torch.cat([logits, read.logits], dim=1), read.state
        found.append(logits[:, self.overlap :])
        return Step(
            torch.cat(found, dim=1), SlidingState(inner, self._after(tail, tokens), positions + tokens.shape[1])
        )

    def _extend_by_groups(self, tokens: Tensor, state: SlidingState, filled: Tensor) -> Step:
        """Rows that slide at different places, those of one place together."""
        steps, order = [], []
        for level in sorted(set(filled.tolist())):
            rows = (filled == level).nonzero()[:, 0]
            steps.append(self.extend(tokens[rows], select(state, rows)))
            order.append(rows)
        places = torch.cat(order).argsort()
        logits = torch.cat([step.logits for step in steps])[places]
        return Step(logits, select(merge([step.state for step in steps]), places))
