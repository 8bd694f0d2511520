"""ELMo: a language model from left to right, another from right to left, and the vectors of both.

    →h_t = →LSTM(e_1 … e_t)           P→(x_{t+1} | x_≤t) = softmax(E →h_t + b)
    ←h_t = ←LSTM(e_T … e_t)           P←(x_{t−1} | x_≥t) = softmax(E ←h_t + b)
    ELMo_t = γ Σ_l s_l [→hˡ_t; ←hˡ_t],    s = softmax(w),    [→h⁰; ←h⁰] = [e; e]

Peters et al., 2018, "Deep contextualized word representations". Both directions share the embeddings E, which are the
readout, too; each has LSTM layers of its own, every one after the first added to what it reads. Training minimises the
mean of both surprisals, −½ Σ_t (log P→(x_t | x_<t) + log P←(x_t | x_>t)), nats per token.

The vector of a token is a mix of all layers, the word's own embedding among them. The weights w and the scale γ say
which of them a task needs: the language models have no use for them and leave them as they are, all layers alike,
until a model on top learns them. Words are read by the vocabulary of the run; the paper spells them by characters.

Shape letters: B rows, T tokens, V vocabulary, D width of one direction, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import STEP_AFTER_STEP, OwnObjective, readable
from chainrule.interface.capabilities import Layered
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.layers import ScalarMix
from chainrule.nn.recurrent import CELLS, Cell, RecurrentLayer
from chainrule.nn.recurrent_encoder import reversed_rows
from chainrule.nn.tokens import TokenTable
from chainrule.types import Batch, Sequences


class ELMoConfig(ModelConfig):
    """The defaults have 2.1M parameters besides the embeddings."""

    cell: Cell = Field("lstm", description="the recurrence; see docs/families/recurrent.md for the equations")
    layers: int = Field(2, ge=1, description="recurrent layers of each direction")
    width: int = Field(256, ge=1, description="width of the embeddings and of each direction; vectors have twice that")
    dropout: float = Field(0.1, ge=0, lt=1, description="on embeddings and on what each layer gives")


class Direction(nn.Module):
    """The layers that read in one direction."""

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__()
        layer = CELLS[config.cell]
        self.layers = nn.ModuleList(layer(config.width, config.width, 0.0) for _ in range(config.layers))
        self.dropout = VariationalDropout(config.dropout)

    def forward(self, embedded: Tensor) -> Tensor:
        """(T, B, D), time first, to what every layer gives: (L, T, B, D)."""
        values = self.dropout(embedded)
        found: list[Tensor] = []
        for layer in self.layers:
            assert isinstance(layer, RecurrentLayer)
            outputs, _ = layer(values, layer.initial(values.shape[1]))
            values = self.dropout(outputs + values if found else outputs)
            found.append(values)
        return torch.stack(found)


class Read(NamedTuple):
    """A text as one direction sees it."""

    ids: Tensor  # (B, T), from where it starts
    layers: Tensor  # (L, T + 1, B, D): before the first token, then after each

    def predicting(self) -> Tensor:
        """(B, T, D): what each token is predicted from."""
        return self.layers[-1, :-1].transpose(0, 1)


class ELMo(OwnObjective, Layered):
    """Two LSTM language models, one from each end of a text; a token's vector is a mix of all of their layers."""

    Config = ELMoConfig
    task = "embedding"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "check_model": "it averages two language models of opposite directions and decodes with neither"
    }
    recipe: ClassVar[Mapping[str, Any]] = {**STEP_AFTER_STEP, "batch_tokens": 512}
    config: ELMoConfig

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__(config)
        self.tokens = TokenTable(config.vocabulary, config.width, unspoken=2, tied=True)
        self.forwards = Direction(config)
        self.right_to_left = Direction(config)
        self.mix = ScalarMix(config.layers + 1)

    @property
    def embedding_width(self) -> int:
        return 2 * self.config.width

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.tokens.tables()

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self.tokens.bias.copy_(log_frequencies)

    def embed(self, texts: Sequences) -> Tensor:
        """The mix of all layers."""
        mixed: Tensor = self.mix(self.layers(texts))
        return mixed

    def layers(self, texts: Sequences) -> Tensor:
        ids, places = readable(texts), _turned(texts)
        forwards, backwards = self._read(texts)
        turned = places.t()[None, ..., None].expand_as(backwards.layers[:, 1:])
        contextual = torch.cat([forwards.layers[:, 1:], backwards.layers[:, 1:].gather(1, turned)], -1)
        own = self.tokens.embed(ids)
        return torch.cat([torch.cat([own, own], -1)[None], contextual.transpose(1, 2)])

    def draw_noise(self, batch: Batch) -> Tensor:
        """Nothing is random about its loss."""
        return torch.zeros(len(batch.target.ids), 0, device=self.device)

    def loss(self, batch: Batch, chance: Tensor, *, smoothing: float = 0.0) -> Tensor:
        real = batch.target.mask
        first, second = (
            F.cross_entropy(
                self.tokens.readout(read.predicting()[real]), read.ids[real], reduction="sum", label_smoothing=smoothing
            )
            for read in self._read(batch.target)
        )
        return (first + second) / 2

    def log_probs(self, texts: Sequences) -> Tensor:
        """(2, B) nats: how likely the model from the left, and the one from the right, finds each text."""
        found = []
        for read in self._read(texts):
            nats = self.tokens.readout(read.predicting()).log_softmax(-1).gather(-1, read.ids[..., None])[..., 0]
            found.append(nats.masked_fill(~texts.mask, 0.0).sum(1))
        return torch.stack(found)

    def _read(self, texts: Sequences) -> tuple[Read, Read]:
        """From the left and from the right. Every row starts at its own end, so padding comes last and is seen last."""
        ids = readable(texts)
        turned = ids.gather(1, _turned(texts))
        return (
            Read(ids, self._states(self.forwards, ids, self.vocabulary)),
            Read(turned, self._states(self.right_to_left, turned, self.vocabulary + 1)),
        )

    def _states(self, direction: Direction, ids: Tensor, start: int) -> Tensor:
        read: Tensor = direction(self.tokens.embed(F.pad(ids, (1, 0), value=start).t()))
        return read


def _turned(texts: Sequences) -> Tensor:
    """(B, T): where each token is found when every row is read from its end."""
    return reversed_rows(texts.lengths, texts.ids.shape[1])[..., 0].t()
