"""BERT and GPT-2 as encoders: hidden vectors from pretrained weights.

    BERT     x⁰ = norm(E[s] + p + e_A)     h = norm(x + Attention(x))     x' = norm(h + MLP(h))     m = xᴸ
    GPT-2    x⁰ = E[s] + p                 h = x + Attention(norm(x))     x' = h + MLP(norm(h))     m = norm(xᴸ)

with learned positions p. BERT (Devlin et al., 2019) is bidirectional, and e_A is the token type embedding of the first
or only text; GPT-2 (Radford et al., 2019) is causal. There is no readout and no cache: `models.bert` has the readout of
BERT, `models.gpt` both for GPT-2. Shape letters: B rows, S tokens, N = B·S, D width, H heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.nn.attention import Attend, BidirectionalAttention, CausalAttention, padding_bias
from chainrule.nn.dropout import Dropout
from chainrule.nn.layers import LayerNorm, Projection


def _gelu_by_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_by_tanh,
    "gelu_pytorch_tanh": _gelu_by_tanh,
    "relu": F.relu,
}
"""By their names in Hugging Face transformers."""


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """The architecture of one BERT or GPT-2."""

    vocabulary: int
    context: int  # maximum number of tokens
    width: int
    layers: int
    heads: int
    inner: int  # width of the MLP's hidden layer
    activation: str  # one of ACTIVATIONS
    epsilon: float  # of the layer norms
    token_types: int = 1  # token type embeddings of a BERT: first and second text of a pair
    dropout: float = 0.0  # of a BERT in training


class PretrainedEncoder(nn.Module, ABC):
    """From token ids to a hidden vector per token."""

    blocks: nn.ModuleList

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.words = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.positions = nn.Parameter(torch.empty(shape.context, shape.width))
        self.norm = LayerNorm(shape.width, eps=shape.epsilon)

    @abstractmethod
    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) to (B, S, D); padding has no effect on the vectors of real tokens."""

    def last_blocks(self, count: int) -> nn.ModuleList:
        """The last blocks; all of them if there are fewer."""
        return self.blocks[-count:]

    def _embedded(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.words) + self.positions[: ids.shape[1]]


class BertEncoder(PretrainedEncoder):
    def __init__(self, shape: EncoderShape) -> None:
        super().__init__(shape)
        self.token_types = nn.Parameter(torch.empty(shape.token_types, shape.width))  # e_A, and e_B where there is one
        self.blocks = nn.ModuleList(BertEncoderBlock(shape) for _ in range(shape.layers))
        self.dropout = Dropout(shape.dropout)

    def forward(self, ids: Tensor, lengths: Tensor, types: Tensor | None = None) -> Tensor:
        *_, last = self.layers(ids, lengths, types)
        return last

    def layers(self, ids: Tensor, lengths: Tensor, types: Tensor | None = None) -> Iterator[Tensor]:
        """x⁰ to xᴸ, (B, S, D) each; `types` (B, S) are the token types of a pair of texts, by default the first."""
        kinds = self.token_types[0] if types is None else self.token_types[types.clamp(max=len(self.token_types) - 1)]
        embedded = self.dropout(self.norm(self._embedded(ids) + kinds))
        yield embedded
        bias = padding_bias(lengths, ids.shape[1], embedded.dtype)
        x, attend = embedded.flatten(0, 1), BidirectionalAttention(bias, self.dropout.current_rate)
        for block in self.blocks:
            x = block(x, len(ids), attend)
            yield x.view_as(embedded)


class GPT2Encoder(PretrainedEncoder):
    def __init__(self, shape: EncoderShape) -> None:
        super().__init__(shape)
        self.blocks = nn.ModuleList(GPT2EncoderBlock(shape) for _ in range(shape.layers))

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        embedded = self._embedded(ids)
        x, attend = embedded.flatten(0, 1), CausalAttention()
        for block in self.blocks:
            x = block(x, len(ids), attend)
        return cast(Tensor, self.norm(x)).view_as(embedded)


class EncoderBlock(nn.Module):
    """Attention and an MLP. Matrices are stored (in, out)."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.activation = ACTIVATIONS[shape.activation]
        self.query_key_value = Projection(shape.width, 3 * shape.width, bias=True)
        self.attention_out = Projection(shape.width, shape.width, bias=True)
        self.attention_norm = LayerNorm(shape.width, eps=shape.epsilon)
        self.mlp_in = Projection(shape.width, shape.inner, bias=True)
        self.mlp_out = Projection(shape.inner, shape.width, bias=True)
        self.mlp_norm = LayerNorm(shape.width, eps=shape.epsilon)

    def attention(self, x: Tensor, rows: int, attend: Attend) -> Tensor:
        projected = self.query_key_value(x).view(rows, -1, 3, self.heads, x.shape[1] // self.heads)
        query, key, value = projected.transpose(1, 3).unbind(2)  # (B, H, S, D/H) each
        return cast(Tensor, self.attention_out(attend(query, key, value).transpose(1, 2).reshape(x.shape)))

    def mlp(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.mlp_out(self.activation(self.mlp_in(x))))


class BertEncoderBlock(EncoderBlock):
    """Post-norm."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__(shape)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor, rows: int, attend: Attend) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, rows, attend)))
        return cast(Tensor, self.mlp_norm(x + self.dropout(self.mlp(x))))


class GPT2EncoderBlock(EncoderBlock):
    """Pre-norm."""

    def forward(self, x: Tensor, rows: int, attend: Attend) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rows, attend)
        return x + self.mlp(self.mlp_norm(x))
