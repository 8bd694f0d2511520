"""Between token ids and vectors, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.interface.base import Table, TabledReadout
from chainrule.interface.conditional import EmbeddingConfig
from chainrule.nn.layers import matmul, rms_norm


class TokenTable(nn.Module):
    """A vector for each token to read it by, and one to predict it by: the same if they are tied.

        embed(x) = √D e_x / ‖e_x‖,    readout(h) = E h + b

    Tied (Press & Wolf, 2017; Inan et al., 2017), a row grows long as the readout of a frequent token; as an input only
    its direction is read. The readout is stored (D, R), as it is needed: it is read whole at every step. Ids past
    the vocabulary, such as BOS, can be read and never predicted: `input_only` says how many there are.
    """

    def __init__(self, vocabulary: int, width: int, *, input_only: int = 1, tied: bool) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.matrix = _table(width, vocabulary + (input_only if tied else 0))
        self.embedding = None if tied else _table(vocabulary + input_only, width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def tables(self) -> Iterator[nn.Parameter]:
        """The parameters with a vector per token."""
        yield self.matrix
        if self.embedding is not None:
            yield self.embedding

    def embed(self, tokens: Tensor) -> Tensor:
        """Ids of any shape to vectors (..., D)."""
        return rms_norm(F.embedding(tokens, self.matrix.T if self.embedding is None else self.embedding))

    def readout(self, hidden: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        logits = matmul(hidden.flatten(0, -2), self.matrix[:, : self.vocabulary]) + self.bias
        return logits.view(*hidden.shape[:-1], logits.shape[-1])

    def log_probs(self, hidden: Tensor, ids: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """Nats of some tokens (N, T) at each vector (N, D), with a share of their mass spread over the vocabulary."""
        logits = self.readout(hidden)
        found = logits.gather(1, ids)
        if smoothing:
            found = torch.lerp(found, logits.mean(1, keepdim=True), smoothing)
        return found - logits.logsumexp(1, keepdim=True)

    def most_likely(self, hidden: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The most likely token at each vector (..., D) except those to suppress, and its log-probability."""
        logits = self.readout(hidden)
        normaliser = logits.logsumexp(-1)
        if suppress:
            logits[..., list(suppress)] = -torch.inf
        best, ids = logits.max(-1)
        return ids, best - normaliser


class PairTable(TokenTable):
    """A table for the target, as above, and vectors to read a source by: their own, or those of the target.

    `source_vocabulary` is None where both sides have one vocabulary and share the table.
    """

    def __init__(self, vocabulary: int, width: int, *, source_vocabulary: int | None, tied: bool) -> None:
        super().__init__(vocabulary, width, tied=tied)
        self.source = None if source_vocabulary is None else _table(source_vocabulary, width)

    @classmethod
    def of(cls, config: EmbeddingConfig, width: int) -> Self:
        """The tables that the settings of a translation model describe."""
        return cls(config.vocabulary, width, source_vocabulary=config.own_source_rows, tied=config.tied)

    def tables(self) -> Iterator[nn.Parameter]:
        yield from super().tables()
        if self.source is not None:
            yield self.source

    def embed_source(self, tokens: Tensor) -> Tensor:
        """Source ids of any shape to vectors (..., D)."""
        return self.embed(tokens) if self.source is None else rms_norm(F.embedding(tokens, self.source))


def _table(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(*shape), std=0.02))


class TokenReadout(TabledReadout):
    """A neural model whose readout is that of a `TokenTable`, which the family creates as `self.tokens`."""

    tokens: TokenTable

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.tokens.tables()

    def readout_table(self) -> Table:
        return Table(self.tokens.matrix.t(), self.tokens.bias)

    def readout(self, hidden: Tensor) -> Tensor:
        return self.tokens.readout(hidden)


def lowest(order: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """(B, K), true for the `count` positions of each row that come first in the order, among those that may."""
    places = order.masked_fill(~among, torch.inf).argsort(dim=1, stable=True)
    ranks = torch.empty_like(places).scatter_(
        1, places, torch.arange(order.shape[1], device=order.device).expand_as(places)
    )
    return (ranks < count[:, None]) & among
