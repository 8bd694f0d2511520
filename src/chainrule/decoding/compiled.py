"""Generation by compiled steps: many tokens per call, chosen without returning to Python.

The number of tokens per call follows the time that a step takes, so that a text still streams. A call returns when half
of its rows have ended. A row that ends before is read further until then; what it would generate is dropped, since rows
do not influence each other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from chainrule.decoding.sampling import MIN_TEMPERATURE, Sampling
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import TokenGenerator
from chainrule.kernels import step
from chainrule.kernels.instructions import Program
from chainrule.kernels.step import Choices, Compilable
from chainrule.types import State

SECONDS_PER_CALL = 0.05
MAX_TOKENS_PER_CALL = 64

_seconds_per_step: WeakKeyDictionary[nn.Module, dict[int, float]] = WeakKeyDictionary()
"""The least that was measured, by model and number of rows: a short text is too short to find it out."""


class CompiledGeneration:
    """Continues the rows of a batch by the program of their model, each until the token `end`, if there is one."""

    def __init__(
        self, model: AutoregressiveModel, sampling: Sampling, suppressed: Sequence[int], end: int | None
    ) -> None:
        self.model = model
        self.greedy = sampling.greedy
        self.rules = np.array(
            [
                max(sampling.temperature, MIN_TEMPERATURE),
                sampling.top_k or 0,
                1.0 if sampling.top_p is None else sampling.top_p,
                sampling.min_p or 0.0,
            ]
        )
        self.suppressed = np.array(sorted(set(suppressed)), dtype=np.int64)
        self.end = end
        self._seconds = _seconds_per_step.setdefault(model, {})
        self._program: Program | None = None  # the weights do not change during a generation

    @staticmethod
    def of(
        model: AutoregressiveModel, sampling: Sampling, suppressed: Sequence[int], end: int | None = None
    ) -> CompiledGeneration | None:
        """None if the model has no program, or if the choice of a token depends on the earlier ones."""
        is_compiled = isinstance(model, TokenGenerator) or (isinstance(model, Compilable) and step.has_program(model))
        if not is_compiled or sampling.repetition_penalty != 1.0:
            return None
        return CompiledGeneration(model, sampling, suppressed, end)

    @property
    def takes_keys(self) -> bool:
        """Whether the model computes noise where it needs it, from the keys of positions: if nothing is filtered."""
        _, top_k, top_p, min_p = self.rules
        return isinstance(self.model, TokenGenerator) and top_k == 0 and top_p == 1.0 and min_p == 0.0

    def is_applicable(self, rows: int) -> bool:
        """Whether a batch of so many rows is continued by a program."""
        return step.is_applicable(self.model, torch.empty(rows, 1, dtype=torch.int64, device=self.model.device))

    def seconds_per_step(self, rows: int) -> float | None:
        """What a step of so many rows takes, as measured in this process; None if it was not."""
        return self._seconds.get(rows)

    def tokens_per_call(self, rows: int) -> int:
        """As many as fit into the time of a call; 1 as long as that is not known."""
        seconds = self._seconds.get(rows, SECONDS_PER_CALL)
        return int(min(max(SECONDS_PER_CALL / seconds, 1), MAX_TOKENS_PER_CALL))

    def read(
        self,
        tokens: Tensor,
        state: State,
        noise: npt.NDArray[np.float64],
        ended: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[Choices, State] | None:
        """Read a token (B,) in each row and choose the next, at most as many times as there is noise (B, S, V or 0).

        Rows that have `ended` are not waited for.
        """
        rows, began = len(tokens), time.perf_counter()
        found = self._generate(tokens, state, noise, np.zeros(rows, np.bool_) if ended is None else ended)
        if found is not None:
            seconds = (time.perf_counter() - began) / found[0].ids.shape[1]
            self._seconds[rows] = min(seconds, self._seconds.get(rows, seconds))
        return found

    def _generate(
        self, tokens: Tensor, state: State, noise: npt.NDArray[np.float64], ended: npt.NDArray[np.bool_]
    ) -> tuple[Choices, State] | None:
        if isinstance(self.model, TokenGenerator):
            return self.model.generate(tokens, state, noise, self.rules, self.suppressed)
        assert isinstance(self.model, Compilable)
        program = self._program = self._program or step.program_of(self.model)
        if program is None or noise.shape[1] > self.model.room(state):
            return None
        state = self.model.make_room(state, noise.shape[1])
        rules = np.tile(self.rules, (len(tokens), 1))
        return step.generate(program, tokens, state, noise, rules, self.suppressed, ended, self.end), state
