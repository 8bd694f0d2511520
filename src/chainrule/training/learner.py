"""Learners compute the gradient of a batch, at once or accumulated over pieces.

Learner
├── WholeTargets           a model with its own objective
└── NextTokens             a model of the next token, with an objective over its hidden vectors
    ├── WholeSequences     every row starts at BOS
    └── CarriedSegments    truncated back-propagation through time: the state carries over to the next batch
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from chainrule.config import TrainConfig
from chainrule.data.batching import Segment
from chainrule.errors import ConfigError
from chainrule.interface.base import NeuralModel, OwnObjective, Trainable
from chainrule.interface.capabilities import Branched
from chainrule.objectives import (
    BranchLikelihood,
    Likelihood,
    Noise,
    NoiseContrastive,
    NoiseObjective,
    Objective,
    ReportsMetrics,
    SampledSoftmax,
    SmoothedLikelihood,
    require_table,
)
from chainrule.training.placement import Placement, Whole
from chainrule.training.precision import computing_type
from chainrule.types import Batch, Sequences, State, detach, map_state, merge, select, tensors

METRIC_ROWS = 256  # hidden vectors that the metrics of an objective are computed on


class Loss(NamedTuple):
    """A summed loss and the number of predictions in the sum."""

    total: float  # nats, if the objective is a likelihood
    tokens: int


class Learner(ABC):
    """Adds the gradient of a batch's mean loss to the parameters.

    A batch may be computed in pieces (gradient accumulation), and by several processes, each with its own rows. Each
    piece adds its summed loss divided by the number of tokens in the whole batch, so the gradient does not depend on
    how the batch is split.
    """

    def __init__(
        self, model: Trainable, *, pieces: int = 1, half: torch.dtype | None = None, placement: Placement | None = None
    ) -> None:
        self.device = model.device
        self.pieces = pieces
        self.half = half  # the type to compute in, if it is not that of the weights
        self.placement = placement or Whole(model)

    @property
    @abstractmethod
    def measures_surprisal(self) -> bool:
        """Whether the loss is −log P of the tokens, so that it converts to bits per byte."""

    @final
    def gradient(self, batch: Batch | Segment, *, idle: bool = False, seed: int = 0, loss_scale: float = 1.0) -> Loss:
        """Compute the loss and add its gradient times `loss_scale`.

        `batch` has the rows of this process; if it is `idle`, they do not count, since another process has them. With
        several processes, `seed` determines their dropout.
        """
        processes = self.placement.processes
        rows, tokens = self.size(batch)
        pieces = torch.arange(rows, device=self.device).chunk(self.pieces)
        counts = processes.gather(*((0, 0) if idle else (rows, tokens)), len(pieces))
        all_rows, all_tokens, _ = (int(sum(column)) for column in zip(*counts, strict=True))
        passes = int(max(count for *_, count in counts))  # in each process, since a sharded model is gathered in each
        losses = self.begin(batch, all_rows)
        total = 0.0
        with processes.own_randomness(seed, self.device):
            for number in range(passes):
                counted = number < len(pieces) and not idle
                with self.placement.accumulating(last=number == passes - 1):
                    with self.precision():
                        loss = self.placement(losses, pieces[min(number, len(pieces) - 1)])
                    scale = processes.world / all_tokens if counted else 0.0  # the gradients of processes are averaged
                    (loss_scale * scale * loss).backward()  # type: ignore[no-untyped-call]
                total += float(loss.detach()) if counted else 0.0
        self.end(len(pieces))
        [total] = processes.sum(total)
        return Loss(total, all_tokens)

    @abstractmethod
    def size(self, batch: Batch | Segment) -> tuple[int, int]:
        """Rows and tokens."""

    @abstractmethod
    def begin(self, batch: Batch | Segment, all_rows: int) -> Callable[[Tensor], Tensor]:
        """Draw the random numbers of a step; return the function that sums the loss of some rows.

        The numbers do not depend on how many processes share the `all_rows` rows of the batch.
        """

    def end(self, pieces: int) -> None:  # noqa: B027  # most have nothing to do
        """The losses of all pieces have been computed."""

    @abstractmethod
    def metrics(self, batch: Batch | Segment) -> dict[str, float]:
        """Return the objective's own metrics on the next training batch."""

    def carried(self) -> list[Tensor]:
        """Return the state carried from batch to batch, which a checkpoint stores to resume exactly."""
        return []

    def restore(self, carried: Sequence[Tensor]) -> None:  # noqa: B027  # most carry nothing
        """Restore what `carried` has returned."""

    def precision(self) -> contextlib.AbstractContextManager[object]:
        if self.half is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.half)


