"""Right-to-left models.

The chain rule holds in any order, also log P(x) = Σ_t log P(x_t | x_>t). A right-to-left model is an ordinary
autoregressive model of reversed texts, so `Reverse` only delegates to its inner model. It declares by its type that its
input tokens run from the end of the text to the start; code that converts between text and tokens checks
`is_right_to_left` and reverses them with the functions below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.compose.composite import build_part, part_settings
from chainrule.config import ModelConfig
from chainrule.data.corpus import Corpus
from chainrule.errors import ConfigError
from chainrule.interface.base import Advance, AutoregressiveModel, NeuralModel
from chainrule.interface.capabilities import Composite, is_right_to_left
from chainrule.kernels import step as kernels
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable, Describable
from chainrule.types import Batch, Sequences, State


class ReverseConfig(ModelConfig):
    model: dict[str, Any] = Field(description="the inner model: its family and that family's settings")


class Reverse(NeuralModel, Composite, Compilable):
    """A neural right-to-left model: each token is predicted from the ones after it.

    log P(x) = Σ_t log P(x_t | x_>t). Input rows are reversed, the last token of the text first, with EOS still at the
    end; `text_log_prob` takes rows in text order.
    """

    Config = ReverseConfig
    task = "text"
    config: ReverseConfig

    def __init__(self, config: ReverseConfig, model: NeuralModel | None = None) -> None:
        super().__init__(config)
        inner = model or build_part(config.model, config.vocabulary, where="model.model")
        if not isinstance(inner, NeuralModel):
            raise ConfigError(f"reverse needs a neural family, got {config.model['family']!r}; use one such as gpt")
        self.model = inner

    @classmethod
    def of(cls, model: NeuralModel) -> Self:
        """Wrap an existing model of reversed texts."""
        return cls(ReverseConfig(vocabulary=model.vocabulary, model=part_settings(model)), model)

    @property
    def components(self) -> Sequence[AutoregressiveModel]:
        return (self.model,)

    @property
    def right_to_left(self) -> bool:
        return not is_right_to_left(self.model)  # reversed twice is left to right

    def text_log_prob(self, batch: Batch) -> Tensor:
        """Log-probabilities (B,) of rows in text order."""
        return self.log_prob(Batch(reversed_sequences(batch.target), batch.source))

    # All else is delegated.

    @property
    def bos(self) -> int:
        return self.model.bos

    @property
    def context(self) -> int | None:
        return self.model.context

    @property
    def segment(self) -> int:
        return self.model.segment

    @property
    def contiguous(self) -> int:
        return self.model.contiguous

    def tables(self) -> Iterator[nn.Parameter]:
        return self.model.tables()

    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self.model.init_output_bias(log_frequencies)

    def hidden(self, batch: Batch) -> Tensor:
        return self.model.hidden(batch)

    def readout(self, hidden: Tensor) -> Tensor:
        return self.model.readout(hidden)

    def initial(self, source: Sequences | None, batch_size: int) -> State:
        return self.model.initial(source, batch_size)

    def advance(self, tokens: Tensor, state: State) -> Advance:
        return self.model.advance(tokens, state)

    @property
    def has_program(self) -> bool:
        return isinstance(self.model, Describable) and kernels.has_program(self.model)

    def describe_step(self, program: ProgramBuilder) -> None:
        self._described.describe_step(program)

    def make_room(self, state: State, count: int) -> State:
        return self._described.make_room(state, count)

    def room(self, state: State) -> float:
        return self._described.room(state)

    @property
    def _described(self) -> Describable:
        assert isinstance(self.model, Describable)
        return self.model


def reversed_sequences(rows: Sequences) -> Sequences:
    """Reverse each row; padding stays at the end."""
    positions = torch.arange(rows.ids.shape[1], device=rows.ids.device).expand_as(rows.ids)
    positions = (rows.lengths[:, None] - 1 - positions).where(rows.mask, positions)
    return Sequences(rows.ids.gather(1, positions), rows.lengths)


def reversed_corpus(corpus: Corpus) -> Corpus:
    """Reverse a corpus: a stream as a whole, documents one by one, with EOS still at their end."""
    if corpus.offsets is None:
        return replace(corpus, tokens=corpus.tokens[::-1])
    positions = np.arange(len(corpus))
    begins, ends = (np.repeat(edges, np.diff(corpus.offsets)) for edges in (corpus.offsets[:-1], corpus.offsets[1:]))
    positions = np.where(positions == ends - 1, positions, begins + ends - 2 - positions)
    return replace(corpus, tokens=corpus.tokens[positions])
