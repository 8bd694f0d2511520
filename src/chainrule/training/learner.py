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
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

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
from chainrule.types import Batch, Sequences, State, detach, map_state, merge, select, tensors

METRIC_ROWS = 256  # hidden vectors that the metrics of an objective are computed on


class Loss(NamedTuple):
    """A summed loss and the number of predictions in the sum."""

    total: float  # nats, if the objective is a likelihood
    tokens: int


class Learner(ABC):
    """Adds the gradient of a batch's mean loss to the parameters.

    A batch may be computed in pieces (gradient accumulation). Each piece adds its summed loss divided by the number of
    tokens in the whole batch, so the gradient does not depend on how the batch is split.
    """

    def __init__(self, model: Trainable, *, pieces: int = 1, half: bool = False) -> None:
        self.device = model.device
        self.pieces = pieces
        self.half = half

    @property
    @abstractmethod
    def measures_surprisal(self) -> bool:
        """Whether the loss is −log P of the tokens, so that it converts to bits per byte."""

    @abstractmethod
    def gradient(self, batch: Batch | Segment) -> Loss:
        """Compute the loss and add its gradient."""

    @abstractmethod
    def metrics(self, batch: Batch | Segment) -> dict[str, float]:
        """Return the objective's own metrics on the next training batch."""

    @abstractmethod
    def carried(self) -> list[Tensor]:
        """Return the state carried from batch to batch, which a checkpoint stores to resume exactly."""

    @abstractmethod
    def restore(self, carried: Sequence[Tensor]) -> None:
        """Restore what `carried` has returned."""

    def precision(self) -> contextlib.AbstractContextManager[object]:
        if not self.half:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


@final
class WholeTargets(Learner):
    """Trains a model by its own objective."""

    def __init__(
        self,
        model: OwnObjective,
        *,
        smoothing: float = 0.0,
        pieces: int = 1,
        half: bool = False,
        compiled: bool = False,
    ) -> None:
        super().__init__(model, pieces=pieces, half=half)
        self.model = model
        self.smoothing = smoothing
        self.loss = torch.compile(model.loss) if compiled else model.loss

    @property
    def measures_surprisal(self) -> bool:
        return False

    def gradient(self, batch: Batch | Segment) -> Loss:
        assert isinstance(batch, Batch)
        batch = batch.to(self.device)
        tokens = int(batch.target.lengths.sum())
        noise = self.model.draw_noise(batch)
        total = 0.0
        for rows in torch.arange(len(noise), device=self.device).chunk(self.pieces):
            with self.precision():
                loss = self.loss(_rows_of(batch, rows), noise[rows], smoothing=self.smoothing)
                (loss / tokens).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return Loss(total, tokens)

    def metrics(self, batch: Batch | Segment) -> dict[str, float]:
        return {}

    def carried(self) -> list[Tensor]:
        return []

    def restore(self, carried: Sequence[Tensor]) -> None:
        pass


class NextTokens(Learner):
    """Trains a model of the next token by an objective over its hidden vectors."""

    def __init__(
        self, model: NeuralModel, objective: Objective, *, pieces: int = 1, half: bool = False, compiled: bool = False
    ) -> None:
        super().__init__(model, pieces=pieces, half=half)
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

    def _backward(self, objective: Objective, hidden: Tensor, targets: Tensor, tokens: int) -> float:
        loss = objective(self.model, hidden, targets)
        (loss / tokens).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())


@final
class WholeSequences(NextTokens):
    """Every row starts at BOS: documents, and windows of a stream."""

    def gradient(self, batch: Batch | Segment) -> Loss:
        assert isinstance(batch, Batch)
        batch = batch.to(self.model.device)
        tokens = int(batch.target.lengths.sum())
        objective = self.objective.for_step()
        total = 0.0
        for piece in _cut(batch, self.pieces):
            with self.precision():
                hidden = self.hidden(piece)  # (B, T, D)
                real = piece.target.mask
                total += self._backward(objective, hidden[real], piece.target.ids[real], tokens)
        return Loss(total, tokens)

    def hidden_vectors(self, batch: Batch | Segment) -> Tensor:
        assert isinstance(batch, Batch)
        batch = batch.to(self.model.device)
        return self.hidden(batch)[batch.target.mask]

    def carried(self) -> list[Tensor]:
        return []

    def restore(self, carried: Sequence[Tensor]) -> None:
        pass


