"""Token embeddings and the readout, tied or untied, and the selection of masked positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.interface.base import Table, TabledReadout
from chainrule.interface.conditional import EmbeddingConfig
from chainrule.kernels.instructions import Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.nn.layers import rms_norm


class TokenTable(nn.Module):
    """Input embeddings and the readout of a vocabulary, with shared weights if they are tied.

        embed(x) = √D e_x / ‖e_x‖,    readout(h) = E h + b

    With tied weights (Press & Wolf, 2017; Inan et al., 2017) the readout vector of a frequent token grows long, so only
    the direction of an embedding is used as input. `input_only` is the number of ids past the vocabulary, such as BOS,
    that are never predicted.
    """

    def __init__(self, vocabulary: int, width: int, *, input_only: int = 1, tied: bool) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.matrix = _table(vocabulary + (input_only if tied else 0), width)
        self.embedding = None if tied else _table(vocabulary + input_only, width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def tables(self) -> Iterator[nn.Parameter]:
        """The parameters with a vector per token."""
        yield self.matrix
        if self.embedding is not None:
            yield self.embedding

    def embed(self, tokens: Tensor) -> Tensor:
        """Ids of any shape to vectors (..., D)."""
        return rms_norm(F.embedding(tokens, self._embeddings))

    def readout(self, hidden: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        return F.linear(hidden, self.matrix[: self.vocabulary], self.bias)

    def describe_embedding(self, program: ProgramBuilder) -> Vector:
        """`embed` in a compiled step."""
        embedded = program.embed(self._embeddings)
        return program.rms_norm(embedded, out=embedded)

    def describe_window(self, program: ProgramBuilder, slot: int, length: int) -> Vector:
        """The embeddings of the last `length` tokens, concatenated; the state tensor `slot` holds all but the last."""
        embedded = program.embed_window(self._embeddings, slot, length)
        return program.rms_norm(embedded, groups=length, out=embedded)

    def describe_readout(self, program: ProgramBuilder, hidden: Vector) -> None:
        """`readout` in a compiled step."""
        program.keep_hidden(hidden)
        self.describe_logits(program, hidden, program.result())

    def describe_logits(self, program: ProgramBuilder, hidden: Vector, out: Vector) -> None:
        """The same as a vector, which need not be the result."""
        program.linear(hidden, self.matrix[: self.vocabulary], self.bias, out=out)

    @property
    def _embeddings(self) -> Tensor:
        return self.matrix if self.embedding is None else self.embedding

    def log_probs(self, hidden: Tensor, ids: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """Log-probabilities of the tokens `ids` (N, T) at vectors (N, D), with label smoothing over the vocabulary."""
        logits = self.readout(hidden)
        chosen = logits.gather(1, ids)
        if smoothing:
            chosen = torch.lerp(chosen, logits.mean(1, keepdim=True), smoothing)
        return chosen - logits.logsumexp(1, keepdim=True)

    def most_likely(self, hidden: Tensor, suppress: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The most likely token at each vector (..., D) except those to suppress, and its log-probability."""
        logits = self.readout(hidden)
        normaliser = logits.logsumexp(-1)
        if suppress:
            logits[..., list(suppress)] = -torch.inf
        best, ids = logits.max(-1)
        return ids, best - normaliser


class PairTable(TokenTable):
    """A `TokenTable` for the target, and input embeddings for the source: separate, or those of the target.

    `source_vocabulary` is None if both sides share one vocabulary and its embeddings.
    """

    def __init__(self, vocabulary: int, width: int, *, source_vocabulary: int | None, tied: bool) -> None:
        super().__init__(vocabulary, width, tied=tied)
        self.source = None if source_vocabulary is None else _table(source_vocabulary, width)

    @classmethod
    def of(cls, config: EmbeddingConfig, width: int, *, with_source: bool = True) -> Self:
        """The tables that the settings of a translation model describe; a pretrained encoder needs none of a source."""
        rows = config.own_source_rows if with_source else None
        return cls(config.vocabulary, width, source_vocabulary=rows, tied=config.tied)

    def tables(self) -> Iterator[nn.Parameter]:
        yield from super().tables()
        if self.source is not None:
            yield self.source

    def embed_source(self, tokens: Tensor) -> Tensor:
        """Source ids of any shape to vectors (..., D)."""
        return self.embed(tokens) if self.source is None else rms_norm(F.embedding(tokens, self.source))

    def describe_source_embedding(self, program: ProgramBuilder) -> Vector:
        """`embed_source` in a program."""
        embedded = program.embed(self._embeddings if self.source is None else self.source)
        return program.rms_norm(embedded, out=embedded)


def _table(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(*shape), std=0.02))


class TokenReadout(TabledReadout):
    """A neural model whose readout is that of a `TokenTable`, which the family creates as `self.tokens`."""

    tokens: TokenTable

    def tables(self) -> Iterator[nn.Parameter]:
        yield from self.tokens.tables()

    def readout_table(self) -> Table:
        return Table(self.tokens.matrix, self.tokens.bias)

    def readout(self, hidden: Tensor) -> Tensor:
        return self.tokens.readout(hidden)


def lowest(order: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """(B, K) bool: the `count` (B,) positions of each row with the lowest values of `order`, `among` the eligible."""
    sorted_positions = order.masked_fill(~among, torch.inf).argsort(dim=1, stable=True)
    ranks = torch.arange(order.shape[1], device=order.device).expand_as(sorted_positions)
    return (torch.empty_like(sorted_positions).scatter_(1, sorted_positions, ranks) < count[:, None]) & among
