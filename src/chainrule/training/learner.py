"""The gradient of one batch, whole or in pieces, with or without a memory of the text before it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from chainrule.data.batching import Segment
from chainrule.interface.base import NeuralModel, OwnObjective, Trainable
from chainrule.objectives import Objective, ReportsMetrics
from chainrule.types import Batch, Sequences, State, detach, map_state, merge, select, tensors

REPORTED_ROWS = 256  # hidden vectors that the figures of an objective are taken from


class Loss(NamedTuple):
    """A loss and the number of predictions that it sums over."""

    total: float  # nats, where the objective measures surprisal
    tokens: int


class Learner(ABC):
    """Adds the gradient of a batch's mean loss to the parameters.

    A batch may be computed in pieces. Each piece adds its summed loss divided by the tokens of the whole batch, so
    the gradient does not depend on how the batch was cut.
    """

    def __init__(self, model: Trainable, *, pieces: int = 1, half: bool = False) -> None:
        self.device = model.device
        self.pieces = pieces
        self.half = half

    @property
    @abstractmethod
    def measures_surprisal(self) -> bool:
        """Whether the loss is −log P of the tokens, so that it may be stated as bits per byte."""

    @abstractmethod
    def gradient(self, batch: Batch | Segment) -> Loss:
        """Compute the loss and add its gradient."""

    @abstractmethod
    def figures(self, batch: Batch | Segment) -> dict[str, float]:
        """What the objective tells of the model as it is, on a batch that follows those it has learnt from."""

    @abstractmethod
    def memory(self) -> list[Tensor]:
        """What must be saved, beside weights and optimizer, to go on exactly."""

    @abstractmethod
    def remember(self, memory: Sequence[Tensor]) -> None:
        """Put back what `memory` gave."""

    def precision(self) -> contextlib.AbstractContextManager[object]:
        if not self.half:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


@final
class WholeTargets(Learner):
    """A model, by its own objective."""

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
        chance = self.model.draw_noise(batch)
        total = 0.0
        for rows in torch.arange(len(chance), device=self.device).chunk(self.pieces):
            with self.precision():
                loss = self.loss(_rows_of(batch, rows), chance[rows], smoothing=self.smoothing)
                (loss / tokens).backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return Loss(total, tokens)

    def figures(self, batch: Batch | Segment) -> dict[str, float]:
        return {}

    def memory(self) -> list[Tensor]:
        return []

    def remember(self, memory: Sequence[Tensor]) -> None:
        pass


class NextTokens(Learner):
    """A model of the next token, by any objective over its hidden vectors."""

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
    def figures(self, batch: Batch | Segment) -> dict[str, float]:
        if not isinstance(self.objective, ReportsMetrics):
            return {}
        with self.precision():
            return self.objective.metrics(self.model, self.look(batch)[:REPORTED_ROWS])

    @abstractmethod
    def look(self, batch: Batch | Segment) -> Tensor:
        """Hidden vectors (N, D) of the predictions of a batch; the learner stays as it was."""

    def _backward(self, objective: Objective, hidden: Tensor, targets: Tensor, tokens: int) -> float:
        loss = objective(self.model, hidden, targets)
        (loss / tokens).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())


@final
class WholeSequences(NextTokens):
    """Every row begins at its BOS: documents, and windows cut from a stream."""

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

    def look(self, batch: Batch | Segment) -> Tensor:
        assert isinstance(batch, Batch)
        batch = batch.to(self.model.device)
        return self.hidden(batch)[batch.target.mask]

    def memory(self) -> list[Tensor]:
        return []

    def remember(self, memory: Sequence[Tensor]) -> None:
        pass


@final
class CarriedSegments(NextTokens):
    """Truncated back-propagation: rows are lanes through a stream, and the state of one segment begins the next."""

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.state: State | None = None

    def gradient(self, batch: Batch | Segment) -> Loss:
        assert isinstance(batch, Segment)
        device = self.model.device
        inputs, targets = batch.inputs.to(device), batch.targets.to(device)
        if batch.fresh or self.state is None:
            self.state = self._beginning(len(inputs))
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

    def look(self, batch: Batch | Segment) -> Tensor:
        assert isinstance(batch, Segment)
        inputs = batch.inputs.to(self.model.device)
        before = self._beginning(len(inputs)) if batch.fresh or self.state is None else self.state
        state: State = map_state(torch.clone, before)  # reading may use it up
        return self.advance(inputs, state).hidden.flatten(0, 1)

    def memory(self) -> list[Tensor]:
        return [] if self.state is None else [tensor.clone().contiguous() for tensor in tensors(self.state)]

    def remember(self, memory: Sequence[Tensor]) -> None:
        if memory:
            saved = iter(memory)
            self.state = map_state(lambda blank: next(saved).to(blank), self._beginning(len(memory[0])))

    def _beginning(self, rows: int) -> State:
        with torch.no_grad():
            return self.model.start(batch_size=rows).state


def _cut(batch: Batch, pieces: int) -> Iterable[Batch]:
    """The rows of a batch in at most so many pieces."""
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