@final
class CarriedSegments(NextTokens):
    """Truncated back-propagation through time: rows are lanes of a stream whose state carries over."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.state: State | None = None

    def gradient(self, batch: Batch | Segment) -> Loss:
        assert isinstance(batch, Segment)
        device = self.model.device
        inputs, targets = batch.inputs.to(device), batch.targets.to(device)
        if batch.fresh or self.state is None:
            self.state = self._initial(len(inputs))
        objective = self.objective.for_step()
        total = 0.0
        states = []
        for rows in torch.arange(len(inputs), device=device).chunk(self.pieces):
            with self.precision():
                hidden, state = self.advance(inputs[rows], select(self.state, rows))
                total += self._backward(objective, hidden.flatten(0, 1), targets[rows].flatten(), targets.numel())
            states.append(detach(state))
        self.state = merge(states) if len(states) > 1 else states[0]
        return Loss(total, targets.numel())

    def hidden_vectors(self, batch: Batch | Segment) -> Tensor:
        assert isinstance(batch, Segment)
        inputs = batch.inputs.to(self.model.device)
        before = self._initial(len(inputs)) if batch.fresh or self.state is None else self.state
        state: State = map_state(torch.clone, before)  # advance may modify it in place
        return self.advance(inputs, state).hidden.flatten(0, 1)

    def carried(self) -> list[Tensor]:
        return [] if self.state is None else [tensor.clone().contiguous() for tensor in tensors(self.state)]

    def restore(self, carried: Sequence[Tensor]) -> None:
        if carried:
            saved = iter(carried)
            self.state = map_state(lambda blank: next(saved).to(blank), self._initial(len(carried[0])))

    def _initial(self, rows: int) -> State:
        with torch.no_grad():
            return self.model.start(batch_size=rows).state


def build_learner(
    model: Trainable, settings: TrainConfig, unigrams: Noise, next_tokens: type[NextTokens] = WholeSequences
) -> Learner:
    """Return the learner of a model: by its own objective, or by that of the settings over its next tokens."""
    pieces, half, compiled = settings.accumulate, _half(settings, model), settings.compile
    if isinstance(model, NeuralModel):
        objective = _objective(settings, unigrams, model)
        return next_tokens(model, objective, pieces=pieces, half=half, compiled=compiled)
    if settings.objective != "likelihood":
        raise ConfigError(
            f"{type(model).__name__} has its own objective, but train.objective is {settings.objective!r}; leave it out"
        )
    assert isinstance(model, OwnObjective)
    return WholeTargets(model, smoothing=settings.label_smoothing, pieces=pieces, half=half, compiled=compiled)


NOISE_OBJECTIVES: dict[str, type[NoiseObjective]] = {"nce": NoiseContrastive, "sampled": SampledSoftmax}


def _objective(settings: TrainConfig, unigrams: Noise, model: NeuralModel) -> Objective:
    if settings.objective in NOISE_OBJECTIVES:
        require_table(model)  # raises before anything is written
        noise = unigrams if settings.noise == "unigram" else Noise.uniform(model.vocabulary)
        return NOISE_OBJECTIVES[settings.objective](noise, settings.noise_samples)
    if isinstance(model, Branched) and model.branch_loss:
        return BranchLikelihood(model.branch_loss, settings.label_smoothing, model.branch_share)
    return SmoothedLikelihood(settings.label_smoothing) if settings.label_smoothing else Likelihood()


def _half(settings: TrainConfig, model: Trainable) -> bool:
    """Return whether to compute in bfloat16: if set, or if it is "auto" and the device has hardware for it."""
    if settings.precision == "auto":
        return model.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return settings.precision == "bfloat16"


def _cut(batch: Batch, pieces: int) -> Iterable[Batch]:
    """Split the rows of a batch into at most `pieces` parts."""
    if pieces == 1:
        yield batch
        return
    for rows in torch.arange(len(batch.target.ids), device=batch.target.ids.device).chunk(pieces):
        yield _rows_of(batch, rows)


def _rows_of(batch: Batch, rows: Tensor) -> Batch:
    source = batch.source
    return Batch(_rows(batch.target, rows), None if source is None else _rows(source, rows))


def _rows(sequences: Sequences, rows: Tensor) -> Sequences:
    return Sequences(sequences.ids[rows], sequences.lengths[rows])
