"""The rows of the engine: what is being decoded for each request.

Row             one request
├── StepRow     ... one token at a time: by a compiled step together with others, or by itself
└── BlockRow    ... by a decoder that finds several tokens at once: drafts, or blocks in one pass

A row computes the same numbers in any company. Prompts are read in chunks of their own; compiled steps round every row
in the same order (`kernels.products`); a model without a compiled step is advanced row by row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.decoding.generation import Finish, check_request, stream_tokens, token_log_probs
from chainrule.decoding.incremental import IncrementalReader
from chainrule.decoding.one_pass import decodes_in_one_pass
from chainrule.decoding.sampling import MIN_TEMPERATURE, Gumbels, choose
from chainrule.errors import NotANumber
from chainrule.kernels import step as kernels
from chainrule.kernels.step import Choices, Compilable, RowState
from chainrule.serving.prefix_cache import PrefixCache
from chainrule.serving.requests import Alternative, Request, Ticket, Token
from chainrule.types import Step

CHUNK = 32
"""Tokens of a prompt that are read at once: as many as a compiled step takes."""

ROOM = 64
"""Tokens for which a state gets room in advance. Between two compiled steps no torch operation is called: each releases
Python's lock, and getting it back from the event loop takes longer than the operation."""


class Row(ABC):
    """A request that is being decoded."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.request: Request = ticket.request
        self.generated: list[int] = []

    @property
    @abstractmethod
    def is_reading(self) -> bool:
        """Whether the row has to read tokens before it can advance."""

    @abstractmethod
    def advance(self) -> list[Token]:
        """The next tokens, by itself."""

    def finish_of(self, token: int) -> Finish | None:
        """Append a token, and say whether the text ends with it."""
        self.generated.append(token)
        request = self.request
        if token == request.eos:
            return "eos"
        if request.stop is not None and request.stop(self.generated):
            return "stop"
        return "length" if len(self.generated) == request.max_tokens else None


class BlockRow(Row):
    """A row that is decoded by `stream_tokens`."""

    is_reading = False

    def __init__(self, ticket: Ticket) -> None:
        super().__init__(ticket)
        request = self.request
        self._steps = stream_tokens(
            request.model,
            [list(request.prompt)],
            length=request.max_tokens,
            sampling=request.sampling,
            seeds=[request.seed],
            eos=request.eos,
            suppress=request.suppress,
            stop=request.stop,
            source=request.source,
            draft=request.draft,
        )

    def advance(self) -> list[Token]:
        return [Token(token.id, token.log_prob, token.finished) for token in next(self._steps)]


class StepRow(Row):
    """A row with a state of its own that stays where it is while the row is decoded with others."""

    def __init__(self, ticket: Ticket, cache: PrefixCache) -> None:
        super().__init__(ticket)
        request = self.request
        model = request.model
        prompts = [request.prompt]
        rules = {"eos": request.eos, "suppress": request.suppress, "source": request.source}
        check_request(model, prompts, length=request.max_tokens, **rules)  # type: ignore[arg-type]
        self.history = list(request.prompt)
        self._reader = IncrementalReader(model, request.source)
        self._cache = cache if request.source is None else None
        sampling = request.sampling
        self._gumbels = None if sampling.greedy else Gumbels([request.seed], model.vocabulary, model.device)
        self._suppressed = (
            torch.tensor(sorted(set(request.suppress)), device=model.device) if request.suppress else None
        )
        self._seen: Tensor | None = None
        if sampling.repetition_penalty != 1.0:
            self._seen = torch.zeros(1, model.vocabulary, dtype=torch.bool, device=model.device)
            self._seen[0, self.history] = True
        self.rules = np.array(
            [
                0.0 if sampling.greedy else max(sampling.temperature, MIN_TEMPERATURE),
                sampling.top_k or 0,
                1.0 if sampling.top_p is None else sampling.top_p,
                sampling.min_p or 0.0,
            ]
        )
        self._has_program = (
            isinstance(model, Compilable)
            and kernels.has_program(model)
            and kernels.is_applicable(model, torch.zeros(1, 1, dtype=torch.int64, device=model.device))
            and kernels.program_of(model) is not None
            and self._seen is None
        )
        self._row_state: RowState | None = None
        self._spare = 0  # tokens for which the row state has room
        self._begin()

    # Reading

    def _begin(self) -> None:
        """Read what is visible of the text, from its start."""
        visible = len(self.history) if self._reader.window is None else self._reader.window.visible(len(self.history))
        self._view = self.history[len(self.history) - visible :]
        self._done: int = 0
        self._step: Step | None = None
        self._row_state = None
        caches = self._cache is not None and not self.generated
        if self._cache is not None and caches and (found := self._cache.find(self.request.model, self._view)):
            self._done, self._step = found
            self.ticket.cached_tokens = found.length
        if self._step is None:
            self._step = self.request.model.start(self.request.source, batch_size=1)
            if self._cache is not None and caches:
                self._cache.keep(self.request.model, [], self._step)
        self._reading = True

    @property
    def is_reading(self) -> bool:
        """Whether tokens of the prompt, or of a window that has moved, are still to be read."""
        return self._reading

    def read(self) -> tuple[int, list[Token]]:
        """Read the next chunk: the number of tokens, and the first new token if it was the last chunk."""
        assert self._step is not None
        model = self.request.model
        count = min(CHUNK, len(self._view) - self._done)
        if count:
            chunk = self._view[self._done : self._done + count]
            self._step = model.extend(torch.tensor([chunk], dtype=torch.int64, device=model.device), self._step.state)
            self._done += count
            if self._cache is not None and not self.generated and count == CHUNK:
                self._cache.keep(model, self._view[: self._done], self._step)
        if self._done < len(self._view):
            return count, []
        self._reading = False
        return count, [self._choose(self._step.logits[:, -1])]

    # Generating

    def advance(self) -> list[Token]:
        assert self._step is not None
        model = self.request.model
        token = torch.tensor([self.history[-1]], device=model.device)
        self._step = model.step(token, self._step.state)
        self._row_state = None
        return [self._choose(self._step.logits[:, -1])]

    def _choose(self, logits: Tensor) -> Token:
        """Choose a token from logits (1, V)."""
        noise = None if self._gumbels is None else self._gumbels.peek(1)[:, 0]
        chosen = int(choose(logits, self.request.sampling, noise, seen=self._seen, suppressed=self._suppressed))
        [log_prob] = token_log_probs(logits, [chosen])
        if self._gumbels is not None:
            self._gumbels.consume([1])
        if self._seen is not None:
            self._seen[0, chosen] = True
        return self._append(chosen, log_prob, self.alternatives(logits[0]))

    def _append(self, token: int, log_prob: float, alternatives: tuple[Alternative, ...] = ()) -> Token:
        self.history.append(token)
        finished = self.finish_of(token)
        if finished is None and self._reader.window is not None and self._reader.window.moves_at(len(self.history)):
            self._begin()
        return Token(token, log_prob, finished, alternatives)

    def alternatives(self, logits: Tensor) -> tuple[Alternative, ...]:
        """The most probable tokens under logits (V,), if they are asked for."""
        if not self.request.alternatives:
            return ()
        log_probs = F.log_softmax(logits.double(), -1)
        best = log_probs.topk(min(self.request.alternatives, len(log_probs)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(Alternative(token, log_prob) for token, log_prob in pairs)

    # Together with others, by a compiled step

    @property
    def is_compiled(self) -> bool:
        """Whether the next token is read by a compiled step."""
        return self._has_program and self.room >= 1

    @property
    def room(self) -> float:
        """Number of tokens that can be read before the window of the model, or of a part of it, moves."""
        assert self._step is not None
        return min(self._reader.room(len(self.history) - 1), kernels.room(self.request.model, self._step.state))

    @property
    def remaining(self) -> int:
        return self.request.max_tokens - len(self.generated)

    def row_state(self, count: int) -> RowState:
        """The state with room for more tokens, in the form that compiled steps take."""
        if self._row_state is None or self._spare < count:
            model = self.request.model
            assert isinstance(model, Compilable)
            assert self._step is not None
            self._spare = int(max(count, min(ROOM, self.room, self.remaining)))
            state = model.make_room(self._step.state, self._spare)
            self._step = self._step._replace(state=state)
            self._row_state = RowState(state)
        return self._row_state

    def noise(self, count: int) -> npt.NDArray[np.float64] | None:
        """Noise (count, V) for the next tokens; None if they are chosen greedily."""
        return None if self._gumbels is None else self._gumbels.peek_array(0, count)

    def accept(self, choices: Choices, row: int, logits: Tensor) -> list[Token]:
        """Append the tokens that a compiled step has chosen for a row of its batch; those past the end are dropped."""
        if np.isnan(choices.log_probs[row]).any():
            raise NotANumber()
        ids, log_probs = choices.ids[row].tolist(), choices.log_probs[row].tolist()
        self._spare -= len(ids)
        if self._gumbels is not None:
            self._gumbels.consume([len(ids)])
        tokens: list[Token] = []
        for token, log_prob in zip(ids, log_probs, strict=True):
            is_last = len(tokens) == len(ids) - 1
            others = self.alternatives(logits[row]) if self.request.alternatives and is_last else ()
            tokens.append(self._append(token, log_prob, others))
            if tokens[-1].finished is not None:
                break
        return tokens


def row_for(ticket: Ticket, cache: PrefixCache) -> Row:
    """A row of the kind that a request needs."""
    request = ticket.request
    if request.draft is not None or (decodes_in_one_pass(request.model) and request.source is None):
        return BlockRow(ticket)
    return StepRow(ticket, cache)


class CompiledSteps(NamedTuple):
    """The next tokens of some rows, and the logits (B, V) of the last."""

    rows: Sequence[StepRow]
    choices: Choices
    logits: Tensor


def compiled_steps(rows: Sequence[StepRow], count: int) -> CompiledSteps:
    """The next `count` tokens of rows of one model."""
    model = rows[0].request.model
    assert isinstance(model, Compilable)
    program = kernels.program_of(model)
    assert program is not None
    states = [row.row_state(count) for row in rows]
    noise = [row.noise(count) for row in rows]
    drawn = np.empty((len(rows), count, 0 if all(one is None for one in noise) else model.vocabulary))
    for row, one in enumerate(noise):
        if one is not None:
            drawn[row] = one
    tokens = np.array([row.history[-1] for row in rows], dtype=np.int64)
    suppressed = np.array(sorted(set(rows[0].request.suppress)), dtype=np.int64)
    rules = np.stack([row.rules for row in rows])
    return CompiledSteps(rows, *kernels.generate_separately(program, tokens, states, drawn, rules, suppressed))
