"""The interface: every model is a factorisation log P(x | s) = Σ_t log P(x_t | x_<t, s).

Model                           the network of a family, its settings and limits
├── DensityModel                the log-probability of a sequence
│   └── AutoregressiveModel     ... and next-token predictions with an explicit state
│       ├── NeuralModel         logits = readout(hidden), trained by gradients
│       │   └── TabledReadout   ... with a linear readout, so that the logits of a few tokens can be computed alone
│       └── Recomputed          any model without its cache: the reference for incremental decoding
└── Trainable                   trained by gradients
    └── OwnObjective            ... with a loss that is not a sum over next-token predictions
        └── SparseUpdates       ... and its own gradient steps, each of which changes a few rows of its tables
CountModel                      mixed into one of them: estimated from counts instead

Models of a target given a source, including parallel ones, are in `interface.conditional`; optional capabilities are in
`interface.capabilities`.

Conventions. BOS is internal to the model: `start` returns the first prediction, so decoders never handle it. EOS is an
ordinary token. State is passed, never stored; `extend` may modify its state in place, `types.select` copies.
`extend` in chunks of any size equals `logits` on the whole sequence, which `testing.check_model` verifies for each
family.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, cast, final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chainrule.config import ModelConfig
from chainrule.errors import DataError
from chainrule.kernels import step
from chainrule.types import Batch, Sequences, State, Step


class Model(nn.Module, ABC):
    """The base class of all families."""

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
        """Maximum sequence length; None: unlimited.

        Longer texts need a sliding window (see `evaluation.protocol` and `decoding.generation`), which is a choice of
        protocol and not a property of the distribution, so models never apply one themselves.
        """
        return None

    @property
    def source_context(self) -> int | None:
        """Maximum source length; None: unlimited, or no source."""
        return None

    def require_room(self, length: int) -> None:
        """Raise DataError if a sequence of this length exceeds the context."""
        if self.context is not None and length > self.context:
            raise DataError(
                f"a sequence of {length} tokens does not fit into the context of {self.context}; "
                "score it with a sliding window, truncate it, or train with a larger context"
            )

    @property
    def device(self) -> torch.device:
        """The device of the parameters and buffers."""
        for module in self.modules():  # the first tensor suffices; `parameters()` takes longer to begin
            for tensor in itertools.chain(module._parameters.values(), module._buffers.values()):
                if tensor is not None:
                    return tensor.device
        return torch.device("cpu")

    @classmethod
    def summary(cls) -> str:
        """The first line of the family's docstring."""
        return (cls.__doc__ or "").strip().split("\n")[0]


class DensityModel(Model):
    """A distribution over sequences, optionally given a source."""

    likelihood: ClassVar[Literal["exact", "lower_bound"]] = "exact"

    @abstractmethod
    def log_prob(self, batch: Batch) -> Tensor:
        """(B,) nats: log P(target | source), or a lower bound if `likelihood` is "lower_bound"."""


