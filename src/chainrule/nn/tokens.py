"""Between token ids and vectors, both ways."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.nn.linear import times
from chainrule.nn.norms import normalised


class TokenTable(nn.Module):
    """A vector for each token to read it by, and one to predict it by: the same if they are tied.

        embed(x) = √D e_x / ‖e_x‖,    readout(h) = E h + b

    Tied (Press & Wolf, 2017; Inan et al., 2017), a row grows long as the readout of a frequent token; as an input only
    its direction is read. The readout is stored (D, R), as it is needed: it is read whole at every step. Ids past
    the vocabulary, such as BOS, can be read and never predicted: `unspoken` says how many there are.
    """

    def __init__(self, vocabulary: int, width: int, *, unspoken: int = 1, tied: bool) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.matrix = nn.Parameter(torch.empty(width, vocabulary + (unspoken if tied else 0)))
        self.embedding = None if tied else nn.Parameter(torch.empty(vocabulary + unspoken, width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for table in self.tables():
            nn.init.normal_(table, std=0.02)

    def tables(self) -> Iterator[nn.Parameter]:
        """The parameters with a vector per token."""
        yield self.matrix
        if self.embedding is not None:
            yield self.embedding

    def embed(self, tokens: Tensor) -> Tensor:
        """Ids of any shape to vectors (..., D)."""
        return normalised(F.embedding(tokens, self.matrix.T if self.embedding is None else self.embedding))

    def readout(self, hidden: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        logits = times(hidden.flatten(0, -2), self.matrix[:, : self.vocabulary]) + self.bias
        return logits.view(*hidden.shape[:-1], logits.shape[-1])
