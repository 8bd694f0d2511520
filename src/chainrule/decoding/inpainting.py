"""Inpainting: sample the unknown tokens of a sequence of which some later tokens are known.

An autoregressive model gives P(x_t | x_<t), so a token that is sampled from it ignores what is known behind it. A
particle filter accounts for that (Gordon et al. 1993): N sequences are sampled in parallel, known tokens are inserted,
and each sequence is weighted by the probability it gave to them. When few sequences have most of the weight, N of them
are drawn anew in proportion to it. As N grows, a draw from the last sequences is one from P(unknown | known).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.decoding.sampling import Sampling, filter_logits
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.types import Sequences, Step, select


class Particles(NamedTuple):
    """The sequences of a particle filter after some positions."""

    ids: Tensor  # (N, T); what is neither sampled nor known yet is 0
    log_weights: Tensor  # (N,) since the last resampling
    position: int  # number of positions that are done

    @property
    def best(self) -> int:
        """The row with the largest weight."""
        return int(self.log_weights.argmax())


@torch.inference_mode()
def inpaint(
    model: AutoregressiveModel,
    given: Sequence[int | None],
    *,
    particles: int = 16,
    sampling: Sampling | None = None,
    seed: int = 0,
    source: Sequences | None = None,
) -> Iterator[Particles]:
    """Sample the positions where `given` is None, and yield the particles after every position.

    `source` has one row. The positions before the first unknown one are read at once.
    """
    if particles < 1:
        raise DecodingError(f"the number of particles is {particles}; it must be at least 1")
    rules = sampling or Sampling()
    generator = torch.Generator().manual_seed(seed)
    ids = torch.tensor([0 if value is None else value for value in given]).expand(particles, -1).clone()
    log_weights = torch.zeros(particles, dtype=torch.float64)
    begin = next((position for position, value in enumerate(given) if value is None), len(given))
    step = _read_prefix(model, ids[:1, :begin], source, particles)
    yield Particles(ids, log_weights, begin)
    for position in range(begin, len(given)):
        log_probs = F.log_softmax(step.logits[:, -1].double().cpu(), -1)
        known = given[position]
        if known is None:
            probabilities = filter_logits(log_probs, rules).softmax(-1)
            ids[:, position] = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        else:
            log_weights = log_weights + log_probs[:, known]
            step, ids, log_weights = _resampled(step, ids, log_weights, generator)
        if position + 1 < len(given):
            step = model.step(ids[:, position].to(model.device), step.state)
        yield Particles(ids, log_weights, position + 1)


def _read_prefix(model: AutoregressiveModel, prefix: Tensor, source: Sequences | None, rows: int) -> Step:
    """Read the known beginning once, and repeat the state for every particle."""
    step = model.start(source)
    if prefix.shape[1]:
        step = model.extend(prefix.to(model.device), step.state)
    every = torch.zeros(rows, dtype=torch.int64, device=model.device)
    return Step(step.logits[:, -1:].expand(rows, -1, -1), select(step.state, every))


def _resampled(step: Step, ids: Tensor, log_weights: Tensor, generator: torch.Generator) -> tuple[Step, Tensor, Tensor]:
    """Draw the particles anew if the effective number of them is below half."""
    weights = log_weights.softmax(0)
    if 1 / float(weights.square().sum()) >= len(weights) / 2:
        return step, ids, log_weights
    rows = torch.multinomial(weights, len(weights), replacement=True, generator=generator)
    chosen = rows.to(step.logits.device)
    return Step(step.logits[chosen], select(step.state, chosen)), ids[rows], torch.zeros_like(log_weights)
