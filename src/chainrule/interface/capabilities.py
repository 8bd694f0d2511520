"""What some models can do besides. Each is a type that a family names among its bases, and that a decoder asks for.

Directed        its tokens may run from the end of a text to its start
Composite       composed of other models
Branched        a mixture of predictions, each of which can be had by itself
BlockPredictor           predicts many positions ahead, all at once
Rewindable      its state can forget the last tokens that it has read
GreedyDrafts         knows its likeliest tokens without their probabilities
Embedder        gives every token of a text a vector
└── Layered     ... and one of each of its layers
Cloze           predicts hidden tokens from those around them
Infills         writes what belongs in the gaps of its source
FitsStatistics  needs one pass over its training data before the first step
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from chainrule.interface.base import AutoregressiveModel
from chainrule.types import Progress, Sequences, State

TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.integer]
TokenPairs: TypeAlias = Iterable[tuple[TokenIds, TokenIds]]
"""Ids of sources, each with those of its target."""


class Directed(ABC):
    """A model that can be one of texts turned round (see `compose.reverse`)."""

    @property
    @abstractmethod
    def right_to_left(self) -> bool:
        """Whether the tokens that it is given run from the end of a text to its start."""


def is_right_to_left(model: object) -> bool:
    """Whether a text must be reversed before this model reads it."""
    return isinstance(model, Directed) and model.right_to_left


class Composite(Directed):
    """A model composed of other models; stated beside AutoregressiveModel."""

    @property
    @abstractmethod
    def components(self) -> Sequence[AutoregressiveModel]:
        """The models that it is composed of."""

    @property
    def right_to_left(self) -> bool:
        return all(is_right_to_left(part) for part in self.components)


class Branched(ABC):
    """A mixture of two predictions, (1 − γ) P₁ + γ P₂: its readout is `mix(branch_log_probs(hidden), hidden)`."""

    @property
    @abstractmethod
    def branch_loss(self) -> float:
        """The weight of each branch's own loss in training, beside that of the mixture."""

    @abstractmethod
    def branch_log_probs(self, hidden: Tensor) -> Tensor:
        """(..., D) to (2, ..., V): what each branch predicts."""

    @abstractmethod
    def shares(self, hidden: Tensor) -> Tensor:
        """(..., D) to (...): γ of every prediction."""

    @abstractmethod
    def mix(self, log_probs: Tensor, hidden: Tensor) -> Tensor:
        """(2, ..., V), and the hidden vectors that they came from, to log P, (..., V)."""


class Lookahead(NamedTuple):
    """What is lookahead_logits of some texts."""

    vectors: Tensor  # (B, P, D)
    firsts: list[int]  # the position of each row's first vector
    ends: list[int]  # and the one after its last


class BlockPredictor(ABC):
    """A model that can also predict many positions at once, without the tokens just before them."""

    @abstractmethod
    def lookahead(self, source: Sequences | None, texts: Sequence[Sequence[int]]) -> Lookahead:
        """Of texts that begin with these ids, B of them, and go on; the sources where the model has some."""

    @abstractmethod
    def lookahead_logits(self, vectors: Tensor) -> Tensor:
        """(..., D) to logits (..., V)."""


class Rewindable(ABC):
    """A model whose state can forget the last tokens that it has read, as a draft that was not accepted asks for."""

    @abstractmethod
    def rewind(self, state: State, counts: Tensor) -> State:
        """The state before the last `counts` (B,) tokens of each row were read. The one given may be used up."""


class GreedyDrafts(ABC):
    """A model that finds its likeliest continuation faster than by predictions of all tokens."""

    @abstractmethod
    def greedy_draft(self, ids: Sequence[int], count: int) -> list[int]:
        """What greedy decoding writes after a text; it may be less exact, since whoever asks will check."""


class Embedder(ABC):
    """A model that gives every token of a text a vector, for other models to build on."""

    @property
    @abstractmethod
    def embedding_width(self) -> int:
        """D of the vectors."""

    @abstractmethod
    def embed(self, texts: Sequences) -> Tensor:
        """(B, T, D), where values past the lengths mean nothing."""


class Layered(Embedder):
    """An embedder of several layers, each of which gives a vector: the lower ones of words, the upper ones of uses."""

    @abstractmethod
    def layers(self, texts: Sequences) -> Tensor:
        """(L + 1, B, T, D), from the token's own embedding to the last layer."""


class Cloze(ABC):
    """A model that predicts tokens of a text from those before and after them."""

    @abstractmethod
    def predict(self, texts: Sequences, hidden: Tensor) -> Tensor:
        """(N, V) logits at the positions where `hidden` (B, T) is true, row by row; what stands there is not read."""


class Infills(ABC):
    """A model whose source is a text with gaps, and whose target is what belongs in them: see `data.spans`."""

    @property
    @abstractmethod
    def sentinels(self) -> range:
        """The ids that stand for gaps, the first gap first."""


class FitsStatistics(ABC):
    """A model that needs one pass over its training data before the first step.

    It may count which tokens are rare, or compute the outputs of a frozen encoder once. What it needs later is kept
    in buffers or in the cache, so that a saved model works without the data.
    """

    @abstractmethod
    def fit_statistics(self, train: TokenPairs, *, held_out: TokenPairs = (), progress: Progress | None = None) -> None:
        """Read all training pairs once.

        `held_out` are the pairs that validation will read. Nothing may be learned from them; a model with a frozen
        encoder computes the encoder's output for them, too.
        """
