"""By which number results are ranked.

A longer text has a lower probability, so a search that ranks by log P alone prefers short texts. A normaliser is what
log P is divided by; it is a function of the length and of one number, the length penalty α, and it is monotone in the
length, which is what lets a beam search know when it is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Normaliser: TypeAlias = Callable[[int, float], float]
"""(length, α) to what log P is divided by. The length counts EOS, as the probability does, and never the prompt."""


def power(length: int, penalty: float) -> float:
    """length^α: α = 0 ranks by probability, α = 1 by the mean per token."""
    return float(length**penalty)


def wu(length: int, penalty: float) -> float:
    """((5 + length) / 6)^α (Wu et al. 2016, equation 14): the same in the long run, gentler with short texts."""
    return float(((5 + length) / 6) ** penalty)


NORMALISERS: Mapping[str, Normaliser] = {"power": power, "wu": wu}

UNSEEN = 1e-6
"""The least attention that a source token counts as having: a token that nothing looked at is bad, not impossible."""


def coverage(attention: Tensor, source_length: int) -> float:
    """Σ_s log min(Σ_t attention_ts, 1) of attention (T, S): 0 where every source token was looked at in full.

    (Wu et al. 2016, equation 14.) What a translation leaves out is what it hardly looks at.
    """
    looked = attention[:, :source_length].sum(0).clamp(UNSEEN, 1.0)
    return math.fsum(torch.log(looked).tolist())
