"""Beam search by compiled steps: ranking, the states of hypotheses and the model, many tokens per call.

It gives what `beam.Beam` defines, for models with a program and searches without a stopping criterion of the caller.
Prompts are searched in groups whose hypotheses are no more rows than a program may process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from chainrule.decoding.generation import Finish, Generation
from chainrule.decoding.incremental import IncrementalReader
from chainrule.errors import NotANumber
from chainrule.interface.base import AutoregressiveModel
from chainrule.kernels import step as kernels
from chainrule.kernels.instructions import Program
from chainrule.kernels.step import Compilable, HypothesisStates
from chainrule.types import Sequences, Step

if TYPE_CHECKING:
    from chainrule.decoding.beam import BeamRules, Normaliser
    from chainrule.kernels.beams import Beams

STEPS_PER_CALL = 16
MAX_WIDTH = 64  # of beams whose choices are sorted by insertion


class CompiledBeamSearch(NamedTuple):
    """The search of some prompts by the program of their model."""

    model: AutoregressiveModel
    program: Program
    rules: Sequence[BeamRules]  # of each prompt; they differ in the length
    suppressed: Sequence[int]
    source: Sequences | None

    @staticmethod
    @torch.inference_mode()
    def of(
        model: AutoregressiveModel,
        prompts: Sequence[Sequence[int]],
        rules: Sequence[BeamRules],
        suppressed: Sequence[int],
        source: Sequences | None,
    ) -> CompiledBeamSearch | None:
        """None where the model has no program, or torch modules have to read some of the tokens."""
        if (
            not isinstance(model, Compilable)
            or not kernels.has_program(model)
            or not rules
            or rules[0].stop is not None
        ):
            return None
        width = rules[0].width
        row = torch.empty(1, width, dtype=torch.int64, device=model.device)
        if width > MAX_WIDTH or not kernels.is_applicable(model, row):
            return None
        reader = IncrementalReader(model, source)
        if any(reader.room(len(prompt)) < one.length - 1 for prompt, one in zip(prompts, rules, strict=True)):
            return None
        program = kernels.program_of(model)
        return None if program is None else CompiledBeamSearch(model, program, rules, suppressed, source)

    @torch.inference_mode()
    def search(
        self, prompts: Sequence[Sequence[int]], progress: Callable[[float], None] | None
    ) -> list[list[Generation]] | None:
        """The best continuations of each prompt; None if torch modules have to change the state in between."""
        found: list[list[Generation]] = []
        size = max(1, kernels.max_rows() // self.rules[0].width)
        for start in range(0, len(prompts), size):
            group = slice(start, start + size)
            rules = self.rules[group]
            source = None if self.source is None else Sequences(self.source.ids[group], self.source.lengths[group])
            first = IncrementalReader(self.model, source).read(prompts[group], range(len(rules)))
            longest = max(one.length for one in rules)
            if kernels.room(self.model, first.state) < longest - 1:
                return None
            beams = new_beams(rules)
            for taken in self._grow(beams, first, longest):
                if progress is not None:
                    progress((start + len(rules) * taken / longest) / len(prompts))
            found += [_best(beams, prompt, one) for prompt, one in enumerate(rules)]
        return found

    def _grow(self, beams: Beams, first: Step, longest: int) -> Iterator[int]:
        """Search until no hypothesis is live; yields the number of tokens now and then."""
        states = HypothesisStates(self.program, first, len(beams.live) * self.rules[0].width)
        assert isinstance(self.model, Compilable)
        suppressed = np.array(sorted(set(self.suppressed)), dtype=np.int64)
        while beams.live.any():
            taken = int(beams.taken[0])
            steps = min(STEPS_PER_CALL, longest - taken)
            if taken + 1 < longest:  # the last token is not read
                states.state = self.model.make_room(states.state, min(steps, longest - 1 - taken))
            states.search(beams, steps, suppressed, self.rules[0].eos)
            if beams.taken[0] < 0:
                raise NotANumber()
            yield int(beams.taken[0])


def new_beams(rules: Sequence[BeamRules]) -> Beams:
    from chainrule.kernels.beams import Beams

    one = rules[0]
    limits = [of_prompt.length for of_prompt in rules]
    normalisers = _normalisers(one.normaliser, one.length_penalty, max(limits))
    return Beams.start(limits, one.width, one.num, normalisers, ended_first=one.ended_first)


@lru_cache(maxsize=256)
def _normalisers(normaliser: Normaliser, penalty: float, longest: int) -> tuple[float, ...]:
    """By length, from 0 on."""
    return (math.nan, *(normaliser(length, penalty) for length in range(1, longest + 1)))


def _best(beams: Beams, prompt: int, rules: BeamRules) -> list[Generation]:
    """The finished hypotheses by rank; ties in the order of finishing."""
    from chainrule.kernels.beams import BY_END

    count = int(beams.ended[prompt])
    log_probs = beams.finished_log_probs[prompt, :count].tolist()
    ranked = []
    for log_prob, record in zip(log_probs, beams.finished[prompt, :count].tolist(), strict=True):
        finish: Finish = "eos" if record[3] == BY_END else "length"
        ranked.append((rules.rank(log_prob, record[0], finish), log_prob, record, finish))
    ranked.sort(key=lambda entry: entry[0], reverse=True)  # stable
    found = []
    for _, log_prob, (length, rank, token, _), finish in ranked[: rules.num]:
        ids = [] if finish == "eos" else [token]
        for step in range(length - 2, -1, -1):
            ids.append(int(beams.tokens[prompt, step, rank]))
            rank = beams.parents[prompt, step, rank]
        found.append(Generation(ids[::-1], log_prob, finish))
    return found
