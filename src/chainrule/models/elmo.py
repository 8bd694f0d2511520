"""ELMo: token vectors from a forward and a backward LSTM language model.

    →h_t = →LSTM(e_1 … e_t)           P→(x_{t+1} | x_≤t) = softmax(E →h_t + b)
    ←h_t = ←LSTM(e_T … e_t)           P←(x_{t−1} | x_≥t) = softmax(E ←h_t + b)
    ELMo_t = γ Σ_l s_l [→hˡ_t; ←hˡ_t],    s = softmax(w),    [→h⁰; ←h⁰] = [e; e]
    or       [e_t; →hᴸ_t; ←hᴸ_t]

Peters et al., 2018, "Deep contextualized word representations". Both directions share the embeddings E, tied to the
readout. Each has its own LSTM layers, with residual connections from the second on. Training minimises the mean
surprisal of both language models, −½ Σ_t (log P→(x_t | x_<t) + log P←(x_t | x_>t)), in nats per token.

The vector of a token is a weighted mean of all layers including the embedding. The weights w and the scale γ are not
trained by the language models: they stay uniform until a downstream model learns them. Without weights, the embedding
and the last layers can be concatenated instead, as in Peters et al., 2017. Tokens are those of the run's
tokenizer; the paper uses a character encoder.

Shape letters: B rows, T tokens, V vocabulary, D width of one direction, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.interface.base import RECURRENT_RECIPE, OwnObjective, readable
from chainrule.interface.capabilities import Layered
from chainrule.nn.dropout import VariationalDropout
from chainrule.nn.layers import ScalarMix
from chainrule.nn.recurrent import CELLS, Cell, RecurrentLayer
from chainrule.nn.recurrent_encoder import reversal_index
from chainrule.nn.tokens import TokenTable
from chainrule.types import Batch, Sequences


class ELMoConfig(ModelConfig):
    """The defaults have 2.1M parameters besides the embeddings."""

    cell: Cell = Field("lstm", description="recurrent cell; docs/families/recurrent.md has the equations")
    layers: int = Field(2, ge=1, description="recurrent layers per direction")
    width: int = Field(
        256, ge=1, description="width of the embeddings and of each direction: half that of token vectors"
    )
    vectors: Literal["mix", "concatenate"] = Field(
        "mix",
        description="the vector of a token: a weighted mean of all layers, or its embedding and both last layers "
        "side by side; no effect on the training of the language models",
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout on embeddings and on the output of each layer")


class Direction(nn.Module):
    """The recurrent layers of one direction."""

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__()
        layer = CELLS[config.cell]
        self.layers = nn.ModuleList(layer(config.width, config.width, 0.0) for _ in range(config.layers))
        self.dropout = VariationalDropout(config.dropout)

    def forward(self, embedded: Tensor) -> Tensor:
        """(T, B, D), time first, to the outputs of all layers, (L, T, B, D)."""
        values = self.dropout(embedded)
        layers: list[Tensor] = []
        for layer in self.layers:
            assert isinstance(layer, RecurrentLayer)
            outputs, _ = layer(values, layer.initial(values.shape[1]))
            values = self.dropout(outputs + values if layers else outputs)
            layers.append(values)
        return torch.stack(layers)


class DirectionOutput(NamedTuple):
    """The tokens and hidden vectors of texts in one direction."""

    ids: Tensor  # (B, T), in reading order
    layers: Tensor  # (L, T + 1, B, D): after the start symbol, then after each token

    def hidden(self) -> Tensor:
        """(B, T, D): the vectors that predict each token."""
        return self.layers[-1, :-1].transpose(0, 1)


class ELMo(OwnObjective, Layered):
    """ELMo: forward and backward LSTM language models; a token's vector is a weighted mean of their layers."""

    Config = ELMoConfig
    task = "embeddings"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "check_model": "it averages two language models of opposite directions and decodes with neither"
    }
    recipe: ClassVar[Mapping[str, Any]] = {**RECURRENT_RECIPE, "batch_tokens": 512}
    config: ELMoConfig

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__(config)
        self.tokens = TokenTable(config.vocabulary, config.width, input_only=2, tied=True)
        self.forwards = Direction(config)
        self.backwards = Direction(config)
        self.mix = ScalarMix(config.layers + 1)

    @property
    def embedding_width(self) -> int:
        return (2 if self.mixes_layers else 3) * self.config.width

    @property
    def mixes_layers(self) -> bool:
        return self.config.vectors == "mix"

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.tokens.tables()

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        self.tokens.bias.copy_(log_frequencies)

    def embed(self, texts: Sequences) -> Tensor:
        """The weighted mean of all layers, or the embedding and both last layers side by side."""
        layers = self.layers(texts)
        if not self.mixes_layers:
            return torch.cat([layers[0, ..., : self.config.width], layers[-1]], -1)
        mixed: Tensor = self.mix(layers)
        return mixed

    def layers(self, texts: Sequences) -> Tensor:
        ids, order = readable(texts), _reversed_order(texts)
        forwards, backwards = self._run(texts)
        index = order.t()[None, ..., None].expand_as(backwards.layers[:, 1:])
        contextual = torch.cat([forwards.layers[:, 1:], backwards.layers[:, 1:].gather(1, index)], -1)
        own = self.tokens.embed(ids)
        return torch.cat([torch.cat([own, own], -1)[None], contextual.transpose(1, 2)])

    def draw_noise(self, batch: Batch) -> Tensor:
        """The loss is deterministic."""
        return torch.zeros(len(batch.target.ids), 0, device=self.device)

    def loss(self, batch: Batch, noise: Tensor, *, smoothing: float = 0.0) -> Tensor:
        real = batch.target.mask
        first, second = (
            F.cross_entropy(
                self.tokens.readout(output.hidden()[real]), output.ids[real], reduction="sum", label_smoothing=smoothing
            )
            for output in self._run(batch.target)
        )
        return (first + second) / 2

    def log_probs(self, texts: Sequences) -> Tensor:
        """(2, B) nats: the log-likelihood of each text under the forward and the backward model."""
        found = []
        for output in self._run(texts):
            nats = self.tokens.readout(output.hidden()).log_softmax(-1).gather(-1, output.ids[..., None])[..., 0]
            found.append(nats.masked_fill(~texts.mask, 0.0).sum(1))
        return torch.stack(found)

    def _run(self, texts: Sequences) -> tuple[DirectionOutput, DirectionOutput]:
        """Forwards and backwards. Every row is reversed within its length, so padding comes last in both."""
        ids = readable(texts)
        reversed_ids = ids.gather(1, _reversed_order(texts))
        return (
            DirectionOutput(ids, self._layers(self.forwards, ids, self.vocabulary)),
            DirectionOutput(reversed_ids, self._layers(self.backwards, reversed_ids, self.vocabulary + 1)),
        )

    def _layers(self, direction: Direction, ids: Tensor, start: int) -> Tensor:
        layers: Tensor = direction(self.tokens.embed(F.pad(ids, (1, 0), value=start).t()))
        return layers


def _reversed_order(texts: Sequences) -> Tensor:
    """(B, T): the indices that reverse every row within its length."""
    return reversal_index(texts.lengths, texts.ids.shape[1])[..., 0].t()
