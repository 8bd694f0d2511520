"""The interface: every model is a factorisation log P(x | s) = Σ_t log P(x_t | x_<t, s).

Model                           a family's network, its settings and its limits
├── DensityModel                how likely is this sequence?
│   └── AutoregressiveModel     ... and what comes next, token by token?
│       ├── NeuralModel         logits = readout(hidden), trained by gradients
│       │   └── TabledReadout   ... where the readout is a vector per token: the logits of a few cost only those
│       └── Recomputed          any model without its cache: the slow reference for the fast paths
└── Trainable                   learns by gradients
    └── OwnObjective            ... of a loss that is no sum over predictions of the next token
        └── SparseUpdates       ... by its own gradient steps, each of which changes a few rows of its tables
CountModel                      beside one of them: learns by counting instead

Models of a target given a source, the parallel ones among them, are in `interface.conditional`; what only some models
can do is in `interface.capabilities`.

Conventions. BOS lives inside the model: `start` gives the first prediction, so no decoder knows about it. EOS is
an ordinary token. State is passed, never stored; `extend` may use its state up in place, `types.select` copies.
`extend` in chunks of any size equals `logits` on the whole, and `testing.check_model` proves it for each family.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, cast, final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.errors import DataError
from chainrule.types import Batch, Sequences, State, Step


class Model(nn.Module, ABC):
    """A family's model, whatever its questions are."""

    Config: ClassVar[type[ModelConfig]]
    task: ClassVar[str]  # the name of its task in `tasks.TASKS`
    compared_on: ClassVar[tuple[str, ...]] = ()  # other tasks whose default comparison includes the family

    config: ModelConfig

    check_exceptions: ClassVar[Mapping[str, str]] = {}
    """Checks that the family need not pass, or `check_model` as a whole, each with the reason (see `testing`)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = config.vocabulary

    @property
    def context(self) -> int | None:
        """The longest sequence that the model can read from its start; None where there is no limit.

        Longer text is read by moving a window (see `evaluation.likelihood` and `decoding.generation`), which is a
        choice of protocol and not a property of the distribution, so models never do it by themselves.
        """
        return None

    @property
    def source_context(self) -> int | None:
        """The longest source that the model can read; None if there is no limit, or no source."""
        return None

    def require_room(self, length: int) -> None:
        """Refuse a sequence that is longer than the context."""
        if self.context is not None and length > self.context:
            raise DataError(
                f"a sequence of {length} tokens does not fit into the context of {self.context}; "
                "score it by windows, cut it, or train with a larger context"
            )

    @property
    def device(self) -> torch.device:
        """Where the model's numbers live."""
        for tensor in itertools.chain(self.parameters(), self.buffers()):  # of which the first one is enough
            return tensor.device
        return torch.device("cpu")

    @classmethod
    def summary(cls) -> str:
        """The first line of the family's docstring."""
        return (cls.__doc__ or "").strip().split("\n")[0]


class DensityModel(Model):
    """A distribution over sequences, perhaps given a source."""

    likelihood: ClassVar[Literal["exact", "lower_bound"]] = "exact"

    @abstractmethod
    def log_prob(self, batch: Batch) -> Tensor:
        """(B,) nats: log P(target | source), or a lower bound where `likelihood` says so."""


class AutoregressiveModel(DensityModel):
    """A model that predicts each token from the ones before it."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """(B, T, V); [:, t] predicts target.ids[:, t] from the tokens before it."""

    @abstractmethod
    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        """The prediction of the first token, (B, 1, V), and the state that has read nothing but BOS."""

    @abstractmethod
    def extend(self, tokens: Tensor, state: State) -> Step:
        """Read tokens (B, K) after those in the state: prefill, single steps and streams alike."""

    @property
    def receptive_field(self) -> int | None:
        """How many of the tokens before it a prediction can depend on; None where there is no limit."""
        return self.context

    @final
    def logits_at(self, batch: Batch, mask: Tensor) -> Tensor:
        """(N, V) logits of the N positions where `mask` (B, T) is true, in row-major order."""
        return torch.cat(list(self.logits_in_chunks(batch, mask, chunk_size=max(1, mask.numel()))))

    def logits_in_chunks(self, batch: Batch, mask: Tensor, *, chunk_size: int) -> Iterator[Tensor]:
        """`logits_at` in chunks of at most `chunk_size` positions, which bounds the memory of large vocabularies."""
        yield from torch.split(self.logits(batch)[mask], chunk_size)

    @property
    def masks_before_readout(self) -> bool:
        """Whether `logits_at` computes logits at the masked positions only, and not (B, T, V)."""
        return False

    @final
    def step(self, token: Tensor, state: State) -> Step:
        """Read one token (B,) and predict the next."""
        return self.extend(token[:, None], state)

    @final
    def token_log_probs(self, batch: Batch) -> Tensor:
        """(B, T) nats of each token given those before it; zero past the end of a row."""
        log_probs = F.log_softmax(self.logits(batch), dim=-1)
        ids = batch.target.ids.clamp(0, self.vocabulary - 1)
        return log_probs.gather(-1, ids[..., None])[..., 0].masked_fill(~batch.target.mask, 0.0)

    def log_prob(self, batch: Batch) -> Tensor:
        return self.token_log_probs(batch).sum(-1)


RECURRENT_RECIPE: Mapping[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 0.003,
    "betas": (0.9, 0.999),
    "weight_decay": 0.0,
}
"""Training settings for recurrent families.

