"""Which token comes next: pure functions on logits (B, V).

The filters give logits back, with minus infinity at the tokens that may not be chosen, so they compose in any order;
`choose` applies them in one fixed order. Chance comes in as one number in [0, 1) for each row: what a row draws
depends on its own number and its own logits, never on the rows beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from chainrule.config import Settings

FORBIDDEN = -math.inf

COLDEST = 1e-6
"""Temperatures below this one draw as it does: only the likeliest token is left, and nothing overflows yet."""


class Sampling(Settings):
    """How a token is chosen from a prediction. The default is to draw from the model's own distribution."""

    greedy: bool = Field(False, description="always take the likeliest token; the filters below then change nothing")
    temperature: float = Field(1.0, gt=0, description="logits are divided by it: below 1 is safer, above 1 is wilder")
    top_k: int | None = Field(None, ge=1, description="only the k likeliest tokens; those level with the k-th stay too")
    top_p: float | None = Field(None, gt=0, le=1, description="only the likeliest tokens that together have this mass")
    min_p: float | None = Field(None, ge=0, le=1, description="only tokens this likely relative to the likeliest")
    repetition_penalty: float = Field(1.0, gt=0, description="above 1: ids in the prompt or output are less likely")


GREEDY = Sampling(greedy=True)


def choose(
    logits: Tensor,
    sampling: Sampling,
    uniforms: Tensor,
    *,
    seen: Tensor | None = None,
    suppressed: Tensor | None = None,
) -> Tensor:
    """(B,) ids chosen from logits (B, V).

    `uniforms` (B,) in [0, 1) is all the chance there is; greedy choice does not look at it. `seen` (B, V) marks the
    ids that the repetition penalty is for, `suppressed` (N,) lists ids that are never chosen.
    """
    if seen is not None and sampling.repetition_penalty != 1.0:
        logits = penalise_repetition(logits, seen, sampling.repetition_penalty)
    if suppressed is not None:
        logits = logits.index_fill(-1, suppressed, FORBIDDEN)
    if sampling.greedy:
        return logits.argmax(-1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.temperature != 1.0:
        logits = logits / max(sampling.temperature, COLDEST)
    if sampling.top_k is not None:
        logits = keep_top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = keep_top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = keep_min_p(logits, sampling.min_p)
    return draw(logits, uniforms)


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """CTRL's penalty (Keskar et al. 2019, §4.1): divide the logits of seen ids by it.

    A negative logit is multiplied instead, because dividing it would make the token likelier.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k likeliest tokens and those level with the k-th: which of equals stays is not left to a sort."""
    if k >= logits.shape[-1]:
        return logits
    smallest_kept = logits.topk(k, dim=-1).values[:, -1:]  # (B, 1)
    return logits.masked_fill(logits < smallest_kept, FORBIDDEN)


def keep_top_p(logits: Tensor, mass: float) -> Tensor:
    """The nucleus (Holtzman et al. 2020): the fewest tokens, likeliest first, whose probabilities reach `mass`.

    The first token always stays: nothing lies before it. Of equals the lower id comes first.
    """
    if mass >= 1.0:
        return logits  # rounding in the running sum must not cost the tail its place
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # (B, V): the mass of the likelier tokens
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= mass)
    return logits.masked_fill(dropped, FORBIDDEN)


def keep_min_p(logits: Tensor, share: float) -> Tensor:
    """The tokens at least `share` times as likely as the likeliest, which therefore always stays."""
    if share == 0.0:
        return logits
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(share), FORBIDDEN)


def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """(B,) ids by inverse CDF: the first token at which the running sum of probabilities passes the uniform number.

    The number is scaled by the whole sum, so that it stays below it whatever the rounding; a token without mass does
    not move the running sum and is never the first to pass. Logits that are not numbers give the last id. The sum is
    kept in the precision of the uniforms, since that of the logits would blur the tail of a large vocabulary.
    """
    running = logits.softmax(-1).cumsum(-1, dtype=uniforms.dtype)  # (B, V)
    thresholds = uniforms * running.select(1, -1)
    passed = torch.searchsorted(running, thresholds.unsqueeze(1), right=True)  # (B, 1)
    return passed.squeeze(1).clamp_(max=logits.shape[-1] - 1)


def precision(device: torch.device) -> torch.dtype:
    """The type in which sums over a vocabulary or a text are kept: float64, except on Apple GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


class Uniforms:
    """A stream of numbers in [0, 1) for each row, from a seed of its own.

    Drawn on the CPU in blocks of fixed size: one call for many steps, and the n-th number of a row depends on its
    seed and n alone.
    """

    BLOCK = 64

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._device = device
        self._block = torch.empty(len(seeds), 0)  # (B, BLOCK) once it has been filled
        self._used = 0

    def draw(self) -> Tensor:
        """(B,), the next number of each row."""
        if self._used == self._block.shape[1]:
            rows = [
                torch.rand(self.BLOCK, generator=generator, dtype=precision(self._device))
                for generator in self._generators
            ]
            self._block = torch.stack(rows).to(self._device)
            self._used = 0
        self._used += 1
        return self._block.select(1, self._used - 1)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self._generators = [self._generators[row] for row in rows]
        self._block = self._block[list(rows)]
