"""Choosing the next token: pure functions of logits (B, V).

Filters return logits with minus infinity at the excluded tokens, so they compose in any order; `choose` applies them
in a fixed order. Randomness enters as Gumbel noise, one value per token and row, so what a row samples depends only on
its own noise and logits and never on the other rows of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, field_validator
from torch import Tensor

from chainrule.config import Settings
from chainrule.decoding.noise import KeyedNoise, row_noise

FORBIDDEN = -math.inf

MIN_TEMPERATURE = 1e-6
"""Lower temperatures are raised to this value: only the most probable token is left, and nothing overflows."""


class Sampling(Settings):
    """How a token is chosen from a prediction. By default it is sampled from the model's distribution."""

    greedy: bool = Field(False, description="take the most probable token; the filters below then have no effect")
    temperature: float = Field(1.0, gt=0, description="divides the logits: below 1 less random, above 1 more random")
    top_k: int | None = Field(None, ge=1, description="keep the k most probable tokens, and ties with the k-th")
    top_p: float | None = Field(None, gt=0, le=1, description="keep the smallest set of tokens with this probability")
    min_p: float | None = Field(None, ge=0, le=1, description="minimum probability relative to the most probable token")
    repetition_penalty: float = Field(1.0, gt=0, description="above 1: tokens of the prompt or output are less likely")

    @field_validator("temperature", mode="before")
    @classmethod
    def _positive(cls, value: Any) -> Any:
        if value == 0:
            raise ValueError("0 leaves nothing to sample; give a small one, such as 0.1, or decode greedily (--greedy)")
        return value


GREEDY = Sampling(greedy=True)


def choose(
    logits: Tensor,
    sampling: Sampling,
    gumbels: Tensor | None,
    *,
    seen: Tensor | None = None,
    suppressed: Tensor | None = None,
) -> Tensor:
    """Choose token ids (B,) from logits (B, V).

    `gumbels` (B, V) is the only source of randomness; greedy decoding does not use it. `seen` (B, V) marks the ids to
    which the repetition penalty applies, `suppressed` (N,) lists ids that are never chosen.
    """
    if seen is not None and sampling.repetition_penalty != 1.0:
        logits = penalise_repetition(logits, seen, sampling.repetition_penalty)
    if suppressed is not None:
        logits = logits.index_fill(-1, suppressed, FORBIDDEN)
    if sampling.greedy or gumbels is None:
        return logits.argmax(-1)
    return gumbel_max(filter_logits(logits, sampling), gumbels)


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits (B, V) divided by the temperature, minus infinity where top-k, top-p or min-p exclude a token."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.temperature != 1.0:
        logits = logits / max(sampling.temperature, MIN_TEMPERATURE)
    if sampling.top_k is not None:
        logits = keep_top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = keep_top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = keep_min_p(logits, sampling.min_p)
    return logits


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """CTRL's repetition penalty (Keskar et al. 2019, §4.1): divide the logits of seen ids by the penalty.

    Negative logits are multiplied instead, because dividing them would make the token more probable.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k most probable tokens and all ties with the k-th, so the result does not depend on a sort order."""
    if k >= logits.shape[-1]:
        return logits
    smallest_kept = logits.topk(k, dim=-1).values[:, -1:]  # (B, 1)
    return logits.masked_fill(logits < smallest_kept, FORBIDDEN)


def keep_top_p(logits: Tensor, mass: float) -> Tensor:
    """Nucleus sampling (Holtzman et al. 2020): keep the fewest most probable tokens whose probabilities reach `mass`.

    The most probable token is always kept. Ties are ordered by id.
    """
    if mass >= 1.0:
        return logits  # rounding of the cumulative sum must not drop the tail
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # (B, V): total probability of the more probable tokens
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= mass)
    return logits.masked_fill(dropped, FORBIDDEN)


def keep_min_p(logits: Tensor, fraction: float) -> Tensor:
    """Keep the tokens with at least `fraction` times the probability of the most probable one."""
    if fraction == 0.0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(fraction), FORBIDDEN)


def gumbel_max(logits: Tensor, gumbels: Tensor) -> Tensor:
    """Sample ids (B,) from softmax(logits): the argmax of logits plus Gumbel noise.

    This is the Gumbel-max trick (Gumbel 1954, §5; Maddison et al. 2014). Two models that sample with the same noise
    mostly choose the same token, nearly as often as their distributions overlap (Daliri et al. 2024), so draft tokens
    can be sampled with the noise that the target model will use (see `speculative`). A token without probability has
    a logit of minus infinity and is never sampled.
    """
    return (logits + gumbels).argmax(-1)


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """The type for noise and for sums over a text: float64, except on Apple GPUs, which do not support it."""
    return torch.float32 if device.type == "mps" else torch.float64


class Gumbels:
    """A stream of Gumbel noise for each row from its own seed: one value −log E per token, with E exponential.

    The noise is generated on the CPU (see `noise`). The values at position n of a row depend only on its seed and n,
    and not on how far ahead they are requested or on the other rows.
    """

    def __init__(self, seeds: Sequence[int], vocabulary: int, device: torch.device) -> None:
        self._rows = [row_noise(seed, vocabulary) for seed in seeds]
        self._device = device

    def peek(self, count: int) -> Tensor:
        """The noise (B, count, V) of the next positions of each row, without consuming it."""
        rows = [row.peek(count) for row in self._rows]
        found = rows[0][None] if len(rows) == 1 else torch.stack(rows)
        return found.to(self._device, accumulation_dtype(self._device))

    def peek_array(self, row: int, count: int) -> npt.NDArray[np.float64]:
        """The noise (count, V) of one row as an array, on the CPU."""
        found: npt.NDArray[np.float64] = self._rows[row].peek(count).numpy()
        return found

    def peek_keys(self, count: int) -> npt.NDArray[np.float64] | None:
        """The keys (B, count, 1) from which the noise of the next positions can be computed, if there are any."""
        keys = [row.keys(count) for row in self._rows if isinstance(row, KeyedNoise)]
        return np.stack(keys)[..., None] if len(keys) == len(self._rows) else None

    def consume(self, counts: Sequence[int]) -> None:
        """Advance each row by a number of positions."""
        for row, count in zip(self._rows, counts, strict=True):
            row.consume(count)

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with a subset of the rows."""
        self._rows = [self._rows[row] for row in rows]