AdamW instead of Muon: an error in a recurrent matrix acts on every time step, and the size of Muon's updates does not
depend on the gradient. No weight decay: recurrent cells are not normalised, so shrinking weights reduces capacity.
"""


class Trainable(Model):
    """A model that learns by gradients: what an optimizer and a training loop must know of it."""

    recipe: ClassVar[Mapping[str, Any]] = {}
    """Training settings that suit the family: the defaults of `TrainConfig` as far as its user leaves them open."""

    tokenizer: ClassVar[str] = "chars"
    """What text is cut into, unless the user says otherwise."""

    @abstractmethod
    def tables(self) -> Iterator[nn.Parameter]:
        """The parameters with a vector per token or position, embeddings and readouts; optimizers treat them apart."""

    @abstractmethod
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        """Let a new model begin by predicting these frequencies of tokens (V,), up to a constant, whatever it reads.

        They can be counted in a moment, where learning them one small step at a time takes most of a short training.
        A family whose readout has no bias begins without.
        """


class OwnObjective(Trainable):
    """A model that no objective over the next token can train, so it brings its own."""

    @abstractmethod
    def draw_noise(self, batch: Batch) -> Tensor:
        """(B, ·) numbers from [0, 1): all that is random about the loss of a batch but dropout, row by row.

        They are drawn apart, so that a batch that is computed in pieces has the loss of the whole.
        """

    @abstractmethod
    def loss(self, batch: Batch, noise: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """The sum over the rows of what training minimises, in nats, with `smoothing` of each token's mass spread."""


class SparseUpdates(OwnObjective):
    """A model that applies its own gradient steps, because each step changes only a few rows of large tables.

    Dense gradients and an optimizer over all rows would take many times as long.
    """

    @property
    @abstractmethod
    def noise_width(self) -> int:
        """Random numbers that `update` needs for each token."""

    @abstractmethod
    def update(self, ids: npt.NDArray[np.int64], noise: npt.NDArray[np.float64], learning_rate: float) -> float:
        """Update the parameters by consecutive tokens (N,) of a text and random numbers (N, noise_width) from [0, 1).

        Returns the summed loss, each term computed before the step that it causes.
        """


class Advance(NamedTuple):
    """Hidden vectors of the tokens just read, and the state after them."""

    hidden: Tensor  # (B, K, D); readout of [:, i] predicts the token after tokens[:, i]
    state: State


class NeuralModel(Trainable, AutoregressiveModel):
    """A model whose predictions are a readout of hidden vectors.

    The split lets a loss skip padded positions, and lets a `TabledReadout` touch only some rows of the vocabulary.
    """

    @property
    def bos(self) -> int:
        """The id that stands before the first token: one past the vocabulary, so no text can contain it."""
        return self.vocabulary

    @property
    def segment(self) -> int:
        """Tokens in one row of a training batch, unless the user says otherwise."""
        return self.context or 64

    def hidden(self, batch: Batch) -> Tensor:
        """(B, T, D); readout of [:, t] predicts target.ids[:, t].

        By default `advance` over the whole target. Families that have a faster parallel form override it.
        """
        tokens = shift_right(readable(batch.target), self.bos)
        return self.advance(tokens, self.initial(batch.source, len(tokens))).hidden

    @abstractmethod
    def readout(self, hidden: Tensor) -> Tensor:
        """(..., D) to logits (..., V)."""

    @abstractmethod
    def initial(self, source: Sequences | None, batch_size: int) -> State:
        """The state before BOS."""

    @abstractmethod
    def advance(self, tokens: Tensor, state: State) -> Advance:
        """Read tokens (B, K), BOS among them, after those in the state."""

    @final
    def logits(self, batch: Batch) -> Tensor:
        return self.readout(self.hidden(batch))

    @final
    def logits_in_chunks(self, batch: Batch, mask: Tensor, *, chunk_size: int) -> Iterator[Tensor]:
        for hidden in torch.split(self.hidden(batch)[mask], chunk_size):
            yield self.readout(hidden)

    @property
    def masks_before_readout(self) -> bool:
        return True

    @final
    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        rows = batch_size if source is None else source.ids.shape[0]
        bos = torch.full((rows, 1), self.bos, dtype=torch.int64, device=self.device)
        hidden, state = self.advance(bos, self.initial(source, rows))
        return Step(self.readout(hidden), state)

    @final
    def extend(self, tokens: Tensor, state: State) -> Step:
        hidden, state = self.advance(tokens, state)
        return Step(self.readout(hidden), state)


