"""Which token comes next: pure functions on logits (B, V).

The filters give logits back, with minus infinity at the tokens that may not be chosen, so they compose in any order;
`choose` applies them in one fixed order. Chance comes in as Gumbel noise, a number for each token of each row: what a
row draws depends on its own noise and its own logits, never on the rows beside it.
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
    gumbels: Tensor | None,
    *,
    seen: Tensor | None = None,
    suppressed: Tensor | None = None,
) -> Tensor:
    """(B,) ids chosen from logits (B, V).

    `gumbels` (B, V) are all the chance there is; greedy choice does without. `seen` (B, V) marks the ids that the
    repetition penalty is for, `suppressed` (N,) lists ids that are never chosen.
    """
    if seen is not None and sampling.repetition_penalty != 1.0:
        logits = penalise_repetition(logits, seen, sampling.repetition_penalty)
    if suppressed is not None:
        logits = logits.index_fill(-1, suppressed, FORBIDDEN)
    if sampling.greedy or gumbels is None:
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
    return draw(logits, gumbels)


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


def draw(logits: Tensor, gumbels: Tensor) -> Tensor:
    """(B,) ids: the largest sum of logit and noise, which is each token as often as softmax(logits) says.

    That is the Gumbel-max trick (Gumbel 1954, §5; Maddison et al. 2014). Its gift here is that two models which draw
    with the same noise mostly draw the same token, nearly as often as their distributions overlap (Daliri et al.
    2024): a draft can be guessed with the very noise that the model itself will choose by (see `speculative`). A token
    without mass stays at minus infinity and is never drawn.
    """
    return (logits + gumbels).argmax(-1)


def precision(device: torch.device) -> torch.dtype:
    """The type in which chance and sums over a text are kept: float64, except on Apple GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


class Gumbels:
    """A stream of noise for each row, from a seed of its own: a number for every token, −log E with E exponential.

    Drawn on the CPU, many positions in one call. The numbers of a row's n-th position depend on its seed and n alone,
    so it makes no difference how many positions are looked at ahead, nor which rows are beside it.
    """

    POSITIONS, NUMBERS = 64, 1 << 14  # drawn in one call for a row, at most, though always those of one position

    def __init__(self, seeds: Sequence[int], vocabulary: int, device: torch.device) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._vocabulary = vocabulary
        self._positions = max(1, min(self.POSITIONS, self.NUMBERS // vocabulary))
        self._device = device
        self._drawn = [torch.empty(0, vocabulary, dtype=precision(device), device=device) for _ in seeds]
        self._used = [0] * len(seeds)  # positions of each row's `_drawn` that it has passed

    def ahead(self, count: int) -> Tensor:
        """(B, count, V): the noise of the next positions of each row, which it has not passed by that."""
        for row, used in enumerate(self._used):
            while len(self._drawn[row]) < used + count:
                self._draw(row)
                used = self._used[row]
        rows = [drawn[used : used + count] for drawn, used in zip(self._drawn, self._used, strict=True)]
        return rows[0][None] if len(rows) == 1 else torch.stack(rows)

    def pass_by(self, counts: Sequence[int]) -> None:
        """Each row has gone on by so many positions."""
        self._used = [used + count for used, count in zip(self._used, counts, strict=True)]

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only."""
        self._generators = [self._generators[row] for row in rows]
        self._drawn = [self._drawn[row] for row in rows]
        self._used = [self._used[row] for row in rows]

    def _draw(self, row: int) -> None:
        """More noise for a row, and none of what it has passed."""
        exponentials = torch.empty(self._positions, self._vocabulary, dtype=precision(self._device))
        exponentials.exponential_(generator=self._generators[row])
        more = exponentials.log_().neg_().to(self._device)
        self._drawn[row] = torch.cat([self._drawn[row][self._used[row] :], more])
        self._used[row] = 0