class AutoregressiveModel(DensityModel):
    """A model that predicts each token from the ones before it."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """(B, T, V); [:, t] predicts target.ids[:, t] from the tokens before it."""

    @abstractmethod
    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        """The prediction of the first token, (B, 1, V), and the state after BOS."""

    @abstractmethod
    def extend(self, tokens: Tensor, state: State) -> Step:
        """Append tokens (B, K) to the state: for prefill, single steps and streaming."""

    @property
    def receptive_field(self) -> int | None:
        """Maximum number of preceding tokens that a prediction depends on; None: unlimited."""
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
        """Append one token (B,) and predict the next."""
        return self.extend(token[:, None], state)

    @final
    def token_log_probs(self, batch: Batch) -> Tensor:
        """(B, T) nats of each token given those before it; zero at padding."""
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
    """A model trained by gradients, with what the optimizer and the training loop need."""

    recipe: ClassVar[Mapping[str, Any]] = {}
    """Default training settings of the family; they replace those of `TrainConfig`."""

    tokenizer: ClassVar[str] = "chars"
    """The default tokenizer."""

    width_per_layer: ClassVar[int | None] = None
    """Width divided by layers of a model that is sized for a small budget; None: always the default layers."""

    @abstractmethod
    def tables(self) -> Iterator[nn.Parameter]:
        """Embeddings and readouts, with a vector per token or position; optimizers treat them separately."""

    @abstractmethod
    def init_output_bias(self, log_frequencies: Tensor) -> None:
        """Initialise the output bias with the log-frequencies (V,) of the tokens, up to a constant.

        Counting them is fast, whereas learning them by gradient steps takes most of a short training. Does nothing in a
        family whose readout has no bias.
        """

    def used_parameters(self) -> float:
        """Parameters that a training step uses, in the mean: all, unless some steps skip a part of the model."""
        return float(sum(parameter.numel() for parameter in self.parameters()))


class OwnObjective(Trainable):
    """A model with a training objective of its own instead of one over next-token predictions."""

    @abstractmethod
    def draw_noise(self, batch: Batch) -> Tensor:
        """(B, ·) random numbers from [0, 1) for the loss of a batch; all randomness except dropout.

        They are drawn separately, so that gradient accumulation over parts of a batch equals the whole batch.
        """

    @abstractmethod
    def loss(self, batch: Batch, noise: Tensor, *, smoothing: float = 0.0) -> Tensor:
        """The training loss summed over rows, in nats, with label smoothing."""


class SparseUpdates(OwnObjective):
    """A model that applies its own gradient steps, because each step changes only a few rows of large tables.

    Dense gradients and an optimizer over all rows would take many times as long.
    """

    @property
    @abstractmethod
    def noise_width(self) -> int:
        """Number of random numbers per token that `update` needs."""

    @abstractmethod
    def update(self, ids: npt.NDArray[np.int64], noise: npt.NDArray[np.float64], learning_rate: float) -> float:
        """Update the parameters by consecutive tokens (N,) of a text and random numbers (N, noise_width) from [0, 1).

        Returns the summed loss, each term computed before the step that it causes.
        """


class Advance(NamedTuple):
    """Hidden vectors of the appended tokens, and the state after them."""

    hidden: Tensor  # (B, K, D); readout of [:, i] predicts the token after tokens[:, i]
    state: State


class NeuralModel(Trainable, AutoregressiveModel):
    """A model whose predictions are a readout of hidden vectors.

    The split allows a loss to skip padding, and a `TabledReadout` to compute the logits of a few tokens only.
    """

    @property
    def bos(self) -> int:
        """The id of the beginning of a sequence: one past the vocabulary, so no text contains it."""
        return self.vocabulary

    @property
    def segment(self) -> int:
        """Default number of tokens in one row of a training batch."""
        return self.context or 64

    @property
    def contiguous(self) -> int:
        """Tokens that training reads on with a carried state, at least, before it continues elsewhere in the text."""
        return 2048

    def hidden(self, batch: Batch) -> Tensor:
        """(B, T, D); readout of [:, t] predicts target.ids[:, t].

        By default this is `advance` over the whole target. Families with a faster parallel form override it.
        """
        tokens = shift_right(readable(batch.target), self.bos)
        return self.advance(tokens, self.initial(batch.source, len(tokens))).hidden

    @abstractmethod
    def readout(self, hidden: Tensor) -> Tensor:
        """(..., D) to logits (..., V)."""

    @abstractmethod
    def initial(self, source: Sequences | None, batch_size: int) -> State:
        """The state before BOS, in memory of its own, since a compiled step changes it in place."""

    @abstractmethod
    def advance(self, tokens: Tensor, state: State) -> Advance:
        """Append tokens (B, K), including BOS, to the state."""

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
        return self.extend(bos, self.initial(source, rows))

    @final
    def extend(self, tokens: Tensor, state: State) -> Step:
        if (compiled := step.extend(self, tokens, state)) is not None:
            return compiled
        hidden, state = self.advance(tokens, state)
        return Step(self.readout(hidden), state)


class Table(NamedTuple):
    """The weights of a linear readout."""

    weight: Tensor  # (R, D) with R ≥ V: rows past the vocabulary, such as BOS, are never predicted
    bias: Tensor | None = None  # (V,)


class Scores(NamedTuple):
    """Logits of a few tokens."""

    own: Tensor  # (N,) of one token per row
    shared: Tensor  # (N, M) of tokens shared by all rows


class TabledReadout(NeuralModel):
    """A neural model with logits W h + b: a weight vector and optionally a bias per token.

    Sampled objectives use the table directly. A family defines `readout_table` and inherits `readout`, which it may
    override by a faster one.
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
        """Logits of hidden vectors (N, D) for one token each, `own` (N,), and for common tokens, `shared` (M,)."""
        weight, bias = self.readout_table()
        ids = torch.cat([own, shared])  # one lookup, because the gradient of each is as large as the table
        own_rows, shared_rows = F.embedding(ids, weight).tensor_split([len(own)])
        scores = Scores(torch.linalg.vecdot(hidden, own_rows), hidden @ shared_rows.t())
        if bias is None:
            return scores
        own_bias, shared_bias = bias[ids].tensor_split([len(own)])
        return Scores(scores.own + own_bias, scores.shared + shared_bias)


def shift_right(ids: Tensor, bos: int) -> Tensor:
    """The inputs that predict `ids`: BOS, then all but the last token. The only shift in the package."""
    return F.pad(ids, (1, 0), value=bos)[:, :-1]


def readable(target: Sequences) -> Tensor:
    """The ids with padding set to 0, so that padding may hold any value."""
    return target.ids.masked_fill(~target.mask, 0)


@final
class Recomputed(AutoregressiveModel):
    """Any model with `start` and `extend` computed from `logits` without a cache: the reference for decoding."""

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
        """Append a dummy token, so that `logits` contains a prediction after every real token."""
        padded = F.pad(ids, (0, 1))
        batch = Batch(Sequences.full(padded), Sequences(*source) if source else None)
        return Step(self.model.logits(batch)[:, since:], (ids, *source))


class CountModel(ABC):
    """A model estimated from counts. Observing a text in parts of any size equals observing it at once."""

    @abstractmethod
    def observe(self, target: Sequences, state: State | None = None) -> State:
        """Count every real token in its context, and return the state from which the next part continues.

        Without a state the rows start at BOS. Rows must have no padding if another part follows.
        """

    @classmethod
    def suggested_settings(cls, vocabulary: int) -> dict[str, Any]:
        """Recommended model settings for a vocabulary of this size, where they differ from the defaults."""
        return {}

    @abstractmethod
    def estimate(self, progress: Callable[[float], None] | None = None) -> None:
        """Estimate probabilities from the counts. May be repeated after observing more, unless they are on disk."""

    def require_countable(self, tokens: npt.NDArray[Any], memory: int) -> None:  # noqa: B027  # no limit by default
        """Raise ConfigError if the settings ask for more than this text, or this many bytes of memory, can hold."""

    @property
    def events_counted(self) -> int:
        """Number of different events, such as n-grams, that the counts hold so far."""
        return 0