class Table(NamedTuple):
    """The weights of a linear readout."""

    weight: Tensor  # (R, D) with R ≥ V: rows past the vocabulary, such as BOS, are never read out
    bias: Tensor | None = None  # (V,)


class Scores(NamedTuple):
    """Logits of some tokens only."""

    own: Tensor  # (N,) each row's own token
    shared: Tensor  # (N, M) tokens that all rows share


class TabledReadout(NeuralModel):
    """A neural model whose logits are W h + b: a vector and perhaps a bias for each token.

    What a sampled objective needs follows from the table alone. A family defines `readout_table` and has its readout
    for free; it may still write its own where that is faster.
    """

    @abstractmethod
    def readout_table(self) -> Table:
        """W and b, as parameters or views of parameters."""

    def readout(self, hidden: Tensor) -> Tensor:
        weight, bias = self.readout_table()
        return F.linear(hidden, weight[: self.vocabulary], bias)

    @torch.no_grad()
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        bias = self.readout_table().bias
        if bias is not None:
            bias.copy_(log_frequencies)

    @final
    def scores(self, hidden: Tensor, own: Tensor, shared: Tensor) -> Scores:
        """Logits of hidden vectors (N, D) for a token of their own (N,) and for tokens of all (M,)."""
        weight, bias = self.readout_table()
        ids = torch.cat([own, shared])  # looked up at once, because each look-up has a gradient as large as the table
        own_rows, shared_rows = F.embedding(ids, weight).tensor_split([len(own)])
        scores = Scores(torch.linalg.vecdot(hidden, own_rows), hidden @ shared_rows.t())
        if bias is None:
            return scores
        own_bias, shared_bias = bias[ids].tensor_split([len(own)])
        return Scores(scores.own + own_bias, scores.shared + shared_bias)


def shift_right(ids: Tensor, bos: int) -> Tensor:
    """What a model reads in order to predict `ids`: BOS, then all but the last token. The one shift in the package."""
    return F.pad(ids, (1, 0), value=bos)[:, :-1]


def readable(target: Sequences) -> Tensor:
    """The ids with what lies past the lengths set to 0, so that padding may hold anything."""
    return target.ids.masked_fill(~target.mask, 0)


@final
class Recomputed(AutoregressiveModel):
    """Any model, with `start` and `extend` derived from `logits` alone: slow, and therefore the reference."""

    def __init__(self, model: AutoregressiveModel) -> None:
        super().__init__(ModelConfig(vocabulary=model.vocabulary))
        self.model = model

    @property
    def context(self) -> int | None:
        return self.model.context

    def logits(self, batch: Batch) -> Tensor:
        return self.model.logits(batch)

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        rows = batch_size if source is None else source.ids.shape[0]
        nothing = torch.zeros(rows, 0, dtype=torch.int64, device=self.device)
        return self._predict(nothing, () if source is None else (source.ids, source.lengths), since=0)

    def extend(self, tokens: Tensor, state: State) -> Step:
        ids, *source = cast(tuple[Tensor, ...], state)
        return self._predict(torch.cat([ids, tokens], dim=1), tuple(source), since=ids.shape[1] + 1)

    def _predict(self, ids: Tensor, source: tuple[Tensor, ...], since: int) -> Step:
        """Append a token that nothing may look at; `logits` then holds a prediction after every token read."""
        padded = F.pad(ids, (0, 1))
        batch = Batch(Sequences.full(padded), Sequences(*source) if source else None)
        return Step(self.model.logits(batch)[:, since:], (ids, *source))


class CountModel(ABC):
    """A model that learns by counting. Observing a text in pieces of any size equals observing it at once."""

    @abstractmethod
    def observe(self, target: Sequences, state: State | None = None) -> State:
        """Count every real token given what came before it; the state lets the next piece carry on.

        Without a state the rows begin at BOS. The rows of a piece must be full if another one follows.
        """

    @classmethod
    def suggested_settings(cls, vocabulary: int) -> dict[str, Any]:
        """Model settings that suit a vocabulary of this size, where the defaults do not."""
        return {}

    @abstractmethod
    def estimate(self) -> None:
        """Turn the counts into probabilities. Observing more afterwards and estimating again is allowed."""