@final
class WholeTargets(Learner):
    """Trains a model by its own objective."""

    def __init__(
        self,
        model: OwnObjective,
        *,
        smoothing: float = 0.0,
        compiled: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(model, **settings)
        self.model = model
        self.smoothing = smoothing
        self.loss = torch.compile(model.loss) if compiled else model.loss

    @property
    def measures_surprisal(self) -> bool:
        return False

    def size(self, batch: Batch | Segment) -> tuple[int, int]:
        return _size(batch)

    def begin(self, batch: Batch | Segment, all_rows: int) -> Callable[[Tensor], Tensor]:
        assert isinstance(batch, Batch)
        batch = batch.to(self.device)
        noise = self._noise(batch, all_rows)
        return lambda rows: self.loss(_rows_of(batch, rows), noise[rows], smoothing=self.smoothing)

    def _noise(self, batch: Batch, all_rows: int) -> Tensor:
        """The noise of these rows among all rows of the batch, which have the same width in every process."""
        processes, own = self.placement.processes, len(batch.target.ids)
        if processes.world == 1:
            return self.model.draw_noise(batch)
        noise = self.model.draw_noise(_rows_of(batch, torch.arange(all_rows, device=self.device) % own))
        return noise[processes.rank :: processes.world] if processes.rank < all_rows else noise[:own]

    def metrics(self, batch: Batch | Segment) -> dict[str, float]:
        return {}


class NextTokens(Learner):
    """Trains a model of the next token by an objective over its hidden vectors."""

    def __init__(self, model: NeuralModel, objective: Objective, *, compiled: bool = False, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.model = model
        self.objective = objective
        self.hidden = torch.compile(model.hidden) if compiled else model.hidden
        self.advance = torch.compile(model.advance) if compiled else model.advance

    @property
    def measures_surprisal(self) -> bool:
        return self.objective.measures_surprisal

    @final
    @torch.no_grad()
    def metrics(self, batch: Batch | Segment) -> dict[str, float]:
        if not isinstance(self.objective, ReportsMetrics):
            return {}
        with self.precision():
            return self.objective.metrics(self.model, self.hidden_vectors(batch)[:METRIC_ROWS])

    @abstractmethod
    def hidden_vectors(self, batch: Batch | Segment) -> Tensor:
        """Return the hidden vectors (N, D) of all predictions of a batch, without changing the carried state."""


@final
class WholeSequences(NextTokens):
    """Every row starts at BOS: documents, and windows of a stream."""

    def size(self, batch: Batch | Segment) -> tuple[int, int]:
        return _size(batch)

    def begin(self, batch: Batch | Segment, all_rows: int) -> Callable[[Tensor], Tensor]:
        assert isinstance(batch, Batch)
        batch = batch.to(self.device)
        objective = self.objective.for_step()

        def loss(rows: Tensor) -> Tensor:
            piece = batch if self.pieces == 1 else _rows_of(batch, rows)
            real = piece.target.mask
            return objective(self.model, self.hidden(piece)[real], piece.target.ids[real])

        return loss

    def hidden_vectors(self, batch: Batch | Segment) -> Tensor:
        assert isinstance(batch, Batch)
        batch = batch.to(self.device)
        return self.hidden(batch)[batch.target.mask]


@final
class CarriedSegments(NextTokens):
    """Truncated back-propagation through time: rows are lanes of a stream whose state carries over."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.state: State | None = None
        self._advanced: list[State] = []  # of the pieces of a step

    def size(self, batch: Batch | Segment) -> tuple[int, int]:
        assert isinstance(batch, Segment)
        return len(batch.targets), batch.targets.numel()

    def begin(self, batch: Batch | Segment, all_rows: int) -> Callable[[Tensor], Tensor]:
        assert isinstance(batch, Segment)
        inputs, targets = batch.inputs.to(self.device), batch.targets.to(self.device)
        if batch.fresh or self.state is None:
            self.state = self._initial(len(inputs))
        objective = self.objective.for_step()
        before = self.state

        def loss(rows: Tensor) -> Tensor:
            hidden, state = self.advance(inputs[rows], select(before, rows))
            self._advanced.append(detach(state))
            return objective(self.model, hidden.flatten(0, 1), targets[rows].flatten())

        return loss

    def end(self, pieces: int) -> None:
        states, self._advanced = self._advanced[:pieces], []
        self.state = merge(states) if len(states) > 1 else states[0]

    def hidden_vectors(self, batch: Batch | Segment) -> Tensor:
        assert isinstance(batch, Segment)
        inputs = batch.inputs.to(self.device)
        before = self._initial(len(inputs)) if batch.fresh or self.state is None else self.state
        state: State = map_state(torch.clone, before)  # advance may modify it in place
        return self.advance(inputs, state).hidden.flatten(0, 1)

    def carried(self) -> list[Tensor]:
        if self.state is None:
            return []
        return [self.placement.processes.all_rows(tensor).clone().contiguous() for tensor in tensors(self.state)]

    def restore(self, carried: Sequence[Tensor]) -> None:
        if carried:
            processes = self.placement.processes
            own = [tensor[processes.rank :: processes.world] for tensor in carried]
            saved = iter(own)
            self.state = map_state(lambda blank: next(saved).to(blank), self._initial(len(own[0])))

    def _initial(self, rows: int) -> State:
        with torch.no_grad():
            return self.model.start(batch_size=rows).state


def build_learner(
    placement: Placement, settings: TrainConfig, unigrams: Noise, next_tokens: type[NextTokens] = WholeSequences
) -> Learner:
    """Return the learner of a model: by its own objective, or by that of the settings over its next tokens."""
    model = placement.model
    how: dict[str, Any] = {
        "pieces": settings.accumulate,
        "half": computing_type(settings, model),
        "compiled": settings.compile,
        "placement": placement,
    }
    if isinstance(model, NeuralModel):
        return next_tokens(model, _objective(settings, unigrams, model), **how)
    if settings.objective != "likelihood":
        raise ConfigError(
            f"{type(model).__name__} has its own objective, but train.objective is {settings.objective!r}; leave it out"
        )
    assert isinstance(model, OwnObjective)
    return WholeTargets(model, smoothing=settings.label_smoothing, **how)


NOISE_OBJECTIVES: dict[str, type[NoiseObjective]] = {"nce": NoiseContrastive, "sampled": SampledSoftmax}


def _objective(settings: TrainConfig, unigrams: Noise, model: NeuralModel) -> Objective:
    if settings.objective in NOISE_OBJECTIVES:
        require_table(model)  # raises before anything is written
        noise = unigrams if settings.noise == "unigram" else Noise.uniform(model.vocabulary)
        return NOISE_OBJECTIVES[settings.objective](noise, settings.noise_samples)
    if isinstance(model, Branched) and model.branch_loss:
        return BranchLikelihood(model.branch_loss, settings.label_smoothing, model.branch_share)
    return SmoothedLikelihood(settings.label_smoothing) if settings.label_smoothing else Likelihood()


def _size(batch: Batch | Segment) -> tuple[int, int]:
    assert isinstance(batch, Batch)
    return len(batch.target.ids), int(batch.target.lengths.sum())


def _rows_of(batch: Batch, rows: Tensor) -> Batch:
    source = batch.source
    return Batch(_rows(batch.target, rows), None if source is None else _rows(source, rows))


def _rows(sequences: Sequences, rows: Tensor) -> Sequences:
    return Sequences(sequences.ids[rows], sequences.lengths[rows])
