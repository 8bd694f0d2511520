"""Reading from right to left.

The chain rule holds in any order: log P(x) = Σ_t log P(x_t | x_>t) too. A model of that order is an ordinary
autoregressive model of texts that have been turned round, so `Reverse` changes no number of the model within. It says,
as a type, that the tokens which it is given run from the end of the text to its start; whoever stands between text
and tokens (`runs.Run`, `api.train`) asks `is_right_to_left` and turns them with the functions below.
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
from chainrule.types import Batch, Sequences, State


class ReverseConfig(ModelConfig):
    model: dict[str, Any] = Field(description="the model that reads: its family and that family's settings")


class Reverse(NeuralModel, Composite):
    """A neural model that reads from right to left: each token is predicted from the ones after it.

    log P(x) = Σ_t log P(x_t | x_>t). Rows are given in the order of reading, the last token of the text first, EOS
    at the end as ever; `text_log_prob` takes them in the order of the text.
    """

    Config = ReverseConfig
    task = "text"
    config: ReverseConfig

    def __init__(self, config: ReverseConfig, model: NeuralModel | None = None) -> None:
        super().__init__(config)
        inner = model or build_part(config.model, config.vocabulary, where="model.model")
        if not isinstance(inner, NeuralModel):
            raise ConfigError(f"reverse reads with a neural family, and this is a {config.model['family']}; name one")
        self.model = inner

    @classmethod
    def of(cls, model: NeuralModel) -> Self:
        """The same weights, given texts that have been turned round."""
        return cls(ReverseConfig(vocabulary=model.vocabulary, model=part_settings(model)), model)

    @property
    def components(self) -> Sequence[AutoregressiveModel]:
        return (self.model,)

    @property
    def right_to_left(self) -> bool:
        return not is_right_to_left(self.model)  # twice round is forwards

    def text_log_prob(self, batch: Batch) -> Tensor:
        """(B,) nats of rows in the order of the text."""
        return self.log_prob(Batch(reversed_sequences(batch.target), batch.source))

    # All else is the model within.

    @property
    def bos(self) -> int:
        return self.model.bos

    @property
    def context(self) -> int | None:
        return self.model.context

    @property
    def segment(self) -> int:
        return self.model.segment

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


def reversed_sequences(rows: Sequences) -> Sequences:
    """Each row from its end to its start; what lies past its length stays there."""
    places = torch.arange(rows.ids.shape[1], device=rows.ids.device).expand_as(rows.ids)
    places = (rows.lengths[:, None] - 1 - places).where(rows.mask, places)
    return Sequences(rows.ids.gather(1, places), rows.lengths)


def reversed_corpus(corpus: Corpus) -> Corpus:
    """A corpus in the order of reading: a stream as a whole, documents each by itself, with EOS at the end as ever."""
    if corpus.offsets is None:
        return replace(corpus, tokens=corpus.tokens[::-1])
    places = np.arange(len(corpus))
    begins, ends = (np.repeat(edges, np.diff(corpus.offsets)) for edges in (corpus.offsets[:-1], corpus.offsets[1:]))
    places = np.where(places == ends - 1, places, begins + ends - 2 - places)
    return replace(corpus, tokens=corpus.tokens[places])
