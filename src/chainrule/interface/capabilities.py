"""Optional capabilities of models. Each is a base class of the families that have it, and is tested by isinstance.

Directed        may model texts from right to left
Composite       composed of other models
Shardable       can be trained with its weights distributed over processes
Branched        a mixture of two predictions that are available separately
BlockPredictor  predicts a block of future positions in parallel
Rewindable      can remove the last tokens from its state
GreedyDrafts    finds its most likely tokens without computing all probabilities
DiskCounts      counts more than fits into memory
TargetScorer    scores the tokens of a text without computing all probabilities
TokenGenerator  generates many tokens per call
Embedder        maps every token of a text to a vector
└── Layered     ... in each of its layers
Cloze           predicts masked tokens from both sides
Infills         generates the missing spans of its source
FitsStatistics  needs one pass over the training data before the first step
AttentionHeads  exposes the attention weights of every layer and head
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from chainrule.data.token_files import TokenFile
from chainrule.interface.base import AutoregressiveModel, CountModel
from chainrule.kernels.step import Choices
from chainrule.types import Batch, Progress, Sequences, State

TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.integer]
TokenPairs: TypeAlias = Iterable[tuple[TokenIds, TokenIds]]
"""Pairs of source ids and target ids."""


class Directed(ABC):
    """A model that may read texts from right to left (see `compose.reverse`)."""

    @property
    @abstractmethod
    def right_to_left(self) -> bool:
        """Whether its token sequences run from the end of a text to its start."""


def is_right_to_left(model: object) -> bool:
    """Whether a text must be reversed before this model reads it."""
    return isinstance(model, Directed) and model.right_to_left


class Composite(Directed):
    """A model composed of other models; mixed into AutoregressiveModel."""

    @property
    @abstractmethod
    def components(self) -> Sequence[AutoregressiveModel]:
        """The component models."""

    @property
    def right_to_left(self) -> bool:
        return all(is_right_to_left(part) for part in self.components)


class Shardable(ABC):
    """A model that can be trained with a part of its weights in each of several processes (FSDP)."""

    @abstractmethod
    def sharded_blocks(self) -> Iterator[nn.Module]:
        """The modules whose weights are gathered when they are called, inner ones first; all others always are."""


class Branched(ABC):
    """A mixture of two predictions, (1 − γ) P₁ + γ P₂: its readout is `mix(branch_log_probs(hidden), hidden)`."""

    @property
    @abstractmethod
    def fixed_gamma(self) -> float | None:
        """γ, if it is a constant; None if it is learned."""

    @abstractmethod
    def with_gamma(self, gamma: float) -> Self:
        """A copy of the model with a constant γ: 0 is the first branch, 1 the second."""

    @property
    @abstractmethod
    def branch_loss(self) -> float:
        """The weight of the loss of each branch, added to that of the mixture in training."""

    @property
    @abstractmethod
    def branch_share(self) -> float:
        """The expected share of predictions for which training computes the second branch."""

    @abstractmethod
    def has_second(self, hidden: Tensor) -> Tensor:
        """(..., D) to (...): whether the second branch predicts there; elsewhere γ is 0."""

    @abstractmethod
    def branch_logits(self, hidden: Tensor, branch: int) -> Tensor:
        """(..., D) to (..., V): logits of one branch, 0 or 1."""

    @abstractmethod
    def branch_log_probs(self, hidden: Tensor) -> Tensor:
        """(..., D) to (2, ..., V): log-probabilities of each branch."""

    @abstractmethod
    def shares(self, hidden: Tensor) -> Tensor:
        """(..., D) to (...): γ of every prediction."""

    @abstractmethod
    def mix(self, log_probs: Tensor, hidden: Tensor) -> Tensor:
        """Log-probabilities of the branches (2, ..., V) and their hidden vectors to those of the mixture (..., V)."""


class Lookahead(NamedTuple):
    """Hidden vectors of future positions of a batch of texts."""

    vectors: Tensor  # (B, P, D)
    firsts: list[int]  # position of the first vector of each row
    ends: list[int]  # position after the last vector of each row
    generated: Tensor  # (B, P) false at positions where no token is generated in one pass


class BlockPredictor(ABC):
    """A model that also predicts a block of future positions in parallel, without the tokens in between."""

    @property
    @abstractmethod
    def one_pass(self) -> bool:
        """Whether these are its only predictions, so that all tokens of a block are generated in one pass."""

    @abstractmethod
    def lookahead(self, source: Sequences | None, texts: Sequence[Sequence[int]]) -> Lookahead:
        """Vectors of the positions after each of B texts; those of a conditional model depend on its source alone."""

    @abstractmethod
    def lookahead_logits(self, vectors: Tensor) -> Tensor:
        """(..., D) to logits (..., V)."""


class DiskCounts(CountModel):
    """A count model that can keep its counts on disk. The result is the same."""

    @abstractmethod
    def count_on_disk(self, folder: Path, memory: int) -> None:
        """Keep counts and estimates in files in a folder, and use about so many bytes of memory."""

    @property
    @abstractmethod
    def tokens_at_once(self) -> int | None:
        """Number of tokens to observe at once; None: any, since counts are in memory."""

    @abstractmethod
    def count_jobs(self, text: TokenFile, size: int, share: float) -> list[Callable[..., Any]]:
        """The counting of a text on disk, in parts of so many tokens, each with a share of the memory.

        Each of them can be called by any process that sees the same files, and takes a callback for its progress, which
        may be None. `add_counts` needs what they return.
        """

    @abstractmethod
    def add_counts(self, counts: Any) -> None:
        """Add what one of `count_jobs` has returned."""


class TargetScores(NamedTuple):
    """Scores of the tokens of a batch of texts."""

    log_probs: Tensor  # (B, T) nats of each token, zero past the end of a row
    hits: Tensor | None  # (B, T) whether it was the most probable one; None if that was not asked for
    state: State  # after the last token


class TargetScorer(ABC):
    """An autoregressive model that scores the tokens of a text without predicting all others."""

    @abstractmethod
    def score_tokens(self, target: Sequences, state: State | None = None, *, hits: bool = False) -> TargetScores:
        """Score each token given those before it; rows start at BOS, or go on from a state."""


class TokenGenerator(ABC):
    """An autoregressive model that generates many tokens per call, in compiled code."""

    @abstractmethod
    def generate(
        self,
        tokens: Tensor,
        state: State,
        noise: npt.NDArray[np.float64],
        rules: npt.NDArray[np.float64],
        suppressed: npt.NDArray[np.int64],
    ) -> tuple[Choices, State] | None:
        """Read a token (B,) in each row and choose the next, once for each position of the noise (B, S, V or 0).

        The rules are those of `kernels.step.generate`. If they filter nothing, the noise may be keys (B, S, 1), from
        which that of any token can be computed (`kernels.keyed_noise`). None where compiled code is not applicable.
        """


class Rewindable(ABC):
    """A model that can remove the last tokens from its state, for rejected draft tokens."""

    @abstractmethod
    def rewind(self, state: State, counts: Tensor) -> State:
        """The state before the last `counts` (B,) tokens of each row. The given state may be modified in place."""


class GreedyDrafts(ABC):
    """A model with a greedy decoding that is faster than computing all next-token probabilities."""

    @abstractmethod
    def greedy_draft(self, ids: Sequence[int], count: int) -> list[int]:
        """The greedy continuation of a text. It may be approximate, since draft tokens are verified."""


class Embedder(ABC):
    """A model that maps every token of a text to a vector, as input of other models."""

    @property
    @abstractmethod
    def embedding_width(self) -> int:
        """Width D of the vectors."""

    @abstractmethod
    def embed(self, texts: Sequences) -> Tensor:
        """(B, T, D); undefined at padding."""


class Layered(Embedder):
    """An embedder with the vectors of several layers; lower ones are more lexical, upper ones more contextual."""

    @abstractmethod
    def layers(self, texts: Sequences) -> Tensor:
        """(L + 1, B, T, D), from the token embedding to the last layer."""

    @property
    def mixes_layers(self) -> bool:
        """Whether a model on top learns weights for the layers; otherwise it uses `embed`."""
        return True


class BidirectionalEmbedder(Embedder):
    """An embedder that is causal in `embed` and can also read a text in both directions."""

    @abstractmethod
    def embed_bidirectional(self, texts: Sequences) -> Tensor:
        """(B, T, D): every vector depends on the whole text."""


class Cloze(ABC):
    """A model that predicts tokens of a text from those before and after them."""

    @abstractmethod
    def predict(self, texts: Sequences, hidden: Tensor) -> Tensor:
        """(N, V) logits at the positions where `hidden` (B, T) is true, in row-major order; their ids are ignored."""


class Infills(ABC):
    """A model that generates the missing spans of its source (see `data.spans`)."""

    @property
    @abstractmethod
    def sentinels(self) -> range:
        """The ids of the sentinel tokens, in the order of the spans."""


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


class AttentionHeads(ABC):
    """A model whose attention weights are available for every layer and head."""

    @abstractmethod
    def attention_heads(self, batch: Batch) -> Tensor:
        """Attention weights (L, B, H, T, S) of the prediction of target.ids[:, t].

        Over source.ids[:, s] if the model has a source; else over its own inputs, BOS and all tokens but the last, so
        that S = T and the weights of s > t are 0. Rows sum to 1.
        """
